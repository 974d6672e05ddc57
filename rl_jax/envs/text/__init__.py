"""Worlds of text: an environment answers what the model says (protocol), and tools are typed functions (tools)."""
