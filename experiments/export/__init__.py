"""A run as a folder or a repository of the Hub: see experiments/export/cli.py."""
