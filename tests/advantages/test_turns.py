"""Credit over turns: each estimator against a plain loop, at its limits, and under the laws of such credit."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import advantages
from rl_jax.advantages import tokens as token_advantages
from rl_jax.advantages import turn_arrays, turn_critics, turn_shaping, turn_states, turn_trees, turns
from rl_jax.core import binding
from tests.numpy_loops import turns as loops

SIZE = 4  # rows of a group
OWN = {
    turns: ("turn_return_loo", "loop", "trajectory", "turn_grpo", "mt_grpo"),
    turn_states: ("gigpo", "state_return_loo", "semi_online", "transitions", "igpo"),
    turn_shaping: ("igpo_policy", "aspo", "oprl", "sweet"),
    turn_trees: ("arpo", "tree_grpo", "branch_return_loo"),
    turn_critics: ("vine",),
}
ESTIMATORS = {name: getattr(module, name) for module, names in OWN.items() for name in names}
WITHOUT_BASELINE = {"sweet", "vine", "archer"}  # they compare no rows
every_estimator = pytest.mark.parametrize("name", ESTIMATORS)


def random_groups(seed, number=2, width=3):
    """[group][row][turn]: 1 to 3 turns; rewards from a few values, so that some are equal; a tree of branches."""
    rng = np.random.default_rng(seed)
    groups = []
    for _ in range(number):
        rows = []
        for i in range(SIZE):
            branch = [i // 2, 10 + i // (1 if seed % 2 else 2), 20 + i]
            rows.append(
                [
                    {
                        "r": float(rng.choice([0.0, 0.25, 0.5, 1.0])),
                        "key": int(rng.choice([-1, 3, 4])),
                        "patched": bool(rng.random() < 0.4),
                        "calls": float(rng.integers(0, 2)),
                        "n": int(rng.integers(1, 3)),
                        "p": float(rng.random()),
                        "branch": branch[j],
                    }
                    for j in range(rng.integers(1, width + 1))
                ]
            )
            for turn in rows[-1]:
                turn["implicit"] = rng.normal(size=turn["n"]).round(3).tolist()
        for first, second in ((0, 1), (2, 3)):  # what is shared is the same
            rows[second][0] |= {k: rows[first][0][k] for k in ("r", "n", "key", "patched", "calls", "implicit", "p")}
            if not seed % 2 and len(rows[first]) > 1 and len(rows[second]) > 1:
                rows[second][1] = dict(rows[first][1])
        groups.append(rows)
    return groups


def arrays_of(groups, columns=14, gap=1):
    """The arrays of groups: an observation of `gap` tokens after each turn."""
    rows = [row for group in groups for row in group]
    shape = (len(rows), columns)
    names = ("turn_rewards", "turn_patched", "turn_calls", "implicit_rewards", "answer_probs", "state_values")
    arrays = {name: np.zeros(shape, np.float32) for name in names}
    arrays |= {name: np.full(shape, -1, np.int32) for name in ("turns", "state_keys", "branches")}
    for i, row in enumerate(rows):
        c = 0
        for j, turn in enumerate(row):
            part = slice(c, c + turn["n"])
            arrays["turns"][i, part], arrays["state_keys"][i, part] = j, turn["key"]
            arrays["branches"][i, part], arrays["implicit_rewards"][i, part] = turn["branch"], turn["implicit"]
            end = c + turn["n"] - 1
            arrays["turn_rewards"][i, end], arrays["turn_patched"][i, end] = turn["r"], turn["patched"]
            arrays["turn_calls"][i, end] = turn["calls"]
            arrays["answer_probs"][i, end] = arrays["state_values"][i, end] = turn["p"]
            c = end + 1 + gap
    arrays["rewards"] = np.float32([loops.total(row) for row in rows])
    arrays["prior_answer_probs"] = np.full(len(rows), 0.25, np.float32)
    return arrays


@functools.cache
def compiled(name):
    fn = ESTIMATORS[name]
    return jax.jit(lambda given: fn(**given, group_size=SIZE))


def taken(name, arrays):
    return {key: arrays[key] for key in inspect.signature(ESTIMATORS[name]).parameters if key in arrays}


def estimate(name, arrays):
    return np.asarray(compiled(name)(taken(name, arrays)))


def on_tokens(groups, arrays, values):
    out = np.zeros(arrays["turns"].shape)
    for i, line in enumerate(line for group in values for line in group):
        for j, value in enumerate(line):
            out[i, arrays["turns"][i] == j] = value
    return out


def close(found, expected, says="", rtol=2e-4, atol=2e-5):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=says)


@pytest.mark.parametrize("seed", [0, 1])
@every_estimator
def test_it_is_what_the_plain_loop_gives(name, seed):
    groups = random_groups(seed, number=6)
    arrays = arrays_of(groups)
    expected = [getattr(loops, name)(group) for group in groups]
    close(estimate(name, arrays), on_tokens(groups, arrays, expected))


@pytest.mark.parametrize("name", [name for name, fn in ESTIMATORS.items() if "eps" in inspect.signature(fn).parameters])
def test_a_spread_as_small_as_eps_is_divided_by_both(name):
    groups = random_groups(0)
    for turn in (turn for group in groups for row in group for turn in row):
        turn |= {"r": 1e-6 * turn["r"], "implicit": [1e-6 * x for x in turn["implicit"]], "p": 1e-6 * turn["p"]}
    arrays = arrays_of(groups)
    arrays["prior_answer_probs"][:] = 0.0
    settings = {"prior": 0.0} if name == "igpo_policy" else {}
    expected = [getattr(loops, name)(group, **settings) for group in groups]
    close(estimate(name, arrays), on_tokens(groups, arrays, expected))


VARIANTS = [
    ("semi_online", dict(use_std=True), 1.0),
    ("semi_online", dict(use_std=True), 1e-6),
    ("semi_online", dict(use_std=True, ddof=0, episode_coef=0.5, step_coef=2.0, discount=0.25), 1.0),
    ("gigpo", dict(use_std=False, step_coef=0.5, discount=0.5), 1.0),
    ("igpo", dict(separate=True, discount=0.5), 1.0),
    ("tree_grpo", dict(), 1.0),
    ("tree_grpo", dict(ddof=0), 1.0),
]


@pytest.mark.parametrize("name, settings, scale", VARIANTS, ids=str)
def test_other_settings_are_the_plain_loops(name, settings, scale):
    """Trees of three rows and of one, and rewards as small as eps."""
    groups = random_groups(16, number=4)
    for row in (row for group in groups for row in group):
        for turn in row:
            turn["r"] *= scale
    for group in groups:
        for i, row in enumerate(group):
            row[0]["branch"] = i // 3
    arrays = arrays_of(groups)
    run = jax.jit(functools.partial(ESTIMATORS[name], group_size=SIZE, **settings))
    expected = [getattr(loops, name)(group, **settings) for group in groups]
    close(run(**taken(name, arrays)), on_tokens(groups, arrays, expected))


siblings = jax.jit(functools.partial(turn_trees.branch_return_loo, group_size=SIZE))


def test_siblings_in_rows_without_any_padding():
    """Two turns of one token, two rows after each first turn: every token of the batch is a turn's last."""
    branches = [[0, 2], [0, 3], [1, 4], [1, 5]]
    rewards = [[0.5, 1.0], [0.5, -0.25], [0.25, 2.0], [0.25, 0.0]]
    group = [[{"r": r, "branch": b} for r, b in zip(*x, strict=True)] for x in zip(rewards, branches, strict=True)]
    turns_ = np.tile(np.int32([0, 1]), (4, 1))
    found = siblings(
        jnp.float32([sum(row) for row in rewards]),
        turns=jnp.asarray(turns_),
        turn_rewards=jnp.float32(rewards),
        branches=jnp.int32(branches),
    )
    close(found, loops.branch_return_loo(group))


