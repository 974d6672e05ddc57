"""python -m experiments.frontier: held-out reward against KL(policy || reference) of several methods."""
