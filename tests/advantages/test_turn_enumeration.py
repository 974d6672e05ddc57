"""Credit over turns against the exact gradient: every group of episodes of a small tree, weighed by its probability.

The table of docs/pages/turn_credit.md is what these expectations are; `python -m
tests.advantages.test_turn_enumeration` prints it.
"""

import functools
import itertools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.advantages import turn_critics, turn_shaping, turn_states, turn_trees, turns
from tests.paths import REPO_ROOT

STOP, LEFT, RIGHT = range(3)
TURNS, ACTIONS = 3, 3
# State -> state after going left and right. Left and right, and right and left, lead to the same state 4.
NEXT = {0: (1, 2), 1: (3, 4), 2: (4, 5)}
RNG = np.random.default_rng(4)
LOGITS = RNG.normal(size=(6, ACTIONS)).astype(np.float32)
REWARD = RNG.uniform(-1, 1, size=(6, ACTIONS)).round(2)
GROUP = 3


class Walk(NamedTuple):
    """One episode: states and actions of its turns, and their rewards."""

    states: tuple
    actions: tuple
    rewards: tuple


def walks(state=0, turn=0):
    """All episodes from a state: stopping ends one, and so does the last turn."""
    for action in range(ACTIONS):
        head = Walk((state,), (action,), (REWARD[state, action],))
        if action == STOP or turn == TURNS - 1:
            yield head
        else:
            for tail in walks(NEXT[state][action - 1], turn + 1):
                yield Walk(*(a + b for a, b in zip(head, tail, strict=True)))


# Going on is free and each turn that is reached earns .1, whatever is done there: all that pays is to go on.
CHAIN = [Walk(tuple(range(n + 1)), (1,) * n + (0,), (0.0,) + (0.1,) * n) for n in range(3)]
CHAIN += [Walk((0, 1, 2), (1, 1, 1), (0.0, 0.1, 0.1))]


@functools.cache
def world(name):
    """(episodes, logits)."""
    if name == "chain":
        return CHAIN, np.zeros((3, 2), np.float32)
    return list(walks()), LOGITS


def probability(logits, walk):
    steps = jax.nn.log_softmax(logits)[np.array(walk.states), np.array(walk.actions)]
    return jnp.exp(jnp.sum(steps))


@functools.cache
def gradient(name):
    """jax.grad of the expected return, by enumeration."""
    episodes, logits = world(name)
    value = lambda x: sum(probability(x, walk) * float(sum(walk.rewards)) for walk in episodes)  # noqa: E731
    return np.asarray(jax.jit(jax.grad(value))(logits))


def scores(logits):
    """d log pi(action) / d logits: [state, action, state, action]."""
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    states, actions = logits.shape
    out = np.zeros((states, actions, states, actions))
    for s in range(states):
        out[s, :, s, :] = np.eye(actions) - probs[s]
    return out


@functools.cache
def groups(name):
    """(arrays of all groups, weight of each row, actions): one token a turn, then an observation."""
    episodes, logits = world(name)
    chance = np.array([float(probability(logits, walk)) for walk in episodes])
    np.testing.assert_allclose(chance.sum(), 1.0, rtol=1e-5)
    picks = np.array(list(itertools.product(range(len(episodes)), repeat=GROUP)))
    weight = np.repeat(np.prod(chance[picks], axis=1), GROUP) / GROUP
    rows = picks.reshape(-1)
    width = 2 * TURNS
    table = {
        "turns": np.full((len(episodes), width), -1, np.int32),
        "state_keys": np.full((len(episodes), width), -1, np.int32),
        "turn_rewards": np.zeros((len(episodes), width), np.float32),
    }
    actions = np.zeros((len(episodes), width), int)
    for i, walk in enumerate(episodes):
        for j in range(len(walk.states)):
            table["turns"][i, 2 * j], table["state_keys"][i, 2 * j] = j, walk.states[j]
            table["turn_rewards"][i, 2 * j], actions[i, 2 * j] = walk.rewards[j], walk.actions[j]
    # The branches of rows that share nothing, and calls: every turn that goes on.
    given = {key: x[rows] for key, x in table.items()}
    given["rewards"] = given["turn_rewards"].sum(axis=1)
    last = given["turns"] == given["turns"].max(axis=1, keepdims=True)
    given["turn_calls"] = ((given["turns"] >= 0) & ~last).astype(np.float32)
    given["turn_patched"] = np.zeros_like(given["turn_rewards"])
    given["state_values"] = np.where(given["turns"] >= 0, values(name)[given["state_keys"]], 0).astype(np.float32)
    q = np.where(given["turns"] >= 0, q_values(name)[given["state_keys"], actions[rows]], 0).astype(np.float32)
    given["q_values"] = np.stack([q, q + 1.0])
    given["branches"] = np.where(given["turns"] >= 0, np.arange(len(rows))[:, None] * TURNS + given["turns"], -1)
    given["branches"] = given["branches"].astype(np.int32)
    return given, weight, actions[rows]


