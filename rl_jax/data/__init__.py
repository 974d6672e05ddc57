"""From records to batches of token ids: readers of files, shuffled and resumable batches, encodings. No jax."""