def test_a_turn_that_all_rows_share_that_have_it():
    """Then there is no baseline: its advantage is the mean return of the rows below it."""
    lines = [[(0.5, 0), (1.0, 2), (2.0, 6)], [(0.5, 0), (1.0, 2), (-1.0, 7)], [(0.25, 1)], [(0.0, 3)]]
    group = [[{"r": r, "branch": b} for r, b in line] for line in lines]
    numbers, branches, rewards = np.full((4, 3), -1), np.full((4, 3), -1), np.zeros((4, 3), np.float32)
    for i, line in enumerate(lines):
        n = len(line)
        numbers[i, :n], rewards[i, :n], branches[i, :n] = np.arange(n), *np.transpose(line)
    found = siblings(
        jnp.asarray(rewards.sum(axis=1)),
        turns=jnp.int32(numbers),
        turn_rewards=jnp.asarray(rewards),
        branches=jnp.int32(branches),
    )
    expected = loops.branch_return_loo(group)
    close(found, [line + [0.0] * (3 - len(line)) for line in expected])


def test_two_rows_that_are_left_of_four():
    groups = random_groups(18)
    arrays = arrays_of(groups)
    for i in (1, 3):
        arrays["turns"][i] = -1
    left = [groups[0][0], groups[0][2]]
    found = estimate("loop", arrays)
    close(found[[0, 2]], on_tokens([left], {"turns": arrays["turns"][[0, 2]]}, [loops.loop(left)]))


