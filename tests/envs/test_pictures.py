"""envs/pictures.py: where things are drawn, and that a batch is its rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.binding import bind
from rl_jax.envs import pictures

SEEN = {
    "pointmass": np.array([[0.9, -0.6, 0.0, 0.0], [-1.5, 1.5, 0.1, 0.2]]),
    "pendulum": np.array([[1.0, 0.0, 3.0], [0.0, 1.0, 0.0]]),
    "cartpole": np.array([[1.2, 0.0, 0.0, 0.0], [-1.2, 0.0, 0.5, 0.0]]),
    "mountain_car": np.array([[-0.5236, 0.0], [0.5, 0.0]]),
}


def middle(image, colour):
    """(x to the right, y upwards) of the mass of a colour, from -1 to 1."""
    near = np.all(np.abs(np.asarray(image) - np.asarray(colour)) < 0.05, axis=-1)
    rows, columns = np.nonzero(near)
    size = image.shape[0]
    return (2 * columns.mean() + 1) / size - 1, 1 - (2 * rows.mean() + 1) / size


def both(name, size=64):
    return np.asarray(bind(dict(fn=name, size=size), pictures)(jnp.asarray(SEEN[name], jnp.float32)))


@pytest.mark.parametrize("name", SEEN)
def test_images_are_of_a_batch_and_in_range(name):
    draw = bind(dict(fn=name, size=16), pictures)
    batch = np.asarray(draw(jnp.asarray(SEEN[name], jnp.float32)[:, None]))
    assert batch.shape == (2, 1, 16, 16, 3) and batch.dtype == np.float32
    assert batch.min() >= 0.0 and batch.max() <= 1.0 and np.abs(batch[0] - batch[1]).max() > 0.3
    for row, seen in zip(batch, SEEN[name], strict=True):
        np.testing.assert_allclose(row[0], draw(jnp.asarray(seen, jnp.float32)), atol=1e-6)


def test_the_dot_is_at_its_place():
    first, second = both("pointmass")
    np.testing.assert_allclose(middle(first, pictures.RED), (0.6, -0.4), atol=0.03)
    x, y = middle(second, pictures.RED)
    assert x < -0.9 and y > 0.9  # a corner


def test_the_rod_turns_to_the_left():
    up, left = both("pendulum")
    x, y = middle(up, pictures.RED)
    assert abs(x) < 0.03 and 0.4 < y < 0.6
    x, y = middle(left, pictures.RED)
    assert -0.6 < x < -0.4 and abs(y) < 0.03


def test_the_pole_stands_on_the_cart_and_leans_to_the_right():
    upright, leaning = both("cartpole")
    np.testing.assert_allclose(middle(upright, pictures.BLUE)[0], 0.4, atol=0.03)
    np.testing.assert_allclose(middle(upright, pictures.RED)[0], 0.4, atol=0.03)
    assert middle(leaning, pictures.RED)[0] > middle(leaning, pictures.BLUE)[0] + 0.15


def test_the_car_is_in_the_valley_or_at_the_flag():
    low, high = both("mountain_car")
    assert middle(low, pictures.RED)[1] < -0.5
    assert abs(middle(high, pictures.RED)[0] - 0.89) < 0.05 and middle(high, pictures.RED)[1] > 0.5
    for image in (low, high):
        assert abs(middle(image, pictures.BLUE)[0] - 0.89) < 0.05


def test_an_observation_of_another_size_is_refused():
    with pytest.raises(AssertionError):
        pictures.cartpole(jnp.zeros((2, 3)))
