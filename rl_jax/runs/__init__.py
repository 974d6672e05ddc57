"""A run's folder: metrics and samples as JSON lines, what the run was, progress, Parquet copies. No jax."""
