"""CLPO: rewritten sums, buckets of difficulty, whose place they take, the KL by difficulty, and the kind of rows."""

import functools
import random
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import foreign_rewrites
from experiments.parts.judging import Judged
from rl_jax.advantages import groups
from rl_jax.core.types import Rollout, TokenBatch
from rl_jax.losses import difficulty
from rl_jax.losses.kl import k3
from rl_jax.rewards.pool import RewardResult
from rl_jax.selection import rewriting

SIZE = 4


def value(question):
    return sum(int(term) for term in question.removesuffix("=").replace("-", "+-").split("+") if term)


@pytest.mark.parametrize("question", ["3+5-2+7=", "12-8=", "-4+5-9=", "1+1+1="])
def test_a_rewritten_sum_has_the_same_answer(question):
    for seed in range(8):
        for write in (rewriting.simplify, rewriting.diversify):
            said = write(question, random.Random(seed))
            assert value(said) == value(question) and rewriting.SUM.fullmatch(said)
    assert rewriting.simplify("3+5-2+7=", random.Random(0)) == "8-2+7="
    orders = {rewriting.diversify("3+5-2+7=", random.Random(seed)) for seed in range(30)}
    assert len(orders) > 5 and "3+5-2+7=" not in orders and not any(order.startswith("-") for order in orders)
    assert rewriting.simplify("1+2-4=", random.Random(0)) == "3-4="
    for short in ("12-8=", "5+5="):  # no other order, or none with a plus sign first
        assert rewriting.simplify(short, random.Random(0)) == rewriting.diversify(short, random.Random(0)) == short
    assert {rewriting.diversify("5+0=", random.Random(seed)) for seed in range(3)} == {"0+5="}
    with pytest.raises(ValueError, match="'two and two' is no sum"):
        rewriting.simplify("two and two", random.Random(0))


def test_buckets_and_places():
    accuracy = np.arange(11) / 10
    expected = [0 if p <= 0.3 else 1 if p <= 0.7 else 2 for p in accuracy]
    np.testing.assert_array_equal(rewriting.difficulty(accuracy), expected)
    with pytest.raises(ValueError, match="hard=0.8 and medium=0.7"):
        rewriting.difficulty(accuracy, hard=0.8)
    for wrong in (dict(hard=-0.1), dict(medium=1.5)):
        with pytest.raises(ValueError, match="must be shares in this order"):
            rewriting.difficulty(accuracy, **wrong)
    np.testing.assert_array_equal(rewriting.difficulty(np.array([0.29, 0.31, 0.69, 0.71])), [0, 1, 1, 2])
    np.testing.assert_array_equal(rewriting.difficulty(accuracy, hard=0, medium=1), [0] + [1] * 10)
    np.testing.assert_array_equal(rewriting.difficulty(accuracy, hard=0.5, medium=0.5), [0] * 6 + [2] * 5)
    kinds = np.array([1, 2, 0, 0, 2, 1])
    # Hard ones first, into the easy ones' places 1 and 4, then into their own; what is not useful stays out.
    assert rewriting.slots(kinds, np.array([1, 1, 1, 1, 1, 0], bool)) == [(1, 2), (4, 3), (0, 0)]
    assert rewriting.slots(kinds, np.zeros(6, bool)) == []


def test_the_kl_follows_the_share_of_right_answers():
    """From the advantages of GRPO alone, against the shares that they were made of."""
    rights = np.arange(1, 8)
    rewards = (np.arange(8)[None] < rights[:, None]).astype(np.float32)  # 7 groups of 8
    advantages = np.asarray(groups.group_relative(jnp.asarray(rewards.ravel()), group_size=8, ddof=1, eps=0.0))
    mask = np.ones((56, 3), bool)
    rng = np.random.default_rng(0)
    log_probs, reference = (jnp.asarray(rng.normal(size=(56, 3)), jnp.float32) for _ in range(2))
    spread = jnp.broadcast_to(jnp.asarray(advantages).reshape(56, -1)[:, :1], (56, 3))
    found = difficulty.bucketed_k3(
        log_probs, reference, mask, advantages=spread, group_size=8, hard=0.25, medium=0.625, weights=(0.5, 2.0, 3.0)
    )
    share = np.repeat(rights / 8, 8)  # 2/8 and 5/8 are on the bounds
    weight = np.where(share <= 0.25, 0.5, np.where(share <= 0.625, 2.0, 3.0))
    np.testing.assert_allclose(found, weight[:, None] * np.asarray(k3(log_probs, reference, mask)), rtol=1e-5)
    none = difficulty.bucketed_k3(log_probs, reference, mask, advantages=jnp.zeros((56, 3)), group_size=8)
    np.testing.assert_array_equal(none, 0.0)


