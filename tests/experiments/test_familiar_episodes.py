"""parts/familiar_episodes.py: which turns are learned from again; a run with WebRL's critic does, and resumes."""

import shutil
import types

import jax
import numpy as np
import pyarrow.parquet
import pytest

from configs import agents_papers
from experiments import ppo
from experiments.parts import familiar_episodes, players, policy
from experiments.parts.actor_critic import LearnerState, make_objective
from rl_jax.core.types import PolicyBatch, TokenBatch
from rl_jax.envs.text.site import Site
from rl_jax.experience import trajectory
from rl_jax.ppo import PPOBatch
from rl_jax.runs.logging import read_jsonl
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations  # noqa: F401  fixtures
from tests.experiments.test_episode_replay import episode


def test_turns_are_chosen_one_by_one():
    """Geometric means of .6 and .99 in one row, .3 and .6 in the other; tokens off the mask do not count."""
    numbers = np.int32([[0, 0, -1, 1, 1], [0, -1, 2, 2, 2]])
    probs = np.float32([[0.4, 0.9, 0.1, 0.99, 0.99], [0.3, 0.1, 0.01, 0.6, 0.6]])
    mask = numbers >= 0
    mask[1, 2] = False
    found = familiar_episodes.familiar_turns(np.log(probs), numbers, mask, low=0.5, high=0.95)
    assert found.tolist() == [[True, True, False, False, False], [False, False, False, True, True]]
    assert not familiar_episodes.familiar_turns(np.log(probs), 0 * numbers - 1, mask, low=0.0, high=1.0).any()


def batch_of(first, masks, width):
    """Rows whose every token is their number, from `first` on, with `width` tokens."""
    mask = np.array(masks, bool)
    numbers = np.arange(first, first + len(mask), dtype=np.float32)[:, None] * np.ones(mask.shape, np.float32)
    tokens = np.int32(numbers[:, :1] + np.zeros(width))
    rows = TokenBatch(tokens, np.ones_like(tokens), np.ones_like(tokens))
    policy_rows = PolicyBatch(rows, mask, numbers, numbers, numbers, None, extras={"turns": numbers})
    return PPOBatch(policy_rows, numbers, numbers)


def test_few_rows_to_learn_from_again_are_shuffled_among_the_steps_own(monkeypatch):
    """Two rows of eight have a familiar turn: alone they were minibatches with one row or none, one update each."""
    own = batch_of(0, [[1, 1]] * 8, 5)
    replayed = [batch_of(10, [[0, 1], *[[0, 0]] * 7], 7), batch_of(20, [[0, 0]] * 7 + [[1, 0]], 5)]
    whole, count = familiar_episodes.mixed(own, replayed, 2)
    assert count == 3 and whole.returns[:, 0].tolist() == [*range(8), 10, 27, 0, 0]
    assert whole.completion_mask.sum(axis=1).tolist() == [2] * 8 + [1, 1, 0, 0] == whole.value_mask.sum(axis=1).tolist()
    assert whole.policy.batch.tokens.shape == (12, 7) and whole.policy.extras["turns"].shape == (12, 2)
    for name, padded in (("tokens", 0), ("segment_ids", 0)):  # a smaller bucket's prompts are padded on the left
        column = getattr(whole.policy.batch, name)
        assert column[0, :2].tolist() == [padded] * 2 and column[8, 0] == {"tokens": 10, "segment_ids": 1}[name]
    assert familiar_episodes.mixed(own, [], 2) == (own, 2)
    config = agents_papers.get_config("webrl,smoke")
    assert policy.has_several_updates(config)
    config.train.minibatches = 1
    assert policy.has_several_updates(config), "the rows that are added are a minibatch more"
    config.train.minibatches = 2
    sizes, seen = [], []

    def update(learner, rows, of_critic, *, only):
        live = np.asarray(rows.completion_mask).any(axis=1)
        sizes.append((len(live), live.sum()))
        seen.extend(np.asarray(rows.returns)[live, 0].tolist())
        return learner, {}, {}

    monkeypatch.setattr(ppo, "to_mesh", lambda setup, rows: rows)
    packer = types.SimpleNamespace(padded=True, to_train=lambda part, *_: part, metrics=lambda rows: {})
    programs, loop = (
        types.SimpleNamespace(update=update),
        types.SimpleNamespace(step=9, check_finite=lambda *_, **__: 0),
    )
    learner, setup = LearnerState("policy", None, None), types.SimpleNamespace(config=config)
    ppo.update(loop, setup, programs, packer, learner, [own, *replayed], jax.random.key(0))
    assert [size for size, _ in sizes] == [4] * 3 and min(live for _, live in sizes) >= 2
    assert sorted(seen) == [*range(8), 10, 27]


