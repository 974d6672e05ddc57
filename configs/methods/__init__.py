"""One file a published online method; `python -m experiments.methods` prints the table of them all."""
