"""control/replay_methods.py: every method finds the values of small worlds, solved exactly in numpy, from all seeds; a
broken target does not; and the targets against loops over the equations.

Each world is a batch of all its steps, on which a method takes full-batch gradient steps; tests/control/
test_off_policy.py holds what acts and draws.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from rl_jax.control import replay_methods as methods
from rl_jax.control.replay import ReplayBatch
from rl_jax.control.transitions import Transitions
from rl_jax.losses import value_heads
from rl_jax.models.agents import exploration, value_networks
from rl_jax.models.agents.distributions import categorical

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
GAMMA, SMALL = 0.8, dict(hidden=(16,), activation="tanh")
LOW, HIGH = np.float32([-2.0]), np.float32([2.0])

# Two states, two choices: (state, action, reward, next, terminated, truncated).
TABLE = (
    (0, 0, 0.2, 0, False, True),  # a cut: its value still counts
    (0, 1, -0.1, 1, False, False),
    (1, 0, 1.0, 1, True, False),  # the end: the next state is worth nothing, whatever a network says of it
    (1, 1, 0.3, 0, False, False),
)


def batch_of(rows, discount=GAMMA, observe=lambda s: np.eye(2)[s]):
    state, action, reward, after, ended, cut = (np.asarray(x) for x in zip(*rows, strict=True))
    steps = Transitions(
        *(jnp.asarray(x, jnp.float32) for x in (observe(state), action, reward, observe(after))),
        jnp.asarray(ended, bool), jnp.asarray(cut, bool),
    )  # fmt: skip
    if action.ndim == 1:
        steps = steps._replace(actions=steps.actions.astype(jnp.int32))
    discounts = jnp.where(steps.terminated, 0.0, discount)
    return ReplayBatch(steps, discounts, jnp.ones(len(rows)), jnp.zeros((len(rows), 2), jnp.int32))


def best_values(temperature=0.0):
    """Q* [2, 2] of TABLE by iteration; soft values if the temperature is positive."""
    q = np.zeros((2, 2))
    for _ in range(200):
        soft = temperature * np.log(np.exp(q / temperature).sum(1)) if temperature else q.max(1)
        new = np.zeros((2, 2))
        for state, action, reward, after, ended, _ in TABLE:
            new[state, action] = reward + GAMMA * (not ended) * soft[after]
        q = new
    return q


def learned(method, batch, read, *, steps=400, rate=0.02, tau=0.1, seeds=3):
    """read(params) of each seed after gradient steps on the whole batch."""
    return np.asarray(jax.jit(jax.vmap(training(method, batch, read, steps, rate, tau)), compiler_options=QUICK)(
        jax.random.split(jax.random.key(0), seeds)
    ))  # fmt: skip


def training(method, batch, read, steps=400, rate=0.02, tau=0.1):
    """key -> read(params), to be compiled."""

    def whole(key):
        params = method.init(key)
        adam = optax.adam(optax.linear_schedule(rate, rate / 20, steps))
        flat, unravel = ravel_pytree(params)
        # The actor waits for a critic that knows something: tanh does not come back from where an early one sends it.
        late = {name: jax.tree.map(jnp.zeros_like, tree) for name, tree in params.items()}
        if "actor" in late:
            late["actor"] = jax.tree.map(jnp.ones_like, late["actor"])
        late = ravel_pytree(late)[0]

        def loss(vector, slow, key):
            own = unravel(vector)
            fixed = jax.lax.stop_gradient(own)
            critic, _, _ = method.critic_loss(fixed | {"critic": own["critic"]}, unravel(slow), batch, key)
            total = jnp.mean(critic)
            if method.actor_loss is not None:
                total += jnp.mean(method.actor_loss(fixed | {"actor": own["actor"]}, unravel(slow), batch, key)[0])
            return total

        def step(carry, now):
            (vector, slow, state), (key, count) = carry, now
            updates, state = adam.update(jax.grad(loss)(vector, slow, key), state)
            vector = vector + jnp.where((late > 0) & (count < steps // 4), 0.0, updates)
            return (vector, slow + tau * (vector - slow), state), None

        each = jax.random.split(key, steps), jnp.arange(steps)
        carry, _ = jax.lax.scan(step, (flat, flat, adam.init(flat)), each)
        return read(unravel(carry[0]))

    return whole


HEADS = {
    "scalar": value_heads.scalar(),
    "huber": value_heads.scalar(delta=1.0),
    "c51": value_heads.categorical(low=-1.0, high=3.0, num_atoms=31),
    "qr": value_heads.quantile(num_quantiles=8, kappa=0.0),
}


def choices(head="scalar", members=1, dueling=False, actor=False):
    head = HEADS[head]
    critic = value_networks.make_action_values((2,), 2, head.num_outputs, dueling=dueling, members=members, **SMALL)
    own = value_networks.make_actor((2,), categorical(2), **SMALL) if actor else None
    return methods.ReplayParts(critic, own, head)


def values_of(parts):
    return lambda params: jnp.mean(parts.head.values(parts.critic.apply(params["critic"], jnp.eye(2))), axis=0)


@pytest.mark.parametrize(
    ("words", "double"),
    [(dict(head="c51", dueling=True), True), (dict(head="qr", members=2), False)],
    ids=["c51_dueling", "qr_ensemble"],
)
def test_distributional_dqn_finds_the_values(words, double):
    parts = choices(**words)
    found = learned(methods.dqn(parts, double=double), batch_of(TABLE), values_of(parts))
    np.testing.assert_allclose(found, np.broadcast_to(best_values(), (3, 2, 2)), atol=0.06)


def test_dqn_finds_the_values_and_a_wrong_target_does_not():
    """A value after the end of the task counted, or that after a cut not counted: far off, from every seed."""
    parts, batch = choices(head="huber"), batch_of(TABLE)
    ended = jnp.full(4, GAMMA)
    cut = jnp.where(batch.steps.truncated, 0.0, batch.discounts)

    def whole(key, discounts):
        return training(methods.dqn(parts), batch._replace(discounts=discounts), values_of(parts))(key)

    both = jax.vmap(jax.vmap(whole, (0, None)), (None, 0))
    keys = jax.random.split(jax.random.key(0), 3)
    found = np.asarray(jax.jit(both, compiler_options=QUICK)(keys, jnp.stack([batch.discounts, ended, cut])))
    q = best_values()
    np.testing.assert_allclose(found[0], np.broadcast_to(q, (3, 2, 2)), atol=0.06)
    assert (np.abs(found[1] - q)[:, 1, 0] > 0.5).all() and (np.abs(found[2] - q)[:, 0, 0] > 0.3).all()


def test_discrete_sac_finds_the_soft_values_and_their_policy():
    parts = choices(members=2, actor=True)
    method = methods.discrete_sac(parts, temperature=0.5, learn_temperature=False)

    def read(params):
        return jnp.stack([values_of(parts)(params), jax.nn.softmax(method.policy(params, jnp.eye(2)))])

    values, probs = np.swapaxes(learned(method, batch_of(TABLE), read), 0, 1)
    q = best_values(0.5)
    np.testing.assert_allclose(values, np.broadcast_to(q, (3, 2, 2)), atol=0.06)
    wanted = np.exp(q / 0.5) / np.exp(q / 0.5).sum(1, keepdims=True)
    np.testing.assert_allclose(probs, np.broadcast_to(wanted, (3, 2, 2)), atol=0.04)


def aim_rows():
    """States -1, then 1; reward (s + 1) / 2 - (a - s / 2)^2: Q*(s, a) = that + (s < 0) gamma. Best action s / 2."""
    grid = np.linspace(-1.9, 1.9, 20, dtype=np.float32)
    rows = []
    for state in (-1.0, 1.0):
        for a in grid:
            rows.append((state, [a], (state + 1) / 2 - (a - state / 2) ** 2, 1.0, state > 0, False))
    return batch_of(rows, observe=lambda s: np.asarray(s)[:, None])


def numbers(members=2, head="scalar", soft=False, std=0.0):
    head, wide = HEADS[head], dict(hidden=(32,), activation="tanh")
    critic = value_networks.make_q_function((1,), LOW, HIGH, head.num_outputs, members=members, **wide)
    law = exploration.squashed(LOW, HIGH) if soft else exploration.noisy(LOW, HIGH, std=0.1)
    actor = value_networks.make_actor((1,), law, **SMALL)
    return methods.ReplayParts(critic, actor, head, exploration.noisy(LOW, HIGH, std=std, clip=0.5))


PLACES = np.float32([[-1.0], [1.0]])


def chosen(parts, method):
    """(the mode of the policy [2], values of the best actions [2])."""

    def read(params):
        law = parts.actor.distribution
        actions = law.to_env(law.mode(method.policy(params, PLACES)))[:, 0]
        found = parts.head.values(parts.critic.apply(params["critic"], PLACES, PLACES / 2))
        return jnp.stack([actions, jnp.mean(found, axis=0)])

    return read


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        (functools.partial(methods.td3, reads="first"), dict(std=0.02)),
        (  # sac with less of it learns in tests/experiments/test_control_replay.py
            functools.partial(methods.sac, temperature=0.02, target_entropy=-2.0, subset=2, reads="mean"),
            dict(soft=True, members=5),
        ),
    ],
    ids=["td3", "redq"],
)
def test_actors_of_numbers_find_the_best_action_and_its_value(method, parts):
    parts = numbers(**parts)
    method = method(parts)
    actions, values = np.swapaxes(learned(method, aim_rows(), chosen(parts, method), steps=800, rate=0.02), 0, 1)
    np.testing.assert_allclose(actions, np.broadcast_to([-0.5, 0.5], (3, 2)), atol=0.2)
    np.testing.assert_allclose(values, np.broadcast_to([GAMMA, 1.0], (3, 2)), atol=0.25)


def two_tasks(scales=(1.0, 8.0)):
    """Two tasks of one state, whose last two features name them: reward -scale a^2, and the episode ends."""
    rows = [
        (k, [a], -scale * a**2, k, True, False)
        for k, scale in enumerate(scales)
        for a in np.linspace(-1.9, 1.9, 20, dtype=np.float32)
    ]
    return batch_of(rows, observe=lambda task: np.eye(2)[task])


def soft_parts():
    wide = dict(hidden=(32,), activation="tanh")
    critic = value_networks.make_q_function((2,), LOW, HIGH, 1, members=2, **wide)
    actor = value_networks.make_actor((2,), exploration.squashed(LOW, HIGH), **SMALL)
    return methods.ReplayParts(critic, actor, HEADS["scalar"])


def test_each_task_has_its_own_temperature():
    """Its loss is sac's where all are equal; a temperature's gradient is that of its own task's steps."""
    parts, batch, key = soft_parts(), two_tasks(), jax.random.key(3)
    several, one = methods.task_sac(parts, tasks=2, temperature=0.3), methods.sac(parts, temperature=0.3)
    logs = jnp.log(jnp.array([0.3, 0.7]))

    def run(params):
        single = params | {"actor": params["actor"] | {"log_temperature": jnp.log(0.3)}}
        losses = [
            jnp.stack([method.critic_loss(own, own, batch, key)[0], method.actor_loss(own, own, batch, key)[0]])
            for method, own in ((several, params), (one, single))
        ]

        def loss(logs):
            own = params | {"actor": params["actor"] | {"log_temperature": logs}}
            return jnp.sum(several.actor_loss(own, own, batch, key)[0])

        outputs = parts.actor.apply(params["actor"]["policy"], batch.steps.observations)
        law = parts.actor.distribution
        log_probs = law.log_prob(outputs, law.sample(outputs, law.noise(key, (40,))))
        return losses, jax.grad(loss)(logs), log_probs

    params = several.init(jax.random.key(1))
    (several_losses, one_losses), gradient, log_probs = jax.jit(run, compiler_options=QUICK)(params)
    np.testing.assert_allclose(several_losses, one_losses, rtol=1e-5, atol=1e-6)
    expected = (-np.asarray(log_probs) + 1.0).reshape(2, 20).sum(1)  # the target entropy is -1
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)


