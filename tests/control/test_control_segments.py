"""control/segments.py, tabular.py: against loops in numpy and torch, and what labels of either kind can teach."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from rl_jax import reward_model
from rl_jax.control import segments, tabular
from rl_jax.core.types import PreferenceBatch
from rl_jax.losses.preference import links, score_maps
from rl_jax.training.step import init_state

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def quick(fn, *args):
    return jax.jit(fn, compiler_options=QUICK)(*args)


def pairs_of(rows=5, length=6, seed=0):
    """(float32 [n, 2, K] with nan behind the mask, a PreferenceBatch of ragged segments)."""
    rng = np.random.default_rng(seed)
    mask = np.arange(length) < rng.integers(1, length + 1, size=(rows, 2, 1))
    x = np.where(mask, rng.normal(size=mask.shape), np.nan).astype(np.float32)
    present, places = jnp.ones((rows, 2), bool), jnp.broadcast_to(jnp.array([1.0, 0.0]), (rows, 2))
    return x, PreferenceBatch((), jnp.asarray(mask), present, places)


def torch_sums(x, batch, discount):
    """(a leaf that requires gradients, its sums [n, 2])."""
    leaf = torch.tensor(np.nan_to_num(x), dtype=torch.float64, requires_grad=True)
    weights = torch.tensor(np.asarray(batch.completion_mask)) * discount ** torch.arange(x.shape[2])
    return leaf, (leaf * weights).sum(-1)


# --- Segments ---------------------------------------------------------------------------------------------------------


def test_segments_end_with_their_episode():
    rng = np.random.default_rng(1)
    done, x = rng.random((3, 11)) < 0.25, rng.normal(size=(3, 11, 2)).astype(np.float32)
    (found,), mask = segments.cut((jnp.asarray(x),), jnp.asarray(done), length=4)
    assert found.shape == (6, 4, 2) and mask.shape == (6, 4)
    for row, part in itertools.product(range(3), range(2)):
        np.testing.assert_array_equal(found[2 * row + part], x[row, 4 * part : 4 * part + 4])
        alive = True
        for step in range(4):
            assert bool(mask[2 * row + part, step]) == alive
            alive = alive and not done[row, 4 * part + step]
    with pytest.raises(ValueError, match="segments of 12 steps cannot be cut from rows of 11"):
        segments.cut((jnp.asarray(x),), jnp.asarray(done), length=12)


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_segment_sums(discount):
    x, batch = pairs_of()
    expected = [
        [sum(discount**t * v for t, v in enumerate(side) if np.isfinite(v)) for side in pair] for pair in x
    ]
    found = segments.segment_sums(jnp.asarray(x), batch.completion_mask, discount=discount)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_annotators_probabilities():
    f = jnp.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    right = 1 / (1 + math.exp(-3.0))
    np.testing.assert_allclose(segments.preference_probs(f, beta=3.0), [right, 1 - right, 0.5], rtol=1e-6)
    noisy = 0.9 * right + 0.1 * (1 - right)
    found = segments.preference_probs(f, beta=3.0, flip_rate=0.1)
    np.testing.assert_allclose(found, [noisy, 1 - noisy, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(segments.preference_probs(f, beta=math.inf), [1.0, 0.0, 0.5])
    for wrong in (dict(beta=-1.0), dict(flip_rate=1.5), dict(beta=math.nan)):
        with pytest.raises(ValueError, match="must not be negative"):
            segments.preference_probs(f, **wrong)


def test_pairs_are_drawn_evenly_and_ordered_by_the_annotator():
    f = jnp.array([0.0, 1.0, 0.5])
    pairs = np.asarray(segments.labelled_pairs(jax.random.key(0), f, count=12_000, beta=2.0))
    assert (pairs[:, 0] != pairs[:, 1]).all()
    for i, j in itertools.combinations(range(3), 2):
        ahead, behind = ((pairs == [a, b]).all(1).mean() for a, b in ((i, j), (j, i)))
        assert abs(ahead + behind - 1 / 3) < 0.02
        expected = 1 / (1 + math.exp(-2.0 * float(f[i] - f[j])))
        assert abs(ahead / (ahead + behind) - expected) < 0.03
    with pytest.raises(ValueError, match="1 segment is no pair"):
        segments.labelled_pairs(jax.random.key(0), f[:1], count=4)


# --- Losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_the_reward_loss_is_torchs_cross_entropy_of_the_sums(discount):
    members = [pairs_of(seed=seed)[0] for seed in (0, 0)]
    batch = pairs_of()[1]
    members[1] = 0.3 * members[1] + 0.1
    x = jnp.stack([jnp.asarray(m) for m in members], axis=-1)
    objective = reward_model.Objective(members=2)

    def loss(x):
        return segments.reward_loss(x, batch, objective, discount=discount)[0].value()

    expected, gradients = 0.0, []
    for member in members:
        leaf, sums = torch_sums(member, batch, discount)
        term = torch.nn.functional.binary_cross_entropy_with_logits(
            sums[:, 0] - sums[:, 1], torch.ones(len(sums), dtype=torch.float64)
        )
        (term / 2).backward()
        expected, gradients = expected + float(term.detach()) / 2, [*gradients, leaf.grad.numpy()]
    np.testing.assert_allclose(loss(x), expected, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(loss)(x), np.stack(gradients, -1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("bias", "discount", "cloning"), [(0.5, 1.0, 0.0), (1.0, 0.9, 0.0), (0.7, 0.9, 0.6)])
def test_cpl_is_the_published_loss(bias, discount, cloning):
    """log(1 + exp(-(alpha (S_w - lambda S_l)))) of the published biased_bce_with_logits, and c times the cloning."""
    x, batch = pairs_of()
    alpha = 0.3
    objective = segments.CPL._replace(
        beta=alpha,
        token_weight=functools.partial(score_maps.discounted, discount=discount),
        score_map=functools.partial(score_maps.biased, bias=bias),
        regularizer_coef=cloning,
    )

    def loss(x):
        return segments.policy_loss(x, batch, objective)[0].value()

    leaf, sums = torch_sums(x, batch, discount)
    logits = alpha * sums[:, 0] - bias * alpha * sums[:, 1]
    mask = torch.tensor(np.asarray(batch.completion_mask))
    clone = (-(leaf * mask).sum(-1) / mask.sum(-1)).mean()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits)) + cloning * clone
    expected.backward()
    np.testing.assert_allclose(loss(jnp.asarray(x)), float(expected.detach()), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(x)), leaf.grad.numpy(), rtol=1e-4, atol=1e-6)
    cloned = segments.cloning_loss(jnp.asarray(x), batch)[0].value()
    np.testing.assert_allclose(cloned, float(clone.detach()), rtol=1e-5)


def test_the_published_settings():
    assert segments.CPL.beta == 0.1 and segments.CPL.score_map.keywords == {"bias": 0.5}
    assert not segments.CPL.reference and not segments.CPL.regularizer_coef


def test_discounted_counts_the_places_of_the_mask():
    mask = jnp.array([[[True, True, False, True]], [[False, True, True, False]]])
    found = np.asarray(score_maps.discounted(mask, discount=0.5))
    np.testing.assert_allclose(found[0, 0][[0, 1, 3]], [1.0, 0.5, 0.25])
    np.testing.assert_allclose(found[1, 0][[1, 2]], [1.0, 0.5])


# --- Finite MDPs ------------------------------------------------------------------------------------------------------


def random_mdp(states=4, actions=3, seed=0):
    """(rewards [S, A], transition_probs [S, A, S]); a tenth of the probability ends the episode."""
    rng = np.random.default_rng(seed)
    probs = 0.9 * rng.dirichlet(0.5 * np.ones(states), size=(states, actions))
    return rng.normal(size=(states, actions)).astype(np.float32), probs.astype(np.float32)


def test_solve_finds_the_best_of_all_policies():
    rewards, probs = random_mdp(3, 2)
    best = np.full(3, -np.inf)
    for choice in itertools.product(range(2), repeat=3):
        taken = np.arange(3), np.array(choice)
        best = np.maximum(best, np.linalg.solve(np.eye(3) - 0.9 * probs[taken], rewards[taken]))
    q, v = tabular.solve(jnp.asarray(rewards), jnp.asarray(probs), discount=0.9, iterations=100)
    np.testing.assert_allclose(v, best, rtol=1e-5)
    np.testing.assert_allclose(q, rewards + 0.9 * probs @ best, rtol=1e-5, atol=1e-5)


def test_the_soft_solution_is_a_policy_and_its_gradient_is_right():
    rewards, probs = (jnp.asarray(x) for x in random_mdp())
    options = dict(discount=0.9, temperature=0.5, iterations=150)
    advantages = tabular.advantages(rewards, probs, **options)
    np.testing.assert_allclose(jnp.sum(jnp.exp(advantages / 0.5), axis=1), 1.0, rtol=1e-5)
    _, v = tabular.solve(rewards, probs, **options)
    np.testing.assert_allclose(advantages + v[:, None] @ jnp.ones((1, 3)), rewards + 0.9 * probs @ v, atol=1e-5)
    slope = jax.grad(lambda r: tabular.solve(r, probs, **options)[1][0])(rewards)
    step = jnp.zeros_like(rewards).at[2, 1].set(1e-2)
    up, down = (tabular.solve(rewards + sign * step, probs, **options)[1][0] for sign in (1, -1))
    np.testing.assert_allclose(slope[2, 1], (up - down) / 2e-2, rtol=2e-2, atol=1e-3)


def test_regret_is_the_partial_return_but_for_the_ends():
    """Deterministic: sum_t gamma^t A_t = sum_t gamma^t r_t + gamma^K V(s_K) - V(s_0) (2206.02231, regret_d)."""
    rng = np.random.default_rng(0)
    following = rng.integers(0, 4, size=(4, 3))
    rewards = rng.normal(size=(4, 3)).astype(np.float32)
    probs = jnp.asarray(np.eye(4, dtype=np.float32)[following])
    advantages = tabular.advantages(jnp.asarray(rewards), probs, discount=0.9, iterations=200)
    _, v = tabular.solve(jnp.asarray(rewards), probs, discount=0.9, iterations=200)
    at, chosen = all_segments(4, 3, 3, following)
    mask = jnp.ones(at.shape, bool)
    returns = segments.segment_sums(jnp.asarray(rewards[at, chosen]), mask, discount=0.9)
    minus_regrets = segments.segment_sums(advantages[at, chosen], mask, discount=0.9)
    ends = np.asarray(v)[following[at[:, -1], chosen[:, -1]]]
    np.testing.assert_allclose(minus_regrets, returns + 0.9**3 * ends - np.asarray(v)[at[:, 0]], atol=1e-5)
    assert (np.asarray(minus_regrets) < 1e-5).all()


def all_segments(states, actions, length, following):
    """Every walk of a deterministic MDP: (states, actions), int [N, K] each."""
    walks = []
    for first, chosen in itertools.product(range(states), itertools.product(range(actions), repeat=length)):
        at = [first]
        for action in chosen[:-1]:
            at.append(int(following[at[-1], action]))
        walks.append((at, chosen))
    return tuple(np.array(x) for x in zip(*walks, strict=True))


def cpl_policy(advantages, rewards, following, alpha, label):
    """The tabular policy that CPL finds from soft labels of all pairs of walks of 2 steps. label: "regret" or not."""
    at, chosen = all_segments(*rewards.shape, 2, following)
    judged = jnp.asarray((advantages if label == "regret" else rewards)[at, chosen])
    mask = jnp.ones(at.shape, bool)
    f = segments.segment_sums(judged, mask)
    pairs = np.array(list(itertools.combinations(range(len(at)), 2)))
    data = segments.SegmentPairs((jnp.asarray(at), jnp.asarray(chosen)), mask, jnp.asarray(pairs))
    batch = segments.pair_batch(data, jnp.arange(len(pairs)))
    batch = batch._replace(extras={"label_probs": segments.preference_probs(f[pairs])})
    objective = segments.CPL._replace(
        beta=alpha, score_map=functools.partial(score_maps.biased, bias=1.0), link=links.soft_label
    )

    def loss(logits):
        log_probs = jax.nn.log_softmax(logits)[batch.batch]
        return segments.policy_loss(log_probs, batch, objective)[0].value()

    optimizer = optax.adam(0.1)

    def turn(carry, _):
        logits, state = carry
        updates, state = optimizer.update(jax.grad(loss)(logits), state)
        return (optax.apply_updates(logits, updates), state), None

    logits = jnp.zeros(rewards.shape)
    (logits, _), _ = quick(lambda c: jax.lax.scan(turn, c, None, 800), (logits, optimizer.init(logits)))
    return np.asarray(jax.nn.softmax(logits)), loss


def test_cpl_recovers_the_optimal_policy_of_a_finite_mdp():
    """Labels by the regret of the soft optimum: the least loss is at pi = exp(A / alpha), to the digit."""
    alpha, rng = 0.5, np.random.default_rng(7)
    following = rng.integers(0, 3, size=(3, 2))
    rewards = rng.normal(size=(3, 2)).astype(np.float32)
    probs = jnp.asarray(0.9 * np.eye(3, dtype=np.float32)[following])
    advantages = np.asarray(tabular.advantages(jnp.asarray(rewards), probs, discount=0.9, temperature=alpha))
    best = np.exp(advantages / alpha)
    found, loss = cpl_policy(advantages, rewards, following, alpha, "regret")
    np.testing.assert_allclose(found, best, atol=1e-4)
    assert np.abs(jax.grad(loss)(jnp.log(best))).max() < 1e-5
    other, _ = cpl_policy(advantages, rewards, following, alpha, "partial return")
    assert np.abs(other - best).max() > 0.3  # partial returns are no advantages


def lottery(chance):
    """State 0: a sure 0.4 (by state 3), or a lottery of 1 (state 1) and 0 (state 2). -> (rewards, transition_probs)."""
    probs = jnp.zeros((4, 2, 4)).at[0, 0, 3].set(1.0).at[0, 1, 1].set(chance).at[0, 1, 2].set(1.0 - chance)
    return jnp.zeros((4, 2)).at[1].set(1.0).at[3].set(0.4), probs


def learned_choice(chance, model):
    """The action that is best in state 0 by a reward that was learned from errorless labels of that model."""
    rewards, probs = lottery(chance)
    at = np.array([[0, 1], [0, 1], [0, 2], [0, 2], [0, 3], [0, 3]])  # the walks: won, lost, sure; then either action
    chosen = np.array([[1, 0], [1, 1], [1, 0], [1, 1], [0, 0], [0, 1]])
    options = dict(discount=1.0, temperature=0.02, iterations=3)
    judged = rewards if model == "partial" else tabular.advantages(rewards, probs, discount=1.0, iterations=3)
    mask = jnp.ones(at.shape, bool)
    f = segments.segment_sums(judged[at, chosen], mask)
    pairs = segments.labelled_pairs(jax.random.key(0), f, count=400, beta=math.inf)
    data = segments.SegmentPairs((jnp.asarray(at), jnp.asarray(chosen)), mask, pairs)

    def loss_fn(params, batch):
        known = params if model == "partial" else tabular.advantages(params, probs, **options)
        return segments.reward_loss(known[batch.batch][..., None], batch, reward_model.Objective())

    optimizer = optax.adam(0.02)
    fit = segments.make_fit(loss_fn, optimizer, batch_size=64)
    state, _ = fit(init_state(jnp.zeros(rewards.shape), optimizer, jax.random.key(1)), data, 150)
    return jnp.argmax(tabular.solve(state.params, probs, **options)[0][0])


def test_partial_returns_cannot_tell_a_good_lottery_from_a_bad_one():
    """2206.02231: errorless partial returns rank won > sure > lost whatever the odds; regret knows them."""
    odds, right = jnp.array([0.45, 0.2]), [1, 0]
    choices = {
        model: quick(jax.vmap(functools.partial(learned_choice, model=model)), odds).tolist()
        for model in ("regret", "partial")
    }
    assert choices["regret"] == right and choices["partial"] != right, choices