@functools.cache
def q_values(name):
    """Q(s, a) exactly, [states, actions]: the tree by turns, so a state's turn is its depth."""
    episodes, logits = world(name)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    q = np.full(logits.shape, np.nan)
    for state in reversed(range(logits.shape[0])):
        for action in range(logits.shape[1]):
            for walk in episodes:
                at = [j for j in range(len(walk.states)) if (walk.states[j], walk.actions[j]) == (state, action)]
                if at:
                    after = walk.states[at[0] + 1] if at[0] + 1 < len(walk.states) else None
                    reward = walk.rewards[at[0]]
                    q[state, action] = reward + (0.0 if after is None else np.sum(probs[after] * q[after]))
                    break
    return q


def values(name):
    logits = world(name)[1]
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return np.sum(probs * q_values(name), axis=1)


@functools.cache
def expected(name, world_name="tree"):
    """(mean, noise) of an estimator of the table."""
    fn, settings = (UNBIASED | BIASED)[name]
    return expectation(fn, world_name, **settings)


def expectation(fn, name, **settings):
    """E[sum over the tokens of A grad log pi], exactly, over all groups."""
    given, weight, actions = groups(name)
    taken = {key: given[key] for key in ("rewards", "turns", "turn_rewards", *ASKED.get(fn, ()))}
    found = np.asarray(jax.jit(functools.partial(fn, group_size=GROUP, **settings))(**taken), np.float64)
    return _with_noise(found, weight, given["turns"], given["state_keys"], actions, world(name)[1], GROUP)


def _summed(found, weight, number, states, actions, logits):
    return _with_noise(found, weight, number, states, actions, logits, GROUP)[0]


def _with_noise(found, weight, number, states, actions, logits, size):
    """(mean, standard deviation in all directions) of a group's gradient estimate, mean over its rows."""
    on = number >= 0
    table = scores(logits).reshape(*logits.shape, -1)[np.where(on, states, 0), actions]
    of_rows = np.einsum("rt,rtk->rk", np.where(on, found, 0.0), table)
    of_groups = of_rows.reshape(-1, size, logits.size).mean(axis=1)
    chance = weight.reshape(-1, size)[:, 0] * size
    mean = chance @ of_groups
    return mean.reshape(logits.shape), np.sqrt(chance @ np.sum((of_groups - mean) ** 2, axis=1))


def archer(rewards, *, state_values, **given):
    """Two critics, one of them 1 too high: the lower one counts."""
    return turn_critics.archer(rewards, state_values=jnp.stack([state_values, state_values + 1.0]), **given)


