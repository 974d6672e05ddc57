"""What makes jax quicker in processes that compile many small programs once: first on the path of all that tests start.

conftest.py does the same in the tests' own processes, which search for garbage again once they run tests. Nothing here
changes what a program computes.
"""

import gc
import sys
import threading
from importlib.machinery import PathFinder

MODULE = "jax._src.interpreters.mlir"
LOWERINGS = 200


class SharedContexts:
    """Lowers so many programs in one MLIR context per thread, from the import of jax on.

    jax makes a context for each program, which costs more than a small program's own lowering. A context keeps all that
    was ever in it, so it is not used for ever.
    """

    def find_spec(self, name, path=None, target=None):
        """The spec of jax's module, whose contexts are shared once it has been executed."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_share(module):
            execute(module)
            if hasattr(module, "make_ir_context"):  # private to jax: a version without it is only slower
                module.make_ir_context = shared(module.make_ir_context)

        spec.loader.exec_module = execute_and_share
        return spec


def shared(make):
    """A context that `make` makes, the same for LOWERINGS calls of a thread."""
    own = threading.local()

    def context():
        own.left = getattr(own, "left", 0) - 1
        if own.left < 0:
            own.context, own.left = make(), LOWERINGS
        return own.context

    return context


# Tracing makes millions of short-lived objects: with Python's thresholds a tenth of the processor's time goes into the
# search for garbage among them. These processes end before what they leave matters.
gc.disable()
if MODULE not in sys.modules and not any(type(finder).__name__ == "SharedContexts" for finder in sys.meta_path):
    sys.meta_path.insert(0, SharedContexts())
