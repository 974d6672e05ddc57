"""relabelling/hierarchy.py (HERON): the order of preferences.hierarchy, its loss, its memory, a trained policy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import control, envs
from rl_jax.control import relabelling
from rl_jax.control.relabelling import hierarchy
from rl_jax.envs.worlds import probes
from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import categorical
from rl_jax.models.agents.features import make_net
from rl_jax.preferences import hierarchy as rankings
from tests.control.relabelling.rows import TWO, random_rows

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
TERMS = dict(near=dict(fn="feature", index=1), left=dict(fn="action_is", action=0))
MADE = functools.partial(
    relabelling.by_hierarchy, distribution=TWO, observation_size=4, make_net=make_net, terms_of=TERMS, hidden=(8,)
)


def test_steps_are_ordered_as_the_answers_of_text_are():
    rng = np.random.default_rng(0)
    signals = np.stack([rng.integers(2, size=12), rng.normal(size=12), rng.integers(3, size=12)], 1).astype(np.float32)
    deltas = rankings.margins(signals, factor=0.7)
    mask = np.arange(20) < 12
    padded = np.concatenate([signals, np.full((8, 3), 50.0, np.float32)])
    np.testing.assert_allclose(hierarchy.margins(padded, mask, factor=0.7), deltas, rtol=1e-5)
    order = np.asarray(hierarchy.decided(signals, jnp.asarray(deltas, jnp.float32)))
    expected = [[rankings.decide(a, b, deltas)[0] for b in signals.tolist()] for a in signals.tolist()]
    np.testing.assert_array_equal(order, expected)
    assert (order[~np.eye(12, dtype=bool)] == 0).any() and np.abs(order).sum() > 60


def test_the_loss_is_the_mean_over_decided_pairs():
    scores, order = np.float32([0.3, -1.0, 2.0]), np.float32([[0, 1, 0], [-1, 0, -1], [0, 1, 0]])
    expected = np.mean([np.log1p(np.exp(-(0.3 + 1.0))), np.log1p(np.exp(-(2.0 + 1.0)))])
    np.testing.assert_allclose(hierarchy.ranking_loss(scores, order), expected, rtol=1e-5)
    assert float(hierarchy.ranking_loss(scores, 0 * order)) == 0.0
    slope = jax.grad(hierarchy.ranking_loss)(jnp.asarray(scores), order)
    assert slope[0] < 0 < slope[1] and float(jnp.sum(slope)) == pytest.approx(0.0, abs=1e-6)


def test_the_memory_has_the_newest_steps():
    state = MADE(levels=("near", "left"), memory=5).begin(jax.random.key(0))
    rows = np.arange(7.0, dtype=np.float32)[:, None]
    for count, filled, expected in ((3, 3, [0, 1, 2]), (4, 5, [0, 1, 1, 2, 3]), (7, 5, [2, 3, 4, 5, 6])):
        state = hierarchy.remembered(state, np.repeat(rows[:count], 6, 1), np.repeat(rows[:count], 2, 1))
        assert int(state.filled) == filled
        held = np.sort(np.asarray(state.signals)[:filled, 0])
        np.testing.assert_array_equal(held, np.sort(np.float32(expected)) if count != 4 else [0, 1, 2, 2, 3])


def test_rows_get_the_networks_reward_and_the_order_is_learned():
    rows = random_rows(envs=8, steps=16)
    made = MADE(levels=("left", "near"), signs=(-1, 1), learning_rate=0.02, steps=200)
    state, found = jax.jit(made.apply, compiler_options=QUICK)(made.begin(jax.random.key(0)), rows)
    signals = np.stack([-(rows.actions == 0).astype(float), rows.next_observations[..., 1]], -1).reshape(-1, 2)
    np.testing.assert_allclose(np.asarray(state.signals)[:128], signals, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(state.inputs)[:128, :4], rows.observations.reshape(-1, 4))
    paid = np.asarray(found.rewards).reshape(-1)
    order = np.asarray(hierarchy.decided(signals, rankings.margins(signals)))
    right = (paid[:, None] > paid[None, :])[order > 0]
    assert right.mean() > 0.95 and float(state.accuracy) > 0.95 and 0.5 < float(state.decided) < 0.95
    assert abs(paid.mean()) < 0.5 and 0.5 < paid.std() < 2.0  # in units of the memory
    # Left is worse than right whatever the second level says: no weight had to be chosen.
    assert paid[signals[:, 0] == 0].min() > paid[signals[:, 0] == -1].max() - 0.5
    assert set(made.measure(state)) == {"relabel/accuracy", "relabel/decided"}


def test_the_factor_may_be_swept():
    rows = random_rows(envs=8, steps=16)

    def share(factor):
        made = MADE(levels=("left", "near"), factor=factor, steps=1)
        return made.apply(made.begin(jax.random.key(0)), rows)[0].decided

    every, by_left = jax.jit(jax.vmap(share), compiler_options=QUICK)(jnp.float32([0.0, 9.0]))
    assert every == pytest.approx(1.0, abs=0.05) and 0.2 < by_left < 0.8, "a threshold of 9 deviations decides nothing"


def solved(rows):
    """Arms 2 and 3 of four solve the task."""
    return (rows.actions >= 2).astype(jnp.float32)


def cheap(rows):
    """The arms' prices, 0 is the cheapest."""
    return -jnp.array([0.0, 1.0, 2.0, 3.0])[rows.actions]


