"""control/replay_methods/on_the_fly.py: EXPO's choice and targets against loops over its equations; and it learns, from
demonstrations of two kinds, what neither its clone nor the best of the clone's samples reaches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from rl_jax.control import replay_methods as methods
from rl_jax.control.replay import ReplayBatch
from rl_jax.control.replay_methods import on_the_fly
from rl_jax.control.transitions import Transitions
from rl_jax.losses import value_heads
from rl_jax.models.agents import diffusion, exploration, value_networks
from rl_jax.rollout.envs.steps import Worlds

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
LOW, HIGH, UNIT = np.float32([-2.0]), np.float32([2.0]), np.ones(1, np.float32)


def batch_of(observations, actions, rewards, discounts):
    """Steps that lead to where they began."""
    nothing = jnp.zeros(len(observations), bool)
    steps = Transitions(observations, actions, rewards, observations, nothing, nothing)
    return ReplayBatch(steps, discounts, jnp.ones(len(observations)), None)


def simple_parts(steps=3):
    """Without networks: the clone's action is its last noise, the edit a shift, Q_k = 5 - (a - p_k)^2."""
    base = diffusion.Diffusion(
        init=lambda key: jnp.float32(0.2),
        loss=lambda params, observations, actions, key: jnp.square(actions[:, 0] - params),
        sample=lambda params, observations, noise: jnp.clip(params + 0.3 * noise[-1], -1.0, 1.0),
        steps=steps, size=1, to_unit=lambda a: a / 2.0, to_env=lambda a: 2.0 * a,
    )  # fmt: skip
    editor = value_networks.Actor(
        lambda key: jnp.float32([0.4, -1.0]),
        lambda params, x: jnp.stack(
            [params[0] + x[:, 0] - x[:, 1], jnp.broadcast_to(params[1], x[:, 0].shape)], axis=1
        ),
        exploration.squashed(-UNIT, UNIT),
    )
    critic = value_networks.Critic(
        lambda key: jnp.float32([0.5, 1.1]),
        lambda params, observations, actions: (
            (5.0 - jnp.square(actions[None] - params[:, None, None])) * (params[0] > 0)
        ),
        2,
    )
    return methods.ReplayParts(critic, editor, value_heads.scalar(), base=base)


def by_hand(observations, noise, edit_noise, *, base, beta, slow):
    """(candidates [B, M] in the environment's units, their Q' [B, M]) in numpy. noise, edit_noise [B, N]."""
    actions = np.clip(base + 0.3 * noise, -1, 1)
    u = 0.4 + observations - actions + np.exp(-1.0) * edit_noise
    found = [actions, np.clip(actions + beta * np.tanh(u), -1, 1)] if beta else [actions]
    found = 2.0 * np.concatenate(found, axis=1)
    return found, np.minimum(*(5.0 - np.square(found - p) for p in slow))


@pytest.mark.parametrize(("samples", "beta"), [(4, 0.3), (4, 0.0), (1, 0.0)], ids=["expo", "best of N", "clone"])
def test_the_target_and_the_action_are_those_of_the_best_candidate(samples, beta):
    """With beta = 0 the best of N of the clone, with N = 1 besides the clone itself, whatever Q says."""
    parts, rows = simple_parts(), 6
    method = methods.expo(parts, samples=samples, beta=beta)
    seen, key = np.linspace(-1.0, 1.0, rows)[:, None], jax.random.key(0)
    params, options = method.init(key), dict(beta=beta, slow=(0.5, 1.1))
    slow = params | {"actor": params["actor"] | {"base": jnp.float32(-0.1)}}
    blank = params | {"critic": jnp.zeros(2)}

    one = jnp.ones(rows)
    batch = batch_of(jnp.asarray(seen), one[:, None], one, 0.9 * one)
    # Both critics of 0 miss the target by y: y^2 / 2 twice. The newest base proposes, the slow critics choose.
    target = np.sqrt(method.critic_loss(blank, slow, batch, key)[0])
    keys = jax.random.split(key, 4)
    noise = np.asarray(jax.random.normal(keys[0], (3, rows * samples, 1)))[-1].reshape(rows, samples)
    edit_noise = np.asarray(jax.random.normal(keys[1], (rows * samples, 1))).reshape(rows, samples)
    _, q = by_hand(seen, noise, edit_noise, base=0.2, **options)
    np.testing.assert_allclose(target, 1.0 + 0.9 * q.max(axis=1), rtol=1e-5)
    assert q.shape[1] == samples * (2 if beta else 1) and (q.max(axis=1) >= q.mean(axis=1)).all()

    memory = method.memory(key, rows)
    outputs, after = method.acting(params, slow, Worlds((), jnp.asarray(seen), None, None, memory))
    drawn = [jax.random.split(jax.random.wrap_key_data(row), 4) for row in memory]
    noise = np.stack([np.asarray(jax.random.normal(k[0], (3, samples, 1)))[-1, :, 0] for k in drawn])
    edit_noise = np.stack([np.asarray(jax.random.normal(k[1], (samples, 1)))[:, 0] for k in drawn])
    actions, q = by_hand(seen, noise, edit_noise, base=-0.1, **options)  # acting has the slow base
    best = np.take_along_axis(actions, q.argmax(axis=1)[:, None], axis=1)
    np.testing.assert_allclose(outputs, np.concatenate([best, best], axis=1), atol=1e-5)
    assert (np.asarray(memory) != np.asarray(after)).any(axis=1).all(), "the next step draws anew"


