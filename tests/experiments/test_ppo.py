"""experiments.ppo: it learns and only from the advantages, it resumes bit for bit, and its pieces."""

import hashlib
import json
import shutil
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import ppo_common
from experiments import ppo
from experiments.parts import actor_critic
from experiments.parts.judging import Judged
from experiments.parts.sample_groups import Collected
from experiments.parts.setup import load_params, make_setup
from rl_jax import ppo as recipe
from rl_jax.advantages import tokens
from rl_jax.core.types import PolicyBatch, Rollout, TokenBatch, TokenScores
from rl_jax.losses import value
from rl_jax.models import heads
from rl_jax.rewards.pool import RewardResult
from rl_jax.training import checkpoint
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import StopAfter, has_a_seven, kept_signals, no_evaluations, reward  # noqa: F401  a fixture
from tests.experiments.small import config as small_config
from tests.tiny import max_difference

SUPPORT = dict(low=-0.5, high=1.0, num_bins=21, padding=3)


def with_critic(config, **critic):
    """The small config with a critic; critic: fields of configs.ppo_common.critic."""
    return ppo_common.with_critic(config.copy_and_resolve_references().unlock(), **critic).lock()


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- Learning: the problem of test_learning.py, 40 steps from random params ------------------------------------------

MARGIN = 0.5
STEPS = 40


def against(token_rewards, values, completion_mask, *, bootstrap_values):
    """GAE's advantages with their sign turned round; the returns as they are."""
    advantages, returns = tokens.gae(token_rewards, values, completion_mask, bootstrap_values=bootstrap_values)
    return -advantages, returns


def learner(tmp_path, steps=STEPS, **critic):
    """The config of a run."""
    config = small_config(
        tmp_path,
        reward__function=reward(has_a_seven),
        train__steps=steps,
        sample__group_size=8,
        train__epochs=2,
        train__optimizer__learning_rate=5e-3,
        eval__every=1000,
        checkpoint__every=1000,
    )
    rate = ppo_common.common.optimizer(learning_rate=5e-3)
    return with_critic(config, **dict(optimizer=rate, support=SUPPORT) | critic)


def learn(tmp_path, steps=STEPS, **critic) -> list[dict]:
    """The rows of metrics of a run."""
    ppo.run(learner(tmp_path, steps, **critic), tmp_path / "run")
    return read(tmp_path / "run" / "metrics.jsonl")[1:]


def gain(rows) -> float:
    """The mean reward of the last ten steps less that of the first two."""
    rewards = [row["reward/mean"] for row in rows]
    return float(np.mean(rewards[-10:]) - np.mean(rewards[:2]))


