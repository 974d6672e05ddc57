"""Scores recorded answers without a model (see cli.py)."""
