"""Stepping policies in environments, and recording an episode."""
