"""CGPO: rewards/constraints.py, selection/constraints.py, losses/preference/compare/ranked.py, against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.violations import PENALTY
from rl_jax.losses.preference.compare import ranked
from rl_jax.rewards.constraints import constrained, mixture_of_judges
from rl_jax.selection import constraints

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)


def sigmoid(x):
    return 1 / (1 + np.exp(-np.float64(x)))


def test_a_violation_is_told_from_a_low_reward():
    terms = {
        "r": np.float32([0.5, -3.0, 0.25, 7.0]),
        "polite": np.float32([1, 1, 0, 1]),
        "true": np.float32([1, 1, 1, np.nan]),
    }
    weights = {"r": 2.0, "polite": 0.0, "true": 0.0}
    found = constrained(terms, weights, by=("polite", "true"))
    np.testing.assert_array_equal(found, np.float32([1.0, -6.0, 0.5 - PENALTY, 14.0 - PENALTY]))
    own, passes = constraints.split(jnp.asarray(found))
    np.testing.assert_allclose(own, [1.0, -6.0, 0.5, 14.0], atol=1e-4)
    assert passes.tolist() == [True, True, False, False]
    low = constraints.split(jnp.array([-0.45, -0.55]) * PENALTY)  # the bound is in the middle
    assert low[1].tolist() == [True, False]
    free = constrained(terms, weights, by=())
    np.testing.assert_array_equal(free, 2 * terms["r"])
    nested = constrained(terms, weights, by=("polite",), of=dict(fn="clip", low=-1.0, high=1.0))
    np.testing.assert_array_equal(nested, np.float32([1.0, -1.0, 0.5 - PENALTY, 1.0]))
    with pytest.raises(ValueError, match="by names tru; the terms are polite, r, true"):
        constrained(terms, weights, by=("tru",))
    with pytest.raises(ValueError, match="a reward of 700 is not below 500: scale it"):
        constrained({"r": np.float32([700.0])}, {"r": 1.0}, by=())


def test_each_task_has_judges_of_its_own():
    """Row by row, `constrained` with the reward and the judges of the row's task."""
    sources = ["chat", "sums", "chat", "sums", "other"]
    terms = {name: np.float32(RNG.integers(0, 2, 5)) for name in ("helpful", "right", "polite", "short")}
    terms["polite"][:2], terms["short"][:2] = 0.0, 1.0
    tasks = {
        "chat": {"reward": {"helpful": 2.0}, "judges": ("polite",)},
        "sums": {"reward": {"right": 1.0, "helpful": 0.5}, "judges": ("short",)},
    }
    weights = dict.fromkeys(terms, 0.25)
    found = mixture_of_judges(terms, weights, sources=sources, tasks=tasks)
    for row, source in enumerate(sources):
        task = tasks.get(source, {"reward": weights, "judges": ()})
        expected = sum(w * terms[name][row] for name, w in task["reward"].items())
        broken = any(terms[name][row] < 1 for name in task["judges"])
        assert found[row] == np.float32(expected - PENALTY * broken)
    with pytest.raises(ValueError, match="sums: no term shor; the terms are helpful, polite, right, short"):
        tasks["sums"]["judges"] = ("shor",)
        mixture_of_judges(terms, weights, sources=sources, tasks=tasks)
    with pytest.raises(ValueError, match=r"tasks\['chat'\] has \['by', 'reward'\], not 'judges' and 'reward'"):
        mixture_of_judges(terms, weights, sources=sources, tasks={"chat": {"reward": {}, "by": ()}})


def groups(count=200, size=4):
    """(r float [N, G] with ties, passes bool [N, G], both in one number)."""
    r = RNG.integers(-3, 4, (count, size)) / 2
    passes = RNG.random((count, size)) < RNG.random((count, 1))
    return r, passes, jnp.asarray(np.where(passes, r, r - PENALTY), jnp.float32)


def test_codpos_pair_is_the_best_that_passes_and_the_worst_that_fails():
    r, passes, rewards = groups()
    found = constraints.codpo_pair(rewards, KEY)
    kinds = set()
    for row, (good, (best, worst), present) in enumerate(
        zip(passes, found.indices[:, 0].tolist(), found.present[:, 0, 0].tolist(), strict=True)
    ):
        if not good.any() or (good.all() and len(set(r[row])) == 1):
            assert not present
            kinds.add("none")
            continue
        assert present and good[best] and r[row, best] == max(r[row, good])
        rest = good if good.all() else ~good
        assert rest[worst] and r[row, worst] == min(r[row, rest])
        kinds.add("all" if good.all() else "some")
    assert kinds == {"none", "all", "some"}
    # Equal rewards: no pair where all pass, or none; one where some fail. Each prompt is by itself.
    few = jnp.array([[0.5] * 3, [0.5 - PENALTY] * 3, [0.5, 0.5 - PENALTY, 0.5], [0.5, 1.0, 0.5]])
    assert constraints.codpo_pair(few, KEY).present[:, 0, 0].tolist() == [False, False, True, True]
    # trl's masked product takes a violation for the best where the rewards that pass are negative.
    assert constraints.codpo_pair(jnp.array([[-2.0, 1.0 - PENALTY]]), KEY).indices.tolist() == [[[0, 1]]]


