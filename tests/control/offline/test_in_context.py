"""losses/experts.py against numpy, the transformer of experts, its batches, and tasks that only rewards tell apart."""

import functools
import types

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from configs.control import offline as configs
from experiments.parts import in_context_runs
from rl_jax.control.offline import in_context, t2mir
from rl_jax.control.offline.data import make_data
from rl_jax.control.offline.recipe import Batch
from rl_jax.control.transitions import Transitions
from rl_jax.losses import experts
from rl_jax.models.agents.decision_transformer import Sequence, empty
from rl_jax.models.agents.distributions import tanh_gaussian
from rl_jax.models.agents.expert_transformer import make_expert_transformer
from tests.control.offline.worlds import QUICK, jitted

UNIT = np.ones(2, np.float32)


def ravel(tree):
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0])


def softmax(x):
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def test_scores_loads_and_their_evenness_are_those_of_loops():
    rng = np.random.default_rng(0)
    clean, std = rng.normal(size=(5, 4)), rng.uniform(0.5, 1.5, size=(5, 4))
    noisy, mask = clean + std * rng.normal(size=(5, 4)), np.array([1, 1, 0, 1, 1], bool)

    @jitted
    def ours(clean, noisy, std, mask):
        scores, loads = experts.top_scores(noisy, 2), experts.noisy_load(clean, noisy, std, 2)
        return scores, loads, experts.even_loads(scores, loads, mask)

    scores, loads, uneven = ours(*(jnp.asarray(x, jnp.float32) for x in (clean, noisy, std)), mask)
    wanted, chance = np.zeros((5, 4)), np.zeros((5, 4))
    for n in range(5):
        best = np.argsort(-noisy[n])[:2]
        wanted[n, best] = softmax(noisy[n, best])
        for e in range(4):
            others = np.sort(np.delete(noisy[n], e))[::-1]  # it is in if it passes the second of the others
            chance[n, e] = norm.cdf((clean[n, e] - others[1]) / std[n, e])
    np.testing.assert_allclose(scores, wanted, atol=1e-5)
    np.testing.assert_allclose(loads, chance, atol=1e-5)
    sums = [x[mask].sum(0) for x in (wanted, chance)]
    assert uneven == pytest.approx(sum(x.var(ddof=1) / x.mean() ** 2 for x in sums), rel=1e-4)
    assert experts.cv_squared(jnp.full(4, 3.0)) == 0.0
    assert experts.cv_squared(jnp.array([1e-5, 3e-5])) == pytest.approx(2e-10 / (4e-10 + 1e-10), rel=1e-4)


def test_the_contrast_is_of_the_halves_and_same_tasks_are_no_wrong_answers():
    rng = np.random.default_rng(1)
    q, k = softmax(rng.normal(size=(6, 4))), softmax(rng.normal(size=(6, 4)))
    weight, task = rng.normal(size=(4, 4)), np.array([2, 0, 2])
    given = [jnp.asarray(x, jnp.float32) for x in (q, k, weight)]
    fn = jitted(lambda q, k, w: (experts.task_contrast(q, k, w, jnp.asarray(task)), jax.grad(
        lambda q, k: experts.task_contrast(q, k, w, jnp.asarray(task)).sum(), argnums=(0, 1))(q, k)))  # fmt: skip
    found, (own, slow) = fn(*given)
    wanted = np.zeros(3)
    for ours, theirs in ((slice(0, 3), slice(3, 6)), (slice(3, 6), slice(0, 3))):
        for i in range(3):
            scores = q[ours][i] @ weight @ k[theirs].T
            left = [j for j in range(3) if j == i or task[j] != task[i]]
            wanted[i] -= 0.5 * np.log(softmax(scores[left])[left.index(i)])
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert np.abs(own).max() > 1e-3 and not np.asarray(slow).any()  # the slow gate has no gradient


