"""From records to batches of token ids: file readers, shuffled and resumable batches, encodings. No jax."""
