"""Losses are arithmetic on arrays: log-probs, advantages and a mask go in, per-token values come out."""
