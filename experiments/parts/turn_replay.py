"""ArCHer's replay (arXiv 2402.19446): critics of turns learn from turns of earlier steps, with fresh actions there.

A transition (s_j, a_j, r_j, s_j+1) is a turn of a recorded episode (WORKDIR/trajectories, agent.record). For each that
is drawn, the policy as it is now speaks a' after s_j, and

    Q_k(s_j, a_j) -> r_j + gamma V'_k(s_j+1),     V_k(s_j) -> Q'_k(s_j, a'),    a' ~ pi(. | s_j)

All turns of the last critic.replay.steps steps are as likely as each other. Nothing is carried but the files, so a
resumed run draws what it would have drawn.
"""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.parts import turn_signals
from experiments.parts.players import limits_of
from experiments.parts.processes import to_host
from experiments.parts.setup import Setup
from experiments.parts.training import to_mesh
from rl_jax import ppo
from rl_jax.advantages import turn_critics
from rl_jax.core.binding import needs
from rl_jax.core.types import Rollout
from rl_jax.experience import trajectory
from rl_jax.experience.episode import Draw
from rl_jax.experience.trajectory import Trajectory
from rl_jax.preferences.episodes import FOLDER, of_step
from rl_jax.rollout.lm.episodes import as_rollout

SHUFFLE, SPEAK = 2**20, 2**21  # of the step's key


class Transition(NamedTuple):
    """A turn of an episode."""

    episode: Trajectory
    turn: int


def check(config) -> None:
    """Checks config.critic.replay.

    Raises:
      ValueError: naming everything that is wrong, one a line.
    """
    replay, found = config.critic.replay, []
    if replay.batches == 0:
        return
    if "agent" not in config or not config.agent.record:
        found.append("critic.replay reads the episodes that were recorded: set agent.record=True in a config of agents")
    if "target_values" not in needs(turn_signals.advantage_of(config)[1]):
        said = turn_signals.said(config)
        found.append(f"critic.replay: {said} has no critics of turns; take rl_jax.advantages.turn_critics:archer_td")
    if replay.batches < 0:
        found.append(f"critic.replay.batches={replay.batches!r} must be 0 (no replay) or more")
    if replay.steps < 1:
        found.append(f"critic.replay.steps={replay.steps!r} must be 1 or more")
    if config.packing.mode != "padded":
        found.append(f"packing.mode={config.packing.mode!r}: replayed rows are 'padded'")
    if found:
        raise ValueError("\n".join(found))


def transitions(folder: pathlib.Path, newest: int, steps: int, cache: dict[int, list[Transition]]) -> list[Transition]:
    """The turns of the episodes of the last `steps` steps, up to `newest`, that their environment did not fail in.

    Args:
      folder: WORKDIR/trajectories.
      newest: number of a step.
      steps: how many.
      cache: what was read, by step; what is too old is dropped from it.

    Raises:
      FileNotFoundError: if a step's file is gone, as the run would go on with other turns than it would have had.
    """
    wanted = range(max(newest - steps, 0) + 1, newest + 1)
    for step in wanted:
        if step in cache:
            continue
        cache[step] = [
            Transition(one, turn)
            for one in of_step(folder, step, "critic.replay")
            if one.status != "error"
            for turn, said in enumerate(one.sampled()[: len(one.turns)])
            if len(said.ids)
        ]
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
        sampled = sum(len(span.ids) for spans in before.segments for span in spans if span.kind == "sampled")
        room = min(room, limits.tokens - sampled) if limits.tokens else room
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
        following = np.flatnonzero(ends[row] & (rows.turns.numbers[row] > turn))  # the next turn that says something
        done[row], earned[row] = not len(following), episode.turns[turn].reward
        if len(following):
            ahead[:, row] = old[row, following[0], pairs:]
        said[:, row] = new[row, place(row, fresh_ends, turn, fresh)[0], :pairs]
        learned[row, place(row, ends, turn, rows)[0]] = True
    found = turn_critics.archer_targets(earned, done, ahead, said, discount=discount)
    both = np.concatenate([np.asarray(x) for x in found]).T  # [B, 2 K]
    return np.where(learned[:, :, None], both[:, None, :], 0.0).astype(np.float32), learned


