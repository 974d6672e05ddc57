"""Configs are data: Python files whose get_config(arg) returns a ConfigDict. Run with --config=configs/FILE.py:arg."""
