"""Agents discuss a problem in rounds: each solves it, drawn ones evaluate and score, all read that before the next."""

import random

from rl_jax.envs.text.attempts import Judged, plain
from rl_jax.envs.text.protocol import Step


class Discussions(Judged):
    """CoMAS's rounds: each agent solves the problem; each solution is evaluated and scored by agents that are drawn.

    In each round, for M agents:

        solver j = 1 .. M      "s7+8="             -> "15"    in round 1; then it reads K discussions of the last round:
                               "s7+8=15?ok,14?no"  -> "15"    a discussion is a solution and its evaluation, no score
        evaluator pi(j)        "e7+8=15?"          -> "ok"    pi: a permutation of the agents, drawn in each round
        scorer sigma(j)        "j7+8=15?ok"        -> "3"     sigma: another one

    The K = min(references, M) discussions are drawn without replacement from all M of the last round, an agent's own
    among them; one draw, in the order drawn, is what all agents of the round read. Rewards are Judged's, by
    advantages.turn_rounds.zero_sum: s = (score - 1) / 2 to the solver, 1 - s to the evaluator, nothing to a scorer who
    gave a score and -1 to one who did not (the other two then get 0). Within a round the discussions are played one
    after the other; nothing in a round reads another discussion of that round, so this is the same as all solvers, then
    all evaluators, then all scorers. agents=1 is Judged. numbers: correct (1 / M for each right solution of the last
    round: the share, as the code measures), role (1, 2, 3), score, agent (1 .. M, who speaks).

    Source: arXiv 2510.08529, its code (xxyQwQ/CoMAS, read in the fork wt-2048/comas: CoMASEnvironment of
    marti/worlds/workflows/comas.py with scripts/train_comas.sh: 4 agents, num_rounds 2, num_references 2). There the
    permutations are of all agents' turns in a batch of problems, so that a problem may see an agent twice; here of one
    problem's. The draws are the episode's seed's, which the G episodes of a group share. Its script gives each agent
    weights of its own, its option shared_agents one policy to all, as here.

    Args:
      judge: "model", or "scripted", as in Judged.
      rounds: of all agents.
      agents: M.
      references: K, discussions that a solver reads.

    Raises:
      ValueError: if a setting is out of its range.
    """

    ALPHABET = "0123456789+=?,sejkno \n"
    NUMBERS = (*Judged.NUMBERS, "agent")

    def __init__(self, *, judge: str = "model", rounds: int = 2, agents: int = 4, references: int = 2):
        super().__init__(judge=judge, rounds=rounds)
        if agents < 1 or references < 1:
            raise ValueError(f"agents={agents} and references={references} must be at least 1")
        self._agents, self._references = agents, references
        self.most *= agents

    def begin(self, info: dict, dice: random.Random) -> None:
        """No discussion yet."""
        super().begin(info, dice)
        self._dice, self._read, self._said = dice, "", []
        self._new_round()

    def _new_round(self) -> None:
        """Draws who evaluates and scores, and what all solvers of the round read: K discussions of the last one."""
        agents = range(1, self._agents + 1)
        self._speakers = (list(agents), *(self._dice.sample(agents, self._agents) for _ in range(2)))
        chosen = self._dice.sample(self._said, min(self._references, len(self._said)))
        self._read, self._said = ",".join(f"{solution}?{evaluation}" for solution, evaluation in chosen), []

    def state_key(self) -> str:
        """Who speaks, and what that agent reads beside the problem."""
        told = "|".join(self._words) if self._words else self._read
        return f"{self._round} {len(self._said)} {len(self._words)} {told}"

    def step(self, said: str) -> Step:
        """The prompt of who speaks next, or the end."""
        said, role = plain(said, self.ALPHABET), len(self._words) + 1
        self._words.append(said)
        counts = dict(role=float(role), agent=float(self._speakers[role - 1][len(self._said)]))
        last = self._round + 1 == self._rounds
        if role == 1:
            right = float(last and said == self._right) / self._agents
            counts |= dict(correct=right, malformed=float(not said.isdigit()))
            return self.workspace(f"e{self._question}{said}?\n", **counts)
        if role == 2:
            counts["malformed"] = float(said not in ("ok", "no"))
            if self._judge == "model":
                return self.workspace(f"j{self._question}{self._words[0]}?{said}\n", **counts)
            return self._ended(0.0, score=self.score(), **counts)
        known = said in ("1", "2", "3")
        counts |= dict(score=float(said) if known else -1.0, malformed=float(not known))
        return self._ended(0.0 if known else -1.0, **counts)

    def _ended(self, reward: float, **counts: float) -> Step:
        """The next discussion of the round, the next round, or the end."""
        self._said.append((self._words[0], self._words[1]))
        self._words = []
        if len(self._said) == self._agents:
            self._round += 1
            if self._round == self._rounds:
                return self.lost(reward, **counts)
            self._new_round()
        return self.workspace(f"s{self._question}{self._read}\n", reward=reward, **counts)