def train(
    loop: Any, setup: Setup, programs: Any, learner: Any, batch: ppo.PPOBatch, key: jax.Array
) -> tuple[Any, list[dict]]:
    """Trains the critics on `critic.replay.batches` minibatches of earlier turns; nothing if that is 0.

    Args:
      loop: knows the step and the workdir.
      setup: of the run.
      programs: PPOPrograms, whose generate is a Player.
      learner: actor_critic.LearnerState.
      batch: of the whole step; replayed rows have its arrays.
      key: of the step's updates.

    Returns:
      (learner, metrics of each update).
    """
    config, metrics = setup.config, []
    if not config.critic.replay.batches:
        return learner, metrics
    settings, player = config.critic.replay, programs.generate
    pool = transitions(loop.workdir / FOLDER, loop.step, settings.steps, player.replayed)
    if not pool:  # every environment has failed so far
        return learner, metrics
    size = len(batch.completion_mask) // config.train.minibatches
    seed = np.asarray(jax.random.key_data(jax.random.fold_in(key, SHUFFLE))).tolist()
    chosen = [pool[i] for i in np.random.default_rng(seed).integers(len(pool), size=settings.batches * size)]
    said = player.speak(learner.policy_params(), draws(chosen, limits_of(config)), jax.random.fold_in(key, SPEAK))
    replayed = batch_of(setup, programs, learner.target, chosen, said, batch)
    for start in range(0, len(chosen), size):
        part = to_mesh(setup, jax.tree.map(lambda x, start=start: x[start : start + size], replayed))
        critic, found = programs.critic_step(learner.critic, part)
        learner = learner._replace(critic=critic)
        metrics.append(jax.device_get(found))
        loop.check_finite(learner.critic, part, head=False)
    return learner, metrics


def batch_of(
    setup: Setup, programs: Any, target: Any, chosen: Sequence[Transition], said: Sequence[np.ndarray], like: Any
) -> ppo.PPOBatch:
    """What the critics are trained on: the episodes' rows, of which each teaches its drawn turn alone.

    Args:
      setup: of the run.
      programs: whose predict reads the critics, with as many rows at once as a step has.
      target: params of the slow copy.
      chosen: transitions.
      said: the fresh action of each, int32 [n].
      like: PPOBatch of the step. What only the policy reads is its first row's, so that no program is compiled anew.
    """
    config, count, at_once = setup.config, len(chosen), len(like.completion_mask)
    shape = dict(
        prompt_length=max(config.rollout.prompt_buckets),
        completion_length=config.rollout.completion_length,
        pad_id=setup.task.tokenizer.pad_id,
    )
    rows = as_rollout([one.episode for one in chosen], **shape)
    fresh = as_rollout([until(one, ids) for one, ids in zip(chosen, said, strict=True)], **shape)

    def read(x: Rollout) -> np.ndarray:
        found = []
        for start in range(0, count, at_once):
            places = np.arange(start, start + at_once) % count  # the last part begins anew: one shape
            part = jax.tree.map(lambda leaf, places=places: leaf[places], x.batch)
            found.append(np.asarray(to_host(programs.predict(target, to_mesh(setup, part)))))
        return np.asarray(turn_critics.at_turns(np.concatenate(found)[:count], x.turns.numbers, x.completion_mask))

    old, new = read(rows), read(fresh)
    returns, learned = targets(chosen, rows, fresh, old, new, config.critic.advantage.get("discount", 0.95))
    filled = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[:1], count, axis=0), like)
    extras = filled.policy.extras | {"turns": rows.turns.numbers}
    policy = filled.policy._replace(batch=rows.batch, completion_mask=rows.completion_mask, extras=extras)
    return filled._replace(policy=policy, values=old, returns=returns, learned=learned)