# --- Laws ------------------------------------------------------------------------------------------------------------


@every_estimator
def test_contents_outside_of_the_turns_change_nothing(name):
    """Noise and nan on observations and padding, in each array; only turns say what counts."""
    arrays = arrays_of(random_groups(2))
    base = estimate(name, arrays)
    off = arrays["turns"] < 0
    np.testing.assert_array_equal(base[off], 0)
    for poison in (7, np.nan):
        spoilt = {}
        for key, x in arrays.items():
            if x.ndim != 2 or key == "turns":
                spoilt[key] = x
            else:
                spoilt[key] = np.where(off, x.dtype.type(7 if x.dtype == np.int32 else poison), x)
        np.testing.assert_array_equal(estimate(name, spoilt), base)


@every_estimator
def test_longer_observations_change_nothing(name):
    groups = random_groups(3)
    arrays, wide = arrays_of(groups), arrays_of(groups, gap=3)
    found, expected = estimate(name, wide), estimate(name, arrays)
    for i in range(len(found)):
        close(found[i][wide["turns"][i] >= 0], expected[i][arrays["turns"][i] >= 0], rtol=1e-5, atol=1e-6)


@every_estimator
def test_rows_and_groups_may_change_places(name):
    arrays = arrays_of(random_groups(4))
    order = np.array([6, 4, 7, 5, 2, 0, 3, 1])
    moved = {key: x[order] for key, x in arrays.items()}
    close(estimate(name, moved), estimate(name, arrays)[order], rtol=1e-5, atol=1e-6)


@every_estimator
def test_a_group_does_not_read_another(name):
    """So micro-batches of whole groups give the batch's advantages; equal keys of two groups are two states."""
    groups = random_groups(5)
    both, other = arrays_of(groups), arrays_of([groups[0], random_groups(6)[1]])
    np.testing.assert_array_equal(estimate(name, both)[:SIZE], estimate(name, other)[:SIZE])


@every_estimator
def test_rows_without_a_turn_count_nowhere(name):
    """A row whose environment failed: as if its group had one row less; and alone in a group there is no advantage."""
    groups = random_groups(7)
    arrays = arrays_of(groups)
    lost = {key: x.copy() for key, x in arrays.items()}
    for i in (2, 4, 5, 6):
        lost["rewards"][i] = 0
        for key in ("turns", "state_keys", "branches"):
            lost[key][i] = -1
    found = estimate(name, lost)
    np.testing.assert_array_equal(found[[2, 4, 5, 6]], 0)
    if name not in WITHOUT_BASELINE:
        np.testing.assert_array_equal(found[7], 0)
    left = [[row for i, row in enumerate(groups[0]) if i != 2], groups[1][3:]]
    expected = getattr(loops, name)(left[0])
    close(found[[0, 1, 3]], on_tokens(left, {"turns": arrays["turns"][[0, 1, 3]]}, [expected]))


