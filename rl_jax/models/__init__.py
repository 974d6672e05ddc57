"""Networks as pure functions over params."""