ASKED = {
    turn_states.gigpo: ("state_keys",),
    turn_states.state_return_loo: ("state_keys",),
    turn_states.semi_online: ("turn_patched",),
    turn_shaping.aspo: ("turn_calls",),
    turn_trees.arpo: ("branches",),
    turn_trees.tree_grpo: ("branches",),
    turn_trees.branch_return_loo: ("branches",),
    turn_critics.vine: ("state_values",),
    archer: ("state_values", "q_values"),
}
UNBIASED = {
    "turn_return_loo": (turns.turn_return_loo, {}),
    "loop": (turns.loop, {}),
    "state_return_loo": (turn_states.state_return_loo, {}),
    "branch_return_loo": (turn_trees.branch_return_loo, {}),
    "vine (true values)": (turn_critics.vine, {}),
    "archer (true Q)": (archer, {}),
}
BIASED = {
    "trajectory, no std": (turns.trajectory, {"use_std": False}),
    "trajectory": (turns.trajectory, {}),
    "turn_grpo": (turns.turn_grpo, {}),
    "mt_grpo": (turns.mt_grpo, {}),
    "gigpo": (turn_states.gigpo, {}),
    "gigpo, no std": (turn_states.gigpo, {"use_std": False, "discount": 1.0}),
    "semi_online": (turn_states.semi_online, {}),
    "transitions": (turn_states.transitions, {}),
    "igpo": (turn_states.igpo, {}),
    "aspo": (turn_shaping.aspo, {"correct_above": 0.0}),
    "arpo": (turn_trees.arpo, {}),
    "tree_grpo": (turn_trees.tree_grpo, {}),
}


