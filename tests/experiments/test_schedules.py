"""config.schedules and the references of grpo and ppo: in the pieces, and in whole runs that are resumed."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import ppo_common
from configs.experience import othink_mr1
from experiments import grpo, ppo
from experiments.parts import policy, policy_steps, references, schedules, trackers
from experiments.parts.check_config import check
from experiments.parts.setup import make_setup
from rl_jax.core.types import PolicyBatch, TokenScores
from rl_jax.training import checkpoint
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config
from tests.experiments.small import kept_signals, reward, sevens  # noqa: F401  a fixture

KL = dict(field="algorithm.kl_coef", fn="linear", start=0.2, end=0.0, steps=2)
CLIP = dict(field="algorithm.surrogate.clip_high", fn="piecewise", values=((1, 0.3), (3, 0.1)))


def scheduled(tmp_path, specs=None, **fields):
    config = small_config(tmp_path, **fields)
    with config.unlocked():
        config.schedules = dict(kl=KL, clip=CLIP) if specs is None else specs
    return config


def by_module(step, *, scale):
    """A schedule of the test's own."""
    return scale * step


def test_values_by_step_and_by_import_path(tmp_path):
    own = dict(field="algorithm.entropy_coef", fn=f"{__name__}:by_module", scale=0.5)
    config = scheduled(tmp_path, dict(kl=KL, bonus=own))
    assert [schedules.at(config, step) for step in (1, 2, 3, 9)] == [
        dict(kl=0.2, bonus=0.5),
        dict(kl=0.1, bonus=1.0),
        dict(kl=0.0, bonus=1.5),
        dict(kl=0.0, bonus=4.5),
    ]
    check(config)
    config.schedules.bonus.scale = float("nan")
    with pytest.raises(ValueError, match="schedules.bonus gives nan in step 2, not a finite number"):
        schedules.at(config, 2)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (KL | dict(field="algorithm.kl_ceof"), "config.algorithm.kl_ceof; the nearest is --config.algorithm.kl_coef="),
        (KL | dict(field="algorithm.kl"), "not a number"),
        (KL | dict(field="algorithm.mask_truncated"), "is False in this config, not a number"),
        (KL | dict(field="train.steps"), "cannot change during a run; fields that can begin with algorithm., critic"),
        (KL | dict(field="algorithm.trackers.reward_kl.fn"), "cannot change during a run"),
        (KL | dict(fn="linar"), "schedules.x: rl_jax.core.schedules has no function 'linar'; it has: .*linear"),
        (KL | dict(stps=3), "takes no keyword 'stps'"),
        (dict(field="algorithm.kl_coef"), "must be dict\\(field="),
    ],
)
def test_a_wrong_entry_is_named_before_anything_runs(tmp_path, spec, said):
    with pytest.raises(ValueError, match=said):
        check(scheduled(tmp_path, dict(x=spec)))
    with pytest.raises(ValueError, match="is the field of schedules.a, too"):
        check(scheduled(tmp_path, dict(a=KL, b=KL)))


@pytest.mark.parametrize(
    ("field", "other", "fn"),
    [
        ("kl_coef", "trackers.loss_kl", "adaptive_kl"),
        ("reward_kl_coef", "trackers.reward_kl", "adaptive_kl"),
        ("entropy_coef", "trackers.entropy", "adaptive_entropy"),
        ("entropy_coef", "entropy_weight", "entropy_band"),
    ],
)
def test_a_coefficient_that_something_else_moves_cannot_be_scheduled(tmp_path, field, other, fn):
    config = scheduled(tmp_path, dict(x=KL | dict(field=f"algorithm.{field}")))
    check(config)
    group = config.algorithm
    for part in other.split("."):
        group = group[part]
    group.fn = fn
    said = f"schedules.x.field='algorithm.{field}' is set by algorithm.{other}.fn='{fn}', too, .* remove the schedule"
    with pytest.raises(ValueError, match=said):
        check(config)


def test_without_schedules_nothing_changes(tmp_path):
    config = small_config(tmp_path)
    assert schedules.with_values(config, {}) is config and trackers.make_trackers(config) == {}
    batch = PolicyBatch(None, jnp.ones((2, 3), bool), *[jnp.zeros((2, 3))] * 4)
    assert trackers.weigh(batch, {}).extras == {}


def test_the_loss_sees_the_values_as_arrays(tmp_path):
    """One compiled loss, two values: each equals the loss of a config with that constant."""
    config = scheduled(tmp_path)
    rng = np.random.default_rng(0)
    mask, logs = jnp.ones((4, 3), bool), [jnp.asarray(rng.normal(-1, 0.3, (4, 3)), jnp.float32) for _ in range(3)]
    advantages = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)
    setup = make_setup(config)
    found = jax.jit(policy.make_loss(setup, lambda params, rows: TokenScores(params, jnp.zeros((4, 3)))))
    batch = PolicyBatch(None, mask, advantages, logs[1], logs[1], logs[2])
    for kl, clip in ((0.2, 0.3), (0.05, 0.01)):
        states = {schedules.PLACE: {"kl": np.float32(kl), "clip": np.float32(clip)}}
        mean, _ = found(logs[0], trackers.weigh(batch, states))
        constant = small_config(tmp_path, algorithm__kl_coef=kl)
        constant.algorithm.surrogate.clip_high = clip
        plain = policy.make_loss(setup._replace(config=constant), lambda params, rows: TokenScores(params, 0 * params))
        np.testing.assert_allclose(mean.value(), jax.jit(plain)(logs[0], batch)[0].value(), rtol=1e-6)
    assert found._cache_size() == 1


