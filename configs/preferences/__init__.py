"""Configs of preference learning: given pairs, sampled pairs, reward models, best-of-n."""
