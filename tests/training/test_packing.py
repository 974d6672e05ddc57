"""packing.py: every token is where it should be; and packed or not, a loss and its gradient are the same."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import grpo
from rl_jax.core.types import PolicyBatch, TokenBatch
from rl_jax.models.transformer.attention import attention_mask
from rl_jax.models.transformer.model import make_transformer
from rl_jax.training import packing, sharding
from rl_jax.training.packing import arrange, occupancy, pack, round_up, shared_row_length
from rl_jax.training.rooms import Rooms
from rl_jax.training.scoring import make_score
from rl_jax.training.step import init_state, make_train_step
from tests.tiny import CONFIG, max_difference
from tests.tiny import random_params as make_params

PROMPT, LENGTH = 5, 7
random_params = functools.cache(make_params)  # nothing here writes into them
MODES = pytest.mark.parametrize("share_prefix", [False, True], ids=["packed", "shared_prefix"])


def case(prompts, lengths, seed=0):
    """(TokenBatch [B, 5 + 7], completion mask, loss mask). prompts: (its name, its length) a row; one name, one prompt.

    The loss mask of the first row has holes and ends early, that of the second is empty.
    """
    rng = np.random.default_rng(seed)
    known = {name: rng.integers(3, CONFIG.vocab_size, PROMPT) for name in sorted({name for name, _ in prompts})}
    rows = len(lengths)
    tokens = rng.integers(3, CONFIG.vocab_size, (rows, PROMPT + LENGTH)).astype(np.int32)
    real = np.zeros(tokens.shape, bool)
    for row, ((name, width), length) in enumerate(zip(prompts, lengths, strict=True)):
        tokens[row, PROMPT - width : PROMPT] = known[name][:width]
        real[row, PROMPT - width : PROMPT + length] = True
    positions = np.maximum(np.cumsum(real, axis=1) - 1, 0) * real
    mask = real[:, PROMPT:].copy()
    mask[0, 1::2] = False
    mask[1:2] = False
    return TokenBatch(tokens, positions.astype(np.int32), real.astype(np.int32)), real[:, PROMPT:], mask


GROUPS = [("a", 5)] * 3 + [("b", 2)] * 4 + [("c", 4)]  # groups of 3, 4 and 1, prompts of 5, 2 and 4 tokens
RAGGED = case(GROUPS, [7, 3, 1, 5, 0, 2, 7, 4])


def take(tree, order):
    return jax.tree.map(lambda x: np.asarray(x)[order], tree)


# --- Where the tokens are -------------------------------------------------------------------------------------------


def test_sizes_have_four_steps_to_a_doubling():
    sizes = sorted({round_up(rows) for rows in range(1, 130)})
    assert sizes == [*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160]
    assert round_up(0) == 1
    assert all(rows <= round_up(rows) < 1.26 * rows for rows in range(1, 1000) if rows > 1)


@pytest.mark.parametrize(
    ("prompt", "completion", "group_size", "expected"),
    [
        (64, 64, 8, 320),  # four completions: 2 x 320 columns a group; of three 3 x 256, of all eight too long a row
        (512, 64, 8, 1024),  # all eight
        (8, 4, 3, 20),
        (64, 1024, 6, 2112),  # two completions; of three 1 % fewer columns, half as many keys again
        (8, 4, 1, 24),  # two rows as they are
        (1, 40, 2, 81),
        (512, 3072, 16, 6656),
    ],
)
def test_rows_that_share_prompts_cost_the_least(prompt, completion, group_size, expected):
    """Of all lengths in the bounds, by what first-fit needs for many groups whose tokens are all there."""
    width = prompt + completion
    groups = [packing._Group((0, range(prompt)), [(0, range(completion))] * group_size) for _ in range(12)]

    def cost(length):
        return len(packing._first_fit(groups, length)) * length * (1 + length / (8 * width))

    assert shared_row_length(prompt, completion, group_size) == expected
    assert expected == min(range(-(-3 * width // 2), 3 * width + 1), key=cost)


def test_rows_that_share_prompts_have_room_for_a_second_group_where_one_is_short():
    """One of 19 columns would leave short completions alone; a padded row has 13."""
    assert shared_row_length(7, 6, 2) == 38
    with pytest.raises(AssertionError):
        shared_row_length(7, 6, 0)


def what_each_token_sees(batch: TokenBatch) -> list[list[tuple[int, int]]]:
    """For every column of every row, flat, the (token, position) pairs that attention shows it."""
    seen = np.asarray(attention_mask(jax.tree.map(jnp.asarray, batch)))[:, 0]
    pairs = np.stack([batch.tokens, batch.positions], axis=-1)
    return [
        sorted(map(tuple, pairs[row][seen[row, column]].tolist()))
        for row in range(len(seen))
        for column in range(seen.shape[1])
    ]


@MODES
@pytest.mark.parametrize("seed", range(6))
def test_every_scored_token_is_predicted_from_what_stands_before_it(share_prefix, seed):
    """Against the padded rows, by what the column that predicts a token may attend to, itself included."""
    rng = np.random.default_rng(seed)
    prompts = [(name, int(rng.integers(1, 6))) for name in "abc" for _ in range(4)]
    prompts = [(name, dict(prompts)[name]) for name, _ in prompts]
    batch, _, mask = case(prompts, rng.integers(0, LENGTH + 1, 12), seed)
    batch, mask = take((batch, mask), rng.permutation(12))
    parts, micro = [(1, 1), (2, 2), (4, 2), (3, 1), (4, 1), (6, 3)][seed]
    length = int(rng.integers(12, 40))
    settings = dict(share_prefix=share_prefix, num_parts=parts, num_micro_batches=micro)
    batch, mask = take((batch, mask), arrange(batch, mask, **settings))
    packed = pack(batch, mask, row_length=length, **settings)
    padded = np.array(what_each_token_sees(batch), object).reshape(12, -1)
    for part in range(parts):
        rows = TokenBatch(*(None if x is None else x[part] for x in packed.rows))
        sees = what_each_token_sees(rows)
        # Part p is what step.deal gives to a device of micro-batch p % micro.
        mine = np.arange(12)[part % micro :: micro].reshape(parts // micro, -1)[part // micro]
        assert packed.counts[part] == mask[mine].sum()
        used = packed.places[part][packed.places[part] >= 0]
        assert sorted(used) == list(range(packed.counts[part]))
        for place, row in zip(packed.places[part], mine, strict=True):
            np.testing.assert_array_equal(place >= 0, mask[row])
            for column in np.flatnonzero(mask[row]):
                n = place[column]
                assert packed.targets[part, n] == batch.tokens[row, PROMPT + column]
                assert sees[packed.sources[part, n]] == padded[row, PROMPT + column - 1]
        for places, row in zip(packed.columns[part], mine, strict=True):
            end = 1 + np.max(np.flatnonzero(mask[row]), initial=-1)
            np.testing.assert_array_equal(places >= 0, (np.arange(LENGTH + 1) <= end) & mask[row].any())
            for column in np.flatnonzero(places >= 0):
                assert sees[places[column]] == padded[row, PROMPT + column - 1]


def test_a_shared_prompt_stands_there_once():
    batch, _, mask = RAGGED
    apart, together = (pack(batch, mask, share_prefix=share, row_length=48) for share in (False, True))
    used = [row for row in range(8) if mask[row].any()]
    assert used == [0, 2, 3, 5, 6, 7]
    completions = 7 + 1 + 5 + 2 + 7 + 4  # the first row is scored up to its last column, through the holes
    assert (apart.rows.segment_ids != 0).sum() == completions + 2 * 5 + 3 * 2 + 4
    assert (together.rows.segment_ids != 0).sum() == completions + 5 + 2 + 4
    assert apart.rows.tokens.shape == (1, 1, 48) == together.rows.tokens.shape
    assert apart.rows.prefix_ids is None
    assert occupancy(together) == (completions + 11) / 48
    assert occupancy(batch) == (batch.segment_ids != 0).mean()
    # The largest group first: b's prompt and the completions of rows 3, 5 and 6, then a's.
    expected = [1] * 2 + [2] * 5 + [3] * 2 + [4] * 7 + [5] * 5 + [6] * 7 + [7]
    np.testing.assert_array_equal(together.rows.segment_ids[0, 0, : len(expected)], expected)
    prefixes = [0] * 2 + [1] * 14 + [0] * 5 + [5] * 8
    np.testing.assert_array_equal(together.rows.prefix_ids[0, 0, : len(prefixes)], prefixes)


def test_a_group_longer_than_a_row_goes_into_several():
    batch, mask, _ = case([("a", 5)] * 4, [7, 7, 7, 7])
    packed = pack(batch, mask, share_prefix=True, row_length=20)
    np.testing.assert_array_equal((packed.rows.segment_ids[0] != 0).sum(axis=1), [19, 19])


def first_fit_by_trying(groups, row_length):
    """Each group into the first of all rows with room for it, looked for one by one."""
    rows, room = [], []

    def put(group):
        place = next((i for i, free in enumerate(room) if group.size <= free), len(rows))
        if place == len(rows):
            rows.append([])
            room.append(row_length)
        rows[place].append(group)
        room[place] -= group.size

    for group in sorted(groups, key=lambda group: -group.size):
        while group.size > row_length:
            free, taken, rest = row_length - len(group.prompt[1]), [], []
            for completion in sorted(group.completions, key=lambda c: -len(c[1])):
                fits = len(completion[1]) <= free
                (taken if fits else rest).append(completion)
                free -= len(completion[1]) if fits else 0
            put(group._replace(completions=taken))
            group = group._replace(completions=rest)
        put(group)
    return rows


def rows_of(placed):
    return [[(group.prompt[0], *(row for row, _ in group.completions)) for group in groups] for groups in placed]


@pytest.mark.parametrize("seed", range(8))
def test_the_first_row_with_room_is_found_without_trying_them_all(seed):
    """Groups of many sizes, some longer than a row; full rows, single ones, and more rows than the tree began with."""
    rng = np.random.default_rng(seed)
    longest = int(rng.choice([3, 10, 60]))
    groups = []
    for i in range(int(rng.integers(0, 200))):
        lengths = rng.integers(0, longest, int(rng.choice([1, 1, 4, 30])))
        completions = [(1000 * i + j, np.arange(length)) for j, length in enumerate(lengths)]
        groups.append(packing._Group((i, np.arange(int(rng.integers(1, longest)))), completions))
    row_length = int(rng.integers(2 * longest, 4 * longest))
    found = packing._first_fit(groups, row_length)
    assert rows_of(found) == rows_of(first_fit_by_trying(groups, row_length))
    assert all(sum(group.size for group in placed) <= row_length for placed in found)


def test_a_search_looks_at_one_row_of_each_level_of_the_tree():
    """Of 20,000 rows; one by one it would look at all of those before."""
    rooms, looks = Rooms(), []
    for row in range(20_000):
        rooms.put(row, row // 2_500)

    class Tree(list):
        def __getitem__(self, i):
            looks.append(i)
            return super().__getitem__(i)

    rooms.tree = Tree(rooms.tree)
    assert [rooms.first(size) for size in range(9)] == [*range(0, 20_000, 2_500), 20_000]
    assert len(looks) <= 9 * 16


def test_a_run_has_few_shapes():
    """200 batches of 32 rows with heavy-tailed lengths; with min_rows, one shape."""
    rng, shapes = np.random.default_rng(0), {1: set(), 4: set()}
    prompts = [(name, 5) for name in "abcd" for _ in range(8)]
    for seed in range(200):
        batch, mask, _ = case(prompts, np.ceil(LENGTH * rng.random(32) ** 3).astype(int), seed)
        for least, seen in shapes.items():
            packed = pack(batch, mask, share_prefix=True, row_length=64, min_rows=least)
            seen.add((packed.rows.tokens.shape, packed.sources.shape))
    assert len(shapes[1]) <= 4 and shapes[4] == {((1, 4, 64), (1, 32 * LENGTH))}


def test_nothing_to_score_is_a_row_of_padding():
    batch, mask, _ = case(GROUPS, [7] * 8)
    packed = pack(batch, np.zeros_like(mask), share_prefix=True)
    assert packed.rows.tokens.shape == (1, 1, 24) and not packed.rows.segment_ids.any() and not packed.counts.any()
    assert (packed.places == -1).all() and (packed.columns == -1).all()


def test_arrange_evens_out_the_loads_and_keeps_groups_together():
    prompts = [(name, 5) for name in "abcdefgh" for _ in range(4)]
    lengths = np.repeat([7, 7, 6, 6, 1, 1, 1, 1], 4)
    batch, mask, _ = case(prompts, lengths)
    settings = dict(share_prefix=True, num_parts=4, num_micro_batches=2)
    order = arrange(batch, mask, **settings)
    assert sorted(order) == list(range(32))
    in_order = pack(*take((batch, mask), order), row_length=48, **settings)
    as_it_was = pack(batch, mask, row_length=48, **settings)
    np.testing.assert_array_equal((in_order.rows.segment_ids != 0).sum(axis=(1, 2)), [42, 42, 38, 38])
    assert in_order.rows.tokens.shape[1] == 1 < as_it_was.rows.tokens.shape[1]
    np.testing.assert_array_equal(arrange(batch, mask, share_prefix=True), np.arange(32))
    odd = arrange(*RAGGED[::2], share_prefix=True, num_parts=4)  # a group of four does not fit into parts of two
    assert sorted(odd) == list(range(8))


def test_a_part_without_room_for_a_group_still_takes_smaller_ones():
    """Groups of 12, 11, 10, 9, 5 and 4 tokens. The fourth fits beside the first; the last go to the lightest."""
    prompts = [("a", 5), *[("b", 2)] * 2, *[("c", 2)] * 2, *[("d", 2)] * 2, ("e", 2), ("f", 2)]
    batch, mask, _ = case(prompts, [7, 5, 4, 4, 4, 4, 3, 3, 2])
    order = arrange(batch, mask, share_prefix=True, num_parts=3)
    assert [sorted(part) for part in order.reshape(3, 3).tolist()] == [[0, 5, 6], [1, 2, 8], [3, 4, 7]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(row_length=11), "a sequence of 12 tokens does not fit into rows of row_length=11"),
        (dict(num_parts=3), "8 rows do not divide into 3 parts"),
        (dict(num_parts=2, num_micro_batches=4), "do not divide into 2 parts of 4 micro-batches"),
        (dict(mask=np.ones((8, LENGTH), bool)), "the mask covers padding"),
        (dict(batch=RAGGED[0]._replace(segment_ids=np.tile([0] * 5 + [1] * 7, (8, 1)))), "row 0 .* no prompt"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_errors(change, said):
    arguments = dict(batch=RAGGED[0], mask=RAGGED[2], share_prefix=False) | change
    with pytest.raises(ValueError, match=said):
        pack(**arguments)


# --- Loss and gradient -----------------------------------------------------------------------------------------------


def policy_batch(tokens, mask):
    """A PolicyBatch with random numbers of every kind."""
    rng = np.random.default_rng(1)
    normal = lambda scale: scale * rng.normal(size=mask.shape).astype(np.float32)  # noqa: E731
    return PolicyBatch(tokens, mask, normal(1.0), normal(0.3) - 4, normal(0.3) - 4, normal(0.3) - 4)


def make_loss(config):
    score = make_score(make_transformer(config), completion_length=LENGTH, chunk=2)
    objective = grpo.Objective(entropy_coef=0.01)
    return lambda params, batch: grpo.loss(score(params, batch.batch), batch, objective)


@functools.cache
def gradient_program(config):
    loss = make_loss(config)
    return jax.jit(jax.value_and_grad(lambda params, batch: loss(params, batch)[0].total))


def assert_equal_to_padded(batch, mask, tolerance, mode, config=CONFIG, **settings):
    """The GRPO loss and its gradient in float32 and in the padded form; and in `mode`, under `config`."""
    params, policy = random_params(), policy_batch(batch, mask)
    value, gradient = gradient_program(CONFIG)(params, policy)
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(gradient))
    assert largest > 0.1, "a gradient too small to compare"
    packed = pack(batch, mask, share_prefix=mode == "shared_prefix", **settings)
    found, packed_gradient = gradient_program(config)(params, policy._replace(batch=packed))
    np.testing.assert_allclose(found, value, rtol=tolerance)
    assert max_difference(packed_gradient, gradient) < tolerance * largest


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["packed", "shared_prefix"])
def test_loss_and_gradient_of_ragged_groups_with_holes_and_empty_rows(mode):
    assert_equal_to_padded(RAGGED[0], RAGGED[2], 1e-5, mode)


def test_groups_of_one():
    """A prompt for each completion, of other lengths than before, and one of a single token."""
    batch, _, mask = case([(name, 1 + i % 5) for i, name in enumerate("abcdefgh")], [4, 4, 7, 1, 2, 3, 1, 2])
    assert_equal_to_padded(batch, mask, 1e-5, "shared_prefix")


@pytest.mark.slow
@pytest.mark.parametrize(("change", "tolerance"), [(dict(remat="full"), 1e-5), (dict(dtype="bfloat16"), 0.05)], ids=str)
def test_rematerialisation_and_bfloat16(change, tolerance):
    assert_equal_to_padded(*RAGGED[::2], tolerance, "shared_prefix", dataclasses.replace(CONFIG, **change))


GEMMA = dict(windows=(3, 0), attention_softcap=5.0, logit_softcap=10.0, qk_norm=True, post_norms=True, norm_offset=1.0)
MIXED = dict(learned_positions=16, qkv_bias=True, num_experts=4, experts_per_token=2)


@pytest.mark.slow
def test_every_kind_of_layer():
    """All in one model; the other tests' has none of them, and rotary positions."""
    config = dataclasses.replace(CONFIG, **GEMMA, **MIXED)
    params, policy = make_transformer(config).init(jax.random.key(0)), policy_batch(RAGGED[0], RAGGED[2])
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), params)
    packed = pack(RAGGED[0], RAGGED[2], share_prefix=True)
    (value, gradient), (found, packed_gradient) = (
        gradient_program(config)(params, policy._replace(batch=batch)) for batch in (RAGGED[0], packed)
    )
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(gradient))
    assert largest > 0.1, "a gradient too small to compare"
    np.testing.assert_allclose(found, value, rtol=1e-5)
    assert max_difference(packed_gradient, gradient) < 1e-5 * largest