def test_credit_sees_the_values(tmp_path):
    config = scheduled(tmp_path, dict(kl=KL | dict(field="algorithm.reward_kl_coef")))
    assert policy_steps.needs_scores(config) and policy.needs_ref_log_probs(config)
    assert not policy_steps.needs_scores(small_config(tmp_path))
    now = schedules.in_credit(config, {schedules.PLACE: {"kl": np.float32(0.25)}})
    assert now.algorithm.reward_kl_coef == np.float32(0.25) and config.algorithm.reward_kl_coef == 0.0


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (dict(fn="fixed"), [0.0, 0.0, 0.0, 0.0]),
        (dict(fn="per_iteration", every=2), [0.0, 2.0, 2.0, 4.0]),
        (dict(fn="moving_average", rate=0.5), [0.5, 1.25, 2.125, 3.0625]),
    ],
)
def test_the_reference_moves_by_name(tmp_path, spec, expected):
    setup = make_setup(small_config(tmp_path))
    with setup.config.unlocked():
        setup.config.algorithm.reference_schedule = spec
    move, reference = references.start(setup, {"w": jnp.zeros(2)})
    found = []
    for step in range(1, 5):
        reference = move(reference, {"w": jnp.full(2, float(step))}, step)
        found.append(float(reference["w"][0]))
    assert found == expected


def test_a_soup_is_the_first_reference(tmp_path, monkeypatch):
    """SALSA, arXiv 2411.01798; of two equal policies it is plain PPO's reference."""
    setup = make_setup(small_config(tmp_path, algorithm__reference_soup=dict(init_from="other", weight=0.25)))
    monkeypatch.setattr(references, "load_params", lambda setup, workdir: {"w": jnp.full(2, 8.0)})
    assert references.start(setup, {"w": jnp.zeros(2)})[1]["w"].tolist() == [2.0, 2.0]
    monkeypatch.setattr(references, "load_params", lambda setup, workdir: {"w": jnp.ones(2)})
    assert references.start(setup, {"w": jnp.ones(2)})[1]["w"].tolist() == [1.0, 1.0]


def test_a_schedule_that_moves_the_policy_is_refused(tmp_path):
    config = small_config(tmp_path)
    with config.unlocked():
        config.algorithm.reference_schedule = dict(fn="extrapolated")
    with pytest.raises(ValueError, match="algorithm.reference_schedule='extrapolated' moves the policy, too: only"):
        references.start(make_setup(config), {"w": jnp.zeros(2)})


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("program", [grpo, ppo])
def test_a_run_logs_its_schedules_compiles_once_and_resumes(tmp_path, program):
    specs = dict(kl=KL, clip=CLIP, shaped=KL | dict(field="algorithm.shaping.penalty", start=1.0))
    if program is ppo:
        specs |= dict(
            lam=KL | dict(field="critic.advantage.lam", start=0.5, end=1.0),
            value=CLIP | dict(field="critic.loss.value_clip"),
        )
    config = small_config(tmp_path, reward__function=reward(sevens), train__minibatches=2, checkpoint__every=2)
    with config.unlocked():
        config.algorithm.shaping = dict(fn="length_penalty", free_length=1, penalty=0.5)
        config.algorithm.reference_schedule = dict(fn="moving_average", rate=0.5)
        config.schedules = specs
        if program is ppo:
            ppo_common.with_critic(config)
    program.run(config, tmp_path / "whole")
    rows = read(tmp_path / "whole" / "metrics.jsonl")[1:]
    assert [round(row["schedule/kl"], 6) for row in rows] == [0.2, 0.1, 0.0, 0.0]
    assert [round(row["schedule/clip"], 6) for row in rows] == [0.3, 0.3, 0.1, 0.1]
    assert rows[-1]["kl/k1"] != 0 and not any(name.startswith("tracker/") for name in rows[0])
    counts = [row["compile_count"] for row in read(tmp_path / "whole" / "timing.jsonl")]
    assert len(set(counts)) == 1, "a value that changes must not compile anything again"

    shutil.copytree(tmp_path / "whole", tmp_path / "halves")  # the second half again
    shutil.rmtree(tmp_path / "halves" / "checkpoints" / "4")
    (tmp_path / "halves" / "final.json").unlink()
    program.run(config, tmp_path / "halves")
    assert read(tmp_path / "halves" / "metrics.jsonl")[1:] == rows
    assert read(tmp_path / "halves" / "final.json") == read(tmp_path / "whole" / "final.json")
    with checkpoint.Checkpointer(tmp_path / "whole" / "checkpoints", every=1) as found:
        shapes = make_setup(config).init_params()
        items, _ = found.restore({"params": shapes, "reference": shapes})
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), items["params"], items["reference"])
    assert any(jax.tree.leaves(moved))


def test_the_config_of_othink_mr1_has_it():
    config = othink_mr1.get_config()
    at = [schedules.at(config, step)["kl"] for step in (1, 60, 130, 200)]
    assert config.train.steps == 200 and config.schedules.kl.field == "algorithm.kl_coef"
    np.testing.assert_allclose(at, [0.01 * (1 - 1 / 60), 0.0, 0.01, 0.02], atol=1e-12)
