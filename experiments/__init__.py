"""Programs: one visible loop each, made to be forked. Run them from the repository's root."""
