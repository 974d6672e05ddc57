"""The pieces of experiments.grpo, and the loop itself, in this process and at the smallest size."""

import json
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import grpo
from experiments.parts import judging, logged, policy, references
from experiments.parts.judging import Judged
from experiments.parts.rewards import Rows, make_rewards
from experiments.parts.run import Run, checkpoint_items
from experiments.parts.sample_groups import Collected
from experiments.parts.setup import check_rows, make_setup
from experiments.report.health import CHECKS, SHOWN_ONLY
from rl_jax import ppo
from rl_jax.core.types import PolicyBatch, Rollout, TokenBatch
from rl_jax.losses import policy as losses
from rl_jax.rewards.pool import RewardPool, RewardResult
from rl_jax.training import checkpoint
from rl_jax.training.step import TrainState
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config
from tests.experiments.small import kept_signals, reward, sevens_and_even  # noqa: F401  a fixture

ROWS, PROMPT, LENGTH, GROUP = 8, 3, 4, 4
LENGTHS = np.array([1, 4, 2, 4, 3, 4, 2, 1])


def rollout():
    """A hand-made rollout of two groups of four; rows of four tokens are cut off."""
    mask = jnp.arange(LENGTH)[None] < LENGTHS[:, None]
    tokens = jnp.arange(ROWS * (PROMPT + LENGTH), dtype=jnp.int32).reshape(ROWS, -1) % 15
    batch = TokenBatch(tokens, jnp.zeros_like(tokens), jnp.ones_like(tokens))
    log_probs = -jnp.ones((ROWS, LENGTH))
    truncated = jnp.array(LENGTHS == LENGTH)
    return Rollout(batch, mask, log_probs, log_probs, ~truncated, truncated)


def policy_batch(config, rewards, key=0):
    blank = jnp.zeros((ROWS, LENGTH))
    result = RewardResult(np.asarray(rewards), {}, 0, 0, None)
    collected = Collected(Judged(rollout(), [], [], result), None, {})
    return grpo.make_policy_batch(policy.make_assign(config), collected, None, blank, jax.random.key(key), {})[0]


@pytest.fixture
def config(tmp_path):
    return small_config(tmp_path)


def test_objective_is_bound_from_the_config(tmp_path):
    config = small_config(tmp_path, algorithm__kl_coef=0.3, algorithm__entropy_coef=0.2)
    config.algorithm.surrogate.update(clip_low=0.1, clip_high=0.4)
    objective = policy.make_objective(config)
    assert (objective.kl_coef, objective.entropy_coef) == (0.3, 0.2)
    old, advantages, mask = jnp.zeros((1, 4)), jnp.array([[1.0, 1.0, -1.0, -1.0]]), jnp.ones((1, 4), bool)
    found = objective.surrogate(jnp.log(jnp.array([[1.35, 1.45, 0.95, 0.85]])), old, advantages, mask)
    np.testing.assert_array_equal(found.clipped_high, [[False, True, False, False]])
    np.testing.assert_array_equal(found.clipped_low, [[False, False, False, True]])


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("surrogate", dict(fn="clipped_surogate"), r"no function 'clipped_surogate'; it has: .*clipped_surrogate"),
        ("surrogate", dict(fn="clipped_surrogate", clip=0.2), r"no keyword 'clip'; it takes: clip_high, clip_low"),
        ("kl", dict(fn="k4"), r"no function 'k4'; it has: .*k1.*k2.*k3"),
        ("aggregate", dict(fn="mean"), r"no function 'mean'; it has: .*token_mean"),
    ],
)
def test_unknown_names_list_the_known_ones(config, place, value, said):
    with config.unlocked():
        config.algorithm[place] = value
    with pytest.raises(ValueError, match=said):
        policy.make_objective(config)