@functools.cache
def model():
    sizes = dict(width=8, layers=1, context=4, token_experts=3, task_experts=4, chosen=2)
    return make_expert_transformer((3,), tanh_gaussian(-UNIT, UNIT), lambda a: a, 2, **sizes)


@functools.cache
def applied():
    return jitted(model().apply)


def test_acting_step_by_step_reads_what_training_reads():
    rng, params = np.random.default_rng(4), model().init(jax.random.key(0))
    rewards = jnp.asarray(rng.normal(size=(2, 4)), jnp.float32)
    seen = jnp.asarray(rng.normal(size=(2, 4, 3)), jnp.float32)
    policy = in_context_runs.acting(model()._replace(apply=applied()), params)
    steps, outputs = empty(model(), 2, (3,)), []
    memory = in_context_runs.Memory(steps, jnp.full(2, 7.0))  # what an episode before this one left
    for t in range(4):
        length, returned = jnp.full(2, t, jnp.int32), jnp.sum(rewards[:, :t], axis=1)
        now = types.SimpleNamespace(
            memory=memory, observation=seen[:, t], episode_length=length, episode_return=returned
        )
        out, memory = policy(now)
        outputs.append(out)
    mask = jnp.ones((2, 4), bool)
    time = jnp.tile(jnp.arange(4, dtype=jnp.int32), (2, 1))
    whole = Sequence(in_context.rewards_before(rewards, mask), seen, memory.steps.actions, time, mask)
    expected = applied()(params, whole, params["gate"]).outputs
    np.testing.assert_allclose(jnp.stack(outputs, axis=1), expected, atol=1e-4)
    np.testing.assert_array_equal(memory.steps.actions[:, -1], model().distribution.mode(outputs[-1]))


