"""algorithm.action_mask: who is carried, when the mask policy moves, and that a run samples what it scores."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments import grpo, ppo
from experiments.parts import action_mask, mirror, policy
from experiments.parts.check_config import check
from experiments.parts.clock import Clock
from experiments.parts.rewards import make_rewards
from experiments.parts.sample_groups import Collector
from experiments.parts.setup import make_setup
from rl_jax.core.masked import Mean
from rl_jax.core.types import TokenBatch
from rl_jax.losses import aggregate
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config
from tests.experiments.small import has_a_seven, kept_signals, no_evaluations, reward  # noqa: F401  a fixture
from tests.experiments.test_ppo import with_critic
from tests.training.test_full_kl import Table


def config_of(folder, **fields):
    config = with_critic(small_config(folder, reward__function=reward(has_a_seven), **fields))
    with config.unlocked():
        config.algorithm.action_mask.update(top_p=0.5, every=2)
    return config


def rows_of(path):
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["step"]]


def test_the_mask_policy_lags_behind(tmp_path):
    """It becomes the policy after every second step; the reference moves on its own."""
    config, first = config_of(tmp_path), {"w": jnp.zeros(2)}
    move, carried = action_mask.with_mask(config, lambda ref, policy, step: ref, {"w": jnp.full(2, 9.0)}, first)
    seen = []
    for step in range(1, 5):
        carried = move(carried, {"w": jnp.full(2, float(step))}, step)
        seen.append(float(action_mask.mask_of(carried)["w"][0]))
    assert seen == [0.0, 2.0, 2.0, 4.0] and action_mask.reference_of(carried)["w"][0] == 9.0
    with config.unlocked():
        config.algorithm.action_mask.top_p = 1.0
    assert action_mask.with_mask(config, "move", first, first) == ("move", first)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("packing.mode", "packed", "packing.mode='packed' does not go with algorithm.action_mask.top_p=0.5"),
        ("sample.dynamic_sampling.max_batches", 2, "max_batches=2 does not go with algorithm.action_mask"),
        ("program", "best_of_n", "program='best_of_n' does not go with algorithm.action_mask.top_p=0.5"),
        ("algorithm.action_mask.every", 0, "algorithm.action_mask.every=0"),
        ("algorithm.action_mask.min_tokens", 0, "algorithm.action_mask.min_tokens=0"),
        ("model.lora.rank", 2, "model.lora.rank=2 does not go with algorithm.action_mask.top_p=0.5: it must be 0"),
    ],
)
def test_what_does_not_go_with_a_mask_is_named(tmp_path, name, value, said):
    config = config_of(tmp_path)
    with config.unlocked():
        config.update_from_flattened_dict({name: value})
    with pytest.raises(ValueError, match=said):
        check(config)


@pytest.mark.slow
def test_greedy_samples_stay_inside_the_mask(tmp_path):
    """ReMax's baseline is sampled as the rows are: with both sets of params, inside one policy's nucleus."""
    config = small_config(tmp_path, reward__function=reward(has_a_seven), algorithm__advantage=dict(fn="remax"))
    with config.unlocked():
        config.algorithm.action_mask.update(top_p=0.5, every=2)
    setup = make_setup(config)
    (programs, state), (_, prompts) = policy.build(setup, setup.init_params()), policy.own_prompts(setup)
    with make_rewards(setup) as pool:
        collect = Collector(setup, pool, prompts, programs)
        carried = action_mask.Lagged(state.params, state.params)
        found = collect(state.params, jax.random.key(0), Clock(), carried)
    assert isinstance(programs.greedy, action_mask.MaskedGenerate) and found.greedy_rewards is not None


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_run_scores_what_it_samples(tmp_path):
    """After a warm start of one-token rollouts. Also after updates, when policy and mask policy differ, the sampler's
    log-probs are the scorer's."""
    config = config_of(tmp_path, train__steps=3, train__optimizer__learning_rate=1e-2, eval__every=100)
    with config.unlocked():
        config.sft.update(steps=40, batch_size=32, eval_every=100)
        config.checkpoint.every = 100  # of the warm start, too
        config.sft.loss = dict(fn="one_token_rollout", samples=64)
        config.sft.optimizer.update(learning_rate=1e-2, warmup_steps=0, decay_steps=0, final_fraction=1.0)
    ppo.run(config, tmp_path / "run")
    hits = [row["sft/hits"] for row in rows_of(tmp_path / "run" / "sft")]
    assert len(hits) == 40 and np.mean(hits[-5:]) > np.mean(hits[:5]) + 0.1, "it learns from its own draws alone"
    rows = rows_of(tmp_path / "run")
    assert len(rows) == 3 and all(np.isfinite(row["loss"]) and row["sampler/gap_max"] < 1e-3 for row in rows)
    assert all(np.isfinite(row["kl/k1"]) for row in rows) and rows[-1]["entropy"] < np.log(8)


