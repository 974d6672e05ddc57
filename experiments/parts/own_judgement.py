"""The policy's own judgement of its episodes, as a number of their last turn (config.agent.own_judgement).

The environment writes the judging prompt, `grading(said)`, and names the grades, GRADES, one token each; the policy's
probabilities of them give own_value (rl_jax.experience.own_judgement). Nothing is sampled.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.parts.judges.base import in_batches
from experiments.parts.setup import Setup
from experiments.parts.training import jit_score
from rl_jax.core.types import Params, TokenBatch
from rl_jax.experience.episodes import probing
from rl_jax.experience.own_judgement import OWN_VALUE, WEIGHTS, graded_value
from rl_jax.experience.trajectory import Trajectory
from rl_jax.preferences.encode import layout
from rl_jax.training.scoring import make_score


def is_asked(config) -> bool:
    """Whether the run's episodes are judged; runs of before there was a choice have none."""
    return bool(config.agent.get("own_judgement", False))


def problems(config, env: Any) -> list[str]:
    """What of config.agent.own_judgement cannot be, one a line; `env` is one environment."""
    if not is_asked(config):
        return []
    name, found = config.agent.env.fn, []
    if not hasattr(env, "grading"):
        found.append(f"agent.own_judgement: agent.env={name!r} has no grading(said), the judging prompt")
    if config.rollout.mesh:
        found.append(f"rollout.mesh={config.rollout.mesh!r}: agent.own_judgement scores on the mesh of training; empty")
    return found


def reader(setup: Setup, make: Callable) -> Callable | None:
    """(params, records, trajectories) -> the trajectories with own_value; None, and no cost, if nothing asks for it.

    records are one per group; params the run's own, whose adapters it attaches. Failed episodes stay as they are.

    Args:
      setup: of the run.
      make: () -> an environment of config.agent.env, which writes the prompts.

    Raises:
      ValueError: if a grade is not one token. When called, if a judging prompt is longer than all prompt_buckets.
    """
    if not is_asked(setup.config):
        return None
    config, tokenizer = setup.config, setup.task.tokenizer
    with probing(make()) as env:
        names = env.GRADES
    grades = [tokenizer.encode_continuation(grade) for grade in names]
    if len(grades) != len(WEIGHTS) or any(len(ids) != 1 for ids in grades):
        raise ValueError(f"agent.own_judgement: the grades {names!r} must be {len(WEIGHTS)} of one token each")
    score = jit_score(make_score(setup.model, completion_length=1, chunk=config.score.chunk), setup)
    size, widest = config.sample.prompts_per_step * config.sample.group_size, max(config.rollout.prompt_buckets)

    def prompt(env: Any, record: dict, one: Trajectory) -> list[int]:
        env.begin(json.loads(record["info"]), random.Random(0))
        ids = tokenizer.encode(env.grading([tokenizer.decode(span.ids.tolist()) for span in one.sampled()]), bos=True)
        if len(ids) > widest:
            raise ValueError(f"a judging prompt has {len(ids)} tokens, and the widest rollout.prompt_buckets {widest}")
        return ids

    def read(params: Params, records: Sequence[dict], trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        told = [one for one in trajectories if one.status != "error" and one.turns]
        if not told:
            return list(trajectories)
        with probing(make()) as env:
            prompts = [prompt(env, records[one.group], one) for one in told]
        rows = [(ids, grade) for ids in prompts for grade in grades]
        arrays = layout(rows, tokenizer.pad_id, (widest,), 1)
        batch = TokenBatch(arrays["tokens"], arrays["positions"], arrays["segment_ids"])
        log_probs = in_batches(setup, lambda *given: score(*given).log_probs, params, batch, size * len(grades))
        values = iter(graded_value(np.exp(np.asarray(log_probs)[:, 0]).reshape(-1, len(grades))))
        return [_with(one, float(next(values))) if one.status != "error" and one.turns else one for one in trajectories]

    return read


def _with(one: Trajectory, value: float) -> Trajectory:
    last = one.turns[-1]
    return one._replace(turns=(*one.turns[:-1], last._replace(numbers={**last.numbers, OWN_VALUE: value})))