def test_the_default_has_the_gradient_as_its_mean():
    np.testing.assert_allclose(expected("turn_return_loo", "chain")[0], gradient("chain"), rtol=1e-4, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_estimators_have_the_gradient_as_their_mean(name):
    np.testing.assert_allclose(expected(name)[0], gradient("tree"), rtol=1e-4, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", BIASED)
def test_documented_biases_are_there(name):
    """The difference is more than a scale, apart from the mean that includes the own row."""
    found, true = expected(name)[0], gradient("tree")
    assert np.abs(found - true).max() > 0.01
    if name == "trajectory, no std":
        np.testing.assert_allclose(found, true * (GROUP - 1) / GROUP, rtol=1e-4, atol=2e-6)


def test_turn_grpo_cannot_see_that_going_on_pays():
    """Each turn reached earns .1 for all that are alive: no turn's rewards differ, and the true gradient is not 0."""
    assert np.abs(gradient("chain")).max() > 0.02
    np.testing.assert_array_equal(expected("turn_grpo", "chain")[0], 0)


# --- A critic's credit -----------------------------------------------------------------------------------------------


def critic_expectation(fn, critic, **settings):
    given, weight, actions = groups("tree")
    own = np.where(given["turns"] >= 0, critic[given["state_keys"]], 0).astype(np.float32)
    mask = given["turns"] >= 0
    zeros = np.zeros(len(own), np.float32)
    run = jax.jit(functools.partial(fn, **settings))
    found, _ = run(given["turn_rewards"], own, mask, bootstrap_values=zeros, turns=given["turns"])
    return _summed(np.asarray(found, np.float64), weight, given["turns"], given["state_keys"], actions, LOGITS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "critic, lam, unbiased", [("true", 0.0, True), ("wrong", 1.0, True), ("wrong", 0.5, False)], ids=str
)
def test_gae_over_turns_is_unbiased_with_true_values_or_lambda_one(critic, lam, unbiased):
    guess = values("tree") if critic == "true" else np.linspace(-1, 1, 6)
    found = critic_expectation(turn_critics.turn_gae, guess, discount=1.0, lam=lam)
    error = np.abs(found - gradient("tree")).max()
    assert error < 2e-6 if unbiased else error > 0.01


@pytest.mark.slow
def test_bilevel_gae_is_biased_where_turns_are_discounted():
    """With one token a turn it is GAE over turns: the paper's discount .95 moves it, 1 does not."""
    guess = values("tree")
    exact = critic_expectation(turn_critics.bilevel_gae, guess, turn_discount=1.0)
    np.testing.assert_allclose(exact, gradient("tree"), rtol=1e-4, atol=2e-6)
    assert np.abs(critic_expectation(turn_critics.bilevel_gae, guess) - exact).max() > 0.001


# --- Branches --------------------------------------------------------------------------------------------------------


@functools.cache
def forests():
    """All groups of 2 x 2 rows of a tree of two turns: two draws first, two after each. (arrays, weights, actions)."""
    logits = LOGITS[:4]
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows, weight, actions, branches = [], [], [], []
    draws = range(ACTIONS)
    for first in itertools.product(draws, repeat=2):
        for second in itertools.product(draws, repeat=4):
            leaf = [1 + first[k // 2] for k in range(4)]
            chance = np.prod(probs[0, list(first)]) * np.prod([probs[leaf[k], second[k]] for k in range(4)])
            for k in range(4):
                rows.append((0, leaf[k]))
                actions.append((first[k // 2], second[k]))
                branches.append((k // 2, 2 + k))
                weight.append(chance / 4)
    states, actions = np.array(rows), np.array(actions)
    rewards = REWARD[states, actions].astype(np.float32)
    number = np.broadcast_to(np.arange(2, dtype=np.int32), states.shape)
    given = {"rewards": rewards.sum(axis=1), "turns": number, "turn_rewards": rewards}
    return given | {"branches": np.array(branches, np.int32)}, np.array(weight), states, actions, logits


@functools.cache
def branching(fn, **settings):
    given, weight, states, actions, logits = forests()
    found = np.asarray(jax.jit(functools.partial(fn, group_size=4, **settings))(**given), np.float64)
    return _with_noise(found, weight, given["turns"], states, actions, logits, 4)


@functools.cache
def branching_gradient():
    logits = forests()[-1]

    def value(x):
        first = jax.nn.softmax(x[0])
        later = jnp.sum(jax.nn.softmax(x[1:]) * REWARD[1:4], axis=1)
        return jnp.sum(first * (REWARD[0] + later))

    return np.asarray(jax.grad(value)(logits))


@pytest.mark.slow
def test_siblings_give_the_gradient_and_the_published_ones_do_not():
    """Rows that share a prefix are not independent: leaving one row out does not help, leaving a branch out does."""
    true = branching_gradient()
    np.testing.assert_allclose(branching(turn_trees.branch_return_loo)[0], true, rtol=1e-4, atol=2e-6)
    for fn in (turn_trees.arpo, turn_trees.tree_grpo):
        assert np.abs(branching(fn)[0] - true).max() > 0.01
        assert np.abs(branching(fn, use_std=False)[0] - true).max() > 0.003
    soft = branching(lambda branches, **given: turns.trajectory(**given), use_std=False)[0]
    np.testing.assert_allclose(branching(turn_trees.arpo, use_std=False)[0], soft, rtol=1e-4, atol=2e-6)  # hard = soft


# --- The table of the docs -------------------------------------------------------------------------------------------


def row_of(name, estimate, true):
    found, noise = estimate
    cosine = np.sum(found * true) / np.linalg.norm(found) / np.linalg.norm(true)
    scale = np.linalg.norm(found) / np.linalg.norm(true)
    return f"| `{name}` | {np.abs(found - true).max():.3f} | {cosine:.3f} | {scale:.2f} | {noise / scale:.2f} |"


def table():
    heads = "| {} | largest error | cosine | length | noise |", "|---|---|---|---|---|"
    lines = [heads[0].format("independent rows"), heads[1]]
    lines += [row_of(name, expected(name), gradient("tree")) for name in UNBIASED | BIASED]
    lines += ["", heads[0].format("rows that branch"), heads[1]]
    for fn in (turn_trees.branch_return_loo, turn_trees.arpo, turn_trees.tree_grpo):
        lines.append(row_of(fn.__name__, branching(fn), branching_gradient()))
    return lines


@pytest.mark.slow
def test_the_table_of_the_docs_is_this_one():
    page = (REPO_ROOT / "docs/pages/turn_credit.md").read_text()
    for line in table():
        assert not line or line in page, f"docs/pages/turn_credit.md has no row {line!r}; print the table and put it in"
    assert len(page.splitlines()) <= 100
    named = set(re.findall(r"`(\w+)", page))
    assert {fn.__name__ for fn, _ in (UNBIASED | BIASED).values()} <= named


if __name__ == "__main__":
    print("\n".join(table()))
