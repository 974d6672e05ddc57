"""control/trust_region.py: conjugate gradients and Fisher products by numpy, a bandit in closed form, bounds kept."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.control import environments as configs
from experiments.parts import control_runs, control_setup
from rl_jax import control, envs
from rl_jax.control import trust_region
from rl_jax.envs.worlds import probes
from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import beta, categorical, tanh_gaussian

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
CHOICES = dict(max_kl=0.01, damping=0.0, cg_iterations=20, backtracks=10, shrink=0.5)


def test_conjugate_gradients_solve_what_numpy_solves():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(12, 12))
    matrix, right = root @ root.T + 0.5 * np.eye(12), rng.normal(size=12)
    expected = np.linalg.solve(matrix, right)
    with jax.enable_x64(True):
        solve = functools.partial(trust_region.conjugate_gradient, lambda v: jnp.asarray(matrix) @ v)
        found = solve(jnp.asarray(right), iterations=12)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
        assert trust_region.conjugate_gradient(lambda v: v, jnp.zeros(3), iterations=4).tolist() == [0.0] * 3
        # Its error falls in the norm of the matrix, which is what conjugate gradients promise.
        errors = [np.asarray(solve(jnp.asarray(right), iterations=n)) - expected for n in (1, 3, 6, 9)]
    norms = [error @ matrix @ error for error in errors]
    assert norms == sorted(norms, reverse=True)


SPAN = (np.full(1, -1.0), np.full(1, 2.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("distribution", "slope"),
    [
        (categorical(3), None),
        (tanh_gaussian(*SPAN), lambda u: 1.5 / np.cosh(u) ** 2),
        (beta(*SPAN), lambda u: 3.0 / (2.0 + 2.0 * np.cosh(u))),
    ],
    ids=["categorical", "tanh_gaussian", "beta"],
)
def test_products_are_those_of_the_fisher_matrix(distribution, slope):
    """F = mean over states of E_a [score score^T], explicit, in float64; slope: da / du of the u that are kept."""
    rng = np.random.default_rng(1)
    size = distribution.num_outputs
    states = rng.normal(size=(5, 4))
    actions, widths = np.arange(3), np.ones(3)
    if slope:
        u = np.linspace(-30.0, 30.0, 20_001)
        actions, widths = u[:, None], slope(u) * (u[1] - u[0])
    with jax.enable_x64(True):
        params, vector = (jnp.asarray(rng.normal(size=4 * size) * 0.3) for _ in range(2))

        def outputs(params, states):
            return jnp.asarray(states) @ params.reshape(4, size)

        def log_probs(params, state):
            rows = jnp.broadcast_to(outputs(params, state[None]), (len(actions), size))
            return distribution.log_prob(rows, jnp.asarray(actions))

        old = outputs(params, states)

        def product(params, vector):
            return trust_region.fisher_product(
                lambda params: jnp.mean(distribution.kl(old, outputs(params, states))), params, vector, damping=0.3
            )

        found = jax.jit(product, compiler_options=QUICK)(params, vector)
        jacobian = jax.jit(jax.jacfwd(log_probs), compiler_options=QUICK)
        fisher = np.zeros((4 * size, 4 * size))
        for state in states:
            scores = np.asarray(jacobian(params, jnp.asarray(state)))
            mass = np.exp(np.asarray(log_probs(params, state))) * widths
            np.testing.assert_allclose(mass.sum(), 1.0, rtol=1e-4)
            fisher += (scores.T * mass) @ scores / len(states)
        found, vector = np.asarray(found), np.asarray(vector)
    np.testing.assert_allclose(found, fisher @ vector + 0.3 * vector, rtol=1e-4, atol=1e-5)


def bandit(rewards, logits):
    """(gain, kl, probabilities) of a softmax over arms, from these logits."""
    dist, old = categorical(len(rewards)), jnp.asarray(logits)

    def gain(params):
        return jnp.sum(jax.nn.softmax(params) * jnp.asarray(rewards))

    return gain, lambda params: dist.kl(old, params), np.asarray(jax.nn.softmax(old))


@pytest.mark.slow
def test_the_natural_gradient_of_a_bandit_in_closed_form():
    """F = diag(pi) - pi pi^T and g = F r: the direction is r - mean(r), its length sqrt(2 delta / Var_pi r)."""
    rewards, logits = np.asarray([1.0, -0.5, 0.3, 2.0]), np.asarray([0.2, 1.0, -1.0, 0.0])
    with jax.enable_x64(True):
        gain, kl, probs = bandit(rewards, logits)
        found, step = trust_region.natural_step(jnp.asarray(logits), gain, kl, **(CHOICES | dict(max_kl=1e-4)))
        variance = probs @ (rewards - probs @ rewards) ** 2
        expected = np.sqrt(2.0 * 1e-4 / variance) * (rewards - rewards.mean())
        np.testing.assert_allclose((found - logits) / step.fraction, expected, rtol=1e-6)
        assert step.fraction in (1.0, 0.5) and step.kl <= 1e-4 and step.gain > 0.0
        np.testing.assert_allclose(step.kl, kl(found), rtol=1e-9)


@pytest.mark.slow
def test_steps_that_are_spread_over_devices_make_the_same_step():
    rng = np.random.default_rng(3)
    states, gains = jnp.asarray(rng.normal(size=(8, 4)), jnp.float32), jnp.asarray(rng.normal(size=(8, 3)), jnp.float32)
    params, distribution = jnp.asarray(rng.normal(size=12) * 0.1, jnp.float32), categorical(3)

    def step(states, gains, **axis):
        def logits(params):
            return states @ params.reshape(4, 3)

        old = logits(params)
        gain = lambda p: jnp.mean(jnp.sum(jax.nn.softmax(logits(p)) * gains, axis=1))  # noqa: E731
        kl = lambda p: jnp.mean(distribution.kl(old, logits(p)))  # noqa: E731
        return trust_region.natural_step(params, gain, kl, **CHOICES | dict(damping=0.1), **axis)

    whole, found = step(states, gains)
    halves = (x.reshape(2, 4, -1) for x in (states, gains))
    parts, founds = jax.vmap(lambda *x: step(*x, axis_name="envs"), axis_name="envs")(*halves)
    assert found.fraction > 0 and float(jnp.abs(whole - params).max()) > 0.01
    for part in range(2):
        np.testing.assert_allclose(parts[part], whole, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose([x[part] for x in founds], found, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_a_step_that_helps_nowhere_is_not_made():
    rewards, logits = np.asarray([1.0, -0.5, 0.3]), jnp.zeros(3)
    gain, kl, _ = bandit(rewards, logits)

    def worse_elsewhere(params):
        return gain(params) - jnp.where(jnp.all(params == logits), 0.0, 1.0)

    for bad, constraint in [(worse_elsewhere, kl), (gain, lambda p: kl(p) + 1.0), (gain, lambda p: kl(p) * jnp.nan)]:
        found, step = trust_region.natural_step(logits, bad, constraint, **CHOICES)
        np.testing.assert_array_equal(found, logits)
        assert step.fraction == 0.0 and step.kl == 0.0 and step.gain == 0.0
    # No gradient, no direction: 0 / 0 is not made, either.
    found, step = trust_region.natural_step(logits, lambda params: jnp.sum(params * 0.0), kl, **CHOICES)
    np.testing.assert_array_equal(found, logits)


@pytest.mark.slow
def test_the_search_goes_back_until_the_bound_holds():
    """A direction that is far too long, by a curvature that is too small at its start: it is halved until KL fits."""
    gain, kl, _ = bandit(np.asarray([1.0, -1.0]), jnp.zeros(2))

    def steep(params):
        return kl(params) + 1e6 * jnp.sum(params**2) ** 2

    found, step = trust_region.natural_step(jnp.zeros(2), gain, steep, **CHOICES)
    assert 0.0 < step.fraction < 0.5 and steep(found) <= 0.01 and step.gain > 0.0
    assert steep(2.0 * found) > 0.01  # one halving less would have broken it


def test_further_losses_and_kls_are_refused():
    """An auxiliary loss was measured, and trained by nobody."""
    env, agent = envs.vectorize(probes.matching(), 2), make_agent((1,), categorical(2), hidden=(4,))
    make = functools.partial(control.make_trust_region_update, agent, env, optimizer=optax.sgd(0.1), num_steps=4)
    with pytest.raises(ValueError, match="trust regions know no auxiliary: leave it away"):
        make(control.Algorithm(auxiliary=lambda params, batch: (0.0, 1.0)))
    with pytest.raises(ValueError, match="kl_coef 0"):
        make(control.Algorithm(kl_coef=0.1))
    make(control.Algorithm())


def trained(updates, seeds, bounds):
    """(probability of the right actions, metrics of each update) of TRPO on a probe, [seeds, bounds] first."""
    config = configs.get_config("matching,trpo")
    config.update(num_seeds=seeds, log_every=1)
    config.sample.update(num_envs=8, num_steps=16)
    config.train.total_steps = updates * 128
    config.sweep = (("algorithm.updater.max_kl", bounds),)
    config.network.hidden = (8,)
    config.eval.num_episodes = 0
    init, advance, params = control_runs.make_run(config)
    agent = control_setup.make_network(config, control_setup.load_env(config, 1), 1)

    def whole(key, values):
        def step(state, _):
            return advance(state, values, 1)

        state, metrics = jax.lax.scan(step, init(key, values), None, updates)
        outputs = agent.policy(params(state), jnp.asarray([[-1.0], [1.0]]))
        return jnp.mean(jnp.diagonal(jax.nn.softmax(outputs))), metrics

    found = jax.jit(jax.vmap(whole), compiler_options=QUICK)(*control_setup.runs_of(config))
    return jax.tree.map(lambda x: np.asarray(x).reshape(seeds, len(bounds), *x.shape[1:]), found)


@pytest.mark.slow
def test_the_probe_is_learned_within_the_bound_at_every_update():
    """With a bound of .02, in 25 updates of 128 steps; with a bound of 0 the policy stays and the critic learns."""
    right, metrics = trained(updates=25, seeds=4, bounds=(0.0, 0.02))
    moved, step = metrics["trust_region/kl"], metrics["trust_region/fraction"]
    assert (right[:, 1] > 0.9).all(), right
    assert (moved[:, 1] <= 0.02 + 1e-7).all() and (moved[:, 1, :5] > 0.01).all()  # later it is learned
    assert (metrics["trust_region/gain"] >= 0.0).all()
    np.testing.assert_allclose(right[:, 0], 0.5, atol=0.05)
    np.testing.assert_array_equal(step[:, 0], 0.0)
    assert (metrics["value/explained_variance"][:, 1, -1] > metrics["value/explained_variance"][:, 1, 0]).all()
    # A policy that guesses has values of 0 to learn, from those that the critic starts with.
    assert (metrics["value/loss"][:, 0, -1] < metrics["value/loss"][:, 0, 0]).all()
