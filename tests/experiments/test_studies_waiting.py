"""The world behind waiting_dropping: rewards, chances, lengths by enumeration; what is taken and what dropped."""

import itertools

import numpy as np
import pytest

from experiments.studies import waiting
from experiments.studies.waiting import EOS, RIGHT, WRONG, Sampler, World
from rl_jax.experience.admission import Rule

WORLD = World(np.array([1, 2, 3]), np.array([False, False, True]), 4)


def drawn_rows(length):
    """All rows of a world: tokens up to EOS, EOS behind it, and how many there are."""
    for tokens in itertools.product((EOS, RIGHT, WRONG), repeat=length):
        if EOS not in tokens or set(tokens[tokens.index(EOS) :]) == {EOS}:
            yield np.array(tokens), (tokens.index(EOS) + 1 if EOS in tokens else length)


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_chances_and_lengths_are_those_of_all_rows(noise):
    logits = waiting.start_logits(WORLD, 0.4, np.random.default_rng(0), noise)
    table, chance, length, total = waiting.log_softmax(logits), np.zeros(3), np.zeros(3), np.zeros(3)
    for tokens, count in drawn_rows(4):
        for prompt in range(3):
            probability = np.exp(sum(table[prompt, t, tokens[t]] for t in range(count)))
            right = tokens[: WORLD.needed[prompt] + 1].tolist() == [RIGHT] * WORLD.needed[prompt] + [EOS]
            assert WORLD.reward(np.array([prompt]), tokens[None])[0] == right
            chance[prompt] += probability * right
            length[prompt] += probability * count
            total[prompt] += probability
    np.testing.assert_allclose(total, 1.0, rtol=1e-6)
    np.testing.assert_allclose(WORLD.chance(logits), chance, rtol=1e-5)
    np.testing.assert_allclose(WORLD.mean_length(logits), length, rtol=1e-5)
    if not noise:
        np.testing.assert_allclose(chance, 0.4, rtol=1e-5)


def test_the_hard_quarter_needs_most():
    world = waiting.make_world(24, mean=6, sigma=1.25, length=32)
    assert world.hard.sum() == 6 and world.needed[world.hard].min() >= world.needed[~world.hard].max()
    assert world.needed.min() == 1 and world.needed.max() == 31


def sampler_of(order, needed, **fields):
    """A sampler whose rows are as long as their prompts need, for sure."""
    world = World(np.array(needed), np.zeros(len(needed), bool), 12)
    sampler = Sampler(Rule(2, order=order, **fields).check(), world, 2, np.random.default_rng(0))
    sampler.publish(0, waiting.start_logits(world, 1.0 - 1e-9, np.random.default_rng(0), 0.0))
    return sampler


@pytest.mark.parametrize("order", ["ready", "drop"])
def test_the_long_row_is_waited_for_or_thrown_away(order):
    """Of every four prompts one needs 11 tokens, the others 1; a train step lasts two calls."""
    sampler, taken = sampler_of(order, [1, 1, 1, 11], eta=1, age=3), []
    table = sampler._table
    for version in range(1, 13):
        batch = sampler.take()
        taken += [rows.lengths.tolist() for rows in batch]
        for rows in batch:
            expected = [
                sum(table[rows.prompt, t, row[t]] for t in range(n))
                for row, n in zip(rows.tokens, rows.lengths, strict=True)
            ]
            np.testing.assert_allclose(rows.log_probs.sum(axis=1), expected, atol=1e-5)
        for _ in range(2):
            sampler.call()
        sampler.publish(version, table)
    assert len(taken) == 24 and sampler.counters.taken == 24
    long = taken.count([12, 12])
    if order == "ready":
        assert long >= 5 and sampler.counters.dropped == 0 and 1 < sampler.ages <= 3
    else:
        assert long < 4 and sampler.counters.dropped > 0 and sampler.ages <= 1
    assert taken.count([2, 2]) == 24 - long


@pytest.mark.slow
def test_synchronous_rows_are_fresh_and_all_are_trained_on():
    fields = dict(
        prompts=8, mean=3, sigma=1.0, length=8, solve=0.3, noise=0.1, groups=2, group_size=2, train=2, steps=8
    )
    fields |= dict(slots=dict(aggregate="token_mean"), learning_rate=1.0)
    found = waiting.waiting_dropping((0, 1), arms={"a": dict(eta=0, age=0), "b": dict(eta=2, age=4)}, **fields)
    fresh, stale = found.values["a"], found.values["b"]
    assert set(fresh) == {"kept", "hard", "easy", "age", "dropped", "time", "hard_timed"}
    np.testing.assert_array_equal(fresh["age"], 0.0)
    assert (stale["age"] <= 4).all() and (stale["time"] < fresh["time"]).all()
    assert (fresh["hard_timed"] < fresh["hard"]).any() and (stale["hard_timed"] == stale["hard"]).all()
