"""The decoder-only transformer: configuration, layers, attention, experts, decoding with a cache."""