@pytest.mark.parametrize(
    ("place", "said"),
    [("shaping", r"'x'; it has: .*shuffled.*unchanged"), ("advantage", r"'x'; it has: .*group_relative")],
)
def test_unknown_names_of_the_batch_list_the_known_ones(config, place, said):
    config.algorithm[place].fn = "x"
    with pytest.raises(ValueError, match=said):
        policy_batch(config, np.arange(8.0, dtype=np.float32))


def test_advantages_and_masks(config):
    rewards = np.array([1, 0, 0, 0, 2, 2, 2, 2], np.float32)
    batch = policy_batch(config, rewards)
    np.testing.assert_array_equal(batch.completion_mask, rollout().completion_mask)
    found = np.asarray(batch.advantages)
    assert found[0, 0] > 0 and (found[1:4][np.asarray(batch.completion_mask)[1:4]] < 0).all()
    assert not found[4:].any() and not found[~np.asarray(batch.completion_mask)].any()
    assert batch.old_log_probs is None and batch.behavior_log_probs is not None


def test_mask_truncated_takes_whole_rows_out_of_the_loss(config):
    config.algorithm.mask_truncated = True
    rewards = np.arange(8, dtype=np.float32)
    masked, whole = policy_batch(config, rewards), policy_batch(small := small_copy(config), rewards)
    assert small.algorithm.mask_truncated is False
    cut_off = LENGTHS == LENGTH
    assert not np.asarray(masked.completion_mask)[cut_off].any() and not np.asarray(masked.advantages)[cut_off].any()
    np.testing.assert_array_equal(masked.completion_mask[~cut_off], whole.completion_mask[~cut_off])
    # Their rewards still count in their group's mean and deviation: only the gradient leaves them out.
    np.testing.assert_array_equal(masked.advantages[~cut_off], whole.advantages[~cut_off])


def small_copy(config):
    """The same config with mask_truncated off."""
    copy = config.copy_and_resolve_references()
    copy.algorithm.mask_truncated = False
    return copy


