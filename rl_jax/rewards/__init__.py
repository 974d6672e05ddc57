"""Rewards: verifiers, a sentiment model, and the pool of processes that runs them. No jax."""
