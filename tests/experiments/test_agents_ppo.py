"""experiments.ppo on episodes: one turn is single answers to the bit; the credit of turns by hand; runs resume."""

import functools
import itertools
import json
import shutil
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import agents as agents_config
from configs import agents_papers, agents_ppo, ppo_common
from experiments import ppo
from experiments.parts import actor_critic, critics, policy, turn_replay, turn_signals
from experiments.parts.setup import make_setup
from rl_jax import ppo as recipe
from rl_jax.advantages import turn_critics
from rl_jax.core.types import Rollout, TokenBatch, Turns
from rl_jax.credit.rule import CreditRule
from rl_jax.envs.text.reflection import Reflection
from rl_jax.losses import turn_critics as turn_losses
from rl_jax.models.heads import MEMBERS, NAME
from rl_jax.runs.logging import read_jsonl
from rl_jax.training import checkpoint
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations, reward, sevens_and_even  # noqa: F401  fixtures

LOCK_STEP = dict(name="continuous", slots=4, url="", model="", timeout_s=1.0, sync=dict(fn=""))


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_one_turn_is_ppo_to_the_bit(tmp_path):
    fields = dict(
        train__steps=2,
        train__minibatches=2,
        reward__function=reward(sevens_and_even),
        rollout__engine=LOCK_STEP,
        eval__every=2,
        checkpoint__every=2,
    )
    config = small.config(tmp_path, **fields).copy_and_resolve_references().unlock()
    ppo_common.with_critic(config, warmup_steps=1)
    ppo.run(config.copy_and_resolve_references().lock(), tmp_path / "ppo")
    agents_config.of(config).program = "ppo"
    ppo.run(config.lock(), tmp_path / "episodes")
    ours, theirs = (json.loads((tmp_path / name / "final.json").read_text()) for name in ("episodes", "ppo"))
    assert ours == theirs  # the sum of all params among it
    ours, theirs = (read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("episodes", "ppo"))
    for row, like in zip(ours, theirs, strict=True):
        assert {name: row[name] for name in like} == like
        assert {name.split("/")[0] for name in set(row) - set(like)} <= {"episode"}
    ours, theirs = (read_jsonl(tmp_path / name / "samples.jsonl") for name in ("episodes", "ppo"))
    assert [{name: row[name] for name in like} for row, like in zip(ours, theirs, strict=True)] == theirs


def tiny(folder, words="maze,turn_ppo", **agent):
    """The smallest run of a config of this file's."""
    config = agents_ppo.get_config(f"{words},smoke")
    config.task.update(data_dir=str(folder / "data"), num_train=20, num_test=4)
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    config.sft.update(steps=2, batch_size=8, eval_every=2)
    config.train.steps = 3
    config.sample.update(prompts_per_step=4, group_size=1)
    config.eval.update(every=3, num_prompts=4, batch_size=4)
    config.checkpoint.every = 2  # a save costs more than a step
    config.log.update(progress=False, tensorboard=False)
    config.agent.update(agent)
    return config.lock()


# --- Two rows by hand: turns of tokens 0-1 and 3-4 (rewards -1 and 2), and one turn of tokens 0-2 (reward 1) ----------

NUMBERS = np.int32([[0, 0, -1, 1, 1, -1], [0, 0, 0, -1, -1, -1]])
EARNED = np.float32([[0, -1, 0, 0, 2, 0], [0, 0, 1, 0, 0, 0]])
VALUES = np.float32([[0.5, 0.25, 9, 1.0, 0.75, 0.125, 9], [0.1, 0.2, 0.3, 0.4, 9, 9, 9]])


