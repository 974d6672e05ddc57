"""Every function that a config can name is fed by a program, or says that it is for a loop of one's own."""

import inspect

import pytest

from rl_jax import advantages, token_weights
from rl_jax.core.binding import needs, public_functions
from rl_jax.core.names import NAMES
from rl_jax.credit import shaping
from rl_jax.losses import aggregate, kl, policy

MODULES = (advantages, shaping, token_weights, policy, kl, aggregate)
FUNCTIONS = {f"{m.__name__}.{name}": fn for m in MODULES for name, fn in public_functions(m).items()}
YOURS = {name for name, row in NAMES.items() if row.source.startswith("you:")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_no_program_supplies_is_said(name):
    fn = FUNCTIONS[name]
    asked = needs(fn) & YOURS
    assert bool(asked) == ("For a loop of your own" in inspect.getdoc(fn)), asked


def test_nothing_is_for_a_loop_of_ones_own_alone():
    assert YOURS == set()