def test_values_are_calibrated_by_the_baseline():
    r, passes, rewards = groups(20)
    baseline = jnp.asarray(RNG.normal(size=(20, 1)), jnp.float32)
    found = constraints.calibrated(rewards, baseline)
    np.testing.assert_allclose(found, passes * sigmoid(r - np.asarray(baseline)), rtol=1e-3, atol=1e-6)
    # A baseline that fails a judge still calibrates, by its own reward; among the candidates it is worth nothing.
    failing = constraints.calibrated(jnp.array([[1.0, 0.5 - PENALTY]]), jnp.array([[0.5 - PENALTY]]))
    np.testing.assert_allclose(failing, [[sigmoid(0.5), 0.0]], rtol=1e-4)
    order = constraints.passing(found, KEY)
    sorted_values = np.take_along_axis(np.asarray(found), np.asarray(order.indices[:, 0]), axis=1)
    assert (np.diff(sorted_values) <= 0).all()
    np.testing.assert_array_equal(order.present[:, 0], sorted_values > 0)
    with pytest.raises(ValueError, match="needs a baseline response: set sample.opponents.samples=1"):
        constraints.calibrated(rewards, jnp.zeros((20, 0)))


def test_crraft_is_the_likelihood_of_the_best_by_its_value():
    """Against the loop of huggingface/trl's pull request 2190, value and gradient, in each of its four cases."""
    values = np.float32([[0.9, 0.6, 0.5], [0.9, 0.6, 0.5], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.3, 0.2, 0.5]])
    u = np.float32([[1.0, -2.0, 0.0], [11.0, -2.0, 0.0], [1.0, 1.0, 3.0], [1.0, 1.0, 0.0], [0.5, 1.0, 0.0]])
    baseline = np.tile([False, False, True], (5, 1))
    present = values > 0

    # The bound is 10 nats by default, and belongs to what is near; what is absent is no best, whatever its value.
    edges = np.float32([[10.0, -2.0, 0.0], [10.5, -2.0, 0.0], [1.0, 1.0, 10.5], [1.0, 1.0, 10.0]])
    worth = np.float32([[0.9, 0.6, 0.5], [0.9, 0.6, 0.5], [0.0, 0.0, 0.5], [0.0, 0.0, 0.5]])
    found = ranked.crraft(edges, worth > 0, None, rewards=worth, sequence_scores=edges, from_reference=baseline[:4])
    np.testing.assert_allclose(found, [-9.0, 1.2, 0.0, -5.0], rtol=1e-6)
    absent = np.bool_([[0, 1, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0]])
    found = ranked.crraft(edges, absent, None, rewards=worth, sequence_scores=edges, from_reference=baseline[:4])
    np.testing.assert_allclose(found, [1.2, -0.0, 0.0, 0.0], atol=1e-6)

    def loss(u):
        return ranked.crraft(u, present, None, rewards=values, sequence_scores=u, from_reference=baseline, kl_max=10.0)

    expected, slope = np.zeros(5), np.zeros((5, 3))
    for n in range(5):
        own = [values[n, k] * (u[n, k] <= 10.0) for k in range(2)]
        best = int(np.argmax(own))
        weight = own[best]
        if weight == 0 and values[n, 2] > 0 and u[n, 2] <= 10.0:
            best, weight = 2, 0.5
        expected[n], slope[n, best] = -weight * u[n, best], -weight
    np.testing.assert_allclose(loss(u), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(jax.grad(lambda x: loss(x).sum())(jnp.asarray(u)), slope, rtol=1e-6)
    assert (slope != 0).argmax(axis=1).tolist() == [0, 1, 2, 0, 0] and (slope[3] == 0).all()


def test_crpgs_advantage_is_the_loop():
    r, passes, rewards = groups(12)
    rows, length = rewards.size, 5
    mask = np.arange(length) < RNG.integers(1, length + 1, (rows, 1))
    logs = np.where(mask, RNG.uniform(-2, 0, (2, rows, length)), np.nan).astype(np.float32)
    reference = RNG.normal(size=(rows, 2)).astype(np.float32)
    reference[0, 1] -= PENALTY
    more = dict(
        log_probs=logs[0], ref_log_probs=logs[1], completion_mask=mask, reference_rewards=jnp.asarray(reference)
    )
    found = constraints.crpg(rewards.reshape(-1), kl_max=1.5, **more)
    expected = np.zeros(rows)
    for i in range(rows):
        kl = sum(float(logs[0, i, t] - logs[1, i, t]) for t in range(length) if mask[i, t])
        baseline = np.mean([x + PENALTY if x < -PENALTY / 2 else x for x in reference[i].tolist()])
        expected[i] = passes.reshape(-1)[i] * sigmoid(r.reshape(-1)[i] - baseline) * max(1 - kl / 1.5, 0)
    assert (expected == 0).any() and expected.max() > 0.5
    np.testing.assert_allclose(found, expected - expected.mean(), rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="kl_max=0 must be above 0"):
        constraints.crpg(rewards.reshape(-1), kl_max=0, **more)
    assert np.isfinite(constraints.crpg(rewards.reshape(-1), kl_max=0.5, **more)).all()  # any number above 0


def test_without_constraints_and_kl_crpg_is_a_policy_gradient_on_sigmoid_rewards():
    rewards, zeros = jnp.array([0.0, 1.0, -1.0, 2.0]), jnp.zeros((4, 3))
    found = constraints.crpg(
        rewards,
        reference_rewards=jnp.zeros((4, 1)),
        log_probs=zeros,
        ref_log_probs=zeros,
        completion_mask=jnp.ones((4, 3), bool),
    )
    np.testing.assert_allclose(found, jax.nn.sigmoid(rewards) - jax.nn.sigmoid(rewards).mean(), atol=1e-6)
