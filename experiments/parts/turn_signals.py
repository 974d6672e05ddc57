"""What credit over turns asks for beyond rewards: branches, values of states, probabilities of the right answer.

Each array is made only if config.algorithm.advantage asks for it by name (rl_jax.core.names):

    branches                            which rows share which turns, of config.agent.branching
    state_values                        the mean return of config.agent.state_rollouts fresh episodes from each state
    answer_probs, prior_answer_probs    how probable the policy finds the right answer, if the environment tells it
    implicit_rewards                    log pi - log pi_ref of each token (experiments.parts.policy.make_assign), or
                                        beta (log phi - log pi) of a model in training (experiments.parts.step_model)
"""

import inspect
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from experiments.parts.setup import Setup
from experiments.parts.training import jit_score, to_mesh
from rl_jax import advantages
from rl_jax.advantages import tokens
from rl_jax.core.binding import bind, needs
from rl_jax.core.types import Params, Rollout, TokenBatch
from rl_jax.envs.text.world import World
from rl_jax.experience import branching
from rl_jax.experience.trajectory import Trajectory
from rl_jax.training.scoring import make_score

IN_AGENTS = "in a program of episodes: python -m experiments.agents"
# name -> (whether a config has it, what supplies it), as policy.SUPPLIED_BY.
SUPPLIED_BY: dict[str, tuple[Callable, str]] = {
    "branches": (
        lambda config: "agent" in config and bool(config.agent.branching.fn),
        "--config.agent.branching.fn=at_random (or by_entropy) does, in experiments.agents",
    ),
    "state_values": (
        lambda config: "agent" in config and config.agent.state_rollouts > 0,
        "--config.agent.state_rollouts=2 does, in experiments.agents",
    ),
    **dict.fromkeys(
        ("answer_probs", "prior_answer_probs", "implicit_rewards"),
        (lambda config: "agent" in config, IN_AGENTS),
    ),
    "q_values": (lambda config: False, "your own loop can pass it; configs/agents_ppo.py:archer trains it"),
}
WIDTH = 8  # answers are scored in rows of so many tokens, or a multiple
ROOM = 2**18  # numbers of the fresh episodes of state values begin here


def advantage_of(config) -> tuple[str, Callable]:
    """(the field that names the advantage, the function): algorithm.advantage, or critic.advantage of PPO."""
    if "critic" in config:
        return "critic.advantage", bind(config.critic.advantage.to_dict(), tokens)
    return "algorithm.advantage", bind(config.algorithm.advantage.to_dict(), advantages)


def step_model_of(config) -> dict[str, Any]:
    """config.agent.step_model; runs of before there was one, and of programs without episodes, have none."""
    return dict(config.agent.get("step_model", {"fn": ""})) if "agent" in config else {"fn": ""}


def said(config) -> str:
    """The advantage as a message names it: algorithm.advantage='loop'."""
    field = advantage_of(config)[0]
    return f"{field}={config[field.split('.')[0]].advantage.fn!r}"


def in_loss(objective: tuple) -> set[str]:
    """The arrays of turns and versions that a term of an objective asks for: they go into the batch's extras."""
    asked = (needs(fn) for fn in objective if callable(fn))
    return {"turns", "turn_rewards", "lags"} & set().union(*asked)


def asked(config) -> set[str]:
    """The names of this module that the advantage asks for."""
    return needs(advantage_of(config)[1]) & set(SUPPLIED_BY)


def problems(config, env: Any) -> list[str]:
    """What config.agent says about branching and values that cannot be, one a line; `env` is one environment."""
    agent, size, found = config.agent, config.sample.group_size, []
    if agent.branching.fn and not 1 <= agent.roots < size:
        found.append(
            f"agent.roots={agent.roots!r} must be at least 1 and less than "
            f"sample.group_size={size}, whose other episodes branch off"
        )
    if agent.branching.fn and agent.rounds < 1:
        found.append(f"agent.rounds={agent.rounds!r} must be 1 or more")
    if agent.state_rollouts < 0:
        found.append(f"agent.state_rollouts={agent.state_rollouts!r} must be 0 (none) or more")
    try:
        chooser(config)
    except (ValueError, TypeError) as error:
        found.append(f"agent.branching: {error}")
    if agent.branching.fn or agent.state_rollouts > 0:
        found += _not_copied(config, env)
    names = asked(config)
    if "answer_probs" in names and not hasattr(env, "right_answer"):
        found.append(
            f"{said(config)} asks for the probability of the right answer: "
            f"agent.env={agent.env.fn!r} has no right_answer()"
        )
    if "answer_probs" in names and config.rollout.mesh:
        found.append(f"rollout.mesh={config.rollout.mesh!r}: answers are scored on the mesh of training")
    return found


def _not_copied(config, env: Any) -> list[str]:
    """Why episodes cannot go on in copies of the environment; a generated world is asked within an episode."""
    if isinstance(env, World) and type(env).problems is not World.problems:
        prompt, info = next(env.problems(random.Random(0)))
        begun = env.reset({"prompt": prompt, "info": json.dumps(info)}, 0)
        if inspect.iscoroutine(begun):
            begun.close()
    elif hasattr(env, "copy"):
        return []  # it may need an episode, and there is none yet
    try:
        branching.copy_of(env)
    except ValueError as error:
        return [f"agent.env={config.agent.env.fn!r}: {error}"]
    return []


