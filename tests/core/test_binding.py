"""binding.py: functions by name, keywords bound, and errors that say what there is."""

import functools
import sys
import types

import pytest

from rl_jax import advantages
from rl_jax.core import binding
from rl_jax.losses import aggregate, kl, policy


@pytest.fixture
def module():
    """A small registry: two public functions, a private one, a class, a constant and an imported function."""

    def plain(x):
        return x

    def scaled(x, *, by=2, plus=0):
        return x * by + plus

    def _private(x):
        return x

    class Thing:
        pass

    module = types.ModuleType("toy")
    for member in (plain, scaled, _private, Thing):
        member.__module__ = "toy"
        setattr(module, member.__name__, member)
    module.wraps, module.LIMIT = functools.wraps, 3
    return module


def test_the_module_is_the_registry(module):
    assert set(binding.public_functions(module)) == {"plain", "scaled"}


def test_the_registries_of_the_recipe_hold_their_own_functions_only():
    assert set(binding.public_functions(kl)) >= {"k1", "k2", "k3"}
    assert "log_ratio" not in binding.public_functions(policy)  # a package offers what it re-exports
    assert "clipped_surrogate" in binding.public_functions(policy)
    assert "token_mean" in binding.public_functions(aggregate)
    assert "zero_masked" not in binding.public_functions(advantages)  # imported there, defined elsewhere


@pytest.mark.parametrize(
    "spec, expected",
    [
        ("plain", 5),
        ("scaled", 10),
        ({"fn": "scaled", "by": 3}, 15),
        ({"fn": "scaled", "by": 3, "plus": 1}, 16),
        (lambda x: -x, -5),
        ({"fn": lambda x, *, by: x - by, "by": 1}, 4),
        (functools.partial(lambda x, *, by, plus: x - by + plus, by=1, plus=0), 4),
    ],
    ids=["name", "name with defaults", "mapping", "two keywords", "function", "function in a mapping", "partial"],
)
def test_bind(module, spec, expected):
    assert binding.bind(spec, module)(5) == expected


def test_a_function_without_keywords_is_taken_as_it_is(module):
    assert binding.bind("plain", module, by=3) is module.plain


def test_program_defaults_go_to_those_who_take_them_and_lose_to_the_spec(module):
    assert binding.bind("scaled", module, by=7, group_size=4)(5) == 35
    assert binding.bind({"fn": "scaled", "by": 3}, module, by=7)(5) == 15
    own = functools.partial(module.scaled, by=3)
    assert binding.bind(own, module, by=7, plus=1)(5) == 16
    assert binding.bind({"fn": own, "by": 4}, module, by=7)(5) == 20


def test_a_function_with_any_keywords_takes_any(module):
    def open_ended(x, **keywords):
        return x, keywords

    assert binding.bind({"fn": open_ended, "a": 1}, module)(5) == (5, {"a": 1})
    assert binding.bind(open_ended, module, group_size=4)(5) == (5, {})  # it does not name group_size


def test_the_spec_is_not_changed(module):
    spec = {"fn": "scaled", "by": 3}
    binding.bind(spec, module, plus=1)
    assert spec == {"fn": "scaled", "by": 3}


@pytest.mark.parametrize("spec", ["scalde", {"fn": "scalde"}, "_private", "LIMIT", "wraps", "Thing", {"by": 3}, None])
def test_unknown_functions_are_refused_with_the_known_ones(module, spec):
    with pytest.raises(ValueError, match="toy has no function .*; it has: plain, scaled"):
        binding.bind(spec, module)


@pytest.mark.parametrize(
    "spec, message",
    [
        ({"fn": "scaled", "bye": 3}, "scaled takes no keyword 'bye'; it takes: by, plus"),
        ({"fn": "scaled", "b": 1, "a": 1}, "scaled takes no keyword 'a', 'b'; it takes: by, plus"),
        ({"fn": "plain", "x": 3}, "plain takes no keyword 'x'; it takes: none"),  # arguments are not keywords
        ({"fn": functools.partial(lambda x, *, by: x, by=1), "bye": 3}, "takes no keyword 'bye'; it takes: by"),
    ],
)
def test_unknown_keywords_are_refused_with_the_known_ones(module, spec, message):
    with pytest.raises(ValueError, match=message):
        binding.bind(spec, module)


def test_a_misspelt_hyper_parameter_of_the_objective_is_refused():
    with pytest.raises(ValueError, match="no keyword 'clip_hihg'; it takes: clip_high, clip_low"):
        binding.bind({"fn": "clipped_surrogate", "clip_hihg": 0.28}, policy)
    with pytest.raises(ValueError, match="it has: .*k1, .*k2, .*k3"):
        binding.bind("k4", kl)


