"""Rollouts: lm samples token ids from language models, envs steps environments."""
