"""Runs that people come for, at their real sizes: model, data, hardware, command, and what others have published."""
