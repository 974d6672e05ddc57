"""Which groups, responses and reference policies a step trains on."""
