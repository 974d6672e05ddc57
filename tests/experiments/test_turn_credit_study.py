"""studies/turn_credit.py: the noise of its rewards has nothing to do with what is sampled."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies import turn_credit


def test_the_noise_is_not_made_of_the_key_of_a_turn():
    """fold_in(key, i) is split(key, n)[i]: with i below the number of turns, noise says which move was taken."""
    table, logits, rows, most = jnp.zeros((2, 4), jnp.int32), jnp.zeros((2, 4)), 2000, 4
    for seed in range(2):
        key = jax.random.key(seed)
        played = turn_credit._play(key, logits, table, 0, 1, most, rows, 0.0)
        noise = np.asarray(turn_credit._noise(key, (rows, most)))
        np.testing.assert_allclose([noise.mean(), noise.std()], [0.0, 1.0], atol=0.05)
        moves = np.asarray(jax.nn.one_hot(played["actions"], 4)).reshape(rows, -1)
        assert np.abs(np.corrcoef(noise.T, moves.T)[:most, most:]).max() < 0.1
