"""relabelling/imitation.py, transport.py and demonstrations.py: against closed forms, scipy and files of our own."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from experiments.parts.episodes import EPISODES, episode_row
from rl_jax.control import relabelling
from rl_jax.control.relabelling import demonstrations, imitation, transport
from rl_jax.models.agents.features import make_net
from rl_jax.rollout.envs.episode import Episode
from tests.control.relabelling.rows import TWO, one_hot, random_rows, walk

KNOWN = dict(observation_size=4, distribution=TWO, make_net=make_net)


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """episodes.jsonl of three episodes, written as the program does; the last goes 0, 1, 2, 3 by action 1."""
    path = tmp_path_factory.mktemp("run") / f"{EPISODES}.jsonl"
    rows = []
    for places in ([0, 1], [3, 3, 2], [0, 1, 2, 3]):
        seen, actions = one_hot(places, 4), np.ones(len(places) - 1, np.int32)
        zeros = np.zeros(len(actions), np.float32)
        episode = Episode(seen[:-1], seen[-1], actions, zeros, np.int32(len(actions)), np.bool_(True), np.bool_(False))
        rows.append(json.dumps(episode_row(episode, step=0, env="x")))
    path.write_text("\n".join(rows) + "\n\n")
    return str(path)


def test_demonstrations_are_read_back(demos, tmp_path):
    found = demonstrations.read(demos, last=2)
    np.testing.assert_array_equal(found.observations.argmax(1), [3, 3, 0, 1, 2])
    np.testing.assert_array_equal(found.next_observations.argmax(1), [3, 2, 1, 2, 3])
    np.testing.assert_array_equal(found.starts, [0, 2])
    assert found.actions.dtype == np.int32 and [len(x) for x in found.trajectories()] == [2, 3]
    image = np.random.default_rng(0).integers(2, size=(3, 2, 3, 1)).astype(np.float32)
    episode = Episode(
        image[:-1], image[-1], np.zeros((2, 1)), np.zeros(2), np.int32(2), np.bool_(True), np.bool_(False)
    )
    (tmp_path / "bits").write_text(json.dumps(episode_row(episode, step=0, env="x")))
    found = demonstrations.read(str(tmp_path / "bits"))
    np.testing.assert_array_equal(found.observations, image[:-1].reshape(2, -1))
    assert found.actions.dtype == np.float32
    (tmp_path / "bad").write_text('{"actions": [1]}\n')
    for path, options, complaint in [
        ("", {}, "set algorithm.relabel.demos"),
        ("nowhere", {}, "there is no file 'nowhere'"),
        (demos, dict(last=4), "has 3 episodes, last=4"),
        (str(tmp_path / "bad"), {}, "bad:1 is no episode with observations: 'observations'"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            demonstrations.read(path, **options)


def test_the_penalty_is_zero_for_one_lipschitz_functions():
    points = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    direction = np.array([2.0, -1.0, 2.0], np.float32) / 3
    for length, expected in [(0.3, 0.0), (1.0, 0.0), (1.5, 0.25), (3.0, 4.0)]:
        found = imitation.gradient_penalty(lambda x, w=length * direction: x @ w, points)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    two_sided = (0.3 - 1.0) ** 2
    assert two_sided > 0.4  # what the ordinary penalty would ask of the first


def test_the_discriminator_loss_by_hand():
    own, expert, labels = (np.array(x, np.float32) for x in ([0.5, -1.0], [2.0], [0.9]))
    p, q = 1 / (1 + np.exp(-own)), 1 / (1 + np.exp(-expert))
    fit = -np.mean(np.log(1 - p)) - np.mean(labels * np.log(q) + (1 - labels) * np.log(1 - q))
    entropy = [np.mean(-x * np.log(x) - (1 - x) * np.log(1 - x)) for x in (p, q)]
    found = imitation.discriminator_loss(own, expert, labels, entropy_coef=0.1)
    np.testing.assert_allclose(found, fit - 0.1 * np.mean(entropy), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["airl", "liayn"])  # gail has liayn's reward and airl's loss
def test_what_is_demonstrated_pays_more(demos, kind):
    """Steps of the demonstration against the same places with the other action."""
    made = relabelling.by_discriminator(**KNOWN, demos=demos, kind=kind, hidden=(16,), learning_rate=1e-2)
    rows = walk([0, 1, 2, 3, 2, 1, 0], 4, actions=[1, 1, 1, 0, 0, 0])
    state, apply = made.begin(jax.random.key(0)), jax.jit(made.apply)
    for _ in range(30):
        state, found = apply(state, rows)
    paid = np.asarray(found.rewards[0])
    assert paid[:3].min() > paid[3:].max() + 0.05
    assert float(state.expert) > float(state.own)
    x = np.concatenate([rows.observations[0], one_hot(rows.actions[0], 2)], 1)
    logits = np.asarray(make_net(6, 1, hidden=(16,)).apply(state.learned.params, x))[:, 0]
    expected = logits if kind == "airl" else np.log1p(np.exp(logits))  # -log(1 - D)
    np.testing.assert_allclose(paid, expected, rtol=1e-3, atol=1e-5)
    slope = imitation.gradient_penalty(
        lambda p: make_net(6, 1, hidden=(16,)).apply(state.learned.params, p[None])[0, 0], x
    )
    assert (float(slope) < 0.05) == (kind == "liayn"), float(slope)


def test_a_label_of_zero_is_a_label():
    assert imitation.label_range("gail", None, None) == (1.0, 1.0)
    assert imitation.label_range("liayn", None, None) == (0.7, 1.2)
    assert imitation.label_range("liayn", 0.0, 0.0) == (0.0, 0.0)


def test_what_a_discriminator_refuses(demos):
    with pytest.raises(ValueError, match="kind='gan' is none of gail, airl, liayn"):
        relabelling.by_discriminator(**KNOWN, demos=demos, kind="gan")
    for make in (relabelling.by_discriminator, relabelling.by_transport, relabelling.by_stages):
        known = {k: v for k, v in KNOWN.items() if make is relabelling.by_discriminator}
        with pytest.raises(ValueError, match="observations of 4 numbers, but 5 here"):
            make(**(known | dict(observation_size=5)), demos=demos)


def test_the_plan_is_the_best_assignment():
    """With a small temperature, against scipy; its sums are exact."""
    costs = np.random.default_rng(2).uniform(size=(5, 5)).astype(np.float32)
    plan = jax.jit(lambda c: transport.sinkhorn(c, temperature=0.005, iterations=500))(costs)
    np.testing.assert_allclose(np.asarray(plan).sum(0), 0.2, rtol=1e-4)
    rows, columns = scipy.optimize.linear_sum_assignment(costs)
    np.testing.assert_allclose(np.sum(plan * costs), costs[rows, columns].sum() / 5, rtol=0.02)


def test_the_longest_increasing_subsequence():
    found = jax.jit(transport.longest_increasing)
    for values in itertools.product(range(3), repeat=4):
        best = max(
            n
            for n in range(5)
            for pick in itertools.combinations(values, n)
            if all(a < b for a, b in itertools.pairwise(pick))
        )
        assert int(found(np.array(values), np.ones(4, bool))) == best
    assert int(found(np.arange(6), np.arange(6) < 4)) == 4
    assert int(found(np.arange(6)[::-1], np.ones(6, bool))) == 1


def test_the_discount_of_progress():
    """alpha = .2: k = 20 steps of H = 100 give .9227, and a row that follows moves k on."""
    np.testing.assert_allclose(transport.progress_discount(20.0), 0.9227, atol=1e-4)
    straight = np.abs(np.arange(10)[:, None] - np.arange(10)[None]).astype(np.float32)[None]
    moved = jax.jit(transport.moved_horizon)
    assert int(moved(jnp.int32(2), straight)) == 7  # five at most
    assert int(moved(jnp.int32(8), straight)) == 10
    assert int(moved(jnp.int32(4), straight[:, ::-1])) == 4


def test_a_row_that_follows_pays_more_and_moves_the_discount(demos):
    made = relabelling.by_transport(observation_size=4, demos=demos, begin_share=0.4)
    follow, stay = walk([0, 1, 2, 3], 4), walk([0, 0, 0, 0], 4)
    state, apply = made.begin(jax.random.key(0)), jax.jit(made.apply)
    np.testing.assert_allclose(made.discount(state), 0.2, rtol=1e-6)  # k = 1
    _, slow = apply(state, stay)
    ahead, found = apply(state, follow)
    np.testing.assert_allclose(found.rewards, 0.0, atol=1e-2)
    np.testing.assert_allclose(slow.rewards, -np.sqrt(2.0), rtol=1e-2)
    assert int(ahead.horizon) == 3
    np.testing.assert_allclose(made.discount(ahead), 0.2 ** (1 / 3), rtol=1e-5)
    assert relabelling.by_transport(observation_size=4, demos=demos, adaptive=False).discount is None


def test_stages_are_cut_where_the_features_change():
    features = np.repeat(np.array([[0.0, 1.0], [5.0, 1.0], [5.0, -2.0]]), (3, 2, 4), axis=0)
    assert transport.segmented(features, 3) == [0, 3, 5, 9]
    assert transport.segmented(features, 2) == [0, 3, 9]
    noisy = np.random.default_rng(0).normal(size=(7, 2))

    def within(cuts):
        return sum(((noisy[a:b] - noisy[a:b].mean(0)) ** 2).sum() for a, b in itertools.pairwise(cuts))

    best = min(([0, *cut, 7] for cut in itertools.combinations(range(1, 7), 2)), key=within)
    assert transport.segmented(noisy, 3) == best
    with pytest.raises(ValueError, match="10 stages of 9 steps"):
        transport.segmented(features, 10)


def test_later_stages_pay_more(demos):
    made = relabelling.by_stages(observation_size=4, demos=demos, stages=3)
    found = made.apply((), walk([0, 1, 2, 3, 1], 4))[1].rewards
    np.testing.assert_allclose(found, [[1 / 3, 2 / 3, 1.0, 1 / 3]], atol=1e-3)
    assert made.apply((), random_rows())[1].rewards.shape == (3, 8)
