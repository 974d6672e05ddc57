"""A judge of texts in a game whose latent strategies grow from iteration to iteration (LSPO), solved by networks."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.parts.judges.base import Judge, Rows, Verdict, info_of
from experiments.parts.judges.latent import LEAST, MEASURES, by_role, shares
from experiments.parts.processes import replicate
from experiments.parts.setup import Setup
from rl_jax.core.binding import bind, resolve
from rl_jax.selection import latent_strategies as latent

DEEP = "rl_jax.selection.deep_cfr:solve"


def latent_iterations(
    setup: Setup,
    *,
    game: str = "rl_jax.envs.text.werewolf_talk:game",
    clusters: Sequence[int] = (2, 3, 4),
    every: int = 20,
    solver: Mapping[str, Any] = {"fn": DEEP},
    by: str = "regret",
) -> Judge:
    """LSPO's iterations. One begins with the texts of a step and stays for `every` steps of training:

        z(text) = the nearest of the K_i centres of its role's texts: k-means, K_i = clusters[i], the last one after it
        R(I, k), sigma(I, k) of the game of these strategies, by `solver`
        reward = R(I, z(text)), or log sigma(I, z(text))

    The first one begins with the texts of the evaluation before step 1. So pairs of one iteration are labelled by one
    solution, as DPO on its data is, and the next iteration clusters what the trained policy says. Actions that are no
    texts (votes) are strategies as they are. Texts of one strategy at one information set are equal: pair_selection
    with ties="drop", and reference_schedule per_iteration with the same `every`. Centres and solution are in every
    checkpoint. Components: `gap`, what the players could still gain against the actions of the rows' texts, votes by
    sigma; `latent_gap`, against the solution; `clusters`, the mean of the roles; `iteration`.
    Source: arXiv 2502.04686 (equations second-hand; how K grows is not known to us, so it is given). There texts are
    collected from whole games; here each step's prompts are all information sets with a text.

    Args:
      setup: of the run; its records' info has `infoset`.
      game: "module:function" of a function () -> rl_jax.envs.text.kuhn_talk.TextGame.
      clusters: K of the first iteration, of the second, ...; at least 2 and not falling.
      every: steps of an iteration.
      solver: dict(fn=..., **keywords): a function (root, effects, ...) -> latent_strategies.Solution, by its import
        path, or "solve" for tables; it may ask for `features`, `most` and `seed`.
      by: "regret" (the paper's) or "policy".

    Raises:
      ValueError: if `by` is unknown, `every` is below 1, or the clusters are below 2 or fall.
    """
    grows = len(clusters) > 0 and min(clusters) >= 2 and list(clusters) == sorted(clusters)
    if by not in MEASURES or every < 1 or not grows:
        raise ValueError(
            f"latent_iterations: by={by!r} is one of {', '.join(MEASURES)}, every={every} 1 or more, and "
            f"clusters={tuple(clusters)} 2 or more that do not fall"
        )
    played = resolve(game)()
    return _Iterated(played, Iterations(setup, played, clusters, every), dict(solver), by)


class Iterations:
    """The strategies of an iteration and their solution: what a checkpoint holds of the judge.

    Attributes:
      names: of latent_strategies.infosets.
      roles: of the information sets with texts, sorted.
      arrays: name -> array: centres [R, K, D], counts [R], effects [R, K, A], regrets and policy [I, K], and as numbers
        seen (steps so far), iteration and solved.
      needs_labels: False, the game is the teacher.
      seed: of the run.
    """

    needs_labels = False

    def __init__(self, setup: Setup, played, clusters: Sequence[int], every: int):
        self._setup, self._clusters, self._every, self.seed = setup, tuple(clusters), every, setup.config.seed
        self.names = latent.infosets(played.root)
        self.roles = sorted({played.role_of(name) for name in self.names if played.spoken(name)})
        most, size = self.most, played.embed([""]).shape[1]
        actions = max(count for _, count in self.names.values())
        rows = max(most, actions)  # strategies of an action that is no text are its own
        self.arrays = {
            "centres": np.zeros((len(self.roles), most, size), np.float32),
            "counts": np.zeros(len(self.roles), np.int32),
            "effects": np.zeros((len(self.roles), most, actions), np.float32),
            "regrets": np.zeros((len(self.names), rows), np.float32),
            "policy": np.zeros((len(self.names), rows), np.float32),
            **dict.fromkeys(("seen", "iteration", "solved"), np.zeros((), np.int32)),
        }

    @property
    def most(self) -> int:
        """Clusters of the last iteration."""
        return self._clusters[-1]

    @property
    def size(self) -> int:
        """Clusters of this iteration."""
        return self._clusters[min(int(self.arrays["iteration"]), len(self._clusters) - 1)]

    def due(self) -> bool:
        """Counts a step. Returns whether the iteration is over."""
        self.arrays["seen"] = np.asarray(self.arrays["seen"] + 1, np.int32)
        return int(self.arrays["seen"]) % self._every == 0

    def carried(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return replicate(self._setup.mesh, {name: jnp.asarray(array) for name, array in self.arrays.items()})

    def set_carried(self, items: dict[str, Any]) -> None:
        """Puts back what `carried` gave."""
        self.arrays = {name: np.asarray(items[name]) for name in self.arrays}


class _Iterated:
    """The judge of `latent_iterations`."""

    def __init__(self, played, state: Iterations, solver: dict[str, Any], by: str):
        self._played, self.learner, self._solver, self._by = played, state, solver, by

    def __call__(self, judged: Rows) -> Verdict:
        if not np.any(judged.rollout.completion_mask):  # zeros in place of samples, to compile ahead
            return Verdict(np.zeros(len(judged.records), np.float32))
        if not self.learner.arrays["solved"]:
            self._begin(judged)
        arrays, played = self.learner.arrays, self._played
        sets, actions = self._read(judged)
        placed, rows = zip(sets, played.embed(judged.completions), strict=True), list(self.learner.names)
        labels = np.asarray([self._nearest(played.role_of(name), point) for name, point in placed])
        values = arrays["regrets"] if self._by == "regret" else np.log(arrays["policy"] + LEAST)
        place = {name: index for index, name in enumerate(rows)}
        rewards = values[[place[name] for name in sets], labels].astype(np.float32)
        effects = self._effects()
        solved = latent.acted({name: arrays["policy"][place[name], : len(effects[name])] for name in rows}, effects)
        here = {played.role_of(name) for name in sets}  # of a role without a text, the solution stands for it
        spoken = {k: v for k, v in self.learner.names.items() if played.spoken(k) and played.role_of(k) in here}
        numbers = {
            "gap": played.gap(solved | shares(sets, actions, spoken, played)),
            "latent_gap": played.gap(solved),
            "clusters": arrays["counts"].mean(),
            "iteration": arrays["iteration"],
        }
        return Verdict(rewards, components={name: np.full(len(sets), x, np.float32) for name, x in numbers.items()})

    def learn(self, judged: Rows, labels: np.ndarray | None) -> dict[str, float]:
        """Begins the next iteration with the rows' texts. labels: not read. Returns metrics."""
        self.learner.arrays["iteration"] = np.asarray(self.learner.arrays["iteration"] + 1, np.int32)
        self._begin(judged)
        return {"clusters": float(self.learner.arrays["counts"].mean())}

    def _read(self, judged: Rows) -> tuple[list[str], np.ndarray]:
        """(the information set of each row, what its text does)."""
        sets = [info_of(record)["infoset"] for record in judged.records]
        return sets, np.asarray([self._played.action_of(text) for text in judged.completions])

    def _nearest(self, role: str, point: np.ndarray) -> int:
        index, arrays = self.learner.roles.index(role), self.learner.arrays
        centres = arrays["centres"][index, : arrays["counts"][index]]
        return int(np.argmin(((centres - point) ** 2).sum(-1)))

    def _effects(self) -> dict[str, np.ndarray]:
        """infoset -> M, of the strategies of this iteration."""
        arrays, found = self.learner.arrays, {}
        for name, (_, count) in self.learner.names.items():
            if self._played.spoken(name):
                index = self.learner.roles.index(self._played.role_of(name))
                found[name] = np.asarray(arrays["effects"][index, : arrays["counts"][index], :count], float)
                found[name] = found[name] / found[name].sum(1, keepdims=True)  # they are kept as float32
            else:
                found[name] = np.eye(count)
        return found

    def _begin(self, judged: Rows) -> None:
        """Clusters the rows' texts, and solves the game of the clusters."""
        state, played = self.learner, self._played
        sets, actions = self._read(judged)
        spoken = {name: found for name, found in state.names.items() if played.spoken(name)}
        labels, table = by_role(played, sets, judged.completions, actions, state.size, spoken)
        points, of_role = played.embed(judged.completions), np.asarray([played.role_of(name) for name in sets])
        arrays = state.arrays | {name: np.zeros_like(state.arrays[name]) for name in ("centres", "effects", "counts")}
        for index, role in enumerate(state.roles):
            for label, row in enumerate(table[role]):
                arrays["centres"][index, label] = points[(of_role == role) & (labels == label)].mean(0)
                arrays["effects"][index, label, : len(row)] = row
            arrays["counts"][index] = len(table[role])
        state.arrays = arrays
        effects, most = self._effects(), arrays["policy"].shape[1]
        seed = 1_000 * self.learner.seed + int(arrays["iteration"])
        solve = bind(self._solver, latent, features=played.features, most=most, seed=seed)
        found = solve(played.root, effects)
        for name, values in (("regrets", found.regrets), ("policy", found.policy)):
            rows = [np.pad(values[key], (0, most - len(values[key]))) for key in state.names]
            state.arrays[name] = np.asarray(np.stack(rows), np.float32)
        state.arrays["solved"] = np.ones((), np.int32)