def test_each_task_reaches_the_target_entropy():
    """Rewards of one task are 24 times those of the other. With one temperature the means are .25 and -.31."""
    parts = soft_parts()
    law = parts.actor.distribution

    def entropies(params):
        outputs = jnp.repeat(parts.actor.apply(params["actor"]["policy"], jnp.eye(2)), 256, axis=0)
        stored = law.sample(outputs, law.noise(jax.random.key(9), (512,)))
        return -jnp.mean(law.log_prob(outputs, stored).reshape(2, 256), axis=1)

    # The temperature begins between the two that are needed, about .25 and 5.6.
    method = methods.task_sac(parts, tasks=2, temperature=1.2, target_entropy=0.0)
    found = learned(method, two_tasks((0.5, 12.0)), entropies, rate=0.03)
    assert (np.abs(found.mean(0)) < 0.17).all(), found


def test_the_targets_are_their_equations():
    """Member by member, and nothing in a target is differentiated."""
    rng = np.random.default_rng(0)
    outputs = jnp.asarray(rng.normal(size=(3, 4, 1)), jnp.float32)
    head = HEADS["scalar"]
    np.testing.assert_array_equal(methods.least(head, outputs, jax.random.key(0), 0), np.asarray(outputs).min(0))
    of_two = jax.jit(jax.vmap(lambda key: methods.least(head, outputs, key, 2)[:, 0]), compiler_options=QUICK)
    drawn = {tuple(x.tolist()) for x in np.asarray(of_two(jax.random.split(jax.random.key(0), 12)))}
    pairs = {tuple(np.asarray(outputs)[list(p)].min(0)[:, 0].tolist()) for p in ((0, 1), (0, 2), (1, 2))}
    assert drawn == pairs
    wide = jnp.asarray(rng.normal(size=(3, 4, 31)), jnp.float32)
    values = np.asarray(HEADS["c51"].values(wide))
    np.testing.assert_array_equal(
        methods.least(HEADS["c51"], wide, jax.random.key(0), 0), np.asarray(wide)[values.argmin(0), np.arange(4)]
    )
    parts, batch = numbers(soft=True), aim_rows()
    method = methods.sac(parts, temperature=0.3)
    key, law = jax.random.key(2), parts.actor.distribution

    def both(params, slow):
        def loss(params, slow):
            each = method.critic_loss(params, slow, batch, key)[0]
            return jnp.sum(each), each

        (own, slow_gradient), each = jax.grad(loss, (0, 1), has_aux=True)(params, slow)
        # By hand: the same action, its density, the least slow member, the squares of both members.
        out = parts.actor.apply(params["actor"]["policy"], batch.steps.next_observations)
        stored = law.sample(out, law.noise(jax.random.split(key)[0], (40,)))
        following = parts.critic.apply(slow["critic"], batch.steps.next_observations, law.to_env(stored))[:, :, 0]
        soft = jnp.min(following, axis=0) - 0.3 * law.log_prob(out, stored)
        target = batch.steps.rewards + batch.discounts * soft
        q = parts.critic.apply(params["critic"], batch.steps.observations, batch.steps.actions)[:, :, 0]
        expected = sum(0.5 * jnp.square(member - target) for member in q)
        return own, slow_gradient, each, expected

    def run(key):
        params = method.init(key)
        return both(params, jax.tree.map(lambda x: 0.9 * x, params))

    own, slow, each, expected = jax.jit(run, compiler_options=QUICK)(jax.random.key(1))
    assert not any(np.any(x) for x in jax.tree.leaves((own["actor"], slow)))
    assert any(np.any(x) for x in jax.tree.leaves(own["critic"]))
    np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-6)