@every_estimator
def test_equal_episodes_have_no_advantage(name):
    """Exactly: in float32 the mean of three 0.1 is not 0.1, and a residue over a residue's std would be +-1."""
    if name in WITHOUT_BASELINE:
        return
    row = [
        {"r": r, "key": 3, "patched": False, "calls": 1.0, "n": 2, "implicit": [0.1, 0.7], "p": 0.25, "branch": 5}
        for r in (0.1, 0.7)
    ]
    if name in ("igpo", "igpo_policy", "oprl"):  # they compare the turns of a row with each other, too
        row = row[:1]
    if name in ("gigpo", "state_return_loo"):
        row[1]["key"] = 4
    if name == "branch_return_loo":
        row = [turn | {"branch": 5 + j} for j, turn in enumerate(row)]
    arrays = arrays_of([[row] * SIZE] * 2)
    if name == "branch_return_loo":  # all the same branch would be one row
        arrays["branches"] = np.where(arrays["turns"] < 0, -1, np.arange(8)[:, None] * 2 + arrays["turns"]).astype(
            np.int32
        )
    np.testing.assert_array_equal(estimate(name, arrays), 0)


@every_estimator
def test_nothing_flows_into_the_learnt_signals(name):
    """Log-probs, probabilities and values enter without gradient."""
    learnt = {"implicit_rewards", "answer_probs", "prior_answer_probs", "state_values"}
    given = taken(name, arrays_of(random_groups(8)))
    mine = {key: given[key] for key in given if key in learnt}
    if not mine:
        return
    slopes = jax.grad(lambda x: compiled(name)(given | x).sum())(mine)
    for key, slope in slopes.items():
        np.testing.assert_array_equal(slope, 0, err_msg=key)


def test_a_shaped_reward_belongs_to_the_last_turn():
    """What credit.assign adds to the rewards of rows (a length penalty, a KL) is not lost."""
    groups = random_groups(9)
    arrays = arrays_of(groups)
    more = np.float32([0.5, 0, -1, 0, 0, 0, 2, 0])
    for row, extra in zip([row for group in groups for row in group], more, strict=True):
        row[-1] = row[-1] | {"r": row[-1]["r"] + float(extra)}
    expected = on_tokens(groups, arrays, [loops.turn_return_loo(group) for group in groups])
    close(estimate("turn_return_loo", arrays | {"rewards": arrays["rewards"] + more}), expected)


def test_bad_input_is_refused():
    arrays = taken("loop", arrays_of(random_groups(0)))
    with pytest.raises(ValueError, match="8 rewards do not divide into groups of group_size=3"):
        turns.loop(**arrays, group_size=3)
    with pytest.raises(ValueError, match="group_size=1 must be at least 2"):
        turns.loop(**arrays, group_size=1)
    with pytest.raises(AssertionError):
        turns.loop(**arrays | {"turns": arrays["turns"].astype(np.float32)}, group_size=4)
    with pytest.raises(ValueError, match="bound=1.0 must be in"):
        turn_shaping.aspo(**taken("aspo", arrays_of(random_groups(0))), group_size=4, bound=1.0)


# --- Limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, reference, settings",
    [
        ("turn_return_loo", advantages.leave_one_out, {}),
        ("loop", advantages.leave_one_out, {}),
        ("trajectory", advantages.group_relative, {"eps": 1e-4}),
        ("turn_grpo", advantages.group_relative, {}),
        ("mt_grpo", advantages.group_relative, {"eps": 1e-4}),
        ("transitions", advantages.group_relative, {}),
        ("igpo", advantages.group_relative, {"ddof": 0}),
        ("arpo", advantages.group_relative, {}),
        ("branch_return_loo", advantages.leave_one_out, {}),
    ],
)
def test_one_turn_is_the_function_of_whole_completions(name, reference, settings):
    groups = random_groups(10, width=1)
    for group in groups:
        for i, row in enumerate(group):
            row[0] |= {"r": float([0.0, 1.0, 0.25, 1.0][i]), "branch": i}
    arrays = arrays_of(groups)
    rows = np.asarray(reference(arrays["rewards"], group_size=SIZE, **settings))
    close(estimate(name, arrays), np.where(arrays["turns"] >= 0, rows[:, None], 0), rtol=1e-6, atol=1e-7)


