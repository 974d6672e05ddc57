"""Environments of other libraries in our protocol, one module per library."""