def test_the_base_is_cloned_and_the_edit_alone_follows_q():
    """Each part's gradient is that of its own loss; the density is that of the scaled edit."""
    parts, key = simple_parts(), jax.random.key(1)
    method = methods.expo(parts, beta=0.3, temperature=0.2)
    params, one = method.init(key), jnp.ones(5)
    batch = batch_of(jnp.linspace(-1.0, 1.0, 5)[:, None], 0.8 * one[:, None], one, one)
    noise = parts.actor.distribution.noise(jax.random.split(key)[1], (5,))

    def expected(own):
        outputs = parts.actor.apply(
            own["edit"], jnp.concatenate([batch.steps.observations, 0.4 * one[:, None]], axis=1)
        )
        stored = parts.actor.distribution.sample(outputs, noise)
        log_probs = parts.actor.distribution.log_prob(outputs, stored) - jnp.log(0.3)
        actions = 2.0 * jnp.clip(0.4 + 0.3 * jnp.tanh(stored), -1.0, 1.0)[:, 0]
        q = 5.0 - 0.5 * (jnp.square(actions - 0.5) + jnp.square(actions - 1.1))
        alpha = own["log_temperature"] * jax.lax.stop_gradient(-log_probs - (jnp.log(0.3) - 0.5))
        return jnp.square(0.4 - own["base"]) + 0.2 * log_probs - q + alpha

    found, wanted = (
        jax.value_and_grad(lambda own, loss=loss: jnp.sum(loss(own)))(params["actor"])
        for loss in (lambda own: method.actor_loss(params | {"actor": own}, params, batch, key)[0], expected)
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, wanted)


def test_a_swept_beta_of_zero_learns_the_clone_alone():
    parts, key, one = simple_parts(), jax.random.key(1), jnp.ones(5)
    batch = batch_of(jnp.linspace(-1.0, 1.0, 5)[:, None], 0.8 * one[:, None], one, one)

    def learned(beta):
        method = methods.expo(parts, beta=beta)
        params = method.init(key)

        def loss(own):
            each, metrics = method.actor_loss(params | {"actor": own}, params, batch, key)
            return jnp.sum(each), metrics

        return jax.grad(loss, has_aux=True)(params["actor"])

    plain = learned(0.0)[0]
    (found, metrics), (edited, _) = (jax.jit(learned, compiler_options=QUICK)(jnp.float32(beta)) for beta in (0.0, 0.3))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, plain)
    assert all(np.isfinite(x) for x in metrics.values()) and metrics["edit/size"] == 0
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), edited, learned(0.3)[0])
    assert np.asarray(edited["edit"]).all()


@pytest.mark.parametrize("beta", [0.05, 0.2, 0.3])
def test_the_usual_target_entropy_is_between_those_of_a_narrow_and_a_broad_edit(beta):
    """No edit of [-beta, beta] has more than log 2 beta; a target above that would raise alpha for ever."""
    parts, key, one = simple_parts(), jax.random.key(0), jnp.ones(64)
    learned, fixed = (methods.expo(parts, beta=beta, learn_temperature=learn) for learn in (True, False))
    params, batch = learned.init(key), batch_of(0.0 * one[:, None], 0.0 * one[:, None], one, one)

    def excess(log_std):  # H - target of an edit of mean 0: what log alpha is multiplied by in its loss
        actor = params["actor"] | {"edit": jnp.float32([0.0, log_std]), "log_temperature": jnp.float32(1.0)}
        both = [method.actor_loss(params | {"actor": actor}, params, batch, key)[0] for method in (learned, fixed)]
        return float(jnp.mean(both[0] - both[1]))

    assert excess(-0.2) > 0.0 > excess(-4.0)
    assert on_the_fly.edit_entropy(3, beta) < 3 * np.log(2 * beta)