def test_a_token_sees_what_was_before_it_and_both_mixtures_are_read():
    rng, params = np.random.default_rng(2), model().init(jax.random.key(0))
    mask = np.ones((2, 4), bool)
    mask[1, :2] = False
    steps = Sequence(
        *(jnp.asarray(rng.normal(size=(2, 4, *s)), jnp.float32) for s in ((), (3,), (2,))),
        jnp.tile(jnp.arange(4, dtype=jnp.int32), (2, 1)),
        jnp.asarray(mask),
    )
    apply = applied()
    first = apply(params, steps, params["gate"])
    later = steps._replace(to_go=steps.to_go.at[:, 3].add(1.0), actions=steps.actions.at[:, 2].add(1.0))
    moved = apply(params, later, params["gate"])
    np.testing.assert_allclose(moved.outputs[:, :3], first.outputs[:, :3], atol=1e-5)
    assert np.abs(moved.outputs[:, 3] - first.outputs[:, 3]).max() > 1e-3
    hidden = steps._replace(observations=steps.observations.at[1, 0].add(1.0))
    for ours, theirs in zip(apply(params, hidden, params["gate"])[1:], first[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)  # what is masked counts in no gate
    np.testing.assert_allclose(first.queries, first.keys, atol=1e-6)
    np.testing.assert_allclose(first.queries.sum(1), 1.0, atol=1e-5)
    for name in ("token_up", "task_up"):
        own = params["sequence"] | {name: jnp.zeros_like(params["sequence"][name])}
        assert np.abs(apply(params | {"sequence": own}, steps, params["gate"]).outputs - first.outputs).max() > 1e-3


def test_a_batch_has_two_windows_of_each_task_and_the_loss_adds_up():
    rng = np.random.default_rng(3)
    task = np.repeat(np.arange(3.0), 8).reshape(3, 8)
    done = np.tile(np.arange(8) % 4 == 3, (3, 1))
    number = np.tile(np.arange(8.0), (3, 1))
    seen = np.stack([task, number, rng.normal(size=(3, 8))], axis=2)
    rows = Transitions(seen, rng.uniform(-1, 1, (3, 8, 2)), number + 10 * task, seen, done, np.zeros_like(done))
    rows = jax.tree.map(lambda x: jnp.asarray(x, None if x.dtype == bool else jnp.float32), rows)
    best = jnp.asarray(rng.uniform(-1, 1, (3, 8, 2)), jnp.float32)

    @jitted
    def losses(params, key):
        data = jax.vmap(lambda own: make_data(own, discount=1.0))(rows)
        tasks = in_context.InContext(data, best, jnp.ones((3, 8), bool), jnp.arange(3))
        found = in_context.sample_pairs(tasks, key, 12, context=4)
        batch = Batch(found, {"gate": params["gate"]}, key)
        each = [t2mir(model(), even_coef=e, task_coef=t).loss(params, batch) for e, t in ((0.0, 0.0), (0.5, 2.0))]
        return found, [(whole.value(), {k: m.value() for k, m in metrics.items()}) for whole, metrics in each]

    given = model().init(jax.random.key(0)), jax.random.key(1)
    found, ((plain, metrics), (whole, _)) = jax.device_get(losses(*given))
    assert plain == pytest.approx(metrics["loss/action"], rel=1e-5)
    assert whole == pytest.approx(plain + 0.5 * metrics["loss/uneven"] + 2.0 * metrics["loss/tasks"], rel=1e-5)
    chosen, mask = np.asarray(found.data.steps.observations), np.asarray(found.mask)
    np.testing.assert_array_equal(chosen[:, -1, 0], np.tile(found.task, 2))
    for b, t in np.argwhere(mask):
        k, n = int(chosen[b, t, 0]), int(chosen[b, t, 1])
        np.testing.assert_array_equal(found.best[b, t], best[k, n])
        assert n // 4 == chosen[b, -1, 1] // 4  # one episode
    np.testing.assert_array_equal(mask.sum(1), chosen[:, -1, 1] % 4 + 1)
    before = in_context.rewards_before(found.data.steps.rewards, found.mask)
    np.testing.assert_allclose(before[:, 1:], np.where(mask[:, :-1], np.asarray(found.data.steps.rewards)[:, :-1], 0.0))
    assert not np.asarray(before[:, 0]).any()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="experts.chosen=3 must be from 1 to below 3"):
        make_expert_transformer((3,), tanh_gaussian(-UNIT, UNIT), None, 2, token_experts=3, chosen=3)
    with pytest.raises(ValueError, match="must be even and divide"):
        make_expert_transformer((3,), tanh_gaussian(-UNIT, UNIT), None, 2, width=9, heads=3)
    config = configs.get_config("t2mir,smoke")
    config.eval.greedy = False
    with pytest.raises(ValueError, match="acts by its likeliest action"):
        in_context_runs.make_in_context_run(config)


@pytest.mark.slow
def test_a_run_of_two_tasks():
    config = configs.get_config("t2mir,smoke")
    config.continual["values"] = ((0.8, 0.0), (-0.8, 0.0))
    config.dataset.update(num_envs=3, num_steps=5, returns=(-30.0, 0.0))
    config.eval.update(num_episodes=2, max_steps=3)
    config.train.update(batch_size=4, total_steps=4 * 4)
    init, advance, _ = in_context_runs.make_in_context_run(config)
    first = jax.jit(lambda key: init(key, {}), compiler_options=QUICK)(jax.random.key(0))
    after, metrics = jax.jit(lambda state: advance(state, {}, 4), compiler_options=QUICK)(first)
    assert all(np.isfinite(x) for x in metrics.values()) and metrics["eval/task_0"] != metrics["eval/task_1"]
    for name in ("sequence", "gate", "contrast"):
        assert (ravel(first.train.params[name]) != ravel(after.train.params[name])).any(), name
    old, slow = (ravel(state.train.trackers["targets"]["gate"]) for state in (first, after))
    gap = np.abs(ravel(after.train.params["gate"]) - old).max()
    assert 0 < np.abs(slow - old).max() < 0.05 * gap  # the slow gate follows slowly
