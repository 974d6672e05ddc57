"""Can be imported by the tests and not by a worker process."""
import sys

if "pytest" not in sys.modules:
    raise ImportError("this module only loads under pytest")


def reward(prompt, completion, info):
    """Never runs in a worker."""
    return {"reward": 1.0}
