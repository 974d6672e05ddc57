"""python -m experiments.sweep and experiments.sweep.tune: points, the loop that runs them, launchers, tables."""