def chooser(config) -> Callable | None:
    """(found, count, dice) -> points, of config.agent.branching; None if episodes do not branch."""
    spec = config.agent.branching.to_dict()
    return bind(spec, branching) if spec["fn"] else None


def shares(config) -> list[int]:
    """How many episodes of a group begin in each round: the roots, and the others split evenly."""
    roots, rounds = config.agent.roots, config.agent.rounds
    rest = config.sample.group_size - roots
    cuts = [rest * n // rounds for n in range(rounds + 1)]
    return [roots, *(b - a for a, b in zip(cuts, cuts[1:], strict=False) if b > a)]


class Signals:
    """Makes the arrays that a run's advantage asks for.

    Args:
      setup: of the run.
      player: of its episodes.
    """

    def __init__(self, setup: Setup, player: Any):
        self._setup, self._player, self._names = setup, player, asked(setup.config)
        self._scorers: dict[int, Callable] = {}

    def __call__(
        self, params: Params, records: list[dict], trajectories: Sequence[Trajectory], rollout: Rollout, key: jax.Array
    ) -> Rollout:
        """The Rollout with its turns' signals.

        Args:
          params: of the policy.
          records: one per group.
          trajectories: B, just played.
          rollout: of these.
          key: of the step.
        """
        signals, numbers = {}, rollout.turns.numbers
        if "branches" in self._names:
            signals["branches"] = branching.branches(trajectories, numbers)
        if "state_values" in self._names:
            values = self._player.state_values(params, records, trajectories, jax.random.fold_in(key, ROOM))
            signals["state_values"] = on_last_tokens(numbers, values)
        if "answer_probs" in self._names:
            priors, after = self._answer_probs(params, trajectories)
            signals |= {"prior_answer_probs": priors, "answer_probs": on_last_tokens(numbers, after)}
        return rollout._replace(turns=rollout.turns._replace(signals=signals)) if signals else rollout

    def _answer_probs(self, params: Params, trajectories: Sequence[Trajectory]):
        """(float32 [B] before the first turn, lists of one number per turn)."""
        encode = self._setup.task.tokenizer.encode_continuation
        texts = self._player.answers(trajectories)
        ids = [encode(text, eos=True) if text is not None else [] for text in texts]
        rows, places = [], []
        for row, trajectory in enumerate(trajectories):
            if trajectory.status != "error" and ids[row]:
                for turn, context in contexts(trajectory):
                    rows.append((context, np.asarray(ids[row], np.int32)))
                    places.append((row, turn))
        priors, after = np.zeros(len(trajectories), np.float32), [np.zeros(len(t.turns)) for t in trajectories]
        for (row, turn), prob in zip(places, self._probs(params, rows), strict=True):
            if turn < 0:
                priors[row] = prob
            else:
                after[row][turn] = prob
        return priors, after

    def _probs(self, params: Params, rows: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
        """exp of the mean log-prob of each row's answer after its context."""
        config, found = self._setup.config, []
        size = config.sample.prompts_per_step * config.sample.group_size
        widest = max((len(answer) for _, answer in rows), default=1)
        width = -(-widest // WIDTH) * WIDTH
        length = max(config.rollout.prompt_buckets) + config.rollout.completion_length + width
        if width not in self._scorers:
            score = make_score(self._setup.model, completion_length=width, chunk=config.score.chunk)
            self._scorers[width] = jit_score(score, self._setup)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            batch = answer_rows(part, size, length, self._setup.task.tokenizer.pad_id)
            scores = self._scorers[width](params, to_mesh(self._setup, batch))
            log_probs = np.asarray(jax.device_get(scores.log_probs), np.float64)
            found += [float(np.exp(log_probs[i, -len(answer) :].mean())) for i, (_, answer) in enumerate(part)]
        return found


def answer_rows(rows: Sequence[tuple[np.ndarray, np.ndarray]], size: int, length: int, pad_id: int) -> TokenBatch:
    """Contexts with their answers at the right end, int32 [size, length]; rows that are left over hold one token."""
    tokens, real = np.full((size, length), pad_id, np.int32), np.zeros((size, length), bool)
    real[:, -1] = True
    for i, row in enumerate(rows):
        whole = np.concatenate(row)
        tokens[i, length - len(whole) :], real[i, length - len(whole) :] = whole, True
    positions = np.maximum(np.cumsum(real, axis=1) - 1, 0) * real
    return TokenBatch(tokens, positions.astype(np.int32), real.astype(np.int32))


def contexts(trajectory: Trajectory):
    """(turn, int32 [n]): what the model has read when the next turn begins; turn -1: before its first."""
    turn = -1
    for spans in trajectory.segments:
        so_far = spans[0].ids
        for span in spans[1:]:
            if span.kind == "sampled":
                yield turn, so_far
                turn += 1
            so_far = np.concatenate([so_far, span.ids])


def on_last_tokens(numbers: np.ndarray, values: Sequence[Sequence[float]]) -> np.ndarray:
    """Values of turns on their last tokens. int32 [B, C], B lists of numbers -> float32 [B, C], 0 elsewhere."""
    result = np.zeros(numbers.shape, np.float32)
    ends = (numbers >= 0) & (np.pad(numbers[:, 1:], ((0, 0), (0, 1)), constant_values=-1) != numbers)
    for row, of_turns in enumerate(values):
        places = np.flatnonzero(ends[row])
        if len(places) and len(of_turns):
            result[row, places] = np.asarray(of_turns, np.float32)[numbers[row, places]]
    return result
