"""Tools, each a command: python -m experiments.tools.NAME."""
