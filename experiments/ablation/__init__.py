"""python -m experiments.ablation: checks a paper's claim with several arms and seeds."""
