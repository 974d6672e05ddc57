"""Two parties bargain over a price: both are the model (config.agent.partner), or the other one is scripted.

    "b20:" (a buyer, worth 20 to him) -> "9" (he offers 9) -> "14:" (the seller asks 14) -> "ok" -> a deal at 14

Each side sees its own role and value only. A deal at p earns the buyer (value - p) / SCALE and the seller (p - cost) /
SCALE; a turn costs `price`, and without a deal after `most` turns nobody earns. The surplus of a deal is known, so one
can see whether deals are made where there is one, and how it is shared.
"""

import random
from collections.abc import Iterator

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World

SCALE = 20.0
LARGEST = 99


def _is_price(said: str) -> bool:
    return said.isascii() and said.isdigit() and len(said) < 9 and int(said) <= LARGEST


class Bargain(World):
    """One side of a bargain. numbers: correct (a deal that pays it), deal, surplus (of the deal, shared or not).

    Args:
      side: "b" (buyer), "s" (seller), or "" (drawn for each problem).
      price: of a turn without a deal.
      most: turns.
    """

    ALPHABET = "0123456789bsok:?\n"
    NUMBERS = ("deal", "surplus")

    def __init__(self, *, side: str = "", price: float = 0.02, most: int = 4):
        super().__init__(price=price, most=most)
        if side not in ("", "b", "s"):
            raise ValueError(f'side={side!r} must be "b", "s" or "" (drawn)')
        self._side = side
        self.partner = None  # (text) -> awaitable text; None: the scripted one

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """What it is worth to both."""
        while True:
            info = {"side": self._side or rng.choice("bs"), "value": rng.randint(12, 30), "cost": rng.randint(1, 18)}
            yield f"{info['side']}{info['value'] if info['side'] == 'b' else info['cost']}:", info

    def begin(self, info: dict, dice: random.Random) -> None:
        """Nothing is on the table."""
        self.side, self.value, self.cost = info["side"], int(info["value"]), int(info["cost"])
        self.offer, self.theirs = None, None  # the last price that each side has named
        self._asked = False

    def state_key(self) -> str:
        """What is on the table, and the turn."""
        return f"{self.turn} {self.offer} {self.theirs}"

    def _limit(self, own: bool) -> int:
        """The price at which a side earns nothing."""
        return self.value if (self.side == "b") == own else self.cost

    def _deal(self, price: int) -> Step:
        mine = (self.value - price if self.side == "b" else price - self.cost) / SCALE
        numbers = dict(deal=1.0, surplus=(self.value - self.cost) / SCALE)
        return self.won(mine, **numbers) if mine > 0 else self.lost(mine, **numbers)

    def step(self, said: str):
        """A deal, or the other side's answer; a coroutine with a partner."""
        if said == "ok" and self.theirs is not None:
            return self._deal(self.theirs)
        if not _is_price(said):
            return self.bad()
        self.offer = int(said)
        return self._answered(self._scripted()) if self.partner is None else self._with_partner()

    async def _with_partner(self) -> Step:
        other = "s" if self.side == "b" else "b"
        opening = f"{other}{self._limit(own=False)}:{self.offer}:"
        told, self._asked = f"{self.offer}:" if self._asked else opening, True
        return self._answered(await self.partner(told))

    def _answered(self, theirs: str) -> Step:
        """What the other side's words lead to; words that mean nothing leave the table as it is."""
        if theirs == "ok":
            return self._deal(self.offer)
        if _is_price(theirs):
            self.theirs = int(theirs)
            return self.answer(f"{self.theirs}:")
        return self.answer("?:")

    def _scripted(self) -> str:
        """Takes what leaves it a gain of 2, and comes closer to that each turn."""
        limit, sign = self._limit(own=False), 1 if self.side == "b" else -1
        if sign * (self.offer - limit) >= 2:
            return "ok"
        return str(min(max(limit + sign * max(8 - 2 * self.turn, 2), 0), LARGEST))

    def expert(self, rng: random.Random) -> str:
        """Takes what gains 2 or more; else names a price that comes closer each turn."""
        limit, sign = self._limit(own=True), -1 if self.side == "b" else 1
        if self.theirs is not None and sign * (self.theirs - limit) >= 2:
            return "ok"
        return str(min(max(limit + sign * max(8 - 2 * self.turn, 2), 0), LARGEST))

    def novice(self, rng: random.Random) -> str:
        """Takes anything, or names any price."""
        return rng.choice(["ok", str(rng.randrange(31))])
