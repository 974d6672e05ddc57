"""Other libraries' GRPO on the work of experiments.bench_grpo, each run by a Python that has it installed."""
