"""The generation engines: token ids in, token ids out."""
