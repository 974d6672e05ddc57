"""Other libraries' GRPO on the work of experiments.bench.grpo, each run by a Python that has it installed."""
