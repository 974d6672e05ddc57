"""Runs experiments.grpo or experiments.ppo on the tiny model and records what a step begins and ends with.

What is recorded: the first params, each step's rollout and rewards, which rows each update has seen, and what the
program makes of them: params, reference and metrics after each step. The program runs as it is; of its surroundings
only the evaluation is left out, and the params of `init_from` and `reference_soup` come from here.
"""

import pathlib
import signal
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import ppo_common
from configs.tasks import arithmetic
from experiments.parts import policy, references, run, sample_groups, warm_start
from experiments.parts.setup import make_setup
from rl_jax.core.types import path_name

STEPS = 2  # the second one starts with moved params, moments, trackers and reference


class StepRecord(NamedTuple):
    """One step of a program."""

    rows: list
    """(prompt ids, completion ids) of each row."""
    ended: np.ndarray
    """bool [B]. Whether a row ends with an EOS."""
    rewards: np.ndarray
    """float [B]."""
    expected_rewards: np.ndarray
    """float [B]. `tell` of each row's own tokens."""
    sampled_log_probs: np.ndarray
    """float [B, C], 0 behind a row's end."""
    orders: list
    """The rows of each update, int [B / minibatches] each."""
    params: dict
    """After the step: flat, name -> array; a shared critic's head among them."""
    critic: dict
    """The same of a separate critic; {} without one."""
    reference: dict
    """The same of the reference."""
    metrics: dict
    """Of the step."""


class Record(NamedTuple):
    """One run."""

    first: dict
    """The params that the run starts from, flat."""
    other: dict
    """Those that the reference is mixed with."""
    steps: list
    """StepRecord of each step."""


def flat(params) -> dict[str, np.ndarray]:
    """A nested dict of arrays as float64 by path."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {path_name(path): np.asarray(leaf, np.float64) for path, leaf in leaves}


def tell(prompt, completion, info):
    """Several levels, ties, and a dependence on the prompt and on how the completion goes on."""
    return {"reward": sum("0123456789".find(c) % 4 for c in completion) / 4 + 0.25 * (len(prompt) % 3)}


def config_of(folder: pathlib.Path, s: dict[str, Any]):
    """The config of a program with the settings `s`, which the slow code reads too."""
    config = arithmetic.get_config("smoke")
    config.seed = s.get("seed", 0)
    config.task = dict(
        name="arithmetic",
        data_dir=str(folder / "data"),
        num_train=100,
        num_test=20,
        digits=1,
        num_operands=(2, 3),
        unfinished_share=0.0,
    )
    config.model.update(
        embed_dim=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=24, checkpoint="", tied_head=False
    )
    if "lora" in s:
        config.model.lora.update(s["lora"])
    config.init_from = "first"
    config.rollout.update(
        completion_length=s["length"], prompt_buckets=(8,), temperature=s["temperature"], top_k=s.get("top_k", 0)
    )
    config.sample.update(prompts_per_step=s["rows"] // s["group_size"], group_size=s["group_size"])
    config.packing.update(s.get("packing", {}))
    config.reward.update(num_workers=0, function="tests.step_checks.recording:tell")
    config.log.update(progress=False, tensorboard=False)
    config.checkpoint.every = 1000
    rule = config.algorithm
    rule.update(
        mask_truncated=s["mask_truncated"],
        kl_coef=s["kl_coef"],
        reward_kl_coef=s["reward_kl_coef"],
        entropy_coef=s["entropy_coef"],
    )
    for place in ("shaping", "reward_kl", "advantage", "behavior_weight", "surrogate", "kl", "aggregate"):
        if place in s:
            rule[place] = dict(s[place])
    for place, spec in s["trackers"].items():
        rule.trackers[place] = dict(spec)
    rule.reference_soup.update(init_from="other", weight=s["soup"])
    rule.reference_schedule = dict(fn="moving_average", rate=s["reference_rate"])
    config.train.update(
        steps=STEPS,
        epochs=s["epochs"],
        minibatches=s["minibatches"],
        micro_batches=s["micro_batches"],
        max_grad_norm=s["adam"]["max_norm"],
    )
    _optimizer(config.train.optimizer, s["adam"])
    if "critic" in s:
        critic = s["critic"]
        config = ppo_common.with_critic(
            config,
            shared=critic["shared"],
            advantage=dict(fn="gae", discount=critic["discount"], lam=critic["lam"]),
            whiten=critic["whiten"],
            bootstrap_truncated=critic["bootstrap_truncated"],
            loss=dict(fn="clipped", value_clip=critic["value_clip"]),
            value_coef=critic["value_coef"],
            micro_batches=critic["micro_batches"],
            max_grad_norm=critic["adam"]["max_norm"],
        )
        _optimizer(config.critic.optimizer, critic["adam"])
    return config.lock()


def _optimizer(fields, adam):
    fields.update(
        learning_rate=adam["rate"],
        warmup_steps=adam["warmup"],
        decay_steps=adam["decay"],
        final_fraction=adam["final"],
        b1=adam["b1"],
        b2=adam["b2"],
        eps=adam["eps"],
        weight_decay=adam["weight_decay"],
    )


def random_params(setup, seed: int):
    """Params of the run's shapes, with branches as strong as the stream they add to; rows end now and then."""
    noise = np.random.default_rng(seed)

    def leaf(path, shape):
        name = path_name(path)
        if name.endswith("scale"):
            return jnp.asarray(noise.uniform(0.5, 1.5, shape.shape), shape.dtype)
        spread = 1.0 if "embed" in name else 0.3 if name.endswith("/b") else 1.3 * shape.shape[-2] ** -0.5
        x = noise.normal(0.5 if "embed" in name else 0.0, spread, shape.shape)
        if name.endswith("head/kernel"):
            x[:, EOS] += 0.2  # the stream's mean is positive
        return jnp.asarray(x, shape.dtype)

    return jax.tree_util.tree_map_with_path(leaf, setup.param_shapes)


