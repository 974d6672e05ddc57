"""control/bilevel_update.py: a step of phi against explicit matrices, what is kept, what moves, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import control, envs
from rl_jax.control import bilevel_update
from rl_jax.control.aligned_rewards import Steps
from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import categorical
from tests.control.test_aligned_rewards import to_go

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
DESIGN = dict(fn="barfi", auxiliary=dict(fn="feature", index=1), discount_cost=0.3, reward_cost=0.1)
RATE, TERMS, L2, GAMMA = 0.7, 3, 0.05, 0.9
OPTIONS = dict(window=2, outer_start=1, l2=L2, solver=dict(method="neumann", iterations=TERMS, rate=RATE))


def made(algorithm=None, **fields):
    """(init, update, the params' unraveler) in a square of 4 places, of a softmax policy without hidden layers."""
    env = envs.load_vector("probes/gridworld", 4, size=2, limit=5)
    agent = make_agent(env.observation_space.shape, categorical(4), hidden=())
    algorithm = algorithm or control.Algorithm(entropy_coef=0.0, epochs=2, minibatches=2, discount=GAMMA)
    options = dict(design=DESIGN) | OPTIONS | fields
    init, update, _ = control.make_bilevel_update(agent, env, algorithm, optax.sgd(0.5), num_steps=6, **options)
    return init, update, control.unraveler(agent)


@functools.cache
def two_updates():
    """The states before, after one and after two updates; the second moves phi for the first time."""
    init, update, unravel = made()

    first = jax.jit(init, compiler_options=QUICK)(jax.random.key(0))
    update = jax.jit(update, compiler_options=QUICK)
    second, _ = update(first)
    third, metrics = update(second)
    return jax.device_get((first, second, third)), jax.device_get(metrics), unravel


def softmax_parts(actor, steps):
    """For each step grad log pi [16 + 4] and minus the Hessian of log pi, of logits W^T o + b."""
    slopes, bends = [], []
    for o, a in zip(steps.observations.reshape(-1, 4), steps.actions.reshape(-1), strict=True):
        logits = o @ actor["head"]["kernel"] + actor["head"]["bias"]
        probs = np.exp(logits - logits.max())
        probs /= probs.sum()
        inputs = np.append(o, 1.0)
        slopes.append(np.outer(inputs, np.eye(4)[a] - probs).ravel())
        bends.append(np.kron(np.outer(inputs, inputs), np.diag(probs) - np.outer(probs, probs)))
    return np.array(slopes), np.array(bends)


def loop_gradient(actor, phi, kept, newest):
    """dJ / dphi by explicit matrices: {"bonus": [5], "auxiliary": [5], "discount": []}."""
    gamma = 1.0 / (1.0 + np.exp(-phi["discount"]))
    inputs = np.concatenate([kept.observations, np.ones((*kept.rewards.shape, 1))], axis=-1)
    paid = sum(w[..., None] * (inputs @ phi[name])[..., None] for name, w in weights(kept).items())[..., 0]
    returns = to_go(paid, kept.over, gamma)
    later = np.concatenate([returns[:, 1:], np.zeros((len(returns), 1))], axis=1)
    later[kept.over] = 0.0
    by_phi = {
        name: np.stack([to_go(w * x, kept.over, gamma) for x in np.moveaxis(inputs, -1, 0)], axis=-1)
        for name, w in weights(kept).items()
        if name != "primary"
    }
    by_phi["discount"] = to_go(later, kept.over, gamma) * gamma * (1.0 - gamma)
    slopes, bends = softmax_parts(actor, kept)
    hessian = np.mean(bends * returns.reshape(-1, 1, 1), axis=0) + L2 * np.eye(20)
    theirs, _ = softmax_parts(actor, newest)
    pull = -np.mean(theirs * to_go(newest.rewards, newest.over, GAMMA).reshape(-1, 1), axis=0)
    solved, term = np.zeros(20), pull
    for _ in range(TERMS):
        solved, term = solved + RATE * term, term - RATE * hessian @ term
    direct = dict(bonus=0.1 * phi["bonus"], auxiliary=0.1 * phi["auxiliary"], discount=0.3 * gamma * (1.0 - gamma))
    mixed = {
        name: -np.einsum("np,n...->p...", slopes, x.reshape(-1, *x.shape[2:])) / len(slopes)
        for name, x in by_phi.items()
    }
    return {name: direct[name] - np.tensordot(solved, x, 1) for name, x in mixed.items()}, direct


def weights(steps):
    return {"bonus": np.ones_like(steps.rewards), "primary": steps.rewards, "auxiliary": steps.auxiliary}


def test_a_step_of_phi_against_explicit_matrices():
    """RMSprop's second moment is .01 g^2 at first: its state tells the gradient's size, the step of phi its sign."""
    (_, before, after), _, unravel = two_updates()
    outer, moved = before.train.trackers["outer"], after.train.trackers["outer"]
    actor = jax.device_get(unravel(before.train.params))["actor"]
    kept, newest = (Steps(*(x[i] for x in moved.window)) for i in (0, 1))
    assert newest.rewards.sum() > 0 and kept.auxiliary.sum() > 0 and kept.over.any()
    as_double = jax.tree.map(lambda x: np.asarray(x, np.float64), (actor, outer.phi))
    expected, direct = loop_gradient(*as_double, kept, newest)
    squares = moved.optimizer[0].nu
    for name, slope in expected.items():
        found = -np.sign(moved.phi[name] - outer.phi[name]) * np.sqrt(squares[name] / 0.01)
        np.testing.assert_allclose(found, slope, rtol=2e-3, atol=2e-5, err_msg=name)
    assert np.abs(expected["auxiliary"] - direct["auxiliary"]).max() > 1e-3  # of the policy that phi has trained
    np.testing.assert_array_equal(moved.phi["primary"], outer.phi["primary"])


def test_what_is_kept_and_what_moves():
    (first, second, third), metrics, _ = two_updates()
    outers = [state.train.trackers["outer"] for state in (first, second, third)]
    assert [int(x.count) for x in outers] == [0, 1, 2] and int(third.train.step) == 8
    np.testing.assert_array_equal(outers[1].window.rewards[1], 0)
    np.testing.assert_array_equal(outers[1].window.actions[0], outers[2].window.actions[0])
    jax.tree.map(np.testing.assert_array_equal, outers[0].phi, outers[1].phi)  # before outer_start
    assert (np.asarray(first.train.params) != np.asarray(second.train.params)).any()
    assert {"phi/auxiliary", "phi/discount", "entropy", "loss", "episode/return"} <= set(metrics)
    newest = outers[2]._replace(count=jnp.int32(3))
    np.testing.assert_array_equal(bilevel_update.rows_of(newest)[1], np.ones(8, bool))
    np.testing.assert_array_equal(bilevel_update.rows_of(outers[1])[1], np.arange(8) < 4)


def test_the_policy_s_loss_leaves_dead_rows_out():
    rng = np.random.default_rng(0)
    log_probs, entropies, returns = rng.normal(size=(3, 3, 4)).astype(np.float32)
    live = np.array([True, False, True])
    returns[1] = np.nan
    loss, slope = jax.value_and_grad(
        lambda x: bilevel_update.policy_loss(x, entropies, returns, live, entropy_coef=0.3).total
    )(log_probs)
    expected = -sum(log_probs[i] @ returns[i] + 0.3 * entropies[i].sum() for i in (0, 2))
    assert float(loss) == pytest.approx(float(expected), rel=1e-4)
    np.testing.assert_allclose(slope, np.where(live[:, None], -returns, 0.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        (dict(axis_name="envs"), "use mesh=seeds:N"),
        (dict(window=0), "updater.window=0 must be 1 or more"),
        (dict(outer_start=0), "updater.outer_start=0 must be 1 or more"),
        (dict(solver=dict(method="newton")), "updater.solver.method='newton' is none of cg, neumann, identity"),
        (dict(solver=dict(method="cg", terms=5)), "hypergradient takes no keyword 'terms'"),
        (dict(algorithm=control.Algorithm(kl_coef=0.1)), "algorithm.kl_coef and algorithm.kl_control have no meaning"),
        (dict(design=dict(fn="barfi")), "updater.design needs auxiliary: set algorithm.updater.design.auxiliary"),
        (dict(algorithm=control.Algorithm(minibatches=3)), "4 environments do not divide into 3 minibatches"),
        (dict(algorithm=control.Algorithm(normalize_rewards=True)), "algorithm.normalize_rewards has no meaning"),
        (dict(algorithm=control.Algorithm(actor_lag=2)), "algorithm.actor_lag=2 must be 1"),
    ],
)
def test_what_is_refused(fields, match):
    with pytest.raises(ValueError, match=match):
        made(**fields)


def test_several_objectives_are_refused():
    env = envs.load_vector("objectives/treasure", 4)
    agent = make_agent(env.observation_space.shape, categorical(4), hidden=())
    with pytest.raises(ValueError, match="two levels have one reward: 2 objectives need make_objectives_update"):
        control.make_bilevel_update(agent, env, control.Algorithm(), optax.sgd(0.5), num_steps=6, design=DESIGN)
