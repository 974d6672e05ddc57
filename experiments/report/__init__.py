"""python -m experiments.report: writes report.html for runs and sweeps."""
