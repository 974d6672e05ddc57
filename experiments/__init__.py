"""Programs: one visible loop each, made to be forked. Run them from the root of the repository."""