def test_a_step_size_of_zero_is_refused(tmp_path):
    """mdpo_lm's schedule in a run that is made longer by a flag: the KL would be divided by 0 in its last steps."""
    config = small_config(tmp_path, reward__function=reward(has_a_seven), train__steps=2)
    with config.unlocked():
        config.algorithm.mirror_step = 1.0
        config.schedules.step = dict(field="algorithm.mirror_step", fn="linear", start=1.0, end=0.0, steps=2)
    check(config)
    with config.unlocked():
        config.algorithm.action_mask.top_p = 0.5
    with pytest.raises(ValueError, match="algorithm.mirror_step=1.0 does not go with algorithm.action_mask.top_p=0.5"):
        check(config)
    with config.unlocked():
        config.algorithm.action_mask.top_p = 1.0
        config.train.steps = 3
    with pytest.raises(ValueError, match="schedules.step gives algorithm.mirror_step=0.0 in step 3 of train.steps=3"):
        check(config)


def test_the_kl_to_the_step_s_start_is_divided_by_the_step_size():
    """L + KL / t over rows of two tokens, one of which is outside the mask; kl/mirror is the KL itself."""
    step_size = 0.25
    rows = dict(rollout=dict(completion_length=2, temperature=1.0), score=dict(chunk=2), schedules={})
    config = ConfigDict(rows | dict(algorithm=dict(mirror_step=step_size)))
    new, old = (jax.random.normal(jax.random.key(i), (5, 5)) for i in (0, 1))
    tokens = jnp.array([[0, 1, 2], [3, 4, 0]])
    mask = jnp.array([[True, True], [True, False]])
    batch = SimpleNamespace(batch=TokenBatch(tokens, tokens, tokens), completion_mask=mask, extras={})
    add = mirror.make_term(SimpleNamespace(config=config, model=Table))
    objective = SimpleNamespace(aggregate=aggregate.token_mean)
    loss, metrics = add(new, batch, old, objective, Mean(jnp.float32(6.0), jnp.float32(3.0)), {})
    log_new, log_old = (jax.nn.log_softmax(x[jnp.array([0, 1, 3])]) for x in (new, old))
    kl = jnp.mean(jnp.sum(jnp.exp(log_new) * (log_new - log_old), axis=1))
    np.testing.assert_allclose(metrics["kl/mirror"].value(), kl, rtol=1e-5)
    np.testing.assert_allclose(loss.value(), 2.0 + kl / step_size, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_mirror_descent_starts_each_step_at_its_own_policy(tmp_path):
    """The first update of a step has no KL, later ones have; the step size falls. With PAPO's terms beside it."""
    config = small_config(
        tmp_path,
        reward__function=reward(has_a_seven),
        train__steps=2,
        train__epochs=2,
        train__optimizer__learning_rate=1e-2,
        eval__every=100,
        checkpoint__every=100,
    )
    with config.unlocked():
        config.algorithm.mirror_step = 1.0
        config.algorithm.perception.update(kl_coef=0.02, entropy_coef=0.05, corrupted_entropy_coef=0.05)
        config.algorithm.surrogate = dict(fn="importance_sampling")
        config.schedules.step = dict(field="algorithm.mirror_step", fn="linear", start=1.0, end=0.0, steps=2)
    grpo.run(config, tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert [row["schedule/step"] for row in rows] == [1.0, 0.5]
    assert all(np.isfinite(row["loss"]) and 1e-6 < row["kl/mirror"] < 1 for row in rows)
    assert all(row["perception/kl"] > 0 and row["perception/entropy"] > 0 for row in rows)
    with config.unlocked():
        config.packing.mode = "packed"
    with pytest.raises(ValueError, match="packing.mode='packed' does not go with algorithm.mirror_step=1.0"):
        check(config)
