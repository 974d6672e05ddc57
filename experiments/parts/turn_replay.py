"""ArCHer's replay (arXiv 2402.19446): critics of turns learn from turns of earlier steps, with fresh actions there.

A transition (s_j, a_j, r_j, s_j+1) is a turn of a recorded episode (WORKDIR/trajectories, agent.record). For each that
is drawn, the policy as it is now speaks a' after s_j, and

    Q_k(s_j, a_j) -> r_j + gamma V'_k(s_j+1),     V_k(s_j) -> Q'_k(s_j, a'),    a' ~ pi(. | s_j)

Nothing is carried but the files, so a resumed run draws what it would have drawn.
"""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts.players import limits_of
from experiments.parts.processes import to_host
from experiments.parts.setup import Setup
from experiments.parts.training import to_mesh
from rl_jax import ppo
from rl_jax.advantages import turn_critics
from rl_jax.core.types import PolicyBatch, Rollout
from rl_jax.experience import trajectory
from rl_jax.experience.episode import Draw
from rl_jax.experience.trajectory import Trajectory
from rl_jax.preferences.episodes import FOLDER
from rl_jax.rollout.lm.episodes import as_rollout

SHUFFLE, SPEAK = 2**20, 2**21  # of the step's key


class Transition(NamedTuple):
    """A turn of an episode."""

    episode: Trajectory
    turn: int


def transitions(folder: pathlib.Path, newest: int, steps: int, cache: dict[int, list[Transition]]) -> list[Transition]:
    """The turns of the episodes of the last `steps` steps, up to `newest`, that their environment did not fail in.

    Args:
      folder: WORKDIR/trajectories.
      newest: number of a step.
      steps: how many.
      cache: what was read, by step; what is too old is dropped from it.
    """
    import pyarrow.parquet

    wanted = range(max(newest - steps, 0) + 1, newest + 1)
    for step in wanted:
        path = folder / f"{step:08d}.parquet"
        if step not in cache and path.is_file():
            episodes = trajectory.from_table(pyarrow.parquet.read_table(path))
            cache[step] = [
                Transition(one, turn) for one in episodes if one.status != "error" for turn in range(len(one.turns))
                if len(one.sampled()[turn].ids)
            ]  # fmt: skip
    for step in set(cache) - set(wanted):
        del cache[step]
    return [transition for step in wanted for transition in cache.get(step, [])]


def until(transition: Transition, ids: Sequence[int]) -> Trajectory:
    """The episode up to the turn, in which `ids` are said instead: s_j and a'."""
    segments, turn = [], -1
    for spans in transition.episode.segments:
        segments.append([])
        for span in spans:
            turn += span.kind == "sampled"
            if span.kind == "sampled" and turn == transition.turn:
                unknown = np.zeros(len(ids), np.float32)
                segments[-1].append(trajectory.sampled(ids, unknown))
                whole = tuple(tuple(part) for part in segments)
                return transition.episode._replace(segments=whole, turns=transition.episode.turns[: turn + 1])
            segments[-1].append(span)
    raise ValueError(f"the episode has no turn {transition.turn}")


def draws(chosen: Sequence[Transition], limits) -> list[Draw]:
    """One fresh turn after each state, no longer than the row and the limits of a turn allow."""
    result = []
    for number, transition in enumerate(chosen):
        before = until(transition, ())
        first, *rest = before.segments[-1]
        said = np.concatenate([np.zeros(0, np.int32), *(span.ids for span in rest)]).astype(np.int32)
        used = sum(len(span.ids) for spans in before.segments for span in spans) - len(before.segments[0][0].ids)
        room = min(limits.row - used, limits.context - len(first.ids) - len(said))
        room = min(room, limits.turn_tokens) if limits.turn_tokens else room
        result.append(Draw(number, len(before.segments) - 1, first.ids, said, room, True))
    return result


