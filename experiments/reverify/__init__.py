"""Recomputes the rewards of a run's stored samples (see cli.py)."""