# Right answers, of how many, and the weights by default and as given.
@pytest.mark.parametrize(
    ("rights", "group_size", "weight", "given"),
    [(3, 10, 0.5, 4.0), (1, 3, 1.0, 2.0), (2, 3, 1.0, 2.0), (7, 10, 1.0, 2.0), (3, 4, 1.0, 5.0)],
)
def test_without_bounds_a_prompt_is_hard_up_to_three_tenths_and_easy_above_seven(rights, group_size, weight, given):
    share, of = rights / group_size, (group_size - 1) / group_size
    arrays = np.float32([[0.0]]), np.float32([[np.log(2.0)]]), np.array([[True]])
    for advantage in (np.sqrt((1 - share) / share * of), -np.sqrt(share / (1 - share) * of)):
        call = functools.partial(difficulty.bucketed_k3, *arrays, group_size=group_size)
        for found, times in (
            (call(advantages=np.float32([[advantage]])), weight),
            (call(advantages=np.float32([[advantage]]), weights=(4.0, 2.0, 5.0)), given),
        ):
            np.testing.assert_allclose(found, times * (1 - np.log(2.0)), rtol=1e-5)


def judged_of(prompts, rewards, token):
    """Rows whose tokens are all `token`, one record per row."""
    rows = len(prompts) * SIZE
    batch = TokenBatch(*(np.full((rows, 5), fill, np.int32) for fill in (token, 0, 1)))
    numbers, flags = np.zeros((rows, 2), np.float32), np.zeros(rows, bool)
    rollout = Rollout(batch, np.ones((rows, 2), bool), numbers, numbers, ~flags, flags)
    records = [{"prompt": prompt} for prompt in prompts for _ in range(SIZE)]
    return Judged(rollout, records, [""] * rows, RewardResult(np.float32(rewards).ravel(), {}, 0, 0, None))


def test_groups_of_rewritten_questions_are_placed_and_graded(monkeypatch):
    prompts = ["1+2+3=", "9-4+1=", "2+2+2=", "5+5+5="]
    plain = judged_of(prompts, [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]], 1)
    said = []
    monkeypatch.setattr(foreign_rewrites, "encode_prompts", lambda setup, records: (records, None))

    def judge(drawn, records):
        said[:] = [record["prompt"] for record in records]
        return judged_of(said, [[1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1]], 7)

    stage = SimpleNamespace(
        group_size=SIZE, above=0.0, key=jax.random.key(0), setup=None, own_prompts=np.arange(4), ends={"pad_id": 0},
        records=lambda judged: judged.records[::SIZE], draw=lambda *_: None, judge=judge,
    )  # fmt: skip
    found = foreign_rewrites.rewrites(stage, plain, np.ones(4, bool))
    assert said[0] == "3+3=" and said[2] == prompts[2] and said[3] == "10+5="  # hard, easy, hard
    assert value(said[1]) == 6 and said[1] not in prompts  # medium: in another order
    # 0 goes to the easy question's place 2, 3 to its own; the rewritten 1 has only right answers and is left out.
    np.testing.assert_array_equal(found.usable.all(axis=1), [False, False, True, True])
    assert [found.judged.records[group * SIZE]["prompt"] for group in (2, 3)] == ["3+3=", "10+5="]
    np.testing.assert_array_equal(found.judged.result.rewards[2 * SIZE :], [1, 0, 0, 1, 0, 1, 1, 1])
    assert not found.foreign and found.metrics == {"hard": 0.5, "medium": 0.25, "kept": 2.0}
    assert foreign_rewrites.rewrites(stage, plain, np.zeros(4, bool)) is None
