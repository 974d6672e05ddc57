"""CoMAS's rounds: who reads what, over all draws; who is paid what."""

import collections
import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.advantages import turn_rounds
from rl_jax.envs.text.attempts import Judged
from rl_jax.envs.text.discussions import Discussions

INFO = {"question": "7+8=", "answer": "15"}


def played(env, says, seed=0):
    """[(what was read, the step)] of an episode in which the n-th turn says says(n)."""
    env.turn = 0
    env.begin(INFO, random.Random(seed))
    read, found = "s7+8=\n", []
    for turn in itertools.count():
        step = env.step(says(turn))
        found.append((read, step))
        if step.done:
            return found
        assert step.anew and len(step.messages) == 1
        read = step.messages[0]["content"]


def says_of(env):
    """Solutions 10, 11, 12, ... by place, "ok" and "no" in turn, scores 1, 2, 3 in turn."""
    roles = env._roles

    def says(turn):
        place, role = divmod(turn, roles)
        return (str(10 + place), ("ok", "no")[place % 2], str(1 + place % 3))[role]

    return says


def test_who_reads_what_over_all_draws():
    """Every choice of 2 of 3 discussions, in every order, is read by all solvers of a round, and by nobody else."""
    env, counts = Discussions(agents=3, rounds=2, references=2), collections.Counter()
    first = ["10?ok", "11?no", "12?ok"]
    for seed in range(240):
        episode = played(env, says_of(env), seed)
        assert len(episode) == 18 == env.most
        reads = [read for read, _ in episode]
        assert reads[0::3][:3] == ["s7+8=\n"] * 3  # an empty discussion
        assert len(set(reads[9::3])) == 1  # one draw for all
        shown = tuple(reads[9].removeprefix("s7+8=").strip().split(","))
        assert shown in set(itertools.permutations(first, 2))
        for place in range(6):  # an evaluator reads one solution, a scorer that and its evaluation
            verdict = ("ok", "no")[place % 2]
            assert reads[3 * place + 1 : 3 * place + 3] == [f"e7+8={10 + place}?\n", f"j7+8={10 + place}?{verdict}\n"]
        counts[shown] += 1
        speakers = np.array([step.numbers["agent"] for _, step in episode], int).reshape(2, 3, 3)
        assert (speakers[:, :, 0] == [1, 2, 3]).all()  # solution j is agent j's
        assert (np.sort(speakers, axis=1) == np.array([1, 2, 3])[:, None]).all()  # each speaks once in each role
        counts["own", tuple(speakers[0, :, 1])] += 1
    assert {key for key in counts if key[0] != "own"} == set(itertools.permutations(first, 2))
    assert {key[1] for key in counts if key[0] == "own"} == set(itertools.permutations((1, 2, 3)))
    assert min(counts.values()) > 20  # of 40 expected


def test_few_discussions_are_all_read():
    env = Discussions(agents=2, rounds=3, references=5)
    reads = [read for read, _ in played(env, says_of(env))]
    assert sorted(reads[6].removeprefix("s7+8=").strip().split(",")) == ["10?ok", "11?no"]
    assert sorted(reads[12].removeprefix("s7+8=").strip().split(",")) == ["12?ok", "13?no"]  # the last round's only


@pytest.mark.parametrize("judge", ["model", "scripted"])
def test_one_agent_is_the_judged_world(judge):
    one, other = Discussions(judge=judge, rounds=2, agents=1), Judged(judge=judge, rounds=2)
    words = ["15", "no", "9", "15", "ok", "3"] if judge == "model" else ["15", "no", "1", "ok"]
    pairs = zip(played(one, words.__getitem__), played(other, words.__getitem__), strict=True)
    for (read, step), (wanted, like) in pairs:
        assert (read, step.messages, step.done, step.reward) == (wanted, like.messages, like.done, like.reward)
        assert {name: x for name, x in step.numbers.items() if name != "agent"} == like.numbers


def test_each_pair_shares_one_and_only_scorers_without_a_score_pay():
    """The rewards of an episode, by its code's rule, as the credit gives them before it normalizes."""
    env = Discussions(agents=2, rounds=2)
    words = ["15", "ok", "3", "14", "no", "2", "15", "ok", "x", "15", "no", "1"]
    episode = played(env, words.__getitem__)
    assert [step.reward for _, step in episode] == [0] * 8 + [-1] + [0] * 3
    assert sum(step.numbers["correct"] for _, step in episode) == 1.0  # both of the last round
    wanted = np.array([1, 0, 0, 0.5, 0.5, 0, 0, 0, -1, 0, 1, 0])
    turns = jnp.tile(jnp.arange(12), (2, 1))  # a token a turn; two rows, since groups of one are refused
    counted = {f"turn_{name}": [step.numbers[name] for _, step in episode] for name in ("role", "score")}
    counted |= dict(turn_rewards=[step.reward for _, step in episode])
    named = {name: jnp.tile(jnp.asarray(values, jnp.float32), (2, 1)) for name, values in counted.items()}
    credit = jax.jit(lambda: turn_rounds.zero_sum(jnp.full(2, -1.0), turns=turns, group_size=2, **named))
    expected = (wanted - wanted.mean()) / wanted.std()
    np.testing.assert_allclose(credit(), np.tile(expected, (2, 1)), rtol=1e-5, atol=1e-6)


def test_settings_out_of_range_are_refused():
    for setting in ("agents", "references"):
        with pytest.raises(ValueError, match=f"{setting}=0.* must be at least 1"):
            Discussions(**{setting: 0})
