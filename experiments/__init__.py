"""Programs: one visible loop each, made to be forked. Run them from the root of the repository."""

import gc

# Imports and tracing make millions of short-lived objects. With Python's thresholds a seventeenth of a short
# run's processor time goes into the search for garbage among them.
gc.set_threshold(50_000, 10, 10)
