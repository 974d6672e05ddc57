"""Objectives for stale rows, each for experiments.grpo_async; tests/configs/test_asynchronous.py holds each.

The first files are papers' methods on GRPO's own start; those that end in a version are presets, frozen as those of
configs/presets are, whose loss is the framework's own function.
"""
