"""How known environments look: a picture of a state, as SVG made from its observation.

A scene is a background, drawn once, and a function from an observation to what moves in front of it. Scenes are found
by the environment's name without its library, and only if the observation has the expected shape. All sizes are in
the picture's own units; colours come from templates/film.css.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

WIDTH = 360
HEAD = 24  # above the picture, for a line of text
MIDDLE = WIDTH / 2
MAX_BOARD = (32, 32, 12)  # most cells and channels that are drawn as a board


class Scene(NamedTuple):
    """How an environment is drawn.

    Attributes:
      height: of the picture.
      rate: steps per second.
      back: background, drawn once.
      frame: (observation) -> what moves.
      front: drawn once, in front.
      actions: names of the discrete actions in order, or of the one number of a continuous action.
      features: names of the observation's numbers; for a board, of its channels.
      thins: how to shorten a long episode. True: leave out steps (smooth motion). False: leave out its end.
    """

    height: int
    rate: float
    back: Markup
    frame: Callable[[np.ndarray], Markup]
    front: Markup = Markup("")
    actions: Sequence[str] = ()
    features: Sequence[str] = ()
    thins: bool = True


def scene_of(name: str, observations: np.ndarray) -> Scene | None:
    """The scene of an environment, "library/Name-v1", with observations [T, *shape]; None if there is none."""
    short = name.rpartition("/")[2]
    shape = observations.shape[1:]
    if short in VECTORS:
        size, make = VECTORS[short]
        return make() if shape == (size,) else None
    small = len(shape) == 3 and all(size <= limit for size, limit in zip(shape, MAX_BOARD, strict=True))
    if small and np.isin(observations, (0, 1)).all():
        return grid(shape, *GRIDS.get(short, ((), ())))
    return None


def _text(x: float, y: float, text: str, anchor: str = "middle") -> Markup:
    return Markup('<text x="{:g}" y="{:g}" text-anchor="{}">{}</text>').format(x, y, anchor, text)


def cartpole() -> Scene:
    """A cart on a track of 2 x 2.4 m, with a pole of 1 m; the episode ends if the cart leaves the track."""
    scale, ground = 65, 128

    def frame(observation: np.ndarray) -> Markup:
        x, angle = MIDDLE + scale * observation[0], math.degrees(observation[2])
        return Markup(
            '<g transform="translate({:.1f} {})"><path class="body" d="M-20 -18h40v13h-40z"/>'
            '<circle class="wheel" cx="-11" cy="-4" r="4"/><circle class="wheel" cx="11" cy="-4" r="4"/>'
            '<path class="rod" transform="translate(0 -18) rotate({:.1f})" d="M0 0V-65"/></g>'
        ).format(x, ground, angle)

    left, right = MIDDLE - 2.4 * scale, MIDDLE + 2.4 * scale
    back = Markup('<path class="ground" d="M8 {0}H352"/><path class="limit" d="M{1} {2}V{0}M{3} {2}V{0}"/>').format(
        ground, left, ground - 50, right
    )
    back += _text(left, ground + 16, "−2.4 m") + _text(MIDDLE, ground + 16, "0") + _text(right, ground + 16, "2.4 m")
    features = ("position", "velocity", "angle", "angular velocity")
    return Scene(ground + 24, 50, back, frame, actions=("left", "right"), features=features)


def pendulum() -> Scene:
    """A rod on a pivot, upright at angle 0; angles grow counter-clockwise, and so does the torque."""
    length, pivot = 68, HEAD + 82

    def frame(observation: np.ndarray) -> Markup:
        cos, sin = observation[:2]
        x, y = -length * sin, -length * cos
        return Markup(
            '<g transform="translate({} {})"><path class="rod" d="M0 0L{:.1f} {:.1f}"/>'
            '<circle class="wheel" r="4"/></g>'
        ).format(MIDDLE, pivot, x, y)

    back = Markup('<circle class="guide" cx="{}" cy="{}" r="{}"/>').format(MIDDLE, pivot, length)
    back += Markup('<path class="ground" d="M{} {}v-10"/>').format(MIDDLE, pivot - length + 5)
    back += _text(MIDDLE + 8, pivot - length - 4, "upright", "start")
    features = ("cos angle", "sin angle", "angular velocity")
    return Scene(pivot + length + 14, 20, back, frame, actions=("torque",), features=features)


def acrobot() -> Scene:
    """Two links of 1 m that hang from a pivot; the goal is to lift the tip to the line 1 m above it."""
    scale, pivot = 38, HEAD + 82

    def frame(observation: np.ndarray) -> Markup:
        cos1, sin1, cos2, sin2 = observation[:4]
        x, y = scale * sin1, scale * cos1
        tip_x, tip_y = x + scale * (sin1 * cos2 + cos1 * sin2), y + scale * (cos1 * cos2 - sin1 * sin2)
        return Markup(
            '<g transform="translate({0} {1})"><path class="rod" d="M0 0L{2:.1f} {3:.1f}"/>'
            '<path class="rod second" d="M{2:.1f} {3:.1f}L{4:.1f} {5:.1f}"/><circle class="wheel" r="4"/>'
            '<circle class="wheel" cx="{2:.1f}" cy="{3:.1f}" r="4"/></g>'
        ).format(MIDDLE, pivot, x, y, tip_x, tip_y)

    back = Markup('<path class="goal" d="M60 {0}H300"/>').format(pivot - scale)
    back += _text(304, pivot - scale + 4, "goal", "start")
    features = ("cos 1st angle", "sin 1st angle", "cos 2nd angle", "sin 2nd angle", "1st velocity", "2nd velocity")
    return Scene(pivot + 2 * scale + 10, 15, back, frame, actions=("torque −1", "torque 0", "torque 1"),
                 features=features)


def mountain_car(goal: float = 0.5, actions: Sequence[str] = ("push left", "coast", "push right")) -> Scene:
    """A car in a valley, y = .45 sin 3x + .55, with a flag at the goal."""
    scale, low = 178, -1.2

    def place(x: float) -> tuple[float, float]:
        return 20 + scale * (x - low), HEAD + 28 + scale * (1.0 - 0.45 * math.sin(3 * x) - 0.55)

    def frame(observation: np.ndarray) -> Markup:
        x = float(observation[0])
        angle = -math.degrees(math.atan(1.35 * math.cos(3 * x)))
        return Markup(
            '<g transform="translate({:.1f} {:.1f}) rotate({:.1f})"><path class="body" d="M-15 -15h30v9h-30z"/>'
            '<circle class="wheel" cx="-8" cy="-4.5" r="4"/><circle class="wheel" cx="8" cy="-4.5" r="4"/></g>'
        ).format(*place(x), angle)

    hill = "L".join("{:.1f} {:.1f}".format(*place(low + 1.8 * i / 60)) for i in range(61))
    x, y = place(goal)
    back = Markup('<path class="ground" d="M{}"/><path class="ground" d="M{:.1f} {:.1f}v-26"/>').format(hill, x, y)
    back += Markup('<path class="flag" d="M{:.1f} {:.1f}l-14 5l14 5z"/>').format(x, y - 26)
    return Scene(HEAD + 38 + round(0.9 * scale), 30, back, frame, actions=actions, features=("position", "velocity"))


def grid(shape: tuple[int, int, int], channels: Sequence[str], actions: Sequence[str]) -> Scene:
    """A board of H x W cells in which each of C channels has a colour; the first channel is on top."""
    height, width, count = shape
    channels = [*channels, *(f"channel {c}" for c in range(len(channels), count))]
    cell = min(190 / width, 190 / height)

    def frame(observation: np.ndarray) -> Markup:
        layers = [
            Markup('<path class="c{}" d="{}"/>').format(c, _cells(observation[..., c]))
            for c in reversed(range(count))
            if observation[..., c].any()
        ]
        return Markup('<g class="cells" transform="translate(12 {}) scale({:g})">{}</g>').format(
            HEAD, cell, Markup("").join(layers)
        )

    board = (12, HEAD, width * cell, height * cell)
    back = Markup('<rect class="board" x="{}" y="{}" width="{:g}" height="{:g}"/>').format(*board)
    for c in range(count):
        y = HEAD + 4 + 17 * c
        back += Markup('<rect class="name c{}" x="222" y="{}" width="11" height="11"/>').format(c, y)
        back += _text(240, y + 9, channels[c], "start")
    lines = "".join(f"M0 {i}H{width}" for i in range(height + 1))
    lines += "".join(f"M{i} 0V{height}" for i in range(width + 1))
    front = Markup('<path class="lines" transform="translate(12 {}) scale({:g})" d="{}"/>').format(HEAD, cell, lines)
    tall = HEAD + max(round(height * cell), 17 * count) + 10
    return Scene(tall, 10, back, frame, front, actions, channels, thins=False)


def _cells(there: np.ndarray) -> str:
    """The SVG path of the cells that are on, adjacent cells joined into one piece."""
    pieces = []
    for y, row in enumerate(there.astype(bool)):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(np.int8)))
        pieces += [f"M{x} {y}h{end - x}v1h-{end - x}z" for x, end in edges.reshape(-1, 2)]
    return "".join(pieces)


# Name -> (numbers in an observation, scene).
VECTORS: dict[str, tuple[int, Callable[[], Scene]]] = {
    "CartPole-v0": (4, cartpole),
    "CartPole-v1": (4, cartpole),
    "Pendulum-v1": (3, pendulum),
    "Acrobot-v1": (6, acrobot),
    "MountainCar-v0": (2, mountain_car),
    "MountainCarContinuous-v0": (2, lambda: mountain_car(0.45, ("push",))),
}
# MinAtar (arXiv 1903.03176): name -> (channels, actions of the minimal set).
GRIDS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "Breakout-MinAtar": (("paddle", "ball", "trail", "brick"), ("stay", "left", "right")),
    "Asterix-MinAtar": (("player", "enemy", "trail", "gold"), ("stay", "left", "up", "right", "down")),
    "Freeway-MinAtar": (
        ("chicken", "car", *(f"speed {i}" for i in range(1, 6))),
        ("stay", "up", "down"),
    ),
    "SpaceInvaders-MinAtar": (
        ("cannon", "alien", "alien, going left", "alien, going right", "own bullet", "enemy bullet"),
        ("stay", "left", "right", "fire"),
    ),
    "Seaquest-MinAtar": (
        ("submarine", "its rear", "own bullet", "trail", "enemy bullet", "fish", "enemy submarine", "oxygen",
         "divers on board", "diver"),
        ("stay", "left", "up", "right", "down", "fire"),
    ),
}  # fmt: skip
