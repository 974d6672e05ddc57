"""relabelling/progress.py (Robo-Dopamine): labels and views by hand, inverses, what shaping adds up to, the fit."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import control_runs
from rl_jax.control import relabelling
from rl_jax.control.relabelling import progress
from rl_jax.models.agents.features import make_net
from rl_jax.rollout.envs.steps import Transitions
from tests.control.relabelling.rows import one_hot

GAMMA, PLACES = 0.9, 7
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}  # LLVM has nothing to gain here
KNOWN = dict(discount=GAMMA, observation_size=PLACES, num_envs=2, make_net=make_net)


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """A demonstration that goes 0, 1 .. 6."""
    path = tmp_path_factory.mktemp("run") / "episodes.jsonl"
    seen = {"shape": [PLACES], "values": one_hot(range(PLACES), PLACES).tolist()}
    path.write_text(json.dumps({"observations": seen, "actions": [1] * (PLACES - 1)}) + "\n")
    return str(path)


def test_a_hop_is_the_share_of_what_remained_or_of_what_was_done():
    before, after = np.array([0.0, 0.25, 0.5, 0.5, 0.8, 1.0, 0.0, 1.0]), np.array([0.5, 1.0, 0.25, 0.5, 0.0, 0.4, 0, 1])
    by_hand = [0.5, 1.0, -0.5, 0.0, -1.0, -0.6, 0.0, 0.0]
    np.testing.assert_allclose(progress.hop(before, after), by_hand, rtol=1e-6)


def test_a_hop_takes_back_to_where_it_was_read_and_never_leaves_the_range():
    rng = np.random.default_rng(0)
    before, after = rng.uniform(size=(2, 200)).astype(np.float32)
    np.testing.assert_allclose(progress.moved(before, progress.hop(before, after)), after, atol=1e-6)
    reached = before
    for hops in rng.uniform(-1.0, 1.0, (50, 200)).astype(np.float32):  # whatever is predicted
        reached = np.asarray(progress.moved(reached, hops))
        assert reached.min() >= 0.0 and reached.max() <= 1.0


def test_pairs_have_the_label_of_their_places_and_rare_ones_are_drawn_as_often():
    states = [one_hot(range(5), 5), one_hot([4, 2, 0], 5)]
    found = progress.make_pairs(states, bins=4)
    assert len(found.hops) == 25 + 9 and found.weights.sum() == pytest.approx(1.0, rel=1e-5)
    first, goal, before, after = (found.inputs.reshape(34, 4, 5).argmax(2).T[i] for i in range(4))
    assert (
        set(zip(first[:25], goal[:25], strict=True))
        == {(0, 4)}
        == {(g, f) for f, g in zip(first[25:], goal[25:], strict=True)}
    )
    for i in range(25):
        p, q = before[i] / 4, after[i] / 4
        expected = 0.0 if p == q else (q - p) / (1 - p) if q > p else (q - p) / p
        assert found.hops[i] == pytest.approx(expected, abs=1e-6)
    parts = {}
    for i in range(34):
        size = 4 if i < 25 else 2
        place = [x if i < 25 else {4: 0, 2: 1, 0: 2}[x] for x in (before[i], after[i])]
        part = min(int((found.hops[i] + 1) / 2 * 4), 3), min(int(abs(place[1] - place[0]) / size * 4), 3)
        parts[part] = parts.get(part, 0.0) + found.weights[i]
    np.testing.assert_allclose(list(parts.values()), 1 / len(parts), rtol=1e-5)
    np.testing.assert_allclose(progress.make_pairs(states, bins=1).weights, 1 / 34, rtol=1e-5)


def rows_of(places, over):
    """Steps [B, T] of walks through places int [B, T + 1]; after an end the next step begins at place 0."""
    places, over = np.asarray(places), np.asarray(over, bool)
    starts = places[:, :-1].copy()
    starts[:, 1:][over[:, :-1]] = 0
    zeros = np.zeros(over.shape, np.float32)
    states = [one_hot(x, PLACES) for x in (starts, places[:, 1:])]
    return Transitions(
        *states, np.zeros((*over.shape, 2), np.float32), np.zeros(over.shape, np.int32), zeros, over, zeros > 1
    )


def test_shaping_adds_up_to_the_first_states_potential_over_two_rollouts(demos):
    """sum gamma^t (r' - r) = -Phi(s_0) of an episode that ends, across the border of two batches; views by hand."""
    made = relabelling.by_progress(**KNOWN, demos=demos, hidden=(8,), updates=1, scale=2.0)
    apply = jax.jit(made.apply, compiler_options=QUICK)
    state = made.begin(jax.random.key(1))
    walks, over = np.array([[0, 1, 2, 1, 2, 3, 4, 5, 6], [0, 1, 0, 1, 2, 1, 2, 3, 4]]), np.zeros((2, 8), bool)
    over[0, 7] = over[1, 2] = True
    whole = rows_of(walks, over)
    state, first = apply(state, jax.tree.map(lambda x: x[:, :5], whole))
    state, second = apply(state, jax.tree.map(lambda x: x[:, 5:], whole))
    paid = np.concatenate([first.rewards, second.rewards], axis=1)

    def predict(*places):
        x = np.concatenate([one_hot(p, PLACES) for p in (0, 6, *places)])
        return float(np.tanh(make_net(4 * PLACES, 1, hidden=(8,)).apply(state.params, x[None])[0, 0]))

    def potentials(places):
        i, result = 0.0, []
        for t, place in enumerate(places):
            if t:
                h = predict(places[t - 1], place)
                i = i + (1 - i) * h if h >= 0 else i + i * h
            result.append(np.mean(np.clip([i, predict(0, place), 1 + predict(6, place)], 0, 1)))
        return 2.0 * np.array(result)

    for row, begin, end, ends in ((0, 0, 8, True), (1, 0, 3, True), (1, 3, 8, False)):
        phi = potentials([int(whole.observations[row, begin].argmax()), *walks[row, begin + 1 : end + 1]])
        after = np.append(phi[1:-1], 0.0 if ends else phi[-1])
        np.testing.assert_allclose(paid[row, begin:end], GAMMA * after - phi[:-1], atol=1e-5)
        added = np.sum(GAMMA ** np.arange(end - begin) * paid[row, begin:end])
        assert added == pytest.approx(-phi[0] + (0.0 if ends else GAMMA ** (end - begin) * phi[-1]), abs=1e-5)


def test_a_resume_with_fresh_environments_begins_new_episodes(demos):
    """The fit stays, and the first state seen is that of a new episode."""
    made = relabelling.by_progress(**KNOWN, demos=demos, hidden=(8,), updates=1)
    fresh, other = (jax.jit(made.begin, compiler_options=QUICK)(jax.random.key(i)) for i in (1, 2))
    one, two = (rows_of(np.tile(places, (2, 1)), np.zeros((2, 2), bool)) for places in ([3, 4, 5], [1, 2, 3]))
    apply = jax.jit(made.apply, compiler_options=QUICK)
    saved = apply(fresh, one)[0]
    resumed = control_runs.with_fresh_envs(saved, other)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, saved.params)
    goes_on, begins, anew = (np.asarray(apply(state, two)[1].rewards) for state in (saved, resumed, fresh))
    np.testing.assert_array_equal(begins, anew)
    assert (goes_on != anew).any()


