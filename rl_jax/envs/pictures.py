"""Pictures of small environments, from what they observe: pure functions, to be called inside a compiled program.

Each function: (observations float [..., D], keywords) -> float32 [..., size, size, 3] in [0, 1], the first row on top.
They read the observation of the environment that they are named after, as it leaves the environment: not a stack of
several, and not a part of it. A picture of your own is "my_module:my_picture".
"""

import chex
import jax.numpy as jnp

PAPER, INK, RED, BLUE, GREY = (0.95, 0.95, 0.9), (0.1, 0.1, 0.1), (0.85, 0.1, 0.1), (0.1, 0.2, 0.8), (0.6, 0.6, 0.6)


def pointmass(observations: chex.Array, *, size: int = 32) -> chex.Array:
    """A red dot in a square from -1.5 to 1.5, and a thin cross through its middle (probes/pointmass).

    Args:
      observations: float [..., 2 or more], the place first.
      size: side, in pixels.
    """
    chex.assert_axis_dimension_gt(observations, -1, 1)
    x, y, image = _blank(observations, size)
    image = _paint(image, jnp.minimum(jnp.abs(x), jnp.abs(y)) - 0.01, GREY, size)
    return _paint(image, _disc(x, y, *_numbers(observations[..., :2] / 1.5)), RED, size)


def pendulum(observations: chex.Array, *, size: int = 32) -> chex.Array:
    """A rod from the middle, upright at an angle of 0, that turns to the left with it (gymnax/Pendulum-v1).

    Args:
      observations: float [..., 3], cosine and sine of the angle, speed.
      size: side, in pixels.
    """
    chex.assert_axis_dimension(observations, -1, 3)
    x, y, image = _blank(observations, size)
    cos, sin, _ = _numbers(observations)
    image = _paint(image, _bar(x, y, 0.0, 0.0, -0.85 * sin, 0.85 * cos, 0.1), RED, size)
    return _paint(image, jnp.hypot(x, y) - 0.06, INK, size)


def cartpole(observations: chex.Array, *, size: int = 32) -> chex.Array:
    """A cart on a track from -2.4 to 2.4, and its pole, upright at an angle of 0 (gymnax/CartPole-v1).

    Args:
      observations: float [..., 4], place and speed of the cart, angle (to the right) and speed of the pole.
      size: side, in pixels.
    """
    chex.assert_axis_dimension(observations, -1, 4)
    x, y, image = _blank(observations, size)
    place, _, angle, _ = _numbers(observations)
    place = 0.8 * place / 2.4
    image = _paint(image, jnp.abs(y + 0.5) - 0.02, GREY, size)
    image = _paint(image, jnp.maximum(jnp.abs(x - place) - 0.25, jnp.abs(y + 0.5) - 0.12), BLUE, size)
    tip = place + 1.1 * jnp.sin(angle), -0.4 + 1.1 * jnp.cos(angle)
    return _paint(image, _bar(x, y, place, -0.4, *tip, 0.06), RED, size)


def mountain_car(observations: chex.Array, *, size: int = 32) -> chex.Array:
    """A valley between two hills, the car, and a flag on the right one (gymnax/MountainCar-v0).

    Args:
      observations: float [..., 2], place from -1.2 to .6, speed.
      size: side, in pixels.
    """
    chex.assert_axis_dimension(observations, -1, 2)
    x, y, image = _blank(observations, size)
    place, _ = _numbers(observations)

    def drawn(place: chex.Array) -> tuple[chex.Array, chex.Array]:
        return (place + 0.3) / 0.9, 0.7 * jnp.sin(3.0 * place) - 0.1

    image = _paint(image, y - drawn(0.9 * x - 0.3)[1], GREY, size)
    pole, top = drawn(jnp.float32(0.5))
    image = _paint(image, _bar(x, y, pole, top, pole, top + 0.35, 0.05), BLUE, size)
    across, above = drawn(place)
    return _paint(image, _disc(x, y, across, above + 0.12), RED, size)


def _blank(observations: chex.Array, size: int) -> tuple[chex.Array, chex.Array, chex.Array]:
    """(x to the right [..., 1, size], y upwards [..., size, 1], both from -1 to 1 at the pixels' middles, paper)."""
    leading = observations.shape[:-1]
    middles = (2.0 * jnp.arange(size) + 1.0) / size - 1.0
    ones = (1,) * len(leading)
    image = jnp.broadcast_to(jnp.asarray(PAPER, jnp.float32).reshape(*ones, 1, 1, 3), (*leading, size, size, 3))
    return middles.reshape(*ones, 1, size), -middles.reshape(*ones, size, 1), image


def _numbers(observations: chex.Array) -> list[chex.Array]:
    """Each number of the observations, [..., 1, 1], beside the pixels."""
    return [observations[..., i, None, None] for i in range(observations.shape[-1])]


def _disc(x: chex.Array, y: chex.Array, across: chex.Array, above: chex.Array, radius: float = 0.14) -> chex.Array:
    """Distance of the pixels to a disc, negative inside."""
    return jnp.hypot(x - across, y - above) - radius


def _bar(x, y, x0, y0, x1, y1, half: float) -> chex.Array:
    """Distance of the pixels to a bar from (x0, y0) to (x1, y1), `half` to each side; negative inside."""
    long, high = x1 - x0, y1 - y0
    share = jnp.clip(((x - x0) * long + (y - y0) * high) / (long**2 + high**2), 0.0, 1.0)
    return jnp.hypot(x - x0 - share * long, y - y0 - share * high) - half


def _paint(image: chex.Array, distance: chex.Array, colour: tuple[float, ...], size: int) -> chex.Array:
    """The image with a colour where the distance is negative; the edge is as smooth as a pixel is wide."""
    cover = jnp.clip(0.5 - 0.5 * size * distance, 0.0, 1.0)[..., None]
    cover = jnp.broadcast_to(cover, image.shape)
    ink = jnp.asarray(colour, image.dtype).reshape((1,) * (image.ndim - 1) + (3,))
    return image + cover * (ink - image)