def record(program, folder: pathlib.Path, s: dict[str, Any]) -> Record:
    """Runs a program (experiments.grpo, experiments.ppo) with the settings `s`."""
    found, orders, pending = [], [], {}
    config = config_of(folder, s)
    setup = make_setup(config)
    decode = setup.task.tokenizer.decode
    folders = {name: random_params(setup, seed) for seed, name in enumerate(("first", "other"))}
    inner = {
        "call": sample_groups.Collector.__call__,
        "rows": policy.with_row_selection,
        "parts": policy.minibatches,
        "end": run.Step.end,
    }

    def collect(self, *args):
        orders.clear()  # compile_ahead has made minibatches, too
        pending["collected"] = inner["call"](self, *args)
        return pending["collected"]

    def numbered(config, batch, rewards, key):
        batch = inner["rows"](config, batch, rewards, key)
        return batch._replace(extras=batch.extras | {"number": jnp.arange(len(batch.completion_mask))})

    def minibatches(config, batch, key, *count):
        parts = inner["parts"](config, batch, key, *count)
        orders.extend(np.asarray(getattr(part, "policy", part).extras["number"]) for part in parts)
        return parts

    def end(self, items, metrics, timings, **more):
        params = {**items["params"], **(items["rest"].params or {})}
        critic = flat(items["critic"].params) if "critic" in items else {}
        after = flat(params), critic, flat(items["reference"]), {k: float(v) for k, v in metrics.items()}
        found.append(StepRecord(*rows_of(pending["collected"].judged, s, decode), list(orders), *after))
        return inner["end"](self, items, metrics, timings, **more)

    def load(setup, name):
        return jax.device_put(jax.tree.map(jnp.copy, folders[name]), setup.param_shardings)

    signals = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_groups.Collector, "__call__", collect)
        patch.setattr(policy, "with_row_selection", numbered)
        patch.setattr(policy, "minibatches", minibatches)
        patch.setattr(run.Step, "end", end)
        patch.setattr(warm_start, "load_params", load)
        patch.setattr(references, "load_params", load)
        evaluating = getattr(program, "play_groups", program)  # where the program finds it
        patch.setattr(evaluating, "make_evaluate", lambda setup, rewards: lambda params: ({}, []))
        try:
            program.run(config, folder / "run")
        finally:
            for number, handler in signals.items():  # which a run replaces
                signal.signal(number, handler)
    assert len(found) == STEPS
    return Record(flat(folders["first"]), flat(folders["other"]), found)


def rows_of(judged, s: dict[str, Any], decode) -> tuple:
    """rows, ended, both rewards and sampled log-probs of a StepRecord, from the tokens alone."""
    tokens = np.asarray(judged.rollout.batch.tokens)
    sampled = np.zeros((len(tokens), s["length"]))
    rows, ended = [], []
    for number, row in enumerate(tokens.tolist()):
        prompt, completion = row[: -s["length"]], row[-s["length"] :]
        while prompt[0] == PAD:
            prompt = prompt[1:]
        ended.append(EOS in completion)
        completion = completion[: completion.index(EOS) + 1] if ended[-1] else completion
        rows.append((prompt, completion))
        sampled[number, : len(completion)] = judged.rollout.sampled_log_probs[number, : len(completion)]
    told = np.array([tell(decode(prompt), decode(completion), {})["reward"] for prompt, completion in rows])
    return rows, np.array(ended), np.asarray(judged.result.rewards, np.float64), told, sampled


PAD, EOS = 0, 2