ARMS = dict(solved=dict(fn=f"{__name__}:solved"), cheap=dict(fn=f"{__name__}:cheap"))


def arms_after(relabel_of, seeds=3, updates=40):
    """Mean arm of the last five updates, float [seeds]."""
    env = envs.vectorize(probes.behaviours(count=4), 8)
    agent = make_agent((1,), categorical(4), hidden=(8,))
    algorithm = control.Algorithm(relabel=relabel_of(agent), entropy_coef=0.0, epochs=2, minibatches=2)
    init, update, _ = control.make_update(agent, env, algorithm, optax.adam(0.02), num_steps=8)

    def run(key):
        _, metrics = jax.lax.scan(lambda state, _: update(state), init(key), None, updates)
        return metrics["episode/return"].total[-5:].sum() / metrics["episode/return"].count[-5:].sum()

    return np.asarray(jax.jit(jax.vmap(run), compiler_options=QUICK)(jax.random.split(jax.random.key(0), seeds)))


def test_ranked_terms_find_the_cheapest_solution_where_a_sum_with_a_bad_weight_solves_nothing():
    """Arm 2 is the cheapest one that solves the task; with a weight of 1 for both arm 0 is the best."""
    ranked = arms_after(
        lambda agent: relabelling.by_hierarchy(
            distribution=agent.distribution,
            observation_size=1,
            make_net=make_net,
            terms_of=ARMS,
            levels=("solved", "cheap"),
            factor=0.5,
            hidden=(16,),
            learning_rate=0.01,
            memory=512,
            pairs_of=32,
            steps=8,
        )
    )
    summed = arms_after(
        lambda agent: relabelling.by_terms(
            distribution=agent.distribution, terms_of=ARMS, weights=dict(solved=1.0, cheap=1.0)
        )
    )
    assert np.abs(ranked - 2.0).max() < 0.15 and summed.max() < 0.15, (ranked, summed)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (dict(levels=("near",)), "levels="),
        (dict(levels=("near", "left"), signs=(1,)), "signs="),
        (dict(levels=("near", "left"), signs=(1, 2)), "signs="),
        (dict(levels=("near", "left"), factor=-1.0), "factor=-1.0"),
        (dict(levels=("near", "left"), pairs_of=1), "pairs_of=1"),
        (dict(levels=("near", "left"), axis_name="envs"), "one device"),
    ],
)
def test_what_is_refused(wrong, complaint):
    with pytest.raises(ValueError, match=complaint):
        MADE(**wrong)
