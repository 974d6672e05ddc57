"""A web site of text, and a history whose older pages are only marked: WebAgent-R1's dynamic context compression.

    "cat?0pets 1toys 2food\n" -> "0" (a link) -> "cat?~0;" + "0dog 1cat\n" -> "1" -> "cat?~0;~1;" + "cat 7\n" -> "x7": 1

What the model has said stays, each earlier page becomes MARK, the newest page is whole. The text is a new beginning
(Step.anew), so every turn is trained on exactly what it has read.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World

MARK = "~"  # WebAgent-R1's is "** Simplified html **"
SHELVES = {"pets": ("cat", "dog", "eel"), "toys": ("car", "top", "kite"), "food": ("egg", "fig", "jam")}


def simplified(task: str, said: Sequence[str], page: str, mark: str = MARK) -> str:
    """The history that is read next: h_t = (task, mark, a_1, mark, a_2, ..., mark, a_t-1, newest page).

    Source: arXiv 2505.16421 section 3 (dynamic context compression).

    Args:
      task: what is asked for; it stays.
      said: the model's messages so far, each after one page.
      page: the newest observation.
      mark: what stands for an earlier one.
    """
    return task + "".join(f"{mark}{action};" for action in said) + page


class Site(World):
    """A price to find: a home page with links to shelves, shelves with links to things, a price on each thing's page.

    "0" ... "2" follow a link, "b" goes back, "xN" ends the episode: 1 if N is the price that was asked for, else 0, and
    0 without an answer. Which link leads where, and all prices, are drawn anew for each task. A small stand-in for
    WebArena-Lite's sites (arXiv 2505.16421), with the binary reward of their end states. numbers: correct, malformed,
    read (letters that stood before each turn). The best return is 1, in three turns.

    Args:
      simplify: whether older pages are marked only; else the history is kept.
      most: turns.
    """

    ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 ?~;\n"
    NUMBERS = ("read",)
    rewrites = True
    things = 1
    """The most that an instruction names."""

    def __init__(self, *, simplify: bool = True, most: int = 6):
        super().__init__(price=0.0, most=most)
        self.rewrites = simplify

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """A thing, an order of the links and the prices."""
        while True:
            site = new_site(rng)
            wanted = rng.choice(sorted(site["prices"]))
            yield f"{wanted}?{links_of(site['shelves'])}", {"wanted": wanted} | site

    def instruction(self, record: Mapping[str, Any]) -> str:
        """What a task asks for, without the page that is read with it: "cat?"."""
        return json.loads(record["info"])["wanted"] + "?"

    def instructed(self, record: Mapping[str, Any], text: str) -> dict[str, str] | None:
        """A task of another instruction on the record's site; None if it names nothing, or what the site has not."""
        info, wanted = json.loads(record["info"]), text.removesuffix("?").split()
        known = all(thing in info["prices"] for thing in wanted) and len(set(wanted)) == len(wanted)
        if not (known and 1 <= len(wanted) <= self.things):
            return None
        info["wanted"] = " ".join(wanted)
        prompt = f"{info['wanted']}?{links_of(info['shelves'])}"
        return {"prompt": prompt, "completion": "", "info": json.dumps(info)}

    def begin(self, info: dict, dice: random.Random) -> None:
        """At the home page."""
        self._wanted, self._shelves, self._things = info["wanted"], info["shelves"], info["things"]
        self._prices, self._path, self._said = info["prices"], (), []
        self._size = len(f"{self._wanted}?{self._page()}")

    def _page(self) -> str:
        """The page of the path."""
        if len(self._path) < 2:
            return links_of(self._things[self._path[0]] if self._path else self._shelves)
        return f"{self._path[1]} {self._prices[self._path[1]]}\n"

    def state_key(self) -> str:
        """The page; the task is that of the whole group."""
        return "/".join(("home", *self._path))

    def right_answer(self) -> str:
        """What wins."""
        return f"x{self._prices[self._wanted]}"

    def step(self, said: str) -> Step:
        """The page of a link, or the end."""
        read, known = float(self._size), (self._things[self._path[0]] if self._path else self._shelves)
        if said.startswith("x"):
            return self.won(read=read) if said == self.right_answer() else self.lost(read=read)
        if said == "b":
            self._path = self._path[:-1]
        elif said in ("0", "1", "2") and len(self._path) < 2:
            self._path = (*self._path, known[int(said)])
        else:
            return self._shown(said, "?\n", malformed=1.0, read=read)
        return self._shown(said, self._page(), read=read)

    def _shown(self, said: str, page: str, **numbers: float) -> Step:
        """A page, in a history whose earlier ones are marked, or after all that was."""
        self._said.append(said)
        if not self.rewrites:
            self._size += len(said) + len(page)
            return self.answer(page, **numbers)
        text = simplified(f"{self._wanted}?", self._said, page)
        self._size = len(text)
        return self.workspace(text, **numbers)

    def expert(self, rng: random.Random) -> str:
        """The link that leads there, the price, or back."""
        return self.right_answer() if self._path[1:] == (self._wanted,) else self.towards(self._wanted)

    def towards(self, thing: str) -> str:
        """The link that leads to a thing's page, or back."""
        way = (next(name for name in self._shelves if thing in self._things[name]), thing)
        if self._path != way[: len(self._path)]:
            return "b"
        known = self._things[way[0]] if self._path else self._shelves
        return str(known.index(way[len(self._path)]))

    def novice(self, rng: random.Random) -> str:
        """Any link, back, or a guess."""
        return rng.choice(["0", "1", "2", "b", f"x{rng.randrange(10)}"])


def new_site(rng: random.Random) -> dict:
    """A site: its shelves and their things in the order of the links, and the prices."""
    shelves = rng.sample(sorted(SHELVES), len(SHELVES))
    things = {shelf: rng.sample(SHELVES[shelf], 3) for shelf in shelves}
    prices = {thing: rng.randrange(10) for shelf in shelves for thing in things[shelf]}
    return {"shelves": shelves, "things": things, "prices": prices}


def links_of(names: Sequence[str]) -> str:
    """A page of links: "0pets 1toys 2food"."""
    return " ".join(f"{number}{name}" for number, name in enumerate(names)) + "\n"
