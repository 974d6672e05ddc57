"""A web site of text with instructions of one or more things, so that tasks are of unlike difficulty.

"cat egg?0pets 1toys 2food\n" -> "0" -> "0dog 1cat\n" -> "1" -> "cat 7\n" -> "b" ... "egg 2\n" -> "x72": 1
"""

import random
from collections.abc import Iterator

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.site import Site, links_of, new_site


class Orders(Site):
    """Prices to find, of one to `things` things, in the order in which they are named.

    As Site, whose tasks name one thing; the answer is "x" and the prices, one after the other. The history is kept: an
    earlier price stays readable. The best return is 1, in 3 turns for one thing and up to 4 more for each further one.

    Args:
      things: the most that an instruction names.
      most: turns.
    """

    def __init__(self, *, things: int = 2, most: int = 8):
        if things < 1:
            raise ValueError(f"things={things} must be 1 or more")
        super().__init__(simplify=False, most=most)
        self.things = things

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """An instruction, an order of the links and the prices."""
        while True:
            site = new_site(rng)
            wanted = " ".join(rng.sample(sorted(site["prices"]), rng.randint(1, self.things)))
            yield f"{wanted}?{links_of(site['shelves'])}", {"wanted": wanted} | site

    def begin(self, info: dict, dice: random.Random) -> None:
        """At the home page; no price was seen."""
        super().begin(info, dice)
        self._seen: set[str] = set()

    def right_answer(self) -> str:
        """What wins."""
        return "x" + "".join(str(self._prices[thing]) for thing in self._wanted.split())

    def step(self, said: str) -> Step:
        """The page of a link, or the end."""
        found = super().step(said)
        self._seen |= set(self._path[1:])
        return found

    def expert(self, rng: random.Random) -> str:
        """The way to the first thing whose price was not seen yet; then the answer."""
        missing = [thing for thing in self._wanted.split() if thing not in self._seen]
        return self.towards(missing[0]) if missing else self.right_answer()

    def novice(self, rng: random.Random) -> str:
        """Any link, back, or a guess of as many prices."""
        guess = "".join(str(rng.randrange(10)) for _ in self._wanted.split())
        return rng.choice(["0", "1", "2", "b", f"x{guess}"])