def assigned(advantage, *, truncated=(False, False), shape=None, **estimator):
    """ppo.assign of the two rows, as experiments.ppo calls it."""
    blank, mask, cut = np.zeros(NUMBERS.shape, np.int32), NUMBERS >= 0, np.array(truncated)
    zeros = np.zeros(NUMBERS.shape, np.float32)
    own = turn_critics.earned_early(EARNED, mask)
    turns = Turns(NUMBERS, EARNED, blank - 1)
    rollout = Rollout(TokenBatch(blank, blank, blank), mask, zeros, zeros, ~cut, cut, token_rewards=own, turns=turns)
    rule = CreditRule() if shape is None else CreditRule(shape=shape)
    found, _ = recipe.assign(
        rule,
        recipe.Estimator(advantage=advantage, whiten=False, **estimator),
        rollout,
        jnp.asarray(EARNED.sum(axis=1)),
        jnp.asarray(VALUES),
        group_size=1,
        key=jax.random.key(0),
        turns=NUMBERS,
    )
    return np.asarray(found.policy.advantages), np.asarray(found.returns)


def test_turn_ppo_reads_values_before_turns_and_rewards_on_their_last_tokens():
    gae = functools.partial(turn_critics.turn_gae, discount=0.5, lam=0.5)
    advantages, returns = assigned(gae)
    second = 2 - 1.0  # the last turn: nothing follows
    first = -1 + 0.5 * 1.0 - 0.5 + 0.25 * second
    np.testing.assert_allclose(advantages[0], [first, first, 0, second, second, 0], rtol=1e-6)
    np.testing.assert_allclose(returns[0], [first + 0.5, first + 0.5, 0, 2, 2, 0], rtol=1e-6)
    np.testing.assert_allclose(advantages[1], [0.9, 0.9, 0.9, 0, 0, 0], rtol=1e-6)


def test_a_truncated_episode_goes_on_with_the_value_after_its_last_token():
    gae = functools.partial(turn_critics.turn_gae, discount=0.5, lam=0.5)
    advantages, _ = assigned(gae, truncated=(True, False), bootstrap_truncated=True)
    second = 2 + 0.5 * 0.125 - 1.0  # the value of column 5, not of the last column
    np.testing.assert_allclose(advantages[0, 3:5], second, rtol=1e-6)
    np.testing.assert_allclose(advantages[0, :2], -1 + 0.5 - 0.5 + 0.25 * second, rtol=1e-6)


@pytest.mark.parametrize(("lam", "turn_lam"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.25), (0.5, 0.25)])
def test_bilevel_gae_has_a_lambda_of_tokens_and_one_of_turns(lam, turn_lam):
    gae = functools.partial(turn_critics.bilevel_gae, discount=0.9, lam=lam, turn_discount=0.5, turn_lam=turn_lam)
    advantages, returns = assigned(gae)
    of_second = 2 - 0.75
    of_first = -1 + 0.5 * 0.75 - 0.25 + 0.5 * turn_lam * of_second  # over turns: V at the last tokens
    row = [0.9 * 0.25 - 0.5 + 0.9 * lam * of_first, of_first, 0]  # over tokens, towards A_j + V_j
    row += [0.9 * 0.75 - 1.0 + 0.9 * lam * of_second, of_second, 0]
    np.testing.assert_allclose(advantages[0], row, rtol=1e-5)
    np.testing.assert_allclose(returns[0], np.where(NUMBERS[0] >= 0, row + VALUES[0, :6], 0), rtol=1e-5)


def test_what_shaping_adds_is_on_the_last_token():
    def shape(rewards, lengths, truncated, key):
        return rewards + 0.25

    advantages, _ = assigned(functools.partial(turn_critics.turn_gae, discount=1.0, lam=0.0), shape=shape)
    np.testing.assert_allclose(advantages[0, [0, 3]], [-1 + 1.0 - 0.5, 2.25 - 1.0], rtol=1e-6)
    one = turn_critics.earned_early(EARNED[1:], NUMBERS[1:] >= 0)
    np.testing.assert_array_equal(one, np.zeros((1, 6)))  # one turn: the row's reward as it is, to the bit


# --- ArCHer on a world of two turns: every episode of a policy with p(1) = 1/4, then 1/2 ------------------------------