def test_targets_are_of_the_slow_copies():
    """Each slow copy moves the loss, where the task goes on. DQN's: tests/control/test_off_policy.py."""
    cases = [
        (methods.discrete_sac(choices(actor=True)), batch_of(TABLE)),
        (methods.td3(numbers(members=1)), aim_rows()),
    ]

    def run(key):
        found = []
        for method, batch in cases:
            params = method.init(key)
            moved = [params | {group: jax.tree.map(lambda x: 0.5 * x, params[group])} for group in method.slow]
            found.append([method.critic_loss(params, slow, batch, key)[0] for slow in (params, *moved)])
        return found

    found = jax.jit(run, compiler_options=QUICK)(jax.random.key(0))
    assert [len(losses) for losses in found] == [2, 3]
    for (_, batch), (same, *others) in zip(cases, found, strict=True):
        for other in others:
            changed = np.abs(np.asarray(same - other)) > 1e-6
            assert changed[batch.discounts > 0].mean() > 0.5 and not changed[batch.discounts == 0].any()


def test_refusals():
    with pytest.raises(ValueError, match="reads='last' is none of min, mean, first"):
        methods.td3(numbers(), reads="last")
    with pytest.raises(ValueError, match="task_sac needs observations that end with the id of a task"):
        methods.task_sac(soft_parts(), tasks=1)
    with pytest.raises(ValueError, match="subset=3 must be 0 .all. to network.members=2"):
        methods.sac(numbers(soft=True), subset=3)
    with pytest.raises(ValueError, match="discrete_sac reads one number per action"):
        methods.discrete_sac(choices(head="qr", actor=True))
    for make in (methods.sac, functools.partial(methods.task_sac, tasks=2)):
        with pytest.raises(ValueError, match="algorithm.method.temperature=0.0 must be above 0"):
            make(soft_parts(), temperature=0.0).init(jax.random.key(0))