def test_gains_stand_on_the_ends_and_nowhere_else():
    at = jax.jit(lambda: turn_arrays.episodes(jnp.zeros(2), TWO_ROWS, jnp.zeros(TWO_ROWS.shape), 2))()
    probs = np.float32([[np.nan, 0.5, np.nan, 0.125, np.nan], [0.75, np.nan, np.nan, np.nan, np.nan]])
    found = turn_shaping.information_gain(at, jnp.asarray(probs), jnp.float32([0.25, 1.0]))
    np.testing.assert_array_equal(found, [[0, 0.25, 0, -0.375, 0], [-0.25, 0, 0, 0, 0]])
    for wrong in (jnp.zeros(1), jnp.zeros(3)):
        with pytest.raises(AssertionError):
            turn_shaping.information_gain(at, jnp.asarray(probs), wrong)


TWO_ROWS = np.int32([[0, 0, -1, 1, -1], [0, -1, -1, -1, -1]])


def test_aspo_reads_whole_rows_and_shapes_right_ones():
    """Rows as wide as the batch; a reward of .52 is right; one right row in a group leans nowhere; short rows do."""
    rows = [[{"r": r, "n": n, "calls": calls} for r, n, calls in row] for row in (
        [(0.52, 2, 0.0), (0.0, 3, 1.0)], [(0.52, 1, 1.0), (0.0, 2, 0.0)], [(0.0, 1, 1.0)], [(0.5, 2, 1.0)],
        [(1.0, 1, 1.0), (0.0, 1, 0.0)], [(0.0, 1, 1.0)], [(0.25, 1, 0.0)], [(0.5, 1, 0.0)],
        [(1.0, 1, 1.0)], [(1.0, 1, 0.0), (0.0, 1, 1.0)], [(0.0, 1, 0.0)], [(0.0, 1, 0.0)],
    )]  # fmt: skip
    for row in rows:
        for turn in row:
            turn |= {"key": -1, "patched": False, "implicit": [0.0] * turn["n"], "p": 0.5, "branch": -1}
    groups = [rows[:4], rows[4:8], rows[8:]]
    arrays = arrays_of(groups, columns=6)

    def run(**settings):
        return jax.jit(lambda: turn_shaping.aspo(**taken("aspo", arrays), group_size=SIZE, **settings))()

    expected = on_tokens(groups, arrays, [loops.aspo(group) for group in groups])
    close(run(), expected)
    strong = on_tokens(groups, arrays, [loops.aspo(group, shift=-0.5) for group in groups])
    close(run(shift=-0.5), strong)
    close(run(bound=0.0), on_tokens(groups, arrays, [loops.trajectory(group, eps=1e-6) for group in groups]))


def test_igpos_gains_may_be_of_the_mean_log_prob():
    """log_prob_diff of its code: the loop on logarithms, normed apart from the outcomes; log 0 is finite."""
    groups = random_groups(14)
    arrays = arrays_of(groups)
    run = jax.jit(functools.partial(turn_shaping.igpo_policy, group_size=SIZE, separate=True, logs=True))
    found = run(**taken("igpo_policy", arrays))
    logged = [[[turn | {"p": np.log(turn["p"])} for turn in row] for row in group] for group in groups]
    expected = [loops.igpo_policy(group, prior=np.log(0.25), separate=True) for group in logged]
    close(found, on_tokens(groups, arrays, expected))
    arrays["answer_probs"] = np.zeros_like(arrays["answer_probs"])
    assert np.isfinite(run(**taken("igpo_policy", arrays))).all()


CRITIC = ("turn_gae", "bilevel_gae")