def updated(batch, mesh_text, num_micro_batches):
    """(params, metrics) after one step of SGD from the same start."""
    mesh = sharding.make_mesh(sharding.parse_mesh(mesh_text))
    optimizer = optax.sgd(1.0)
    state = init_state(random_params(), optimizer, jax.random.key(0))
    state = jax.device_put(state, sharding.tree_shardings(state, mesh))
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    step = jax.jit(make_train_step(make_loss(CONFIG), optimizer, num_micro_batches=num_micro_batches))
    state, metrics = step(state, batch)
    return jax.device_get((state.params, metrics))


@functools.cache
def updated_from_padded():
    batch, _, mask = RAGGED
    return updated(policy_batch(batch, mask), "", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "num_micro_batches", "share_prefix"),
    [
        ("", 2, True),
        ("data:2,fsdp:2,tensor:2", 2, True),
    ],
    ids=["micro-batches", "mesh-shared_prefix"],
)
def test_micro_batches_and_a_mesh_change_nothing(mesh, num_micro_batches, share_prefix):
    batch, _, mask = RAGGED
    sizes = sharding.parse_mesh(mesh)
    parts = num_micro_batches * sizes["data"] * sizes["fsdp"]
    settings = dict(share_prefix=share_prefix, num_parts=parts, num_micro_batches=num_micro_batches)
    order = arrange(batch, mask, **settings)
    assert (order != np.arange(8)).any()
    policy = take(policy_batch(batch, mask), order)
    policy = policy._replace(batch=pack(policy.batch, policy.completion_mask, **settings))
    params, metrics = updated(policy, mesh, num_micro_batches)
    expected, expected_metrics = updated_from_padded()
    assert max_difference(expected, random_params()) > 0.1
    assert max_difference(params, expected) < 1e-5
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