GAMMA = 0.9
FIRST = np.int32([1, 1, 0, 0, 0, 0, 0, 0])
SECOND = np.int32([0, 1, 0, 0, 0, 1, 1, 1])
PAYS = np.float32([[1.0, -2.0], [0.5, 4.0]])  # of the second action, by the first
PAID = np.float32([0.25, -1.0])  # of the first action
SPOKEN = np.broadcast_to(np.int32([0, 0, -1, 1, 1]), (8, 5))  # two tokens, the environment's answer, two tokens


def outputs_of(tables):
    """[8, 6, 4] of two pairs of critics; the second critic's are 1 higher; what no turn reads is 99."""
    found = jnp.full((8, 6), 99.0)
    q, v = found, found
    q = q.at[:, 2].set(tables["q_first"][FIRST]).at[:, 5].set(tables["q_second"][FIRST, SECOND])
    v = v.at[:, 0].set(tables["v_first"][FIRST * 0]).at[:, 3].set(tables["v_second"][FIRST])
    return jnp.stack([q, q + 1.0, v, v + 1.0], axis=2)


def exact():
    """Q and V of the policy, by hand."""
    v_second = PAYS.mean(axis=1)
    q_first = PAID + GAMMA * v_second
    tables = dict(q_first=q_first, v_first=[0.75 * q_first[0] + 0.25 * q_first[1]], q_second=PAYS, v_second=v_second)
    return {name: np.float32(table) for name, table in tables.items()}


def archer(tables, slow):
    """(PPOBatch, the critics' loss of these tables)."""
    earned = np.zeros((8, 5), np.float32)
    earned[:, 1], earned[:, 4] = PAID[FIRST], PAYS[FIRST, SECOND]
    blank, mask = np.zeros((8, 5), np.int32), SPOKEN >= 0
    rollout = Rollout(
        TokenBatch(blank, blank, blank), mask, earned * 0, earned * 0, np.ones(8, bool), np.zeros(8, bool),
        token_rewards=turn_critics.earned_early(earned, mask), turns=Turns(SPOKEN, earned, blank - 1),
    )  # fmt: skip
    fn = functools.partial(turn_critics.archer_td, discount=GAMMA)
    batch, metrics = recipe.assign(
        CreditRule(),
        recipe.Estimator(advantage=fn, whiten=False),
        rollout,
        jnp.asarray(earned.sum(axis=1)),
        outputs_of(tables),
        group_size=1,
        key=jax.random.key(0),
        turns=SPOKEN,
        target_values=outputs_of(slow),
    )
    batch = batch._replace(policy=batch.policy._replace(extras=batch.policy.extras | {"turns": SPOKEN}))
    objective = recipe.Objective(value_loss=turn_losses.squared_errors, pairs=2)

    def loss(tables):
        read = objective.read(outputs_of(tables), batch)
        return recipe.value_loss(read, batch, objective)[0].value()

    return batch, jax.value_and_grad(loss)(tables), metrics


def test_archers_critics_regress_to_the_slow_copys_values():
    """The targets of every turn, and the values as the only place where the mean gradient is 0."""
    slow = {name: table + 0.5 for name, table in exact().items()}
    batch, _, _ = archer(exact(), slow)
    q_first = PAID[FIRST] + GAMMA * slow["v_second"][FIRST]
    by_hand = [q_first, q_first + GAMMA, slow["q_first"][FIRST], slow["q_first"][FIRST] + 1]
    np.testing.assert_allclose(batch.returns[:, 1], np.stack(by_hand, axis=1), rtol=1e-6)
    paid, q_second = PAYS[FIRST, SECOND], slow["q_second"][FIRST, SECOND]  # no value follows the last turn
    np.testing.assert_allclose(batch.returns[:, 4], np.stack([paid, paid, q_second, q_second + 1], axis=1), rtol=1e-6)
    assert not np.asarray(batch.returns)[:, [0, 2, 3]].any()
    np.testing.assert_array_equal(batch.value_mask, np.broadcast_to([0, 1, 0, 0, 1], (8, 5)))


