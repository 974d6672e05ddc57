"""What stands behind experiments.sweep and experiments.tune: points, the loop that runs them, launchers, tables."""
