"""One file a published online method; `python -m experiments.tools.methods` prints the table of them all."""