@pytest.mark.parametrize("name", CRITIC)
def test_a_critics_credit_is_what_the_plain_loop_gives(name):
    arrays, rng = arrays_of(random_groups(11)), np.random.default_rng(11)
    rewards, values = rng.normal(size=(2, *arrays["turns"].shape)).astype(np.float32)
    after = rng.normal(size=len(values)).astype(np.float32)
    mask = arrays["turns"] >= 0
    mask[3] = False
    given = dict(bootstrap_values=jnp.asarray(after), turns=arrays["turns"])
    spoilt = [np.where(mask, x, np.nan) for x in (rewards, values)]
    found = jax.jit(getattr(turn_critics, name))(*spoilt, mask, **given)
    for i in range(len(values)):
        expected = getattr(loops, name)(rewards[i], values[i], mask[i], after[i], arrays["turns"][i])
        for one, other in zip(found, expected, strict=True):
            close(one[i], other, f"row {i}")


@pytest.mark.parametrize("name", CRITIC)
def test_turns_of_one_token_are_gae(name):
    rng = np.random.default_rng(12)
    rewards, values = rng.normal(size=(2, 4, 6)).astype(np.float32)
    mask = np.arange(6) < np.array([[6], [4], [1], [0]])
    mask[0, 2] = False
    number = np.where(mask, np.cumsum(mask, axis=1) - 1, -1).astype(np.int32)
    after = np.zeros(4, np.float32)
    settings = {"turn_gae": dict(discount=0.9, lam=0.8), "bilevel_gae": dict(turn_discount=0.9, turn_lam=0.8)}[name]
    by_turns = jax.jit(functools.partial(getattr(turn_critics, name), **settings))
    found = by_turns(rewards, values, mask, bootstrap_values=after, turns=number)
    by_tokens = jax.jit(functools.partial(token_advantages.gae, discount=0.9, lam=0.8))
    expected = by_tokens(rewards, values, mask, bootstrap_values=after)
    for one, other in zip(found, expected, strict=True):
        close(one, other, rtol=1e-5, atol=1e-6)


def test_archer_takes_the_lower_of_two_critics():
    arrays = arrays_of(random_groups(13))
    rng = np.random.default_rng(13)
    q, v = rng.normal(size=(2, 2, *arrays["turns"].shape)).astype(np.float32)
    ends = np.asarray(arrays["turns"] != np.pad(arrays["turns"], ((0, 0), (0, 1)), constant_values=-1)[:, 1:])

    def summed(*critics):  # of which the last tokens of turns are read, and nothing is learned
        critics = [jnp.where(ends, x, jnp.nan) for x in critics]
        named = dict(zip(("q_values", "state_values"), critics, strict=True))
        found = turn_critics.archer(**taken("loop", arrays), **named, group_size=SIZE)
        return jnp.sum(found), found

    slopes, found = jax.jit(jax.grad(summed, argnums=(0, 1), has_aux=True))(q, v)
    for slope in slopes:
        np.testing.assert_array_equal(slope, 0.0)
    for i, c in zip(*np.nonzero(ends & (arrays["turns"] >= 0)), strict=True):
        same = arrays["turns"][i] == arrays["turns"][i, c]
        close(found[i][same], q[:, i, c].min() - v[:, i, c].min())
    targets = jax.jit(turn_critics.archer_targets)
    y_q, y_v = targets(np.float32([1, 2]), np.array([False, True]), v[:, 0, :2], q[:, 0, :2])
    close(y_q, np.stack([1 + 0.95 * v[:, 0, 0], [2.0, 2.0]], axis=1))
    close(y_v, q[:, 0, :2])


def test_they_ask_for_arrays_by_name_and_bind_by_path():
    fn = binding.bind(dict(fn="rl_jax.advantages.turns:turn_return_loo", discount=0.9), advantages, group_size=SIZE)
    assert binding.needs(fn) == {"turns", "turn_rewards"}
    with pytest.raises(ValueError, match="gigpo needs state_keys, which is not available here"):
        binding.supply(turn_states.gigpo, {"turns": 1, "turn_rewards": 1, "group_size": 4})
