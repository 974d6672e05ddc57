"""Benchmarks, each a command: python -m experiments.bench.NAME. They print ratios within one run."""
