"""A reward in a module that takes a second to import, as those of large libraries do."""

import time

time.sleep(1.0)


def one(prompt, completion, info):
    """Always 1."""
    return 1.0
