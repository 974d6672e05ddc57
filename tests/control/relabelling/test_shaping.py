"""relabelling/shaping.py, terms.py, machines.py and core/ltl.py: against sums by hand, exact optima and enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import relabelling, tabular
from rl_jax.control.relabelling import machines, potentials, shaping, terms
from rl_jax.core import ltl
from rl_jax.envs.worlds import errands
from rl_jax.envs.worlds import tabular as worlds
from tests.control.relabelling.rows import TWO, random_rows, walk

GAMMA = 0.9
ROWS = random_rows()


def relabelled(relabel, rows=ROWS):
    state = relabel.begin(jax.random.key(0))
    return relabel.apply(state, rows)


def test_terms_are_a_weighted_sum():
    spec = dict(near=dict(fn="feature", index=1), left=dict(fn="action_is", action=0))
    made = relabelling.by_terms(distribution=TWO, terms_of=spec, weights=dict(near=2.0, left=-0.5), keep=0.1)
    expected = 0.1 * ROWS.rewards + 2.0 * ROWS.next_observations[..., 1] - 0.5 * (ROWS.actions == 0)
    np.testing.assert_allclose(relabelled(made)[1].rewards, expected, rtol=1e-6)
    signs = relabelling.by_terms(distribution=TWO, terms_of=spec, weights=dict(near=2.0, left=-0.5), signs=True)
    expected = 2.0 * np.sign(ROWS.next_observations[..., 1]) - 0.5 * (ROWS.actions == 0)
    np.testing.assert_allclose(relabelled(signs)[1].rewards, expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"terms_of has \['near'\], weights has \['far'\]"):
        relabelling.by_terms(distribution=TWO, terms_of=dict(near=dict(fn="own")), weights=dict(far=1.0))
    wrong = relabelling.by_terms(distribution=TWO, terms_of=dict(all=lambda_terms()), weights=dict(all=1.0))
    with pytest.raises(ValueError, match=r"all gives \(3, 8, 4\), but rewards are \(3, 8\)"):
        relabelled(wrong)


def lambda_terms():
    """A term of one's own, by its import path, that forgets to sum over the features."""
    return dict(fn="tests.control.relabelling.test_shaping:whole_observation")


def whole_observation(rows):
    return rows.next_observations


def test_the_norms_of_residual_terms():
    x, w = ROWS.next_observations[..., 2] - 0.3, 0.2
    expected = dict(quadratic=x**2 / 2, smooth_abs=np.sqrt(x**2 + w**2) - w, cosh=w**2 * (np.cosh(x / w) - 1))
    for norm, value in expected.items():
        found = terms.residual(ROWS, index=2, target=0.3, norm=norm, width=w)
        np.testing.assert_allclose(found, -value, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="norm='cubic' is none of quadratic"):
        terms.residual(ROWS, index=2, norm="cubic")


def test_the_distance_in_a_square_counts_rows_and_columns():
    rows = walk([0, 1, 4, 8, 7, 2], 9)  # after each step (0, 1), (1, 1), (2, 2), (2, 1), (0, 2)
    np.testing.assert_allclose(terms.grid_distance(rows, goal=8), [[-0.75, -0.5, 0.0, -0.25, -0.5]])
    with pytest.raises(ValueError, match="8 places are no square"):
        terms.grid_distance(walk([0, 1], 8), goal=7)


