"""relabelling/aligned.py: the annotator against Plackett-Luce, the loss against a numpy loop, what a code ignores."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import relabelling
from rl_jax.control.relabelling import aligned
from rl_jax.models.agents.features import make_net
from rl_jax.rollout.envs.steps import Transitions

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
quick = functools.partial(jax.jit, compiler_options=QUICK)
PLAN = dict(temperature=0.2, iterations=40)
NOISE, LENGTH = 8, 8


def test_an_annotator_that_never_errs_sorts_and_one_that_does_is_plackett_luces():
    scores = jnp.array([2.0, 0.0, 1.0, 1.0])
    exact = aligned.ranked_triplets(jax.random.key(0), scores, count=200, beta=float("inf"))
    index = np.asarray(exact.index)
    assert all(len(set(row)) == 3 for row in index.tolist())
    found = np.asarray(scores)[index]
    assert (np.diff(found, axis=1) <= 0).all()
    np.testing.assert_array_equal(exact.tied, found[:, 1] == found[:, 2])
    assert np.asarray(exact.mask).all() and 0 < np.asarray(exact.tied).sum() < 200
    same = aligned.ranked_triplets(jax.random.key(0), jnp.ones(3), count=4, beta=1.0)
    assert not np.asarray(same.mask).any()
    noisy = aligned.ranked_triplets(jax.random.key(1), jnp.array([1.0, 0.0, -1.0]), count=4000, beta=2.0)
    share = np.exp(2.0 * np.array([1.0, 0.0, -1.0]))
    first = np.bincount(np.asarray(noisy.index)[:, 0], minlength=3) / 4000
    np.testing.assert_allclose(first, share / share.sum(), atol=0.03)
    second = np.asarray(noisy.index)[np.asarray(noisy.index)[:, 0] == 0][:, 1]
    np.testing.assert_allclose((second == 1).mean(), share[1] / share[1:].sum(), atol=0.03)
    for few, beta in ((2, 1.0), (3, 0.0)):
        with pytest.raises(ValueError, match=f"{few} trajectories must be 3 or more, beta={beta} above 0"):
            aligned.ranked_triplets(jax.random.key(0), jnp.ones(few), count=1, beta=beta)


def loop_cost(a, b):
    """<T, C> of cosine distances, by Sinkhorn's scalings of exp(-C / tau)."""
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    costs = 1.0 - a @ b.T
    kernel, right = np.exp(-costs / PLAN["temperature"]), np.ones(len(b))
    for _ in range(PLAN["iterations"]):
        left = 1.0 / len(a) / (kernel @ right)
        right = 1.0 / len(b) / (kernel.T @ left)
    return np.sum(left[:, None] * kernel * right[None] * costs)


def loop_loss(codes, tied, mask, sharpness):
    """The numpy loop: mean over the mask of the cross-entropy with 1, or with 1 / 2 for ties."""
    losses = []
    for triplet, tie in zip(codes[mask], tied[mask], strict=True):
        margin = sharpness * (loop_cost(triplet[0], triplet[2]) - loop_cost(triplet[0], triplet[1]))
        probability = 1.0 / (1.0 + np.exp(-margin))
        losses.append(-np.log(probability) if not tie else -0.5 * np.log(probability * (1.0 - probability)))
    return np.mean(losses)


def test_the_triplet_loss_and_its_gradient_are_the_loops():
    rng = np.random.default_rng(0)
    codes, tied, mask = rng.normal(size=(3, 3, 4, 2)), np.array([False, True, False]), np.array([True, True, False])
    codes[2] = np.nan  # a masked triplet says nothing, whatever is in it

    def loss(codes):
        return aligned.triplet_loss(codes, tied, mask, sharpness=3.0, **PLAN)[0].value()

    found, gradient = quick(jax.value_and_grad(loss))(jnp.nan_to_num(codes.astype(np.float32)))
    np.testing.assert_allclose(found, loop_loss(codes, tied, mask, 3.0), rtol=1e-4)
    assert (np.asarray(gradient[2]) == 0.0).all()
    direction, step = rng.normal(size=codes.shape), 1e-5
    ahead, behind = (loop_loss(codes + sign * step * direction, tied, mask, 3.0) for sign in (1, -1))
    np.testing.assert_allclose(np.sum(gradient[:2] * direction[:2]), (ahead - behind) / (2 * step), rtol=5e-3)
    total, right = aligned.triplet_loss(jnp.ones((1, 3, 4, 2)), tied[:1], mask[:1], sharpness=3.0, **PLAN)
    np.testing.assert_allclose(total.value(), np.log(2.0), rtol=1e-5)  # nothing is nearer
    assert float(right.count) == 1.0
    assert float(aligned.triplet_loss(jnp.ones((1, 3, 4, 2)), ~tied[:1], mask[:1], sharpness=3.0, **PLAN)[1].count) == 0