@pytest.mark.slow
def test_the_fit_knows_how_far_the_demonstration_was(demos):
    """Two seeds: each view rises along the way, and a step back costs; as it is drawn the network knows neither."""
    made = {
        rate: relabelling.by_progress(
            **KNOWN, demos=demos, hidden=(32,), updates=300, batch_size=64, learning_rate=rate
        )
        for rate in (0.01, 0.0)
    }
    walks = np.array([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 1, 2, 3, 4]])
    rows = rows_of(walks, np.zeros((2, 6), bool))
    for rate, relabel in made.items():
        run = jax.jit(jax.vmap(lambda key, r=relabel: r.apply(r.begin(key), rows)), compiler_options=QUICK)
        state, found = run(jax.random.split(jax.random.key(0), 2))
        error, paid = np.asarray(state.error), np.asarray(found.rewards)
        forward, back = paid[:, 0].min(axis=1), paid[:, 1, 2]
        if rate:
            assert error.max() < 0.1 and np.all(forward > 0.0) and np.all(back < -0.1), (error, forward, back)
        else:
            assert error.min() > 0.3, error


def test_what_it_refuses(demos):
    for more, said in (
        (dict(views=("incremental", "sideways")), "must be some of incremental, forward, backward"),
        (dict(views=()), "must be some of"),
        (dict(frames=1), "frames=1 2"),
        (dict(bins=0), "bins=0 must be 1 or more"),
        (dict(axis_name="envs"), "on one device"),
        (dict(observation_size=4), "observations of 7 numbers, but 4 here"),
        (dict(demos=""), "set algorithm.relabel.demos"),
    ):
        with pytest.raises(ValueError, match=said):
            relabelling.by_progress(**(KNOWN | dict(demos=demos) | more))


def test_increments_begin_anew_with_an_episode():
    hops = jnp.array([[0.5, -0.5]])
    end, own, following = progress.increments(hops, jnp.array([[True, False]]), jnp.array([0.9]))
    np.testing.assert_allclose(own, [[0.0, 0.5]])
    np.testing.assert_allclose(following, [[0.5, 0.25]])
    assert float(end[0]) == 0.25
