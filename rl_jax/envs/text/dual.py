"""Dual control: an agent and a user share one state, and each has tools that the other one has not.

The line `l` and the roaming `r` are the agent's, the aeroplane switch `a` and the data switch `d` the user's; the
phone works if all four are 1. A write flips a switch, so a needless one breaks what worked.

    "a:" -> "?" -> "l0r1:" -> "!l" -> "ok:" -> "u?" -> "a0d1:" -> "u!a" -> "ok:" -> "end"      the agent's side
    "u?:" -> "?" -> "a0d1:" -> "=a0d1" -> "!a:" -> "!a" -> "ok:" -> "=ok"                     the user's side
"""

import random
from collections.abc import Iterator

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World

AGENT, USER = "lr", "ad"  # the switches of each side
WORDS = 3  # a user who has not replied after so many is taken to have said nothing


class Dual(World):
    """One side of a repair; the other one is scripted, or a model (config.agent.partner, as the user).

    R = 1 if the last state is the target at the end, else 0;  less `price` a turn

    "?" reads the own switches, "!x" flips x; the agent's "u?" and "u!x" ask the user to do so with tools of his own,
    and only "=TEXT" of the user is told to the agent. A switch of the other side is out of reach: it is answered with
    "?". A stand-in for the telecom domain of tau2-bench (arXiv 2506.07982, sierra-research/tau2-bench): there both
    sides are language models, the state is a database and a phone, and reward 1 also needs what must be said.
    numbers: correct, agent_calls and user_calls (tools used).

    Args:
      side: "a" (the agent), "u" (the user), or "" (drawn for each problem).
      careless: probability that the scripted user does not do what he says he did, drawn for each episode and request.
      price: of a turn.
      most: turns.
    """

    ALPHABET = "?!:=0123456789adeklnoru\n"
    NUMBERS = ("agent_calls", "user_calls")

    def __init__(self, *, side: str = "", careless: float = 0.0, price: float = 0.02, most: int = 8):
        super().__init__(price=price, most=most)
        if side not in ("", "a", "u") or not 0 <= careless <= 1:
            raise ValueError(f'side={side!r} must be "a", "u" or "" (drawn), and careless={careless} from 0 to 1')
        self._side, self._careless = side, careless
        self.partner = None  # (text) -> awaitable text; None: the scripted user

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """Up to three switches are wrong."""
        while True:
            wrong = "".join(sorted(rng.sample(AGENT + USER, rng.randint(1, 3))))
            side = self._side or rng.choice("au")
            yield ("a:" if side == "a" else "u?:"), {"side": side, "wrong": wrong}

    def begin(self, info: dict, dice: random.Random) -> None:
        """The switches; on the user's side the agent has mended his own."""
        self.side, self._dice, self._asked, self._looked = info["side"], dice, False, False
        self.state = {name: int(name not in info["wrong"]) for name in AGENT + USER}
        self._told: dict[str, int] = {}  # what the agent has been told of the user's switches
        if self.side == "u":
            self.state |= dict.fromkeys(AGENT, 1)

    def state_key(self) -> str:
        """The switches, what is known of the user's, and the turn."""
        known = "".join(f"{name}{value}" for name, value in sorted(self._told.items()))
        return f"{self.turn} {self._read(AGENT + USER)} {known} {self._looked}"

    def _read(self, names: str) -> str:
        return "".join(f"{name}{self.state[name]}" for name in names)

    def tool(self, said: str, names: str) -> str | None:
        """What a side's tool answers, after it has done its work; None if it has no such tool."""
        if said == "?":
            return self._read(names)
        if len(said) == 2 and said[0] == "!" and said[1] in names:
            self.state[said[1]] = 1 - self.state[said[1]]
            return "ok"
        return None

    def _end(self) -> Step:
        return self.won() if all(self.state.values()) else self.lost()

    def step(self, said: str):
        """The end, a tool's answer, or the user's; a coroutine with a partner."""
        if self.side == "u":
            return self._as_user(said)
        if said == "end":
            return self._end()
        if (found := self.tool(said, AGENT)) is not None:
            return self.answer(f"{found}:", agent_calls=1.0)
        if not said.startswith("u") or len(said) == 1:
            return self.bad()
        self._looked |= said == "u?"
        return self._scripted_user(said[1:]) if self.partner is None else self._with_partner(said[1:])

    def _scripted_user(self, asked: str) -> Step:
        """Does what he is asked with his own tools; a careless one only says so."""
        if asked[0] == "!" and len(asked) == 2 and asked[1] in USER and self._dice.random() < self._careless:
            return self.answer("ok:")
        found = self.tool(asked, USER)
        return self.bad() if found is None else self.answer(f"{found}:", user_calls=1.0)

    async def _with_partner(self, asked: str) -> Step:
        """A model as the user: it uses tools until it replies."""
        told, calls = f"{asked}:" if self._asked else f"u{asked}:", 0.0
        self._asked = True
        for _ in range(WORDS):
            said = await self.partner(told)
            if said.startswith("="):
                letters = "".join(letter for letter in said[1:9] if letter in self.ALPHABET and letter != "\n")
                return self.answer(f"{letters}:", user_calls=calls)
            found = self.tool(said, USER)
            calls += found is not None
            told = f"{found or '?'}:"
        return self.answer("?:", user_calls=calls)

    def _as_user(self, said: str) -> Step:
        """A tool's answer, or what the scripted agent asks next."""
        if (found := self.tool(said, USER)) is not None:
            return self.answer(f"{found}:", user_calls=1.0)
        if not said.startswith("="):
            return self.bad()
        if len(said) == 5 and said[1] == USER[0] and said[3] == USER[1] and said[2] in "01" and said[4] in "01":
            self._told = {said[1]: int(said[2]), said[3]: int(said[4])}
        elif said == "=ok" and self._told:
            wrong = [name for name, value in self._told.items() if not value]
            self._told |= {wrong[0]: 1} if wrong else {}
        else:
            return self.bad()
        wrong = [name for name, value in self._told.items() if not value]
        return self.answer(f"!{wrong[0]}:") if wrong else self._end()

    def expert(self, rng: random.Random) -> str:
        """Looks, mends what is wrong, and ends."""
        if self.side == "u":
            return self._expert_user()
        wrong = [name for name in AGENT if not self.state[name]]
        if self.turn == 0 or wrong:
            return f"!{wrong[0]}" if self.turn and wrong else "?"
        if not self._looked:
            return "u?"
        wrong = [name for name in USER if not self.state[name]]
        return f"u!{wrong[0]}" if wrong else "end"

    def _expert_user(self) -> str:
        """Reads, says what he read, flips what he is asked to, and says so."""
        if not self._told:
            return "?" if self.turn == 0 else f"={self._read(USER)}"
        name = next(name for name, value in self._told.items() if not value)
        return "=ok" if self.state[name] else f"!{name}"

    def novice(self, rng: random.Random) -> str:
        """Any word of his side."""
        if self.side == "u":
            return rng.choice(["?", "!a", "!d", "=ok", "=a1d1"])
        return rng.choice(["?", "!l", "!r", "u?", "u!a", "u!d", "end"])