CRITICS = {
    "clipped": dict(loss=dict(fn="clipped", value_clip=0.2), warmup_steps=3),
    "hl_gauss": dict(loss=dict(fn="hl_gauss")),
    "shared": dict(shared=True, value_coef=0.5),
}


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
@pytest.mark.parametrize("name", CRITICS)
def test_reward_rises(tmp_path, name):
    rows = learn(tmp_path, **CRITICS[name])
    assert gain(rows) > MARGIN
    # Trained rows have the policy's metrics, those of the critic's warm-up have not; all have the critic's.
    assert ["loss" in row for row in rows] == [row["step"] > CRITICS[name].get("warmup_steps", 0) for row in rows]
    assert all({"value/loss", "value/clipped", "value/explained_variance", "returns/mean"} <= set(row) for row in rows)
    assert rows[0]["value/mean"] == pytest.approx(0.25 if name == "hl_gauss" else 0.0, abs=1e-6)
    assert ("critic/lr" in rows[0]) is (name != "shared") and ("value/outside_support" in rows[0]) is (
        name == "hl_gauss"
    )
    assert (tmp_path / "run" / "final.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_the_wrong_sign_does_not_learn(tmp_path):
    rows = learn(tmp_path, STEPS // 2, advantage=dict(fn=against))
    assert gain(rows) < 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_in_the_warm_up_the_critic_learns_and_the_policy_stands(tmp_path):
    rows = learn(tmp_path, STEPS // 2, warmup_steps=STEPS, loss=dict(fn="mse"))
    explained = [row["value/explained_variance"] for row in rows]
    assert explained[0] == pytest.approx(0.0, abs=1e-6) and min(explained[-10:]) > 0.1
    assert abs(gain(rows)) < MARGIN / 2 and not {"loss", "grad_norm", "ratio/mean"} & set(rows[-1])
    setup = make_setup(with_critic(small_config(tmp_path)))
    assert max_difference(load_params(setup, tmp_path / "run"), setup.init_params()) == 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_offline_the_critic_learns_first_and_the_policy_from_the_reference(tmp_path):
    """What is sampled never depends on the policy, and what the policy learns from never on the critic's updates."""
    sampled, judging, learned, updated, made = [], [], [], ppo.update, ppo.play_groups.make_collector

    def make_collector(*args):
        collector = made(*args)

        class Watched:
            compile_ahead = collector.compile_ahead

            def __call__(self, params, *rest):
                sampled.append(jax.device_get(params))
                return collector(params, *rest)

        return Watched()

    def update(*args):
        out = updated(*args)
        learned.append(jax.device_get(out[0].policy_params()))
        judging.append(jax.device_get(out[0].critic.params))
        return out

    config = learner(tmp_path, steps=4, offline=True, warmup_steps=2, loss=dict(fn="mse"))
    with config.unlocked():
        config.algorithm.behavior_weight = dict(fn="truncated")
    with (  # not by `monkeypatch`, which ends the sharing of programs: none of them reads these
        mock.patch.object(ppo.play_groups, "make_collector", make_collector),
        mock.patch.object(ppo, "update", update),
    ):
        ppo.run(config, tmp_path / "run")
    start = make_setup(config).init_params()
    assert len(sampled) == 4 and all(max_difference(params, start) == 0.0 for params in sampled)
    assert [max_difference(params, start) > 0 for params in learned] == [False, False, True, True]
    assert max_difference(judging[0], judging[1]) > 0, "the critic learns in its stage"
    assert max_difference(judging[1], judging[2]) == max_difference(judging[1], judging[3]) == 0.0
    rows = read(tmp_path / "run" / "metrics.jsonl")[1:]
    assert [("value/loss" in row, "loss" in row) for row in rows] == [(True, False)] * 2 + [(False, True)] * 2


@pytest.mark.parametrize("fields", [dict(warmup_steps=0), dict(shared=True)])
def test_offline_needs_a_stage_of_the_critic(tmp_path, fields):
    with pytest.raises(ValueError, match="critic.offline=True: a critic of states learns first"):
        ppo.run(with_critic(small_config(tmp_path), offline=True, **fields), tmp_path / "run")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"train.steps": 2}, "train.steps=2 must be above critic.warmup_steps=2"),
        ({"algorithm.reference_schedule.fn": "per_iteration"}, "set algorithm.reference_schedule.fn to 'fixed'"),
        ({"algorithm.behavior_weight": dict(fn="none")}, "nothing in config.algorithm corrects for it"),
    ],
)
def test_offline_needs_one_policy_that_answers_and_a_correction(tmp_path, fields, said):
    config = with_critic(small_config(tmp_path, train__steps=4), offline=True, warmup_steps=2)
    with config.unlocked():
        config.algorithm.behavior_weight = dict(fn="truncated")
        config.update_from_flattened_dict({k: v for k, v in fields.items() if not isinstance(v, dict)})
        config.algorithm.update({k.rpartition(".")[2]: v for k, v in fields.items() if isinstance(v, dict)})
    with pytest.raises(ValueError, match=said):
        ppo.check_config(config)


# --- Adapters, and resuming: one run for each kind of critic ---------------------------------------------------------

RESULTS = ("final.json", "metrics.jsonl", "samples.jsonl", "group_view.jsonl")
FULL_STEPS = 6