def test_a_goal_without_a_baseline_is_the_cosine():
    goal, baseline = np.array([1.0, 2.0, 0.0, -1.0]), np.array([0.0, 1.0, 1.0, 0.0])
    seen = ROWS.next_observations
    cosine = seen @ goal / np.linalg.norm(seen, axis=-1) / np.linalg.norm(goal)
    options = dict(goal=tuple(goal), baseline=tuple(baseline))
    np.testing.assert_allclose(terms.goal_baseline(ROWS, **options), cosine, atol=1e-5)
    at_goal = ROWS._replace(next_observations=np.broadcast_to(goal, seen.shape).astype(np.float32))
    for alpha in (0.0, 0.5, 1.0):
        np.testing.assert_allclose(terms.goal_baseline(at_goal, alpha=alpha, **options), 1.0, atol=1e-5)
    # alpha = 1 reads the part along the line only: what is orthogonal to it changes nothing.
    unit = [x / np.linalg.norm(x) for x in (goal, baseline, seen)]
    unit[2] = seen / np.linalg.norm(seen, axis=-1, keepdims=True)
    along = unit[0] - unit[1]
    share = (unit[2] - unit[1]) @ along / (along @ along)
    np.testing.assert_allclose(
        terms.goal_baseline(ROWS, alpha=1.0, **options), 1 - 0.5 * (1 - share) ** 2 * (along @ along), atol=1e-5
    )


def test_a_potential_telescopes_over_an_episode():
    """sum gamma^t (r'_t - r_t) = gamma^T Phi(s_T) - Phi(s_0), Phi(s_T) = 0 after a terminated end."""
    places, values = [2, 1, 3, 0, 4], np.array([0.3, -1.0, 0.7, 2.0, 5.0])
    for ended in (True, False):
        rows = walk(places, 5, ended=ended)
        made = relabelling.by_potential(discount=GAMMA, potential=dict(fn="table", values=tuple(values)))
        change = np.asarray(relabelled(made, rows)[1].rewards - rows.rewards)[0]
        total = np.sum(GAMMA ** np.arange(4) * change)
        last = 0.0 if ended else GAMMA**4 * values[4]
        np.testing.assert_allclose(total, last - values[2], rtol=1e-5)
    none = relabelling.by_potential(discount=GAMMA, potential=dict(fn="place"), scale=0.0)
    np.testing.assert_array_equal(relabelled(none)[1].rewards, ROWS.rewards)


def test_a_potential_keeps_the_best_policies_of_a_gridworld():
    """And a bonus Phi(s') that is no difference changes them."""
    table = worlds.gridworld(size=4, slip=0.1)
    phi = np.random.default_rng(0).normal(size=16)
    probs = jnp.asarray(table.transition_probs)
    after = probs @ phi  # the missing mass is the end, where Phi is 0
    best, _ = tabular.solve(jnp.asarray(table.rewards), probs, discount=GAMMA, iterations=400)
    shaped = shaping.shaped(table.rewards, *np.broadcast_arrays(phi[:, None], after), np.zeros((16, 4), bool), GAMMA)
    q, _ = tabular.solve(jnp.asarray(shaped), probs, discount=GAMMA, iterations=400)
    np.testing.assert_allclose(q + phi[:, None], best, atol=1e-3)
    bonus, _ = tabular.solve(jnp.asarray(table.rewards + after), probs, discount=GAMMA, iterations=400)
    assert (np.argmax(bonus, 1) != np.argmax(best, 1))[:15].any()


def test_potentials_by_hand():
    seen = np.array([[1.0, 2.0, 3.0]])
    np.testing.assert_allclose(potentials.linear(seen, weights=(1.0, -1.0)), [-1.0])
    np.testing.assert_allclose(potentials.place(np.eye(5)[[0, 2, 4]], scale=2.0), [0.0, 1.0, 2.0])
    np.testing.assert_allclose(potentials.closeness(seen, indices=(0, 2), target=(1.0, 1.0)), [np.exp(-2)], rtol=1e-6)


def value_of(table, actions):
    """The start's value of a deterministic policy int [S], by its Bellman equation."""
    states = np.arange(len(actions))
    probs, rewards = table.transition_probs[states, actions], table.rewards[states, actions]
    return float(table.start_probs @ np.linalg.solve(np.eye(len(states)) - GAMMA * probs, rewards))


def test_a_then_b_needs_the_machine():
    """Every memoryless policy of the places gets 0; with the machine's state the best gets gamma^(n - 1)."""
    length = 5
    table = errands.table(length=length)
    blind = [value_of(table, np.tile(policy, 2)) for policy in itertools.product((0, 1), repeat=length)]
    assert max(blind) == 0.0
    _, values = tabular.solve(jnp.asarray(table.rewards), jnp.asarray(table.transition_probs), discount=GAMMA)
    np.testing.assert_allclose(table.start_probs @ values, GAMMA ** (2 + 4 - 1), rtol=1e-5)


