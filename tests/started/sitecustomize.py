"""What makes processes quicker that compile and save small things once: first on the path of all that tests start.

conftest.py does the same in the tests' own processes, which search for garbage again once they run tests. Nothing here
changes what a program computes.
"""

import gc
import sys
import threading
from importlib.machinery import PathFinder

LOWERINGS = 200


class AfterImport:
    """Changes a module of jax as soon as it has been executed.

    Args:
      name: of the module.
      change: a function of the module.
    """

    def __init__(self, name: str, change):
        self.name, self.change = name, change

    def find_spec(self, name, path=None, target=None):
        """The spec of that module."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_change(module):
            execute(module)
            self.change(module)

        spec.loader.exec_module = execute_and_change
        return spec


def share_contexts(module):
    """Lowers so many programs in one MLIR context per thread.

    jax makes a context for each program, which costs more than a small program's own lowering. A context keeps all that
    was ever in it, so it is not used for ever.
    """
    if hasattr(module, "make_ir_context"):  # private to jax: a version without it is only slower
        module.make_ir_context = shared(module.make_ir_context)


def shared(make):
    """A context that `make` makes, the same for LOWERINGS calls of a thread."""
    own = threading.local()

    def context():
        own.left = getattr(own, "left", 0) - 1
        if own.left < 0:
            own.context, own.left = make(), LOWERINGS
        return own.context

    return context


def leave_writing_to_the_kernel(module):
    """A checkpoint is written without waiting for the disk: a hundred times a save, 2 to 14 ms each, on some disks.

    What is written is the kernel's, and outlives a process that is killed, as tests kill them; only a machine that
    stops would lose it.
    """
    for name in ("_BASE_TS_CONTEXT", "_DEFAULT_OCDBT_TS_CONTEXT"):  # private to orbax: without them it is only slower
        if isinstance(getattr(module, name, None), dict):
            getattr(module, name)["file_io_sync"] = False


# Tracing makes millions of short-lived objects: with Python's thresholds a tenth of the processor's time goes into the
# search for garbage among them. These processes end before what they leave matters.
gc.disable()
for _name, _change in (
    ("jax._src.interpreters.mlir", share_contexts),
    ("orbax.checkpoint._src.serialization.tensorstore_utils", leave_writing_to_the_kernel),
):
    if _name not in sys.modules and not any(getattr(finder, "name", "") == _name for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterImport(_name, _change))