def full(folder, shared):
    """A run with all that has a state of its own: adapters after SFT, two epochs of two minibatches, KL in the reward,
    and first the critic alone, where it is one of its own."""
    rate = ppo_common.common.optimizer(learning_rate=1e-2, weight_decay=0.1)  # moves all that is not frozen
    config = small_config(
        folder,
        reward__function=reward(has_a_seven),
        train__steps=FULL_STEPS,
        train__epochs=2,
        train__minibatches=2,
        train__optimizer=rate,
        sft__steps=2,
        sft__batch_size=8,
        sft__eval_every=2,
        algorithm__reward_kl_coef=0.1,
        model__lora=dict(rank=2, alpha=16.0, targets="layers/(q|v)", variant="lora"),
        eval__every=3,
        checkpoint__every=2,
        checkpoint__keep=3,
    )
    return with_critic(config, shared=shared, optimizer=rate, warmup_steps=0 if shared else 3)


@pytest.fixture(scope="module", params=[False, True], ids=["separate", "shared"])
def undisturbed(request, tmp_path_factory):
    """(the config, the workdir) of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("full")
    config = full(folder, request.param)
    ppo.run(config, folder / "run")
    return config, folder / "run"


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_adapters_are_trained_on_a_frozen_base(undisturbed):
    """After SFT of the adapters."""
    config, workdir = undisturbed
    setup = make_setup(config)
    start = setup.init_params()
    sft, end = (load_params(setup, folder) for folder in (workdir / "sft", workdir))
    for tree in (sft, end):
        jax.tree.map(np.testing.assert_array_equal, tree["base"], start["base"])
    for earlier, later in ((start, sft), (sft, end)):
        moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), later["adapters"], earlier["adapters"])
        assert min(jax.tree.leaves(moved)) > 1e-5
    rows = read(workdir / "metrics.jsonl")
    assert rows[-1]["kl/k3"] > 1e-6 and abs(rows[-1]["value/mean"]) > 1e-3
    # The critic: the same base; of its own adapters and head, or the policy's adapters and a head.
    _, learner = actor_critic.build(setup, setup.init_params())
    like = learner.checkpoint_items(setup.init_params())
    with checkpoint.Checkpointer(workdir / "checkpoints", every=1) as found:
        items = found.restore(like)[0]
    critic = actor_critic.LearnerState.of(items).critic_params()
    assert set(critic) == {"base", "adapters", heads.NAME}
    jax.tree.map(np.testing.assert_array_equal, critic["base"], start["base"])
    jax.tree.map(np.testing.assert_array_equal, items["reference"], sft)
    assert (max_difference(critic["adapters"], end["adapters"]) == 0.0) is config.critic.shared
    assert max_difference(critic["adapters"], sft["adapters"]) > 1e-4
    assert min(float(np.abs(x).max()) for x in jax.tree.leaves(critic[heads.NAME])) > 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_cut_off_it_ends_where_an_undisturbed_run_ends(undisturbed, tmp_path, monkeypatch):
    """Started from a checkpoint of the critic's warm-up with two steps logged behind it, as after SIGKILL, stopped by a
    signal behind the warm-up, and started again. Kills of the process, in saves too, are test_resume.py's: this loop is
    that one, Run and Checkpointer are the same."""
    config, whole = undisturbed
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    (cut / "final.json").unlink()
    for step in (4, 6):
        shutil.rmtree(cut / "checkpoints" / str(step))
    rows = (cut / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "metrics.jsonl").write_bytes(b"".join(rows[:5]))
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "StopSignal", StopAfter(4))
        ppo.run(config, cut)
    assert read(cut / "metrics.jsonl")[-1]["step"] == 5 and not (cut / "final.json").exists()
    ppo.run(config, cut)
    for file in RESULTS:
        assert (cut / file).read_bytes() == (whole / file).read_bytes(), f"{file} differs"
    assert len(json.loads((cut / "run.json").read_text())["resumed"]) == 2
    rows = read(whole / "metrics.jsonl")  # equal contents are not equal for lack of contents
    trained = FULL_STEPS - config.critic.warmup_steps
    assert [row["step"] for row in rows] == list(range(FULL_STEPS + 1))
    assert len({row["value/loss"] for row in rows[1:]}) == FULL_STEPS
    assert len({row["loss"] for row in rows if "loss" in row}) == trained
    assert rows[-1]["grad_norm"] > 1e-4 and rows[-1]["kl/k3"] > 0


def fingerprint(workdir) -> dict[str, str]:
    """The contents of a workdir's results and checkpoints, by name."""
    files = [folder / name for folder in (workdir, workdir / "sft") for name in RESULTS if (folder / name).exists()]
    files += [path for path in sorted(workdir.glob("**/checkpoints/**/*")) if path.is_file()]
    return {str(path.relative_to(workdir)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_finished_run_started_again_changes_nothing(undisturbed):
    """Nor its warm start: Run's, as of every program."""
    config, workdir = undisturbed
    before = fingerprint(workdir)
    assert {"metrics.jsonl", "sft/final.json"} <= set(before) and any("checkpoints" in name for name in before)
    ppo.run(config, workdir)
    assert fingerprint(workdir) == before


def test_the_estimator_of_grpo_is_refused(tmp_path):
    """PPO would not read it: its advantages are the critic's."""
    config = small_config(tmp_path).copy_and_resolve_references().unlock()
    config.critic = ppo_common.critic()
    with pytest.raises(ValueError, match="algorithm.advantage: PPO's advantages are those of critic.advantage"):
        ppo.run(config.lock(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("measured", [True, False])
def test_the_reference_is_scored_only_if_something_reads_it(tmp_path, measured):
    setup = make_setup(with_critic(small_config(tmp_path, algorithm__measure_kl=measured)))
    rows, cut = np.zeros((2, 12), np.int32), np.zeros(2, bool)
    mask, blank = np.ones((2, 4), bool), np.zeros((2, 4), np.float32)
    rollout = Rollout(TokenBatch(rows, rows, rows + 1), mask, blank, blank, ~cut, cut)
    judged = Judged(rollout, [], [], RewardResult(np.zeros(2, np.float32), {}, 0, 0, None))
    scored, given = [], []
    programs = types.SimpleNamespace(
        score=lambda params, rows: scored.append(params) or TokenScores(blank, blank),
        predict=lambda params, rows: np.zeros((2, 5), np.float32),
        assign=lambda *args: given.append(args[4]) or (blank, {}),
    )
    learner = types.SimpleNamespace(
        policy_params=lambda: "policy",
        critic_params=lambda: "critic",
        policy=types.SimpleNamespace(trackers={}),
        target=None,
    )
    packer = types.SimpleNamespace(padded=True)
    ppo.score(setup, programs, packer, learner, "reference", Collected(judged, None, {}), jax.random.key(0))
    assert scored == (["policy", "reference"] if measured else ["policy"]) and (given[0] is not None) == measured


# --- Devices -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_eight_devices_walk_the_path_of_one(tmp_path):
    """With a critic of its own, whose state is split, too. The rows of the eight are packed; policy and critic split
    them in other numbers of micro-batches (test_packed.py: one device, and a shared critic)."""
    rows, more = {}, dict(train__epochs=2, train__minibatches=2, eval__every=100, reward__function=reward(has_a_seven))
    more |= dict(train__micro_batches=2, packing__row_length=24)
    for mesh in ("", "fsdp:4,tensor:2"):
        packed = dict(packing__mode="shared_prefix") if mesh else {}
        config = small_config(tmp_path, mesh=mesh, train__steps=3, checkpoint__every=100, **more, **packed)
        rate = ppo_common.common.optimizer(learning_rate=1e-2, eps=1e-3)  # the usual eps blows rounding up
        with config.unlocked():
            config.train.update(optimizer=rate)
            config.algorithm.update(reward_kl_coef=0.1)
        critic = dict(optimizer=rate, micro_batches=1, bootstrap_truncated=True)
        ppo.run(with_critic(config, **critic), tmp_path / f"run{mesh}")
        rows[mesh] = read(tmp_path / f"run{mesh}" / "metrics.jsonl")
    one, eight = rows.values()
    assert len(one) == len(eight) == 4 and one[-1]["kl/k3"] > 1e-5 and one[-1]["value/loss"] > 1e-3
    for left, right in zip(one[1:], eight[1:], strict=True):
        assert left.keys() == right.keys() - {"packing/occupancy"}
        for name in left:
            # But rounding itself, and shares of tokens beside a bound.
            if not name.startswith(("sampler/gap", "ratio/first", "clip/", "value/clipped")):
                assert left[name] == pytest.approx(right[name], rel=2e-3, abs=1e-5), (name, left["step"])
    assert 0.3 < eight[-1]["packing/occupancy"] <= 1 and eight[-1]["ratio/first_max_dev"] < 1e-4


# --- Pieces ----------------------------------------------------------------------------------------------------------


def test_objective_and_estimator_are_bound_from_the_config(tmp_path):
    config = with_critic(
        small_config(tmp_path, algorithm__kl_coef=0.3),
        loss=dict(fn="hl_gauss", sigma_ratio=0.5),
        support=SUPPORT,
        value_coef=0.7,
        advantage=dict(fn="length_adaptive_gae", alpha=0.1),
        whiten=False,
        bootstrap_truncated=True,
    )
    objective, estimator = actor_critic.make_objective(config), actor_critic.make_estimator(config)
    assert objective.policy.kl_coef == 0.3 and objective.value_coef == 0.7
    assert objective.value_loss.func is value.hl_gauss and objective.value_loss.keywords == {"sigma_ratio": 0.5}
    assert objective.support == value.Support(-0.5, 1.0, 21, 3)
    assert estimator.advantage.func is tokens.length_adaptive_gae and estimator.advantage.keywords == {"alpha": 0.1}
    assert (estimator.whiten, estimator.bootstrap_truncated) == (False, True)
    scalar = actor_critic.make_objective(with_critic(small_config(tmp_path), loss=dict(fn="huber", delta=1.0)))
    assert scalar.support is None and scalar.value_loss.keywords == {"delta": 1.0}


def test_the_defaults_of_the_config_are_the_recipes(tmp_path):
    config = with_critic(small_config(tmp_path))
    objective, estimator = actor_critic.make_objective(config), actor_critic.make_estimator(config)
    assert (
        objective.value_loss.keywords == {"value_clip": 0.2} and objective.value_coef == recipe.Objective().value_coef
    )
    assert estimator.advantage.keywords == {"discount": 1.0, "lam": 0.95}
    assert estimator._replace(advantage=tokens.gae) == recipe.Estimator()


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("loss", r"no function 'x'; it has: .*clipped.*hl_gauss.*huber.*mse.*two_hot"),
        ("advantage", r"no function 'x'; it has: .*gae.*length_adaptive_gae.*vtrace"),
    ],
)
def test_unknown_names_list_the_known_ones(tmp_path, field, said):
    config = with_critic(small_config(tmp_path), **{field: dict(fn="x")})
    with pytest.raises(ValueError, match=said):
        actor_critic.make_objective(config)
        actor_critic.make_estimator(config)


def test_unknown_fields_of_the_critic():
    with pytest.raises(ValueError, match="warmup_step'.*warmup_steps"):
        ppo_common.critic(warmup_step=3)


def test_a_shared_critic_cannot_be_trained_alone(tmp_path):
    setup = make_setup(with_critic(small_config(tmp_path), shared=True, warmup_steps=1))
    with pytest.raises(ValueError, match="critic.warmup_steps: .* shares the policy's trunk cannot be trained alone"):
        actor_critic.build(setup, setup.init_params())


@pytest.mark.parametrize("shared", [False, True])
def test_a_learner_comes_apart_and_together_again(tmp_path, shared):
    setup = make_setup(with_critic(small_config(tmp_path), shared=shared))
    start = setup.init_params()
    kept = jax.tree.map(jnp.copy, start)
    _, learner = actor_critic.build(setup, start)
    items = learner.checkpoint_items("the reference")
    assert items["reference"] == "the reference" and ("critic" in items) is not shared
    assert max_difference(items["params"], kept) == 0.0 and heads.NAME not in items["params"]
    again = actor_critic.LearnerState.of(items)
    assert jax.tree.structure(again) == jax.tree.structure(learner)
    for left, right in zip(jax.tree.leaves(again), jax.tree.leaves(learner), strict=True):
        assert left is right
    assert max_difference(learner.policy_params(), kept) == 0.0
    assert max_difference(heads.without_value_head(learner.critic_params()), kept) == 0.0
    assert heads.NAME in learner.critic_params()


def test_step_metrics(tmp_path, monkeypatch):
    found_idle = []
    monkeypatch.setattr(
        ppo.logged,
        "step_metrics",
        lambda config, collected, source, updates: found_idle.append(updates) or dict(updates[0]),
    )
    state = ppo.TrainState(0, {}, (), None, jnp.int32(2), jnp.int32(0))
    critic = [{"loss": 1.0, "value/loss": 1.0, "grad_norm": 2.0, "nonfinite/skipped": 0.0, "lr": 0.5}]
    critic.append({"loss": 3.0, "value/loss": 3.0, "grad_norm": 4.0, "nonfinite/skipped": 1.0, "lr": 0.5})
    found = ppo.step_metrics(None, None, None, state, [{"loss": 7.0}], critic)
    assert found == {
        "loss": 7.0,
        "value/loss": 2.0,
        "critic/grad_norm": 3.0,
        "critic/nonfinite/skipped": 1.0,
        "critic/lr": 0.5,
    }
    assert ppo.step_metrics(None, None, None, state, [{"loss": 7.0}], [{}, {}]) == {"loss": 7.0}
    critic.append({"loss": 5.0, "value/loss": 5.0, "grad_norm": 6.0, "nonfinite/skipped": 3.0, "lr": 0.5})
    found = ppo.step_metrics(None, None, None, state, [{"loss": 7.0}], critic)
    assert (found["value/loss"], found["critic/nonfinite/skipped"]) == (3.0, 3.0)
    # A step of the critic alone says how many updates the policy has skipped, and nothing about its samples.
    measured = {"ratio/first_max_dev": 0.0, "sampler/ess": 1.0}
    monkeypatch.setattr(ppo.logged, "step_metrics", lambda config, collected, source, updates: measured | updates[0])
    found = ppo.step_metrics(None, None, None, state, [], [{"value/loss": 1.0}])
    assert (found["nonfinite/skipped"], found["value/loss"]) == (2.0, 1.0)
    assert not {"ratio/max_dev", "ratio/first_max_dev", "sampler/gap_max", "sampler/ess"} & set(found)


@pytest.mark.parametrize("shared", [False, True])
def test_compiling_ahead_takes_the_only_batch_of_a_step(tmp_path, monkeypatch, shared):
    """Named in order; the critic's step gets the whole batch, the policy's its part, or all of it if it trains both."""
    setup = types.SimpleNamespace(config=with_critic(small_config(tmp_path), shared=shared))
    monkeypatch.setattr(ppo, "to_mesh", lambda setup, rows: rows)
    blank, mask = np.zeros((2, 4), np.float32), np.ones((2, 4), bool)
    rows = TokenBatch(*[np.zeros((2, 12), np.int32)] * 3)
    batch = recipe.PPOBatch(PolicyBatch(rows, mask, *[blank] * 4), blank, blank)
    collected = types.SimpleNamespace(judged=types.SimpleNamespace(rollout=types.SimpleNamespace(batch=rows)))
    calls = []
    loop = types.SimpleNamespace(
        ahead=lambda name, program: lambda *args: calls.append((name, type(args[-1]))), done=False
    )
    collect = types.SimpleNamespace(compile_ahead=lambda *args: collected)
    learner = types.SimpleNamespace(
        policy=types.SimpleNamespace(rng=jax.random.key(0)), critic="critic", policy_params=lambda: "params"
    )
    programs = ppo.PPOPrograms(None, None, None, None, "policy", None if shared else "critic")
    monkeypatch.setattr(ppo, "score", lambda *args: (batch, {}, None))
    ppo.compile_ahead(loop, setup, programs, types.SimpleNamespace(padded=True), collect, learner)
    whole = [] if shared else [("critic_step", recipe.PPOBatch)]
    of_policy = ("policy_step", recipe.PPOBatch if shared else PolicyBatch)
    assert calls == [("score", TokenBatch), *whole, of_policy]