@pytest.mark.slow
def test_a_machine_pays_what_the_errand_is_worth():
    """Over a random walk in the environment, through ends of episodes; a machine that is not put back pays too soon."""
    env = errands.environment(length=5, shown=True)
    key, rng = jax.random.key(1), np.random.default_rng(0)
    step, rows, state = jax.jit(env.step), [], env.reset(key)
    for time in range(300):
        action = int(rng.random() < 0.5)
        inner, now = step(key, state[0], action)
        rows.append((state[1], now.observation, now.reward, now.terminated, now.truncated))
        state = env.reset(jax.random.fold_in(key, time)) if now.done else (inner, now.observation)
    before, after, rewards, terminated, truncated = (np.stack(x)[None] for x in zip(*rows, strict=True))
    rows = random_rows()._replace(
        observations=before, next_observations=after, rewards=rewards, terminated=terminated, truncated=truncated
    )
    assert rewards.sum() >= 2 and truncated.sum() >= 2
    spec = dict(fn="sequence", places=(0, 4), size=5)
    made = relabelling.by_machine(num_envs=1, machine=spec)
    state, found = relabelled(made, rows)
    np.testing.assert_array_equal(found.rewards, rewards)
    halves = [jax.tree.map(lambda x, s=s: x[:, s], rows) for s in (slice(0, 131), slice(131, None))]
    state, first = relabelled(made, halves[0])
    _, second = made.apply(state, halves[1])
    np.testing.assert_array_equal(np.concatenate([first.rewards, second.rewards], 1), rewards)
    once = machines.sequence(places=(0, 4), size=5)
    never = machines.run(once, np.zeros(1, int), once.labels(after), truncated & False)
    assert (np.asarray(never[1]) != rewards).any()
    task = dict(fn="formula", task="F (a & second)", parts=dict(second="F b"), places=dict(a=0, b=4), size=5)
    made = relabelling.by_machine(num_envs=1, machine=task)
    np.testing.assert_array_equal(relabelled(made, rows)[1].rewards, rewards)


def holds(f, trace, time=0):
    """Whether a formula of LTL on finite traces holds from `time` on: its definition. X needs a next letter."""
    kind, last = f[0], len(trace)
    if kind in ("true", "false"):
        return kind == "true"
    if kind == "name":
        return time < last and f[1] in trace[time]
    if kind == "!":
        return not holds(f[1], trace, time)
    if kind in ("&", "|"):
        return (all if kind == "&" else any)(holds(g, trace, time) for g in f[1])
    if kind == "X":
        return holds(f[1], trace, time + 1)
    if kind == "F":
        return any(holds(f[1], trace, i) for i in range(time, last))
    return any(holds(f[2], trace, i) and all(holds(f[1], trace, j) for j in range(time, i)) for i in range(time, last))


LETTERS = [frozenset("a"), frozenset("b"), frozenset()]


@pytest.mark.parametrize("text", ["F (a & F b)", "a U b", "!b U a & X F b", "F a & F b", "X (a | b)", "F (a & X b)"])
def test_a_formula_holds_when_its_machine_is_done(text):
    """Of co-safe formulas: accepted at the first prefix that decides them, for every trace of five letters."""
    parsed = ltl.parse(text)
    moves, accepting, failed = ltl.automaton(parsed, LETTERS)
    for trace in itertools.product(range(3), repeat=5):
        state = 0
        for count, letter in enumerate(trace):
            state = moves[state, letter]
            word = [LETTERS[i] for i in trace[: count + 1]]
            assert accepting[state] == holds(parsed, word), (text, word)
            assert not (failed[state] and holds(parsed, word))


