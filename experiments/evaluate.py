"""Held-out evaluation: sample completions for test prompts, score them with the task's verifier.

    python -m experiments.evaluate --config=configs/arithmetic.py --config.init_from=runs/arithmetic
"""

import json
import pathlib
from typing import NamedTuple

import jax
import numpy as np

from experiments import common
from rl_jax import data
from rl_jax.rewards.pool import RewardPool, RewardResult
from rl_jax.rollout.engine import make_generate
from rl_jax.types import Rollout


class Judged(NamedTuple):
    """A rollout on the host, its texts and its rewards, row by row; `records` are repeated for their samples."""

    rollout: Rollout
    records: list[dict]
    completions: list[str]
    result: RewardResult


def make_pool(setup: common.Setup) -> RewardPool:
    """The processes that score completions; close it, or use it as a context manager."""
    return RewardPool(setup.task.reward_fn, kwargs=setup.task.reward_kwargs, **setup.config.reward.to_dict())


def judge(setup: common.Setup, pool: RewardPool, rollout: Rollout, records: list[dict]) -> Judged:
    """Brings a rollout to the host, decodes its completions and scores them. records: one a prompt."""
    rollout = jax.tree.map(np.asarray, rollout)
    rows, length = rollout.completion_mask.shape
    records = [record for record in records for _ in range(rows // len(records))]
    tokens = rollout.batch.tokens[:, -length:]
    sampled = [row[mask].tolist() for row, mask in zip(tokens, rollout.completion_mask, strict=True)]
    completions = [setup.task.tokenizer.decode(ids) for ids in sampled]
    prompts, infos = [r["prompt"] for r in records], [r["info"] for r in records]
    return Judged(rollout, records, completions, pool(prompts, completions, infos))


def sample_rows(judged: Judged, split: str, limit: int) -> list[dict]:
    """The first `limit` completions as rows of samples.jsonl."""
    return [
        {
            "split": split,
            "prompt": judged.records[i]["prompt"],
            "completion": judged.completions[i],
            "reward": float(judged.result.rewards[i]),
            "finished": bool(judged.rollout.finished[i]),
            "truncated": bool(judged.rollout.truncated[i]),
        }
        for i in range(min(limit, len(judged.completions)))
    ]


def make_evaluate(setup: common.Setup, pool: RewardPool):
    """evaluate(params) -> (metrics, sample rows): the same prompts and the same random numbers at every call.

    metrics: eval/reward, eval/pass@1 (the mean share of samples whose reward component `correct` is 1, where the task
    has it), eval/completion_length, eval/truncated, and the components.
    """
    config = setup.config.eval
    rollout = setup.config.rollout
    generate = common.jit_generate(
        make_generate(
            setup.model,
            completion_length=rollout.completion_length,
            group_size=config.samples_per_prompt,
            sampling=common.sampling_of(config),
            eos_ids=setup.task.tokenizer.eos_ids,
            pad_id=setup.task.tokenizer.pad_id,
        ),
        setup,
    )
    source = setup.task.data_source("test")
    common.check_rows(setup, **{"eval.batch_size": config.batch_size})
    key = jax.random.key(setup.config.seed + 1)

    def evaluate(params):
        values, rows = {}, []
        for index, records in enumerate(data.eval_batches(source, config.batch_size, config.num_prompts)):
            full = records + records[:1] * (config.batch_size - len(records))  # one shape, one compilation
            rollouts = generate(params, *common.encode_prompts(setup, full), jax.random.fold_in(key, index))
            kept = len(records) * config.samples_per_prompt
            judged = judge(setup, pool, jax.tree.map(lambda x, n=kept: np.asarray(x)[:n], rollouts), records)
            batch = {"reward": judged.result.rewards, **judged.result.components}
            batch["completion_length"] = judged.rollout.completion_mask.sum(axis=1)
            batch["truncated"] = judged.rollout.truncated
            for name, column in batch.items():
                values.setdefault(name, []).append(column)
            rows += sample_rows(judged, "eval", setup.config.log.sample_rows - len(rows))
        metrics = {f"eval/{name}": np.concatenate(columns).mean(dtype=np.float64) for name, columns in values.items()}
        if "eval/correct" in metrics:
            metrics["eval/pass@1"] = metrics.pop("eval/correct")
        return metrics, rows

    return evaluate


def run(config, workdir: pathlib.Path) -> dict[str, float]:
    """Evaluates the params of config.init_from (or fresh ones) and writes workdir/evaluation.json."""
    setup = common.setup(config)
    params = common.load_params(setup, config.init_from) if config.init_from else setup.init_params()
    with make_pool(setup) as pool:
        metrics, rows = make_evaluate(setup, pool)(params)
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "evaluation.json").write_text(json.dumps({"metrics": metrics, "samples": rows}, indent=2))
    for name, value in sorted(metrics.items()):
        print(f"{name:28} {value:.4f}")
    return metrics


if __name__ == "__main__":
    common.main(run)
