"""The rollouts of one training step: sampled, judged, and sampled again where groups taught nothing (DAPO).

Dynamic sampling (arXiv 2503.14476) drops the groups whose rewards are all the same and draws further prompts until a
step has its prompts_per_step groups, or max_batches were drawn; what is then missing is filled up with dropped groups,
which add nothing but keep the shapes.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from experiments.evaluate import Judged, judge
from experiments.parts import common, processes
from rl_jax.core.types import Params, Rollout, TokenBatch
from rl_jax.rewards.pool import RewardPool, RewardResult


class Collected(NamedTuple):
    """A step's rows."""

    judged: Judged
    """Prompts x G rows."""
    greedy_rewards: np.ndarray | None
    """float32 [B]. Reward of the greedy completion of each row's prompt, or None."""
    metrics: dict[str, float]
    """Metrics of the sampling itself."""
    greedy_lengths: np.ndarray | None = None
    """int [B]. Tokens of those completions."""
    greedy_truncated: np.ndarray | None = None
    """bool [B]. Whether they were cut off."""


def collect(
    setup: common.Setup,
    pool: RewardPool,
    generate: Callable,
    greedy: Callable | None,
    prompts: Iterator[list[dict]],
    params: Params,
    key: jax.Array,
    clock: common.Clock,
) -> Collected:
    """Draws prompts and samples and judges their completions until the step is full.

    Of several processes each draws, encodes and judges its own (`prompts` has those); all return the whole step.

    generate, greedy: compiled (params, tokens, prompt_mask, key) -> Rollout; greedy has one row a prompt.
    """
    size, wanted = setup.config.sample.group_size, setup.config.sample.prompts_per_step
    here = processes.rows_here(setup.mesh, wanted)
    taught, idle, batches, failures = [], [], 0, np.zeros(2, int)
    while batches < setup.config.sample.dynamic_sampling.max_batches and len(taught) < wanted:
        records = next(prompts)
        batch_key = jax.random.fold_in(key, batches) if batches else key
        encoded = processes.place_own(setup.mesh, common.encode_prompts(setup, records))
        rollout = generate(params, *encoded, batch_key)
        clock.lap("rollout_s", rollout)
        judged = judge(setup, pool, rollout, records, here, wanted)
        clock.lap("reward_s")
        batches += 1
        failures += (judged.result.num_timeouts, judged.result.num_errors)
        if setup.config.sample.dynamic_sampling.max_batches == 1:
            groups = [judged]
            break
        spread = np.ptp(judged.result.rewards.reshape(-1, size), axis=1)
        for group, value in zip(_split(judged, size), spread, strict=True):
            (taught if value > 0 else idle).append(group)
    else:
        groups = (taught + idle)[:wanted]
    judged = groups[0] if len(groups) == 1 else _join(groups, setup.task.tokenizer.pad_id)
    counts = {"num_timeouts": int(failures[0]), "num_errors": int(failures[1])}  # those of dropped groups, too
    judged = judged._replace(result=judged.result._replace(**counts))
    of_greedy = (None, None, None)
    if greedy is not None:
        records = [judged.records[i * size] for i in here]
        encoded = processes.place_own(setup.mesh, common.encode_prompts(setup, records))
        rollout = greedy(params, *encoded, key)
        decoded = judge(setup, pool, rollout, records, here, wanted)
        lengths = np.sum(decoded.rollout.completion_mask, axis=1)
        of_greedy = [np.repeat(x, size) for x in (decoded.result.rewards, lengths, decoded.rollout.truncated)]
        clock.lap("rollout_s")
    metrics = {}
    if setup.config.sample.dynamic_sampling.max_batches > 1:
        metrics = {"sampling/batches": batches, "sampling/dropped": len(idle) / (len(idle) + len(taught))}
    return Collected(judged, of_greedy[0], metrics, *of_greedy[1:])


def compile_ahead(
    setup: common.Setup,
    pool: RewardPool,
    generate: Callable,
    greedy: Callable | None,
    prompts: Iterator[list[dict]],
    params: Params,
    key: jax.Array,
) -> Collected | None:
    """Compiles what collect calls for the prompts that come next, which stay the next ones. Arguments as for collect.

    What it would return, with zeros in place of samples. None for an engine that is no single program.
    """
    if setup.config.rollout.engine.name != "lockstep":
        return None
    ahead, position, clock = common.ahead(setup), prompts.get_state(), common.Clock()
    generate, greedy = ahead("generate", generate), greedy and ahead("greedy", greedy)
    found = collect(setup, pool, generate, greedy, prompts, params, key, clock)
    prompts.set_state(position)
    return found


def _split(judged: Judged, size: int) -> list[Judged]:
    """One Judged for each group of `size` rows."""
    parts = []
    for start in range(0, len(judged.records), size):
        rows = slice(start, start + size)
        result = judged.result
        parts.append(
            Judged(
                rollout=jax.tree.map(lambda x, rows=rows: x[rows], judged.rollout),
                records=judged.records[rows],
                completions=judged.completions[rows],
                result=result._replace(
                    rewards=result.rewards[rows],
                    components={name: column[rows] for name, column in result.components.items()},
                ),
            )
        )
    return parts


def _join(parts: list[Judged], pad_id: int) -> Judged:
    """The rows of `parts` one after the other; prompts of different buckets are padded on the left to the widest."""
    width = max(part.rollout.batch.tokens.shape[1] for part in parts)

    def widen(rollout: Rollout) -> Rollout:
        left = ((0, 0), (width - rollout.batch.tokens.shape[1], 0))
        batch = TokenBatch(
            np.pad(rollout.batch.tokens, left, constant_values=pad_id),
            np.pad(rollout.batch.positions, left),
            np.pad(rollout.batch.segment_ids, left),
        )
        return rollout._replace(batch=batch)

    results = [part.result for part in parts]
    names = sorted({name for result in results for name in result.components})

    def column(result: RewardResult, name: str) -> np.ndarray:  # a batch that failed throughout has no components
        return result.components.get(name, np.zeros_like(result.rewards))

    return Judged(
        rollout=jax.tree.map(lambda *xs: np.concatenate(xs), *(widen(part.rollout) for part in parts)),
        records=[record for part in parts for record in part.records],
        completions=[text for part in parts for text in part.completions],
        result=results[0]._replace(
            rewards=np.concatenate([result.rewards for result in results]),
            components={name: np.concatenate([column(result, name) for result in results]) for name in names},
            first_error=next((result.first_error for result in results if result.first_error), None),
        ),
    )
