"""Rep-MTL (arXiv 2507.21049): both losses by loops, what they teach the layers below, and the tasks alone."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax.control import auxiliary
from rl_jax.losses import saliency
from rl_jax.models.agents.features import make_net
from tests.control.offline.worlds import jitted


def cosine(x, y):
    return (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum())


def test_both_losses_by_loops():
    tasks, samples, places, channels = 3, 4, 2, 5
    s = np.random.default_rng(0).normal(size=(tasks, samples, places, channels))
    wanted = np.zeros((samples, places))
    for b, i in np.ndindex(samples, places):
        sizes = np.abs(s[:, b, i].mean(1))
        shares = sizes / sizes.sum()
        wanted[b, i] = -(shares * np.log(shares)).sum()
    given = jnp.asarray(1e-4 * s, jnp.float32)  # of a mean over a batch: gradients are small
    both = jitted(lambda s: (saliency.task_entropy(s), saliency.saliency_alignment(s, temperature=0.5)))
    entropy, found = jax.device_get(both(given))
    np.testing.assert_allclose(entropy, wanted, rtol=1e-4)

    anchors = []
    for b in range(samples):
        a = s[:, b].mean(1).T  # [C, T]
        anchors.append(a @ a.T)
    for t, b in np.ndindex(tasks, samples):
        affinity = sum(np.outer(s[t, b, i], s[t, b, i]) for i in range(places))
        wrong = [np.exp(cosine(anchors[b], anchors[k]) / 0.5) for k in range(samples) if k != b]
        assert found[t, b] == pytest.approx(np.log(sum(wrong)) - cosine(anchors[b], affinity) / 0.5, rel=1e-3)
    with pytest.raises(ValueError, match="there is only one sample"):
        saliency.saliency_alignment(given[:, :1], temperature=0.5)


def test_limits_a_place_of_one_task_and_places_of_none():
    s = np.zeros((2, 3, 1, 4), np.float32)
    s[0, 0], s[:, 1] = 1.0, 2.0  # of task 0 alone; of both; of none
    np.testing.assert_allclose(saliency.task_entropy(jnp.asarray(s))[:, 0], [0.0, np.log(2.0), 0.0], atol=1e-5)

    @jitted
    def slopes(s):
        both = (saliency.task_entropy, lambda x: saliency.saliency_alignment(x, temperature=0.1))
        return [jax.grad(lambda x, fn=fn: fn(x).sum())(s) for fn in both]

    assert all(np.isfinite(x).all() for x in slopes(jnp.asarray(s)))


def test_the_whole_loss_is_of_the_tasks_and_of_their_gradients():
    """Linear heads, whose gradients are known; the coefficients add up."""

    def aligned(x):
        return saliency.saliency_alignment(x, temperature=0.5)

    def linear(width, size, *, hidden):
        return SimpleNamespace(
            init=lambda key: jax.random.normal(key, (width, size)), apply=lambda params, x: x @ params
        )

    rng = np.random.default_rng(1)
    rows, state, actions, width = 6, 4, 2, 3
    observations, after = (np.float32(rng.normal(size=(rows, state))) for _ in range(2))
    acts, layer = np.float32(rng.normal(size=(rows, actions))), np.float32(rng.normal(size=(state, width)))
    rewards = np.float32([0.5, -0.5, 0.1, 0.0, -0.1, 2.0])
    given = dict(width=width, action_size=actions, make_net=linear, state_size=state, threshold=0.2, rows=5)
    coefs = jnp.asarray([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.7, 0.2]])
    made = auxiliary.rep_mtl(**given)
    params = made.init(jax.random.key(0))
    arguments = (observations, acts, after, jax.random.key(0), {"step_rewards": rewards[:, None]})

    def of_coefs(pair):
        own = auxiliary.rep_mtl(**given, entropy_coef=pair[0], alignment_coef=pair[1], temperature=0.5)
        return own.loss(params, lambda x: x @ layer, *arguments)

    values = np.asarray(jitted(jax.vmap(of_coefs))(coefs))
    heads, z = jax.device_get(params), observations @ layer
    logits = np.concatenate([z, acts], 1) @ heads["reward"]
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    label = np.eye(3)[[2, 0, 1, 1, 1, 2]]
    gaps = [z @ heads["state"] - observations, np.concatenate([z, acts], 1) @ heads["next"] - after]
    alone = -np.log((probs * label).sum(1)).mean() + sum(np.square(gap).mean() for gap in gaps)
    assert values[0] == pytest.approx(alone, rel=1e-4)
    moves = [(probs - label) @ heads["reward"][:width].T]
    moves += [2.0 / state * gap @ heads[name][:width].T for gap, name in zip(gaps, ("state", "next"), strict=True)]
    s = jnp.asarray(np.stack(moves)[:, :5, None], jnp.float32)
    entropy, alignment = (float(fn(s).mean()) for fn in (saliency.task_entropy, aligned))
    np.testing.assert_allclose(values, alone + np.asarray(coefs) @ [entropy, alignment], rtol=1e-3)
    assert made.reads_extras and made.coef == 0.1


def test_trained_layers_tell_the_tasks_apart_and_bring_their_channels_together():
    """Three seeds in one program: both losses fall where they are asked for, the tasks are learned all the same."""
    rows, state, actions, width = 32, 4, 2, 8
    given = dict(width=width, action_size=actions, make_net=make_net, state_size=state, threshold=0.2, temperature=0.5)
    optimizer = optax.adam(1e-2)

    def run(key, entropy_coef, alignment_coef):
        seen_key, layer_key, head_key, act_key = jax.random.split(key, 4)
        seen, acts = jax.random.normal(seen_key, (rows, state)), jax.random.normal(act_key, (rows, actions))
        extras, after = {"step_rewards": seen[:, :1] * acts[:, :1]}, seen + 0.5 * jnp.roll(seen, 1, axis=1)

        def loss(both, entropy_coef, alignment_coef):
            own = auxiliary.rep_mtl(**given, entropy_coef=entropy_coef, alignment_coef=alignment_coef)
            return own.loss(both[0], lambda x: jnp.tanh(x @ both[1]), seen, acts, after, key, extras)

        def step(carry, _):
            slopes = jax.grad(loss)(carry[0], entropy_coef, alignment_coef)
            updates, moved = optimizer.update(slopes, carry[1])
            return (optax.apply_updates(carry[0], updates), moved), None

        heads = auxiliary.rep_mtl(**given).init(head_key)
        first = (heads, jax.random.normal(layer_key, (state, width)) / 2.0)
        last = jax.lax.scan(step, (first, optimizer.init(first)), None, 150)[0][0]
        ends = jax.tree.map(lambda *x: jnp.stack(x), first, last, last, last)
        begun, alone, entropy, alignment = jax.vmap(loss)(ends, jnp.eye(4)[2], jnp.eye(4)[3])
        return jnp.stack([begun, alone, entropy - alone, alignment - alone])

    keys, coefs = jax.random.split(jax.random.key(0), 3), jnp.asarray([[0.0, 0.0], [0.9, 0.9]])
    over_seeds = jax.vmap(jax.vmap(run, in_axes=(0, None, None)), in_axes=(None, 0, 0))
    plain, both = jax.device_get(jitted(over_seeds)(keys, coefs[:, 0], coefs[:, 1]))
    assert (both[:, 1] < 0.7 * both[:, 0]).all() and (plain[:, 1] < 0.7 * plain[:, 0]).all(), (plain, both)
    assert (both[:, 2] < plain[:, 2] - 0.1).all(), (plain, both)
    assert (both[:, 3] < plain[:, 3] - 0.1).all(), (plain, both)