def targets(
    chosen: Sequence[Transition], rows: Rollout, fresh: Rollout, old: np.ndarray, new: np.ndarray, discount: float
) -> tuple[np.ndarray, np.ndarray]:
    """(y^Q and y^V on the last token of each drawn turn, float32 [B, C, 2 K]; that token, bool [B, C]).

    Args:
      chosen: B transitions.
      rows: their episodes.
      fresh: the same up to the turn, with a'.
      old: of `rows` under the slow copy, float [B, C, 2 K] of turn_critics.at_turns.
      new: of `fresh` under the slow copy.
      discount: gamma.
    """
    pairs, size = old.shape[2] // 2, len(chosen)
    ends, fresh_ends = (np.asarray(turn_critics.turn_ends(x.turns.numbers, x.completion_mask)) for x in (rows, fresh))
    place = lambda row, at, turn, x: np.flatnonzero(at[row] & (x.turns.numbers[row] == turn))  # noqa: E731
    ahead, said = np.zeros((pairs, size), np.float32), np.zeros((pairs, size), np.float32)
    done, earned, learned = np.zeros(size, bool), np.zeros(size, np.float32), np.zeros(ends.shape, bool)
    for row, (episode, turn) in enumerate(chosen):
        following = place(row, ends, turn + 1, rows)
        done[row], earned[row] = not len(following), episode.turns[turn].reward
        if len(following):
            ahead[:, row] = old[row, following[0], pairs:]
        said[:, row] = new[row, place(row, fresh_ends, turn, fresh)[0], :pairs]
        learned[row, place(row, ends, turn, rows)[0]] = True
    found = turn_critics.archer_targets(earned, done, ahead, said, discount=discount)
    both = np.concatenate([np.asarray(x) for x in found]).T  # [B, 2 K]
    return np.where(learned[:, :, None], both[:, None, :], 0.0).astype(np.float32), learned


def train(loop: Any, setup: Setup, programs: Any, learner: Any, key: jax.Array) -> tuple[Any, list[dict]]:
    """Trains the critics on `critic.replay.batches` batches of earlier turns; nothing without critic.replay.

    Args:
      loop: knows the step and the workdir.
      setup: of the run.
      programs: PPOPrograms, whose generate is a Player.
      learner: ppo.LearnerState.
      key: of the step's updates.

    Returns:
      (learner, metrics of each update).
    """
    config, metrics = setup.config, []
    if "replay" not in config.critic:
        return learner, metrics
    settings, player = config.critic.replay, programs.generate
    pool = transitions(loop.workdir / FOLDER, loop.step, settings.steps, player.replayed)
    size = config.sample.prompts_per_step * config.sample.group_size // config.train.minibatches
    seed = np.asarray(jax.random.key_data(jax.random.fold_in(key, SHUFFLE))).tolist()
    rng, discount = np.random.default_rng(seed), config.critic.advantage.get("discount", 0.95)
    chosen = [[pool[i] for i in rng.integers(len(pool), size=size)] for _ in range(settings.batches)]
    whole = [one for part in chosen for one in part]
    spoken = player.speak(learner.policy_params(), draws(whole, limits_of(config)), jax.random.fold_in(key, SPEAK))
    for number, part in enumerate(chosen):
        said = spoken[number * size : (number + 1) * size]
        batch = batch_of(setup, programs, learner.target, part, said, discount)
        critic, found = programs.critic_step(learner.critic, to_mesh(setup, batch))
        learner = learner._replace(critic=critic)
        metrics.append(jax.device_get(found))
        loop.check_finite(learner.critic, batch, head=False)
    return learner, metrics


def batch_of(setup: Setup, programs: Any, target: Any, chosen: list[Transition], said, discount) -> ppo.PPOBatch:
    """What the critics are trained on: the episodes' rows, of which each teaches its drawn turn alone."""
    config = setup.config
    shape = dict(
        prompt_length=max(config.rollout.prompt_buckets),
        completion_length=config.rollout.completion_length,
        pad_id=setup.task.tokenizer.pad_id,
    )
    rows = as_rollout([one.episode for one in chosen], **shape)
    fresh = as_rollout([until(one, ids) for one, ids in zip(chosen, said, strict=True)], **shape)

    def read(x: Rollout) -> np.ndarray:
        outputs = jnp.asarray(to_host(programs.predict(target, to_mesh(setup, x.batch))))
        return np.asarray(turn_critics.at_turns(outputs, x.turns.numbers, x.completion_mask))

    old, new = read(rows), read(fresh)
    returns, learned = targets(chosen, rows, fresh, old, new, discount)
    blank = np.zeros(learned.shape, np.float32)
    policy = PolicyBatch(
        rows.batch, rows.completion_mask, blank, None, blank, None, extras={"turns": rows.turns.numbers}
    )
    return ppo.PPOBatch(policy, old, returns, learned)
