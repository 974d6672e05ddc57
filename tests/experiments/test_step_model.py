"""parts/step_model.py: a reward model of turns learns from the step's episodes, beside the policy; a run resumes."""

import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import agents_papers, agents_ppo, agents_worlds
from experiments import agents
from experiments.parts import players, policy, step_model
from experiments.parts.sample_groups import Collected
from rl_jax.core.types import TokenBatch, TokenScores
from rl_jax.envs.text.site import Site
from rl_jax.runs.logging import read_jsonl
from rl_jax.training import sharding
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations  # noqa: F401  fixtures

BETA = 0.5


def logs(params, rows):
    """A model whose log-prob of a token is a param of its own."""
    log_probs = params["w"][rows.tokens]
    return TokenScores(log_probs, log_probs)


def collected(rewards, tokens, mask):
    """Rows of one token per turn; a row without a token is one whose environment failed."""
    tokens, mask = np.asarray(tokens, np.int32), np.asarray(mask, bool)
    turns = SimpleNamespace(numbers=np.where(mask, np.cumsum(mask, axis=1) - 1, -1))
    batch = TokenBatch(tokens, np.zeros_like(tokens), np.ones_like(tokens))
    rollout = SimpleNamespace(batch=batch, completion_mask=mask, turns=turns)
    judged = SimpleNamespace(rollout=rollout, result=SimpleNamespace(rewards=np.asarray(rewards, np.float32)))
    return Collected(judged, None, {"kept": 1.0})


@pytest.fixture
def model(monkeypatch):
    """A StepModel with 8 params, in groups of two."""
    monkeypatch.setattr(policy, "make_scorer", lambda setup: logs)
    config = SimpleNamespace(seed=0, sample=SimpleNamespace(group_size=2))
    mesh = sharding.make_mesh(sharding.parse_mesh(""), jax.devices()[:1])
    setup = SimpleNamespace(config=config, attached=None, merged=None, mesh=mesh)
    return step_model.StepModel(setup, {"w": jnp.full(8, -1.0)}, beta=BETA, learning_rate=0.1, updates=1)


@pytest.mark.slow
def test_it_learns_who_was_better_and_then_says_so(model):
    """One step of Adam moves each token of the better row up, of the worse down; equal and failed rows move none.

    What it has learned is carried.
    """
    tokens = [[1, 2, 0], [3, 2, 0], [4, 0, 0], [5, 0, 0], [6, 0, 0], [7, 0, 0]]
    mask = [[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0]]
    rewards = [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]  # 1 beats 0; 2 and 3 are equal; 5 failed
    old = np.full((6, 3), -1.0, np.float32)
    told = model(collected(rewards, tokens, mask), TokenScores(old, old))
    found = np.zeros((6, 3))
    found[0, 0], found[1, 0] = -0.1 * BETA, 0.1 * BETA  # token 2 is said by both: its gradient is 0
    np.testing.assert_allclose(told.named["implicit_rewards"], found, atol=1e-6)
    assert told.metrics["step_model/loss"] == pytest.approx(np.log(2), rel=1e-6) and told.metrics["kept"] == 1
    again = model(collected(rewards, tokens, mask), TokenScores(old, old))
    assert again.metrics["step_model/loss"] == pytest.approx(np.logaddexp(0, -0.2 * BETA), rel=1e-5)
    assert again.metrics["step_model/accuracy"] == 1  # it was read before the second update
    moved = model(collected(rewards, tokens, mask), TokenScores(old + 0.25, old))  # the policy moved, phi is against it
    assert moved.named["implicit_rewards"][2, 0] == pytest.approx(-0.25 * BETA)
    kept, rows = model.carried(), (collected(rewards, tokens, mask), TokenScores(old, old))
    first = model(*rows).named["implicit_rewards"]
    assert np.abs(model(*rows).named["implicit_rewards"] - first).max() > 0.01
    model.set_carried(kept)
    np.testing.assert_array_equal(model(*rows).named["implicit_rewards"], first)