def test_a_formula_that_cannot_hold_any_more_costs():
    made = machines.formula(task="F b & G !a", places=dict(a=0, b=2))
    walked = walk([1, 0, 1, 2], 3)
    _, paid = machines.run(made, np.zeros(1, int), made.labels(walked.next_observations), walked.terminated)
    np.testing.assert_array_equal(paid, [[-1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("text", "parts", "complaint"),
    [
        ("F (a", {}, "ends too early|closing bracket"),
        ("a b", {}, "goes on after"),
        ("F ", {}, "ends too early"),
        ("a & 3", {}, "'3' in"),
        ("x", dict(x="y", y="F x"), "'x' contains itself"),
        ("!" * 65 + "a", {}, "nested deeper than 64 in '!!!"),
        ("(" * 65 + "a" + ")" * 65, {}, "nested deeper than 64"),
        (" U ".join("a" * 66), {}, "nested deeper than 64"),
        ("p0", {f"p{i}": f"p{i + 1}" for i in range(400)}, "nested deeper than 64 in 'p65'"),
        ("p0", {f"p{i}": f"p{i + 1} & X p{i + 1}" for i in range(30)}, "more than 500 operators and names with"),
        (" & ".join(f"a{i}" for i in range(501)), {}, "more than 500 operators and names"),
    ],
)
def test_a_malformed_formula_says_so(text, parts, complaint):
    with pytest.raises(ValueError, match=complaint):
        ltl.parse(text, parts)


@pytest.mark.parametrize("text", ["!" * 64 + "a", "(" * 64 + "a" + ")" * 64, "F (" * 32 + "a" + ")" * 32])
def test_a_formula_may_be_as_deep_as_the_limit(text):
    assert len(ltl.automaton(ltl.parse(text), LETTERS)[0]) == 3


@pytest.mark.parametrize(
    ("limit", "most", "text"),
    [("MAX_LEFT", 1000, "((a U b) U a) U G b"), ("MAX_LEFT_DEPTH", 12, "((a U b) U a) U G b")],
)
def test_a_short_formula_whose_states_grow_without_end_is_refused(monkeypatch, limit, most, text):
    monkeypatch.setattr(ltl, limit, most)
    with pytest.raises(ValueError, match="ltl: what is left to do becomes more than .*; write a smaller formula"):
        ltl.automaton(ltl.parse(text), LETTERS)


def test_the_multiplier_finds_the_mixed_policy():
    """Arm 1 pays 1 and costs 1, at most 0.3 of the time. With an entropy bonus tau the fixed point is p = 0.3 and
    lam = 1 - tau logit(0.3): a policy that is best for a fixed lam is either arm."""
    tau, lam, mean = 0.2, jnp.zeros(1), []
    for _ in range(3000):
        p = jax.nn.sigmoid((1.0 - lam) / tau)
        lam = shaping.moved_multipliers(lam, p, jnp.array([0.3]), 0.02)
        mean.append(p)
    np.testing.assert_allclose(mean[-1], 0.3, atol=1e-3)
    np.testing.assert_allclose(lam, 1.0 - tau * np.log(0.3 / 0.7), atol=1e-2)


def test_a_constraint_on_rows():
    spec = dict(distribution=TWO, costs=dict(one=dict(fn="action_is", action=1)), limits=dict(one=0.3))
    made = relabelling.by_lagrange(**spec, rate=0.5, initial=2.0)
    state, rows = relabelled(made)
    cost = (ROWS.actions == 1).astype(np.float32)
    np.testing.assert_allclose(rows.rewards, (ROWS.rewards - 2.0 * cost) / 3.0, rtol=1e-5)
    np.testing.assert_allclose(state.multipliers, [2.0 + 0.5 * (cost.mean() - 0.3)], rtol=1e-5)
    assert set(made.measure(state)) == {"relabel/multiplier_one", "relabel/cost_one"}
    plain = relabelling.by_lagrange(**spec, initial=2.0, normalize=False)
    np.testing.assert_allclose(relabelled(plain)[1].rewards, ROWS.rewards - 2.0 * cost, rtol=1e-5)
    assert float(shaping.moved_multipliers(jnp.zeros(1), jnp.zeros(1), jnp.ones(1), 5.0)[0]) == 0.0
