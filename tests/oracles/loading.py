"""Load a few modules of an installed package without the rest of it.

verl and TRL cannot be imported in one environment with each other's dependencies, and their `__init__` files start ray,
wandb, datasets and the like. Their arithmetic needs torch and numpy only. So the package is entered below its
`__init__`, its own modules are read from the installed files, and each module that serves no arithmetic is a stand-in.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import pathlib
import sys
import types
import warnings


class Nothing:
    """Stands for whatever is imported and never computed with: a base class, a decorator, a flag that is off."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __bool__(self):
        return False

    def __class_getitem__(cls, item):
        return cls


class StandIn(types.ModuleType):
    """A module in which every name is a new kind of Nothing."""

    __path__ = []
    __version__ = "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Nothing,), {})
        setattr(self, name, value)
        return value


class _Finder:
    """Answers every import at or below the given names with a stand-in."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if _below(name, self.names):
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


class Package:
    """The modules of one installed package, loaded apart from sys.modules.

    Args:
      name: the package, as it is imported and as it is installed.
      version: the version that the tests were written against; another one is refused.
      bare: packages whose `__init__` is not run; their modules are found in the installed folder.
      stand_ins: modules, with everything below them, that serve no arithmetic.
      folder: where it is installed, from requirements-<folder>.txt: a second version has a folder of its own.
    """

    def __init__(self, name, version, *, bare, stand_ins, folder="oracles"):
        requirements = f"requirements-{folder}.txt"
        folder = pathlib.Path(sys.prefix, folder)
        found = [d.version for d in importlib.metadata.distributions(name=name, path=[str(folder)])]
        if found != [version]:
            raise ImportError(
                f"the tests compare with {name} {version}; {folder} holds {found or 'no version of it'}: run "
                f"rm -rf {folder}; pip install --no-deps --target {folder} -r {requirements}"
            )
        self._name, self._finder = name, _Finder(tuple(stand_ins))
        self._modules = {}
        for dotted in (name, *bare):
            module = types.ModuleType(dotted)
            module.__path__ = [str(folder.joinpath(*dotted.split(".")))]
            module.__version__ = version
            self._modules[dotted] = module

    def load(self, dotted):
        """The module of that name, its own code run once; third-party warnings at import stay its own business."""
        with self.entered(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(dotted)

    def provide(self, dotted, **names):
        """Put names into a bare package (what its `__init__` would import) or into a stand-in (what must be real)."""
        vars(self.load(dotted)).update(names)

    @contextlib.contextmanager
    def entered(self):
        """sys.modules as the package's code expects it (also for imports inside its functions); then as it was."""
        names = (self._name, *self._finder.names)
        outside = {key: module for key, module in sys.modules.items() if _below(key, names)}
        for key in outside:
            del sys.modules[key]
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, self._finder)
        try:
            yield
        finally:
            sys.meta_path.remove(self._finder)
            self._modules = {key: module for key, module in sys.modules.items() if _below(key, names)}
            for key in self._modules:
                del sys.modules[key]
            sys.modules.update(outside)


def _below(name, names):
    return f"{name}.".startswith(_prefixes(names))


@functools.cache  # asked of every loaded module, thousands of them, at each import
def _prefixes(names):
    return tuple(f"{other}." for other in names)