@pytest.mark.slow
def test_its_config_clips_the_product_of_a_turn_and_each_turn_counts_the_same():
    """Turns of 3 and 1 tokens with exp(.4), A = 1, and exp(-.4), A = -2; both are clipped."""
    config = agents_worlds.get_config("maze,oprl,smoke")
    objective, rule = policy.make_objective(config), policy.make_credit(config)
    log_ratio, turns = np.float32([[0.1, 0.1, 0.2, -0.4]]), np.int32([[0, 0, 0, 1]])
    advantages, mask = np.float32([[1.0, 1.0, 1.0, -2.0]]), np.ones((1, 4), bool)
    loss = objective.surrogate(log_ratio, 0 * log_ratio, advantages, mask, turns=turns).loss
    mean = objective.aggregate(loss * rule.token_weight(mask, turns=turns, key=jax.random.key(0)), mask)
    assert mean.total / mean.count == pytest.approx((-1.2 + 2 * 0.8) / 2)


def test_what_does_not_go_with_it_is_refused():
    config = agents_worlds.get_config("maze,oprl,smoke")
    config.algorithm.update(measure_kl=False, kl_coef=0.0)
    assert not policy.needs_ref_log_probs(config)  # it is compared with the policy that played
    config.algorithm.advantage = dict(fn="rl_jax.advantages.turns:loop")
    config.agent.step_model.update(fn="implict", updates=0)
    with pytest.raises(ValueError, match="fn='implict' is none of(.|\n)*1 update or more\n.*does not ask for implicit"):
        players.check(config)
    config = agents_ppo.get_config("maze,smoke")
    config.agent.step_model = dict(fn="implicit", beta=0.05, learning_rate=1e-4, updates=1)
    with pytest.raises(ValueError, match="agent.step_model works in experiments.agents, not in 'ppo'"):
        players.check(config)


class Paid(Site):
    """An untrained policy finds no price, so each turn pays by its length."""

    def step(self, said):
        return super().step(said)._replace(reward=float(len(said) % 3))


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_run_trains_it_and_a_resumed_one_trains_the_same(tmp_path):
    """On pages whose history is compressed (WebAgent-R1): rows of several segments, each read as it was sampled."""
    config = agents_papers.get_config("webagent_r1,smoke")
    config.algorithm.advantage = agents_worlds.CREDIT["oprl"]
    config.agent.update(agents_worlds.AGENT["oprl"])
    config.algorithm.update(agents_worlds.ALGORITHM["oprl"])
    config.task.update(data_dir=str(tmp_path / "data"), num_train=4, num_test=4)
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    config.sft.steps = 0
    config.agent.env.fn = "tests.experiments.test_step_model:Paid"
    config.agent.update(max_turns=3)
    config.rollout.completion_length = 256
    config.agent.step_model.learning_rate = 0.01
    config.train.steps = 2
    config.sample.update(prompts_per_step=2, group_size=4)
    config.eval.update(every=2, num_prompts=4, batch_size=4)
    config.checkpoint.every = 1
    config.log.update(progress=False, tensorboard=False)
    agents.run(config.lock(), tmp_path / "run")
    first, second = read_jsonl(tmp_path / "run/metrics.jsonl")[1:]
    assert first["step_model/loss"] == pytest.approx(np.log(2), rel=1e-6)  # it starts as the policy
    assert abs(second["step_model/loss"] - np.log(2)) > 1e-4  # and has moved from it
    assert first["episode/segments"] > 1 and first["episode/segments"] <= first["episode/turns"]
    for row in (first, second):
        assert row["ratio/first_max_dev"] < 1e-4 and abs(row["sampler/gap_max"]) < 1e-3  # as it was sampled
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints/2")
    (tmp_path / "again/final.json").unlink()
    agents.run(config, tmp_path / "again")
    for name in ("final.json", "metrics.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
