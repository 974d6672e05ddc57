"""Configs of environments: classic control, probes, preferences between episodes."""