def test_the_base_and_the_editor_start_from_weights_of_their_own():
    """split(key)[1] is fold_in(key, 1): a second use of a key shows as equal weights."""
    keyed = simple_parts()
    keyed = keyed._replace(
        actor=keyed.actor._replace(init=lambda key: jax.random.normal(key, (2,))),
        base=keyed.base._replace(init=lambda key: jax.random.normal(key, (2,))),
        critic=keyed.critic._replace(init=lambda key: jax.random.normal(key, (2,))),
    )
    params = methods.expo(keyed).init(jax.random.key(0))
    assert len({float(x[0]) for x in (params["critic"], params["actor"]["base"], params["actor"]["edit"])}) == 3


@pytest.mark.slow
def test_it_learns_from_demonstrations_and_its_own_steps_more_than_was_shown():
    """Steps of reward -(a - 1.8)^2 / 4; half of each batch shows a = -1.2 and 1.2, the other are its own."""
    wide = dict(hidden=(32, 32), activation="relu")
    parts = methods.ReplayParts(
        value_networks.make_q_function((1,), LOW, HIGH, 1, **wide),
        value_networks.make_actor((2,), exploration.squashed(-UNIT, UNIT), **wide),
        value_heads.scalar(),
        base=diffusion.make_diffusion((1,), LOW, HIGH, steps=6, **wide),
    )
    method = methods.expo(parts, samples=4, beta=0.3, temperature=0.01, learn_temperature=False)
    adam, seen = optax.adam(optax.linear_schedule(1e-2, 1e-3, 600)), jnp.zeros((8, 1))
    shown = jnp.where(jnp.arange(32) % 2 > 0, 1.2, -1.2)[:, None]

    def paid(actions):
        return -jnp.square(actions[:, 0] - 1.8) / 4.0

    def run(key):
        flat, unravel = ravel_pytree(method.init(key))

        def update(carry, key):
            vector, slow, state, own, memory = carry
            worlds = Worlds((), seen, None, None, memory)
            outputs, memory = method.acting(unravel(vector), unravel(slow), worlds)
            own = jnp.concatenate([own[8:], outputs[:, :1]])
            actions = jnp.concatenate([shown, own])
            batch = batch_of(jnp.zeros((64, 1)), actions, paid(actions), jnp.zeros(64))

            def loss(vector):
                params = unravel(vector)
                fixed = jax.lax.stop_gradient(params)
                critic = method.critic_loss(fixed | {"critic": params["critic"]}, unravel(slow), batch, key)[0]
                actor = method.actor_loss(fixed | {"actor": params["actor"]}, unravel(slow), batch, key)[0]
                return jnp.mean(critic) + jnp.mean(actor)

            updates, state = adam.update(jax.grad(loss)(vector), state)
            vector = vector + updates
            return (vector, slow + 0.05 * (vector - slow), state, own, memory), outputs[:, 0]

        carry = flat, flat, adam.init(flat), shown, method.memory(key, 8)
        (vector, slow, *_), acted = jax.lax.scan(update, carry, jax.random.split(key, 600))
        noise = jax.random.normal(key, (6, 256, 1))
        cloned = 2.0 * parts.base.sample(unravel(slow)["actor"]["base"], jnp.zeros((256, 1)), noise)
        return acted[-16:].reshape(-1, 1), cloned

    with jax.default_prng_impl("unsafe_rbg"):  # compiles in half the time
        found = jax.jit(jax.vmap(run), compiler_options=QUICK)(jax.random.split(jax.random.key(0), 3))
    acted, cloned = (np.asarray(x)[..., 0] for x in found)
    returns = [(-np.square(x - 1.8) / 4).mean(axis=1) for x in (acted, cloned)]
    high, between = (cloned > 0).mean(axis=1), (np.abs(cloned) < 0.4).mean(axis=1)
    assert ((high > 0.5) & (high < 0.95)).all(), high  # both kinds that were shown, and its own steps
    assert (between < 0.2).all(), "a Gaussian of this mean and deviation has a quarter of its actions there"
    assert (returns[0] > -0.09).all(), "the best that was shown has -.09"
    assert (returns[0] > returns[1] + 0.3).all(), returns


def test_refusals():
    with pytest.raises(ValueError, match="samples=0 must be 1 or more, and beta=0.3 from 0 to 2"):
        methods.expo(simple_parts(), samples=0, beta=0.3)
    with pytest.raises(ValueError, match="steps=1 of denoising"):
        diffusion.make_diffusion((1,), LOW, HIGH, steps=1)
