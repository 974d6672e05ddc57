"""python -m experiments.plan: what a run needs on a pod slice, from the TPU compiler, without a TPU."""