def test_the_critic_learns_nothing_off_the_mask():
    batch = batch_of(0, [[1, 1]] * 2, 3)._replace(learned=np.array([[0, 1], [1, 1]], bool))
    kept = familiar_episodes._only(batch, np.array([[1, 0], [0, 1]], bool))
    assert kept.value_mask.tolist() == [[False, False], [False, True]]


def test_the_first_success_of_each_prompt_is_kept(tmp_path):
    folder = tmp_path / "trajectories"
    folder.mkdir()
    steps = [[episode("a", 0.0, 4), episode("a", 1.0, 5)], [episode("a", 1.0, 6), episode("b", 1.0, 7)]]
    for number, episodes in enumerate(steps, 1):
        pyarrow.parquet.write_table(trajectory.to_table(episodes), folder / f"{number:08d}.parquet")
    kept = familiar_episodes.FamiliarEpisodes(None, tmp_path, batches=1, above=0.5, low=0.5, high=0.95)
    said = lambda newest: [int(one.sampled()[0].ids[0]) for one in kept.known(newest)]  # noqa: E731
    assert [said(0), said(1), said(2)] == [[], [5], [5, 7]]
    with pytest.raises(FileNotFoundError, match="those of step 3 are not there"):
        kept.known(3)


def test_what_does_not_go_with_it_is_refused():
    config = agents_papers.get_config("webrl,smoke")
    players.check(config)
    config.agent.replay.low = 0.99
    with pytest.raises(ValueError, match="low=0.99 and high=0.95 must be shares in this order"):
        players.check(config)
    config.agent.replay.low = 0.5
    config.algorithm.row_selection.fn = "best_worst"
    with pytest.raises(ValueError, match="the rows of algorithm.row_selection are a step's own"):
        players.check(config)
    config.algorithm.row_selection.fn = ""
    config.program, config.agent.record = "agents", False
    with pytest.raises(ValueError, match="'familiar' works in experiments.ppo, not 'agents'\n.*set agent.record=True"):
        config.algorithm.advantage = config.critic.advantage
        players.check(config)
    config.agent.replay.fn = "familar"
    with pytest.raises(ValueError, match="fn='familar' is none of '', 'successes', 'familiar'"):
        players.check(config)


def test_its_critic_is_the_binary_cross_entropy_of_the_outcome():
    """-y log p - (1 - y) log(1 - p), and its value is p: the two bins have their centres at 0 and 1."""
    objective = make_objective(agents_papers.get_config("webrl,one_critic,smoke"))
    logits, outcome = np.float32([[[0.3, -0.5], [1.0, 2.0]]]), np.float32([[1.0, 0.0]])
    p = 1 / (1 + np.exp(logits[..., 0] - logits[..., 1]))
    np.testing.assert_allclose(objective.values(logits), p, rtol=1e-5)
    found = objective.value_loss(logits, outcome, np.ones((1, 2), bool), support=objective.support)
    np.testing.assert_allclose(found.loss, [[-np.log(p[0, 0]), -np.log(1 - p[0, 1])]], rtol=1e-5)


class Paid(Site):
    """An untrained policy finds no price, so every other word wins."""

    def step(self, said):
        return self.won() if len(said) % 2 else super().step(said)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_run_learns_from_its_successes_again_and_a_resumed_one_from_the_same(tmp_path):
    config = agents_papers.get_config("webrl,fixed,smoke")
    config.task.update(data_dir=str(tmp_path / "data"), num_train=20, num_test=4)
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    config.sft.steps = 0
    config.agent.env = dict(fn="tests.experiments.test_familiar_episodes:Paid")
    config.agent.update(max_turns=3)
    config.agent.replay.update(low=0.0, high=1.0)
    config.rollout.completion_length = 200
    config.train.steps = 3
    config.critic.warmup_steps = 1
    config.sample.update(prompts_per_step=4, group_size=1)
    config.eval.update(every=3, num_prompts=4, batch_size=4)
    config.checkpoint.every = 2
    config.log.update(progress=False, tensorboard=False)
    ppo.run(config.lock(), tmp_path / "run")
    first, second, third = read_jsonl(tmp_path / "run/metrics.jsonl")[1:]
    assert first["replay/successes"] == 0 == first["replay/familiar"] == first["replay/rows"]
    assert 0 < second["replay/rows"] <= min(4, second["replay/successes"])
    assert 0 < second["replay/successes"] <= third["replay/successes"] and third["replay/familiar"] == 1
    assert 0 <= third["value/mean"] <= 1 and third["value/outside_support"] == 0
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints/3")
    (tmp_path / "again/final.json").unlink()
    ppo.run(config, tmp_path / "again")
    for name in ("final.json", "metrics.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
