"""Kuhn poker against a fixed opponent: "K:" -> "b" (bet or call) or "p" (pass or fold) -> ... Rewards are chips.

Three cards J Q K, one chip each before the cards, one bet. The value of the game for the first player is -1/18. The
opponent plays an equilibrium, at random, or a policy of your own. `regret_matching` computes an equilibrium, and
`best_response` what the best answer to any policy earns; histories are strings of "p" and "b".

Self-play of one model in one context would show each seat the other's card, so one seat is the episode's. The other is
a fixed opponent, or the model itself in a context of its own (config.agent.partner; rl_jax.experience.partners).
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import BAD, World

CARDS = "JQK"
DEALS = list(itertools.permutations(CARDS, 2))
ENDS = ("pp", "pbp", "pbb", "bp", "bb")
Policy = Mapping[str, float]  # card + history -> probability of "b"


def payoff(deal: tuple[str, str], history: str) -> int:
    """Chips of the first player at an end."""
    higher = 1 if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -1
    if history == "bp":
        return 1
    if history == "pbp":
        return -1
    return higher * (2 if history.endswith("bb") else 1)


def equilibrium(alpha: float = 1 / 3) -> dict[str, float]:
    """An equilibrium for both seats, alpha in [0, 1/3]: how often the first player bets with a J."""
    first = {"J": alpha, "Q": 0.0, "K": 3 * alpha, "Jpb": 0.0, "Qpb": alpha + 1 / 3, "Kpb": 1.0}
    return first | {"Jb": 0.0, "Qb": 1 / 3, "Kb": 1.0, "Jp": 1 / 3, "Qp": 0.0, "Kp": 1.0}


def uniform() -> dict[str, float]:
    """One half everywhere."""
    return dict.fromkeys(equilibrium(), 0.5)


def value(policy: Policy) -> float:
    """Chips of the first player per hand, both seats playing `policy`."""
    return sum(_walk(deal, "", policy, policy) for deal in DEALS) / len(DEALS)


def _walk(deal, history, first: Policy, second: Policy) -> float:
    if history in ENDS:
        return payoff(deal, history)
    seat = len(history) % 2
    bet = (first, second)[seat][deal[seat] + history]
    return bet * _walk(deal, history + "b", first, second) + (1 - bet) * _walk(deal, history + "p", first, second)


def best_response(opponent: Policy, seat: int) -> float:
    """The most that a player in `seat` (0 or 1) can earn per hand against `opponent`: all pure policies are tried."""
    own = [node for node in equilibrium() if (len(node) - 1) % 2 == seat]
    best = -float("inf")
    for choice in itertools.product((0.0, 1.0), repeat=len(own)):
        mine = dict(zip(own, choice, strict=True))
        seats = (mine, opponent) if seat == 0 else (opponent, mine)
        earned = sum(_walk(deal, "", *seats) for deal in DEALS) / len(DEALS)
        best = max(best, earned if seat == 0 else -earned)
    return best


def regret_matching(rounds: int) -> dict[str, float]:
    """Counterfactual regret minimisation: the average policy, which comes to an equilibrium as 1 / sqrt(rounds)."""
    regrets = {node: [0.0, 0.0] for node in equilibrium()}
    played = {node: [0.0, 0.0] for node in equilibrium()}

    def now(node):
        up = [max(r, 0.0) for r in regrets[node]]
        return up[1] / sum(up) if sum(up) else 0.5

    def walk(deal, history, reach):
        """Chips of the first player."""
        if history in ENDS:
            return payoff(deal, history)
        seat = len(history) % 2
        node = deal[seat] + history
        bet = policy[node]
        chances = (1 - bet, bet)
        values = []
        for action, chance in zip("pb", chances, strict=True):
            ahead = list(reach)
            ahead[seat] *= chance
            values.append(walk(deal, history + action, ahead))
        mean = sum(c * v for c, v in zip(chances, values, strict=True))
        sign = 1 if seat == 0 else -1
        for k in range(2):
            regrets[node][k] += reach[1 - seat] * sign * (values[k] - mean)
            played[node][k] += reach[seat] * chances[k]
        return mean

    for _ in range(rounds):
        policy = {node: now(node) for node in regrets}
        for deal in DEALS:
            walk(deal, "", [1.0, 1.0])
    return {node: b / (p + b) for node, (p, b) in played.items()}


class Kuhn(World):
    """One hand an episode. numbers: correct (chips were won), seat.

    What one may earn at best against the opponent is known: best_response(opponent, seat); against an equilibrium it
    is the game's value, -1/18 as the first player and 1/18 as the second. A malformed move passes.

    Args:
      opponent: "equilibrium", "uniform", or a function () -> {card + history: probability of "b"}.
      seat: 0 or 1; -1: drawn for each hand.
    """

    ALPHABET = "JQKpb:+-0123456789?\n"
    NUMBERS = ("seat",)
    OPPONENTS: Mapping[str, Callable[[], Policy]] = {"equilibrium": equilibrium, "uniform": uniform}

    def __init__(self, *, opponent: str | Callable[[], Policy] = "equilibrium", seat: int = -1):
        super().__init__(price=0.0, most=3)
        if isinstance(opponent, str) and opponent not in self.OPPONENTS or seat not in (-1, 0, 1):
            raise ValueError(
                f"opponent={opponent!r} must be of {', '.join(self.OPPONENTS)}, and seat={seat} -1, 0 or 1"
            )
        self._opponent = self.OPPONENTS[opponent]() if isinstance(opponent, str) else opponent()
        self._seat = seat
        self.partner = None  # (text) -> awaitable text: it plays the other seat in place of `opponent`

    def reset(self, record: Mapping, seed: int):
        """The model's card, and what the other seat did first; a coroutine with a partner."""
        prompt = super().reset(record, seed)
        return prompt if self.partner is None else self._dealt()

    async def _dealt(self) -> str:
        self._history = await self._partners(f"{self._deal[0]}:") if self._own == 1 else ""
        return f"{self._deal[self._own]}{self._history}:"

    async def _partners(self, told: str) -> str:
        """The partner's move; what is none passes."""
        said = await self.partner(told)
        return said if said in ("b", "p") else "p"

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """The model's card and seat; what the opponent does first comes with it."""
        while True:
            deal = rng.choice(DEALS)
            seat = rng.randrange(2) if self._seat < 0 else self._seat
            opening = ""
            if seat == 1:
                opening = "b" if rng.random() < self._opponent[deal[0]] else "p"
            yield f"{deal[seat]}{opening}:", {"deal": deal, "seat": seat, "opening": opening}

    def begin(self, info: dict, dice: random.Random) -> None:
        """The cards."""
        self._deal, self._own, self._history = tuple(info["deal"]), int(info["seat"]), info["opening"]
        self._dice = dice

    def state_key(self) -> str:
        """What the model knows."""
        return f"{self._deal[self._own]}{self._history}"

    def step(self, said: str):
        """The opponent's move, or the end; a coroutine with a partner."""
        malformed = float(said not in ("b", "p"))
        self._history += "p" if malformed else said
        if self._history in ENDS:
            return self._told(BAD if malformed else "", malformed)
        other = 1 - self._own
        if self.partner is not None:
            return self._against(said if not malformed else "p", malformed)
        move = "b" if self._dice.random() < self._opponent[self._deal[other] + self._history] else "p"
        self._history += move
        return self._told(move, malformed)

    async def _against(self, said: str, malformed: float) -> Step:
        first = f"{self._deal[1]}{self._history}:"  # the second seat's view, if it has not spoken yet
        move = await self._partners(first if self._own == 0 else f"{said}:")
        self._history += move
        return self._told(move, malformed)

    def _told(self, told: str, malformed: float) -> Step:
        if self._history in ENDS:
            chips = payoff(self._deal, self._history) * (1 if self._own == 0 else -1)
            numbers = self.counts(correct=float(chips > 0), seat=float(self._own), malformed=malformed)
            return Step(reward=float(chips), done=True, numbers=numbers)
        return self.answer(f"{told}:", malformed=malformed)

    def expert(self, rng: random.Random) -> str:
        """The equilibrium."""
        return "b" if rng.random() < equilibrium()[self.state_key()] else "p"

    def novice(self, rng: random.Random) -> str:
        """Either."""
        return rng.choice("pb")
