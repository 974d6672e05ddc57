"""advantages.hybrid by hand: short demonstrations, and one without a token."""

import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import advantages

REWARDS = jnp.array([1.0, 0.0, 0.5, 0.5])
FOREIGN = jnp.array([False, False, True, True])


@pytest.mark.parametrize("settings", [{}, {"demonstration_coef": 3.0}], ids=str)
def test_demonstrations_weigh_their_length_and_samples_the_limit(settings):
    coef = settings.get("demonstration_coef", 1.0)
    for lengths, expected in (([4, 2, 1, 5], [coef, coef / 5]), ([4, 2, 0, 2], [coef, coef / 2])):
        given = dict(foreign=FOREIGN, lengths=jnp.array(lengths), max_length=8)
        found = advantages.hybrid(REWARDS, group_size=2, **given, **settings)
        np.testing.assert_allclose(found, [0.5 / 8, -0.5 / 8, *expected], rtol=1e-6)