def test_the_slow_copy_leads_the_critics_to_the_policys_values():
    """Regression to the targets of all episodes, then copied, and again: Q and V of the policy after three rounds."""
    tables = {name: jnp.zeros_like(table) for name, table in exact().items()}
    for _ in range(4):
        batch, _, _ = archer(tables, tables)
        q, v = np.asarray(batch.returns)[:, :, 0], np.asarray(batch.returns)[:, :, 2]
        of = lambda x, *where: jnp.float32(x[np.logical_and.reduce([np.ones(8, bool), *where])].mean())  # noqa: E731
        tables = dict(
            q_first=jnp.stack([of(q[:, 1], FIRST == a) for a in (0, 1)]),
            v_first=jnp.stack([of(v[:, 1])]),
            q_second=jnp.stack([jnp.stack([of(q[:, 4], FIRST == a, SECOND == b) for b in (0, 1)]) for a in (0, 1)]),
            v_second=jnp.stack([of(v[:, 4], FIRST == a) for a in (0, 1)]),
        )
    for name, table in exact().items():
        np.testing.assert_allclose(tables[name], table, rtol=1e-5, err_msg=name)


def test_archers_policy_has_the_advantage_of_its_turn_on_each_token():
    tables = exact()
    batch, (loss, gradient), metrics = archer(tables, tables)
    first, second = tables["q_first"][FIRST] - tables["v_first"], PAYS[FIRST, SECOND] - tables["v_second"][FIRST]
    by_hand = np.stack([first, first, 0 * first, second, second], axis=1)  # the lower Q and V are the first pair's
    np.testing.assert_allclose(batch.policy.advantages, by_hand, rtol=1e-5, atol=1e-6)
    assert abs(by_hand[:, 0].mean()) < 1e-6 and np.abs(by_hand).max() > 1
    # The second critic's targets are not its own values: gamma (V' + 1) and no value at the end. Its gradient is known.
    over = np.mean([-2 * (GAMMA - 1), 2.0])  # of Q_2 at the first and at the last turn, a mean over 16 turns
    assert float(sum(jnp.sum(g) for n, g in gradient.items() if n[0] == "q")) == pytest.approx(over, rel=1e-4)
    for name in ("v_first", "v_second"):
        np.testing.assert_allclose(gradient[name], 0.0, atol=1e-6)
    assert float(metrics["value/mean"].value()) == pytest.approx(
        np.mean([tables["q_first"][FIRST], PAYS[FIRST, SECOND]]), rel=1e-5
    )


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_archer_trains_and_its_slow_copy_resumes_to_the_bit(tmp_path):
    """With replay, whose turns and fresh actions are drawn again after a resume."""
    config = tiny(tmp_path, "maze,archer_replay", record=True)
    with config.unlocked():
        config.critic.update(epochs=2, target_rate=0.5)
        config.sft.steps = 0  # tests/experiments/test_agents_worlds.py has a warm start on episodes
    updates, followed, replayed, heads = [], [], [], []
    update, slow_copy, replay, batch_of = (
        actor_critic.PPOPrograms.update,
        critics.slow_copy,
        turn_replay.train,
        turn_replay.batch_of,
    )

    def counted(self, learner, *rows, only):
        updates.append(only == "critic")
        return update(self, learner, *rows, only=only)

    def watched(*args):
        follow, target = slow_copy(*args)

        def noted(*params):
            followed.append(len(updates))
            return follow(*params)

        noted._cache_size = follow._cache_size
        return noted, target

    def told(setup, programs, target, chosen, said, like):
        assert any(
            one.episode.sampled()[one.turn].ids.tolist() != x.tolist() for one, x in zip(chosen, said, strict=True)
        )
        return batch_of(setup, programs, target, chosen, said, like)

    def again_and_again(loop, setup, programs, learner, *rest):
        before = jax.device_get(learner.critic.params)  # the step donates them
        learner, found = replay(loop, setup, programs, learner, *rest)
        moved = jax.tree.map(lambda x, y: np.any(x != y), before, jax.device_get(learner.critic.params))
        replayed.append((len(found), any(jax.tree.leaves(moved))))
        heads.append(jax.device_get(learner.critic.params)[NAME][MEMBERS]["kernel"])
        return learner, found

    with (  # not by `monkeypatch`, which ends the sharing of programs: none of them reads these
        mock.patch.object(turn_replay, "train", again_and_again),
        mock.patch.object(turn_replay, "batch_of", told),
        mock.patch.object(actor_critic.PPOPrograms, "update", counted),
        mock.patch.object(critics, "slow_copy", watched),
    ):
        ppo.run(config, tmp_path / "run")
    assert replayed == [(2, True)] * 3  # two minibatches of earlier turns a step, and they train the critics
    apart = [np.abs(a - b).max() for a, b in itertools.combinations(heads[-1], 2)]
    assert len(apart) == 6 and min(apart) > 0, "two Q and two V: the smaller of equal ones is either"
    each = len(updates) // 3  # updates of a step, half of them of the critic alone
    assert each >= 2 and followed == [each, 2 * each, 3 * each]  # the slow copy moves once a step, at its end
    assert updates[-each:] == [True] * (each // 2) + [False] * (each // 2)
    rows = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert rows[-1]["step"] == 3 and rows[-1]["value/loss"] > 0 and rows[-1]["grad_norm"] > 0
    assert rows[-1]["episode/end/error"] == 0 and rows[-1]["episode/turns"] > 1
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "run", again)
    shutil.rmtree(again / "checkpoints/3")
    (again / "final.json").unlink()
    (again / "trajectories/00000003.parquet").unlink()
    ppo.run(config, again)
    for name in ("final.json", "metrics.jsonl", "samples.jsonl", "trajectories/00000003.parquet"):
        assert (again / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_the_slow_copy_follows_by_its_rate():
    params = {"head": jnp.float32([1.0, 2.0])}
    everywhere = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    follow, target = critics.slow_copy(SimpleNamespace(params=params), everywhere, SimpleNamespace(target_rate=0.25))
    np.testing.assert_array_equal(target["head"], [1.0, 2.0])
    np.testing.assert_array_equal(follow(target, {"head": jnp.float32([5.0, 2.0])})["head"], [2.0, 2.0])
    with pytest.raises(ValueError, match="critic.target_rate=0 must be above 0"):
        critics.slow_copy(SimpleNamespace(params=params), everywhere, SimpleNamespace(target_rate=0))


@pytest.mark.parametrize("field", ["shared", "bootstrap_truncated"])
def test_critic_epochs_are_at_least_one_and_one_if_shared(tmp_path, field):
    config = tiny(tmp_path)
    with config.unlocked():
        epochs = 2 if field == "shared" else 0
        config.critic.update(epochs=epochs, shared=field == "shared", warmup_steps=0)
    with pytest.raises(ValueError, match="critic.epochs=[02] must be 1 or more, and 1 with critic.shared"):
        critics.start(SimpleNamespace(config=config), {}, num_outputs=1)


@pytest.mark.parametrize("field", ["shared", "bootstrap_truncated"])
def test_what_critics_of_turns_cannot_have_is_refused(tmp_path, field):
    config = tiny(tmp_path, "maze,archer")
    ppo.check_config(config)
    with config.unlocked():
        config.critic[field] = True
    with pytest.raises(ValueError, match=f"critic.{field}=True: critics of turns"):
        ppo.check_config(config)


@pytest.mark.parametrize("fn", ["token_sum", "only_token_mean", "group_token_mean"])
def test_a_critic_that_learns_elsewhere_is_not_aggregated_by_the_policys_counts(tmp_path, fn):
    """Red before: one answer of four that is over gave four times its sum, and the first replayed turns an error."""
    whole, turns = (tiny(tmp_path, f"maze,{method}") for method in ("turn_ppo", "archer"))
    windows = ppo_common.with_critic(small.config(tmp_path).copy_and_resolve_references().unlock())
    windows.rollout.window = 2
    for config in (whole, turns, windows):
        ppo.check_config(config)
        with config.unlocked():
            config.algorithm.aggregate = dict(fn=fn)
    ppo.check_config(whole)
    for config in (turns, windows):
        with pytest.raises(ValueError, match=f"algorithm.aggregate='{fn}' counts where the policy learns"):
            ppo.check_config(config)


def test_the_loss_of_turns_finds_them(tmp_path):
    config = tiny(tmp_path)
    assert turn_signals.in_loss(policy.make_objective(config)) == {"turns"}
    ppo.check_config(config)


def test_credit_of_turns_is_refused_without_turns(tmp_path):
    advantage = dict(fn="rl_jax.advantages.turn_critics:turn_gae")
    config = small.config(tmp_path).copy_and_resolve_references().unlock()
    ppo_common.with_critic(config, advantage=advantage)
    with pytest.raises(ValueError, match="critic.advantage='.*turn_gae' needs turns.*or config.agent in ppo"):
        ppo.run(config.lock(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_environment_that_cannot_work_is_refused(tmp_path):
    with pytest.raises(ValueError, match="agent.max_turns=0 must be 1 or more"):
        ppo.check_config(tiny(tmp_path, max_turns=0))
    with pytest.raises(ValueError, match="bilevel, turn_ppo|turn_ppo, bilevel"):
        agents_ppo.get_config("turn_ppo,bilevel")


class Paid(Reflection):
    """Neither side of an untrained model says a word of a and b, so a reflection earns and costs by its length."""

    NUMBERS = (*Reflection.NUMBERS, "cost")

    def _after(self, said, trial):
        step = super()._after(said, trial)
        return step._replace(reward=2.0 * (len(said) % 3), numbers={**step.numbers, "cost": 1.0 + len(said) % 2})


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_an_actor_that_stays_as_it_is_beside_a_reflector_that_learns(tmp_path):
    """Retroformer, which has turn_ppo's critic of turns: the partner's weights are those that training began with,
    after a step that moved the policy.

    And Router-R1: what has been said is priced by running quantiles, whose window is in the checkpoint.
    """
    config, router = (agents_papers.get_config(f"{word},smoke") for word in ("retroformer", "router_r1"))
    config.algorithm.shaping = router.algorithm.shaping
    config.algorithm.trackers.reward_scale = router.algorithm.trackers.reward_scale
    config.task.update(data_dir=str(tmp_path / "data"), num_train=8, num_test=4)
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    config.agent.env.fn = "tests.experiments.test_agents_ppo:Paid"
    config.sft.steps, config.train.steps, config.critic.warmup_steps = 0, 1, 0
    config.sample.update(prompts_per_step=4)
    config.agent.update(max_turns=2, max_turn_tokens=4)
    config.eval.update(every=0, num_prompts=4, batch_size=4)
    config.checkpoint.every = 1
    config.algorithm.update(kl_coef=0.0, measure_kl=False)
    config.log.update(progress=False, tensorboard=False)
    ppo.run(config.lock(), tmp_path / "run")
    setup = make_setup(config)
    like = dict.fromkeys(("params", "reference"), setup.param_shapes)
    with checkpoint.Checkpointer(tmp_path / "run/checkpoints", every=1) as checkpoints:
        kept = checkpoints.restore(like)[0]
    first = setup.init_params()
    jax.tree.map(np.testing.assert_array_equal, kept["reference"], first)
    assert max(float(np.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (kept["params"], first)), strict=True))
    rows = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert rows[-1]["episode/end/error"] == 0 and "episode/gain" in rows[-1]
    assert rows[-1]["step"] == 1 and rows[-1]["value/loss"] > 0 and rows[-1]["grad_norm"] > 0
    assert rows[-1]["tracker/reward_scale/seen"] == 4 and rows[-1]["tracker/reward_scale/high"] > 0
    assert abs(rows[-1]["reward/optimized"] - rows[-1]["reward/mean"]) > 0.01
