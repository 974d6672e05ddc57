"""advantages/conflicts.py and macros.py: GTPO's shared tokens by hand, and GAE over runs of tokens at its limits."""

import jax
import numpy as np
import pytest

from rl_jax import advantages
from rl_jax.advantages import conflicts
from rl_jax.advantages.macros import macro_gae
from rl_jax.advantages.tokens import gae

TOKENS = np.int32([[1, 2, 3, 9], [1, 2, 4, 9], [5, 6, 9, 0], [1, 7, 8, 0]])
MASK = np.bool_([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0]])
QUIET = np.zeros(MASK.shape, np.float32)


def shared(values, tokens=TOKENS, mask=MASK):
    found = conflicts.conflict_tokens(tokens, mask, np.float32(values), group_size=4)
    return [np.asarray(x).astype(int).tolist() for x in found]


def test_what_good_and_bad_answers_begin_and_end_with():
    prefix, suffix = shared([1, -1, -1, 1])
    assert prefix == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert suffix == [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]  # the 9, wherever the row ends
    assert shared([1, 1, 1, 1]) == [[[0] * 4] * 4] * 2  # all are good
    assert shared([1, -1, 0, 0])[0][3] == [0, 0, 0, 0]  # a row without an advantage takes no part


def test_what_is_not_on_the_mask_is_as_if_it_was_not_there():
    """A tool's output in the middle of a row."""
    tokens = np.int32([[1, 77, 2, 3], [1, 2, 3, 55]])
    mask = np.bool_([[1, 0, 1, 1], [1, 1, 1, 0]])
    found = conflicts.conflict_tokens(tokens, mask, np.float32([1, -1]), group_size=2)
    for half in found:
        np.testing.assert_array_equal(half, mask)


def test_tokens_of_a_long_row_keep_their_order():
    """A good row of 40 tokens among 40 of a tool's, against a bad one without any; they part at the 31st."""
    places = np.sort(np.random.default_rng(0).permutation(80)[:40])
    tokens = np.full((2, 80), 99, np.int32)
    tokens[0, places] = tokens[1, :40] = np.arange(40)
    tokens[1, 30] = 77
    mask = np.stack([np.isin(np.arange(80), places), np.arange(80) < 40])
    found = conflicts.conflict_tokens(tokens, mask, np.float32([1, -1]), group_size=2)
    for half, parts in zip(found, (slice(30), slice(31, 40)), strict=True):
        expected = np.zeros((2, 80), bool)
        expected[0, places[parts]] = expected[1, parts] = True
        np.testing.assert_array_equal(half, expected)


def test_a_bad_answer_that_a_good_one_repeats_is_not_unlearnt():
    """Identical answers with different rewards; and without a shared token it is Dr. GRPO with the entropy."""
    same = np.tile(TOKENS[:1], (2, 1))
    arrays = dict(completion_mask=MASK[:2], entropy=QUIET[:2])
    found = conflicts.gtpo(np.float32([1, 0]), group_size=2, tokens=same, **arrays)
    np.testing.assert_allclose(found, [[0.5 * 4 / 4] * 4, [0.0] * 4])  # prefix and suffix: 2 * 2, over 4 tokens
    apart = np.int32([[1, 2, 3, 4], [5, 6, 7, 8]])
    entropy = np.float32([[0.2, 0.4, 0.6, 0.4], [0.9, 0.9, 0.9, 0.9]])
    found = conflicts.gtpo(np.float32([1, 0]), group_size=2, tokens=apart, **arrays | {"entropy": entropy})
    np.testing.assert_allclose(found, [[0.5 - 0.1 * 0.4] * 4, [0.0] * 4], rtol=1e-6)  # the second is above .7
    found = conflicts.gtpo(np.float32([1, 0]), group_size=2, tokens=apart, **arrays)
    np.testing.assert_allclose(found[:, 0], advantages.group_centered(np.float32([1, 0]), group_size=2))


