"""Published implementations, called on numpy arrays: what the losses are compared with, next to tests/numpy_loops."""
