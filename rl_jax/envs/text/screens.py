"""Screens of text with things to click: a desktop of icons, and a window of buttons behind each (arXiv 2505.16282).

    "b3|fac/dbe:" -> "11" (row 1, column 1: icon b) -> "31x/24." (its window) -> "00" (button 3): 1

The goal names an icon and a button; where they are on the screen differs from episode to episode, and each window has
its own order. A click on x closes the window, one on what is empty changes nothing, a wrong button ends the episode
with 0: only the end pays, as in OSWorld, on whose screenshots ARPO trains. The state key is the screen and the goal.
"""

import random
from collections.abc import Iterator

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World

ICONS, BUTTONS, COLUMNS = "abcdef", "1234x.", 3


class Screens(World):
    """One episode at a time. numbers: correct, malformed, opened (windows). The best return is `win`.

    Args:
      most: clicks.
      price: of each click that does not end the episode well.
      win: for the right button of the right window.
    """

    ALPHABET = "abcdef01234x./|:?\n"
    NUMBERS = ("opened",)

    def __init__(self, *, most: int = 6, price: float = 0.0, win: float = 1.0):
        super().__init__(price=price, most=most, win=win)

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """A goal and an order of the icons, and of the buttons of each window."""
        while True:
            goal = rng.choice(ICONS) + rng.choice(BUTTONS[:4])
            desktop = "".join(rng.sample(ICONS, len(ICONS)))
            windows = {icon: "".join(rng.sample(BUTTONS, len(BUTTONS))) for icon in ICONS}
            yield f"{goal}|{_shown(desktop)}:", {"goal": goal, "desktop": desktop, "windows": windows}

    def begin(self, info: dict, dice: random.Random) -> None:
        """At the desktop."""
        self.goal, self.desktop, self.windows, self.icon = info["goal"], info["desktop"], info["windows"], ""

    def screen(self) -> str:
        """What is on the screen, row by row, without the breaks."""
        return self.windows[self.icon] if self.icon else self.desktop

    def state_key(self) -> str:
        """The goal, the open window and the screen."""
        return f"{self.goal} {self.icon} {self.screen()}"

    def step(self, said: str) -> Step:
        """The screen after a click."""
        if len(said) != 2 or said[0] not in "01" or said[1] not in "012":
            return self.bad()
        thing, opened = self.screen()[int(said[0]) * COLUMNS + int(said[1])], 0.0
        if not self.icon:
            self.icon, opened = thing, 1.0
        elif thing == "x":
            self.icon = ""
        elif thing != ".":
            return self.won() if self.icon + thing == self.goal else self.lost(-self.price)
        return self.answer(f"{_shown(self.screen())}\n", opened=opened)

    def expert(self, rng: random.Random) -> str:
        """A click on the icon, then on the button; x in a wrong window."""
        wanted = self.goal[0] if not self.icon else self.goal[1] if self.icon == self.goal[0] else "x"
        return "{}{}".format(*divmod(self.screen().index(wanted), COLUMNS))

    def novice(self, rng: random.Random) -> str:
        """A click anywhere."""
        return f"{rng.randrange(2)}{rng.randrange(COLUMNS)}"


def _shown(things: str) -> str:
    return "/".join(things[start : start + COLUMNS] for start in range(0, len(things), COLUMNS))