def gtpo_loop(rewards, tokens, mask, entropy, size, threshold=0.7, coef=0.1, weight=2.0):
    """The docstring's equations, row by row over the lists of its own tokens."""
    found = np.zeros(mask.shape)
    texts = [row[on].tolist() for row, on in zip(tokens, mask, strict=True)]
    for i, own in enumerate(texts):
        group = range(i // size * size, i // size * size + size)
        centred = {j: float(rewards[j]) - np.mean([rewards[k] for k in group]) for j in group}

        def run(reverse, own=own, i=i, group=group, centred=centred):
            ways = {j: texts[j][::-1] if reverse else texts[j] for j in group}
            kept = [False] * len(own)
            for k in range(len(own)):
                same = [j for j in group if len(ways[j]) > k and ways[j][k] == ways[i][k]]
                if centred[i] == 0 or not any(centred[j] > 0 for j in same) or not any(centred[j] < 0 for j in same):
                    break
                kept[k] = True
            return np.array(kept[::-1] if reverse else kept, bool)

        prefix, suffix = run(False), run(True)
        h = entropy[i][mask[i]].mean() if own else 0.0
        a = (centred[i] - coef * h) / max((prefix | suffix).sum(), 1) if h <= threshold else 0.0
        factor = weight if centred[i] > 0 else 0.0
        found[i, mask[i]] = a * np.where(prefix, factor, 1.0) * np.where(suffix, factor, 1.0)
    return found


@pytest.mark.parametrize("settings", [{}, {"threshold": 0.5, "entropy_coef": 0.3, "conflict_weight": 1.5}], ids=str)
def test_gtpo_is_its_equations_row_by_row(settings):
    """Ragged rows with holes over three letters, rows without a token or an advantage; nothing is read off the mask."""
    rng = np.random.default_rng(0)
    tokens, mask = rng.integers(0, 2, size=(24, 6)).astype(np.int32), rng.random((24, 6)) < 0.7
    mask[3] = False
    rewards = rng.choice([0.0, 0.5, 1.0], size=24).astype(np.float32)
    rewards[4:8] = [1, 0, 0.5, 0.5]
    entropy = np.where(mask, rng.uniform(0.0, 1.2, size=mask.shape), np.nan).astype(np.float32)
    entropy[0] = np.where(mask[0], 0.5, np.nan)  # as much as the second threshold: it is kept
    entropy[1], rewards[:2] = np.where(mask[1], 0.75, np.nan), [1, 0]  # above the first
    given = dict(tokens=tokens, completion_mask=mask, entropy=entropy) | settings
    found = jax.jit(lambda: conflicts.gtpo(rewards, group_size=4, **given))()
    names = dict(threshold="threshold", entropy_coef="coef", conflict_weight="weight")
    expected = gtpo_loop(rewards, tokens, mask, entropy, 4, **{names[k]: v for k, v in settings.items()})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


RNG = np.random.default_rng(0)
HELD = np.arange(7) < np.array([7, 5, 1, 0])[:, None]
HELD[0, 2] = False  # a hole
CRITIC = [RNG.normal(size=HELD.shape).astype(np.float32) for _ in range(2)]
AFTER = np.float32([0.3, 0.0, 0.0, 0.0])


def test_actions_of_one_token_are_gae():
    found = macro_gae(*CRITIC, HELD, bootstrap_values=AFTER, n=1, discount=0.9)
    for ours, expected in zip(found, gae(*CRITIC, HELD, bootstrap_values=AFTER, discount=0.9), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"n": 2, "discount": 0.9, "lam": 0.6}], ids=str)
def test_macro_actions_are_gae_over_lists_of_tokens(settings):
    """Runs of five tokens, or of two, of rows with holes; the last run may be shorter; nan behind the mask."""
    rng, after = np.random.default_rng(3), np.float32([0.3, -0.2, 0.5, 0.0])
    mask = rng.random((4, 13)) < np.array([[1.0], [0.7], [0.4], [0.0]])
    arrays = np.where(mask, rng.normal(size=(2, 4, 13)), np.nan).astype(np.float32)
    n, discount, lam = (settings.get(name, usual) for name, usual in (("n", 5), ("discount", 1.0), ("lam", 0.95)))
    expected = np.zeros((2, 4, 13))
    for row in range(4):
        places = np.flatnonzero(mask[row])
        ahead, value = 0.0, float(after[row])
        for run in reversed([places[k : k + n] for k in range(0, len(places), n)]):
            own = arrays[1, row, run].mean(dtype=float)
            ahead = arrays[0, row, run].sum(dtype=float) + discount * value - own + discount * lam * ahead
            value = own
            expected[0, row, run], expected[1, row, run] = ahead, ahead + own
    found = jax.jit(lambda: macro_gae(*arrays, mask, bootstrap_values=after, **settings))()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_one_action_is_a_bandit():
    rewards, values = CRITIC
    found, returns = macro_gae(*CRITIC, HELD, bootstrap_values=np.zeros(4, np.float32), n=100)
    for row in range(3):
        total, value = rewards[row][HELD[row]].sum(), values[row][HELD[row]].mean()
        np.testing.assert_allclose(found[row][HELD[row]], total - value, rtol=1e-4)
        np.testing.assert_allclose(returns[row][HELD[row]], total, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(found)[~HELD], 0.0)


def test_tokens_of_an_action_share_and_padding_is_not_read():
    clean = macro_gae(*CRITIC, HELD, bootstrap_values=AFTER, n=2)
    first = np.asarray(clean[0][0])
    np.testing.assert_array_equal(first[[0, 3]], first[[1, 4]])  # the hole at 2 is skipped
    poisoned = [np.where(HELD, x, np.nan).astype(np.float32) for x in CRITIC]
    for ours, expected in zip(macro_gae(*poisoned, HELD, bootstrap_values=AFTER, n=2), clean, strict=True):
        np.testing.assert_array_equal(ours, expected)
    with pytest.raises(ValueError, match="n=0 must be at least 1"):
        macro_gae(*CRITIC, HELD, bootstrap_values=AFTER, n=0)