def test_needs_are_the_keywords_without_a_default_that_are_not_bound():
    def fn(x, *, wanted, also, given=1):
        return x

    assert binding.needs(fn) == {"wanted", "also"}
    assert binding.needs(functools.partial(fn, also=2)) == {"wanted"}
    assert binding.needs(lambda x: x) == set()


def test_supply_gives_what_is_asked_for_and_nothing_else():
    def fn(x, *, wanted, given=1):
        return x, wanted, given

    assert binding.supply(fn, {"wanted": 5, "given": 9, "other": 0})("x") == ("x", 5, 1)
    assert binding.supply(fn, {"wanted": 5})("x", given=7) == ("x", 5, 7)
    plain = lambda x: x  # noqa: E731
    assert binding.supply(plain, {"wanted": 5}) is plain


@pytest.mark.parametrize("available", [{}, {"wanted": None, "other": 1}])
def test_supply_refuses_with_what_there_is(available):
    def fn(x, *, wanted):
        return wanted

    there = "other" if available else "nothing"
    with pytest.raises(ValueError, match=f"^fn needs wanted, which is not available here; available: {there}$"):
        binding.supply(functools.partial(fn), available)


# Functions of one's own, by import path.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on sys.path with modules that no other test has imported."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in {
        "own_losses": "import math\nLIMIT = 3\n\ndef scaled(x, *, by=2):\n    return x * by\n\n"
        "def open_ended(x, **more):\n    return x, more\n\nclass Family:\n"
        "    @staticmethod\n    def halved(x):\n        return x / 2\n",
        "own_broken": "import no_such_library\n",
        "own_raises": "raise RuntimeError('at import')\n",
        "own_package/__init__": "",
        "own_package/inner": "def same(x):\n    return x\n",
    }.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def test_a_function_by_import_path(folder, module):
    assert binding.bind("own_losses:scaled", module)(5) == 10
    assert binding.bind({"fn": "own_losses:scaled", "by": 3}, module, by=7, group_size=4)(5) == 15
    assert binding.bind("own_losses:scaled", module, by=7)(5) == 35
    assert binding.bind("own_losses:Family.halved", module)(4) == 2
    assert binding.bind("own_package.inner:same", module)(4) == 4
    assert binding.bind({"fn": "own_losses:open_ended", "any": 1}, module)(4) == (4, {"any": 1})
    assert binding.bind("rl_jax.losses.kl:k1", module) is kl.k1


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("own_lossez:scaled", "no module 'own_lossez' on sys.path; put its folder there .PYTHONPATH=FOLDER.*config"),
        ("own_package.outer:same", "there is no module 'own_package.outer' on sys.path"),
        ("own_losses:scalde", "^'own_losses:scalde': own_losses has no 'scalde'; nearest: 'scaled'$"),
        ("own_losses:Family.halve", "has no 'halve'; nearest: 'halved'"),
        ("own_losses:LIMIT", "^'own_losses:LIMIT' is a int, not a function$"),
        ("own_broken:f", "^'own_broken:f': importing 'own_broken' fails: No module named 'no_such_library'$"),
        ("own_losses:", 'is not an import path: write "module:function"'),
        (":scaled", "is not an import path"),
        ("folder/own_losses.py:scaled", "is not an import path"),
        ("..own_losses:scaled", "is not an import path"),
    ],
)
def test_a_wrong_import_path_says_what_is_wrong(folder, module, path, says):
    with pytest.raises(ValueError, match=says):
        binding.bind({"fn": path}, module)


def test_an_error_in_a_module_of_ones_own_is_shown_as_it_is(folder, module):
    with pytest.raises(RuntimeError, match="at import"):
        binding.bind("own_raises:f", module)


def test_keywords_that_stay_from_the_function_that_was_there_are_named(folder, module):
    says = "scaled takes no keyword 'clip_low'; it takes: by. The config still has keywords .*fn='own_losses:scaled'"
    with pytest.raises(ValueError, match=says):
        binding.bind({"fn": "own_losses:scaled", "clip_low": 0.2}, module)


def test_a_misspelt_keyword_is_told_the_nearest_one(folder, module):
    with pytest.raises(ValueError, match="scaled takes no keyword 'bye'; it takes: by; nearest: 'by'$"):
        binding.bind({"fn": "own_losses:scaled", "bye": 0.2}, module)


def test_an_unknown_name_says_how_to_give_a_function_of_ones_own(module):
    with pytest.raises(ValueError, match='To use your own, write "module:function"$'):
        binding.bind("scalde", module)