def row(places, rng):
    """One-hot places 0 to 3, and loud noise."""
    return np.concatenate([np.eye(4)[places], rng.uniform(-2, 2, (len(places), NOISE))], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    """episodes.jsonl of episodes that stay at 0 for a number of steps and go on to 3; the return is the last places."""
    path, rng = tmp_path_factory.mktemp("run") / "episodes.jsonl", np.random.default_rng(0)
    rows = []
    for number in range(24):
        places = np.clip(np.arange(LENGTH + 1) - number % 8, 0, 3)
        seen = {"shape": [4 + NOISE], "values": row(places, rng).tolist()}
        rows.append({"observations": seen, "actions": [0] * LENGTH, "rewards": (places[1:] / 3).tolist()})
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def made(path, **fields):
    small = dict(frames=LENGTH, code=4, hidden=(16,), batch_size=16, triplets=300, iterations=10)
    fields = dict(observation_size=4 + NOISE, make_net=make_net) | small | fields
    return relabelling.by_aligned_transport(demos=str(path), **fields)


def test_a_code_that_preferences_taught_ignores_the_noise(episodes):
    """Three seeds: it orders held-out triplets and pays the good row more than the bad one in every noise."""

    def outcome(rate, key):
        relabel = made(episodes, learning_rate=rate, updates=150)
        state = relabel.begin(key)
        rng = np.random.default_rng(1)
        good, bad = (np.stack([row(p, rng) for _ in range(16)]) for p in ([1, 2, 3, 3, 3, 3, 3, 3], [0] * 8))
        seen = jnp.concatenate([jnp.asarray(good), jnp.asarray(bad)])
        zeros = jnp.zeros(seen.shape[:2])
        rows = Transitions(seen, seen, (), zeros, zeros, zeros > 0, zeros > 0)
        state, paid = relabel.apply(state, rows)
        assert set(relabel.measure(state)) == {"relabel/agreement", "relabel/cost"}
        return state.agreement, paid.rewards.mean(1)

    agreement, paid = quick(jax.vmap(jax.vmap(outcome, (None, 0)), (0, None)))(
        jnp.array([1e-2, 0.0]), jax.random.split(jax.random.key(0), 3)
    )
    margin = np.asarray(paid[..., :16].min(-1) - paid[..., 16:].max(-1))
    assert (np.asarray(agreement[0]) > 0.85).all() and (margin[0] > 0.1).all(), (agreement, margin)
    assert np.asarray(agreement[1]).mean() < 0.75 and (margin[1] < 0.0).all(), (agreement, margin)


def test_what_is_refused(episodes, tmp_path):
    lines = episodes.read_text().splitlines()
    (tmp_path / "two").write_text("\n".join(lines[:2]))
    (tmp_path / "unpaid").write_text("\n".join(json.dumps(json.loads(x) | {"rewards": [0.0]}) for x in lines))
    unknown = [{k: v for k, v in json.loads(x).items() if k != "rewards"} for x in lines]
    (tmp_path / "unknown").write_text("\n".join(map(json.dumps, unknown)))
    for path, fields, complaint in [
        (episodes, dict(observation_size=5), f"observations of {4 + NOISE} numbers, but 5 here"),
        (tmp_path / "two", {}, "rankings need 3 episodes or more, with their rewards"),
        (tmp_path / "unknown", {}, "rankings need 3 episodes or more, with their rewards"),
        (tmp_path / "unpaid", {}, "all episodes have the return 0.0: there is nothing to rank"),
        (episodes, dict(frames=0), "frames=0, triplets=300, code=4, updates=200, batch_size=16 must all be 1 or more"),
        (episodes, dict(axis_name="envs"), "set mesh without envs"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            made(path, **fields)