def test_shuffled_shaping_deals_the_rewards_out_anew(config):
    config.algorithm.shaping.fn = "shuffled"
    config.algorithm.advantage = dict(fn=rewards_as_they_are)
    rewards = np.arange(1, 9, dtype=np.float32)
    first, again, other = (np.asarray(policy_batch(config, rewards, key).advantages)[:, 0] for key in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(np.sort(first), rewards)
    assert (first != rewards).any() and (first != other).any()


def test_shaping_sees_lengths_and_their_limit(config):
    config.algorithm.shaping = dict(fn="overlong", buffer=2, penalty=1.0)  # max_length comes from the rollout's fields
    config.algorithm.advantage = dict(fn=rewards_as_they_are)
    found = np.asarray(policy_batch(config, np.zeros(8, np.float32)).advantages)[:, 0]
    np.testing.assert_allclose(found, -np.maximum(LENGTHS - 2, 0) / 2)


def rewards_as_they_are(rewards, *, group_size):
    """An advantage function of the test's own."""
    return rewards


@pytest.mark.parametrize(("epochs", "count"), [(1, 1), (2, 1), (1, 4), (3, 2)])
def test_minibatches_cover_every_row_once_an_epoch(config, epochs, count):
    config.train.update(epochs=epochs, minibatches=count)
    batch = policy_batch(config, np.arange(8, dtype=np.float32))._replace(
        ref_log_probs=jnp.broadcast_to(jnp.arange(8.0)[:, None], (ROWS, LENGTH))
    )
    parts = policy.minibatches(config, batch, jax.random.key(0))
    assert len(parts) == epochs * count
    orders = []
    for epoch in range(epochs):
        rows = [np.asarray(part.ref_log_probs)[:, 0] for part in parts[epoch * count : (epoch + 1) * count]]
        assert {len(row) for row in rows} == {ROWS // count}
        orders.append(np.concatenate(rows))
        np.testing.assert_array_equal(np.sort(orders[-1]), np.arange(8))
    if count > 1 and epochs > 1:
        assert (orders[0] != orders[1]).any()
    for part in parts:  # all of a row moves together
        rows = np.asarray(part.ref_log_probs)[:, 0].astype(int)
        np.testing.assert_array_equal(part.batch.tokens, np.asarray(batch.batch.tokens)[rows])
        np.testing.assert_array_equal(part.advantages, np.asarray(batch.advantages)[rows])
        assert part.old_log_probs is None


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_task_and_a_reward_by_import_path(tmp_path):
    """A task, or its reward alone, from outside the library: no monkeypatch, no edit of rl_jax.tasks."""
    config = small_config(tmp_path)
    fields = dict(name="tests.experiments.small:task", reward_fn="has_a_seven", data_dir=str(tmp_path / "data"))
    with config.unlocked():
        config.task = fields | small.ALWAYS
    assert make_setup(config).task.reward_fn is small.has_a_seven
    config.reward.function = reward(small.sevens)
    found = make_setup(config)
    assert found.task.reward_fn is small.sevens and found.task.reward_kwargs == {}
    with make_rewards(found) as score:
        assert score(Rows(None, [{"prompt": "1=", "info": "{}"}], ["77"], 1)).rewards.tolist() == [2.0]
    config.reward.function = "tests.experiments.small:sevns"
    with pytest.raises(ValueError, match="no 'sevns'; nearest: 'sevens'"):
        make_setup(config)


@pytest.mark.parametrize(
    ("field", "fn", "name"),
    [
        ("advantage", "process_supervised", "step_ends"),
        ("shaping", "against_references", "reference_rewards"),
    ],
)
def test_what_the_config_does_not_feed_is_refused_before_anything_is_trained(tmp_path, field, fn, name):
    """D7: it was, but only after the warm start and the compilation."""
    config = small_config(tmp_path, sft__steps=5)
    with config.unlocked():
        config.algorithm[field] = dict(fn=fn)
    message = f"algorithm.{field}='{fn}' needs {name}: .* Nothing in this config supplies it"
    with pytest.raises(ValueError, match=message):
        grpo.run(config, tmp_path / "run")
    assert not (tmp_path / "run" / "sft").exists()


def test_minibatches_that_do_not_divide_the_rows_are_refused(config):
    config.train.update(minibatches=3)
    batch = policy_batch(config, np.arange(ROWS, dtype=np.float32))
    with pytest.raises(ValueError, match="train.minibatches=3 must divide the 8 rows of a step"):
        policy.minibatches(config, batch, jax.random.key(0))


def test_the_baseline_sees_the_rewards_as_the_advantage_does(tmp_path):
    """D4: the running mean was of raw rewards, and was subtracted from shaped ones."""
    config = small_config(tmp_path)
    with config.unlocked():
        config.algorithm.shaping = dict(fn="clip_rewards", low=-1.0, high=1.0)
    result = RewardResult(np.full(ROWS, 8.0, np.float32), {}, 0, 0, None)
    collected = Collected(Judged(rollout(), [], [], result), None, {})
    blank = jnp.zeros((ROWS, LENGTH))
    _, earned = grpo.make_policy_batch(policy.make_assign(config), collected, None, blank, jax.random.key(0), {})
    np.testing.assert_array_equal(earned, 1.0)


def run(tmp_path, **fields):
    """A run scored by the number of sevens; its workdir."""
    config = small_config(tmp_path, reward__function=reward(sevens_and_even), **fields)
    grpo.run(config, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_several_updates_a_step(tmp_path):
    workdir = run(tmp_path, train__epochs=2, train__minibatches=2, train__micro_batches=2, algorithm__kl_coef=0.1)
    rows = read(workdir / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    for row in rows[1:]:
        assert "nonfinite" not in row and all(np.isfinite(value) for value in row.values())
        assert row["ratio/first_max_dev"] < 1e-4 < row["ratio/max_dev"] and row["sampler/gap_max"] < 1e-4
        assert abs(row["sampler/ess"] - 1) < 1e-4 and row["grad_norm"] > 0 and row["nonfinite/skipped"] == 0
        expected = {check.metric for check in CHECKS} | set(SHOWN_ONLY)
        assert expected <= set(row) | {name for name in expected if name.startswith("eval/")}
        assert {"reward/even", "loss", "lr", "reward/mean", "reward/std", "finished", "completion_length"} <= set(row)
        assert not {"sampler/weight", "sampler/weight_squared"} & set(row)
    assert {"eval/reward", "eval/even", "eval/completion_length"} <= set(rows[0]) & set(rows[2]) & set(rows[4])
    assert not any(name.startswith("eval/") for name in rows[1])
    views = read(workdir / "group_view.jsonl")
    assert [view["step"] for view in views] == [2, 4]
    for view in views:
        assert len(view["rows"]) == 4 and len({row["reward"] for row in view["rows"]}) > 1, "a group without a signal"
        for row in view["rows"]:
            lengths = {len(row[name]) for name in "tokens mask log_prob log_ratio advantage entropy".split()}
            assert len(lengths) == 1 and lengths.pop() == min(sum(row["mask"]) + 1, 4)
        assert any(abs(value) > 1e-6 for row in view["rows"] for value in row["log_ratio"])
    samples = read(workdir / "samples.jsonl")
    assert {row["split"] for row in samples} == {"train", "eval"}
    eval_rows = [row for row in samples if row["split"] == "eval"]
    evaluated = [[row["prompt"] for row in eval_rows if row["step"] == step] for step in (0, 4)]
    assert evaluated[0] == evaluated[1] and len(evaluated[0]) == 16
    assert len({row["compile_count"] for row in read(workdir / "timing.jsonl")[2:]}) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_function_of_ones_own_in_the_configs_place(tmp_path):
    calls = []

    def negated(log_probs, old_log_probs, advantages, mask, *, scale):
        calls.append(scale)
        advantages = -scale * advantages
        return losses.clipped_surrogate(log_probs, old_log_probs, advantages, mask, clip_low=0.2, clip_high=0.2)

    config = small_config(tmp_path, train__steps=1, reward__function=reward(sevens_and_even))
    with config.unlocked():
        config.algorithm.surrogate = dict(fn=negated, scale=2.0)
    grpo.run(config, tmp_path / "run")
    assert calls and set(calls) == {2.0}
    written = json.loads((tmp_path / "run" / "config.json").read_text())["algorithm"]["surrogate"]
    assert written["scale"] == 2.0 and written["fn"].endswith("negated") and __name__.split(".")[-1] in written["fn"]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_gradients_that_are_not_finite_stop_the_run(tmp_path):
    settings = dict(train__steps=8, train__max_nonfinite_in_a_row=3, eval__every=100, algorithm__entropy_coef=0.1)
    config = small_config(tmp_path, reward__function=reward(sevens_and_even), **settings)
    config.train.optimizer.learning_rate = float("nan")  # the first update would ruin the params
    with pytest.raises(FloatingPointError, match="3 gradients in a row .* The batch of step 3 is in .*step_3.npz"):
        grpo.run(config, tmp_path / "run")
    rows = read(tmp_path / "run" / "metrics.jsonl")
    assert [row.get("nonfinite/skipped") for row in rows[1:]] == [1.0, 2.0]
    assert (tmp_path / "run" / "checkpoints" / "2").is_dir(), "the save in the background was lost"
    with np.load(tmp_path / "run" / "nonfinite_step_3.npz") as saved:
        assert {"batch/tokens", "completion_mask", "advantages"} <= set(saved.files)
        assert saved["batch/tokens"].shape == (32, 12) and saved["completion_mask"].shape == (32, 4)


@pytest.mark.usefixtures("kept_signals")
def test_finite_gradients_do_not_stop_the_run(tmp_path, config):
    loop = Run(config, tmp_path, "grpo", config.train)
    loop.check_finite(types.SimpleNamespace(skipped_in_a_row=jnp.int32(4)), None)
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


def test_step_metrics(config):
    records = [{"prompt": "1+1=", "info": "{}"}] * ROWS
    completions = ["7", "", "77", "1", "2", "2", "2", "2"]
    with RewardPool(sevens_and_even, num_workers=0) as pool:
        result = pool([r["prompt"] for r in records], completions, [r["info"] for r in records])
    judged = judging.Judged(jax.tree.map(np.asarray, rollout()), records, completions, result)
    first = {
        "ratio/max_dev": 0.0,
        "sampler/gap_max": 1e-6,
        "sampler/weight": 0.5,
        "sampler/weight_squared": 0.5,
        "nonfinite/skipped": 0.0,
        "loss": 1.0,
    }
    second = {**first, "ratio/max_dev": 0.2, "sampler/gap_max": 0.5, "nonfinite/skipped": 1.0, "loss": 3.0}
    source = types.SimpleNamespace(num_skipped=3)
    own = logged.step_metrics(config, Collected(judged, None, {}), records, [first])
    assert own["data/skipped_records"] == 0, "a list of a user's own task"
    found = logged.step_metrics(config, Collected(judged, None, {"x": 1.0}), source, [first, second])
    assert found["data/skipped_records"] == 3 and found["x"] == 1.0
    assert found["loss"] == 2.0 and found["nonfinite/skipped"] == 1.0
    assert found["ratio/first_max_dev"] == 0.0 and found["sampler/gap_max"] == 1e-6 and found["sampler/ess"] == 0.5
    assert found["reward/mean"] == pytest.approx(3 / 8) and found["reward/even"] == pytest.approx(2 / 8)
    assert found["group/zero_variance"] == 0.5 and found["truncated"] == 3 / 8 and found["finished"] == 5 / 8
    assert "group/zero_variance" not in judging.judged_metrics(judged, 1), "a group of one has no spread to lack"
    assert found["completion_length"] == LENGTHS.mean() and found["mask_occupancy"] == LENGTHS.sum() / 32
    assert isinstance(policy_batch(config, np.zeros(8, np.float32)), PolicyBatch)
    # All rows are cut off and masked: no token has a ratio.
    empty = first | {"ratio/max_dev": -np.inf, "sampler/gap_max": -np.inf, "sampler/weight_squared": 0.0, "loss": 0.0}
    found = logged.step_metrics(config, Collected(judged, None, {}), source, [first, empty, second])
    assert found["loss"] == 2.0 and found["ratio/max_dev"] == pytest.approx(0.1), "of the updates with a token"
    found = logged.step_metrics(config, Collected(judged, None, {}), source, [empty | {"sampler/weight": 0.0}] * 2)
    assert found["ratio/first_max_dev"] == found["ratio/max_dev"] == found["sampler/gap_max"] == 0.0
    assert found["sampler/ess"] == 1.0
    # One that is not finite is not hidden.
    broken = first | {"sampler/weight": np.nan, "sampler/weight_squared": np.nan, "loss": -np.inf}
    found = logged.step_metrics(config, Collected(judged, None, {}), source, [first, broken])
    assert np.isnan(found["loss"]) or np.isinf(found["loss"])


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_without_a_term_that_compares_the_reference_has_no_forward(tmp_path):
    rows, scored = {}, reward(sevens_and_even)
    for measured in (True, False):
        config = small_config(tmp_path, algorithm__measure_kl=measured, train__steps=2, reward__function=scored)
        grpo.run(config, tmp_path / str(measured))
        lines = (tmp_path / str(measured) / "metrics.jsonl").read_text().splitlines()
        rows[measured] = [json.loads(line) for line in lines][-1]
    assert set(rows[True]) - set(rows[False]) == {"kl/k1", "kl/k3"} and not set(rows[False]) - set(rows[True])
    assert all(rows[True][name] == rows[False][name] for name in ("loss", "grad_norm", "reward/mean"))


def towards_the_reference(log_probs, old_log_probs, advantages, mask, *, ref_log_probs):
    return losses.clipped_surrogate(log_probs, ref_log_probs, advantages, mask)


@pytest.mark.parametrize(
    "fields",
    [
        dict(kl_coef=0.1),
        dict(reward_kl_coef=0.1),
        dict(trackers=dict(loss_kl=dict(fn="adaptive_kl"))),
        dict(surrogate=dict(fn=towards_the_reference)),
    ],
)
def test_a_term_that_compares_needs_the_reference(config, fields):
    fields = dict(fields)
    with config.unlocked():
        config.algorithm.measure_kl = False
        assert not policy.needs_ref_log_probs(config)
        config.algorithm.trackers.update(fields.pop("trackers", {}))
        for name, value in fields.items():
            config.algorithm[name] = value  # in its place, since a function is no string
    assert policy.needs_ref_log_probs(config)


def test_where_nothing_reads_a_reference_there_is_none(config):
    """No copy of the params, and none in a checkpoint."""
    params = {"w": jnp.arange(3.0)}
    setup = types.SimpleNamespace(config=config)
    move, kept = references.start(setup, params)
    np.testing.assert_array_equal(kept["w"], params["w"])
    with config.unlocked():
        config.algorithm.measure_kl = False
    move, nothing = references.start(setup, params)
    assert nothing is None and move(nothing, params, 1) is None
    state = TrainState(0, params, (), jax.random.key(0), 0, 0)
    assert set(checkpoint_items(state, reference=nothing)) == {"params", "rest"}
    assert set(checkpoint_items(state, reference=kept)) == {"params", "rest", "reference"}
    with config.unlocked():
        config.sample.references = 2
    assert references.is_read(config)


@pytest.mark.parametrize("of_ppo", [False, True])
def test_each_update_knows_how_its_entropy_bonus_is_divided(tmp_path, of_ppo):
    """algorithm.entropy_aggregate: the counts are those of a minibatch, before it is split into micro-batches."""
    config = small_config(tmp_path, train__minibatches=2)
    with config.unlocked():
        config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    rng = np.random.default_rng(0)
    mask = np.arange(3) < rng.integers(0, 4, 8)[:, None]
    batch = PolicyBatch(None, mask, mask * 1.0, None, mask * 1.0, None, extras={})
    batch = ppo.PPOBatch(batch, mask * 1.0, mask * 1.0) if of_ppo else batch
    for part in policy.minibatches(config, batch, jax.random.key(0)):
        assert "entropy_scale" not in (part.policy if of_ppo else part).extras
    with config.unlocked():
        config.algorithm.entropy_aggregate = dict(fn="token_mean")
    parts = policy.minibatches(config, batch, jax.random.key(0))
    for part in parts:
        live, found = part.completion_mask, (part.policy if of_ppo else part).extras["entropy_scale"]
        np.testing.assert_allclose(found, np.full(4, live.any(axis=1).sum() / live.sum()), rtol=1e-6)
    assert len({float((part.policy if of_ppo else part).extras["entropy_scale"][0]) for part in parts}) == 2


@pytest.mark.usefixtures("kept_signals")
def test_a_signal_is_noted_and_the_second_one_is_meant():
    stop = checkpoint.StopSignal()
    assert not stop.received
    signal.raise_signal(signal.SIGTERM)
    assert stop.received
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_rows_that_do_not_divide_over_the_mesh_are_named(config):
    setup = types.SimpleNamespace(mesh=types.SimpleNamespace(shape={"data": 2, "fsdp": 2}))
    check_rows(setup, prompts_per_step=8)
    with pytest.raises(ValueError, match="prompts_per_step=6 rows do not divide .* 4 devices"):
        check_rows(setup, prompts_per_step=6)
