"""What experiments.plan is made of: the programs of a run without arrays, and what their compiled form says."""
