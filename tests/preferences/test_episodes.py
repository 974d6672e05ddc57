"""rl_jax.preferences.episodes: pairs among recorded episodes, token by token."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet
import pytest

from configs.preferences import armap
from configs.preferences import episodes as episodes_config
from experiments.parts import check_config
from experiments.tools import best_trajectory
from rl_jax import preferences
from rl_jax.data.readers import DataError
from rl_jax.experience import trajectory as t
from rl_jax.losses.reward_model.rankings import bradley_terry
from rl_jax.preferences import encode_preferences, episodes
from rl_jax.tokenizers import CharTokenizer

TOKENIZER = CharTokenizer("abcdef")
PROMPT, EOS = [1, 4], TOKENIZER.eos_id


def episode(sample, turns, rewards, answers=((9,), (8,)), group=0, status="done", segments=1):
    """Turns of some ids, between answers of the environment."""
    spans = [t.prompt(PROMPT)]
    for number, ids in enumerate(turns):
        spans.append(t.sampled([*ids, EOS], [-1.0] * (len(ids) + 1)))
        if number + 1 < len(turns):
            spans.append(t.given("observation", answers[number]))
    earned = tuple(t.Turn(reward) for reward in rewards)
    return t.Trajectory(f"p{group}", group, sample, (tuple(spans),) * segments, earned, status)


GROUP = [
    episode(0, [[5], [6]], [0.0, 1.0]),
    episode(1, [[5], [7]], [0.0, 0.0]),
    episode(2, [[3], [6]], [0.25, 0.0]),
    episode(3, [[5], [6]], [0.0, 0.5]),
]


def test_turns_after_the_same_tokens_are_compared_by_mean_returns():
    first, second = episodes.pairs_of_turns(GROUP, 1e-6)
    assert first["prompt"] == {"ids": PROMPT}
    assert [response["ids"] for response in first["responses"]] == [[5, EOS], [3, EOS]]
    assert first["rewards"] == [0.5, 0.25]  # (1 + 0 + .5) / 3
    assert second["prompt"] == {"ids": [*PROMPT, 5, EOS, 9]}
    assert [response["ids"] for response in second["responses"]] == [[6, EOS], [7, EOS]]
    assert second["rewards"] == [0.75, 0.0]
    assert episodes.pairs_of_turns(GROUP, 0.3) == [second]
    other = episode(4, [[5], [6]], [0.0, -9.0], answers=((8,), (8,)))  # another answer: another history
    assert len(episodes.pairs_of_turns([*GROUP, other], 0.3)) == 2


def attempts(sample, said, rewards):
    """An episode whose turns have a segment each, which begins with nothing of the one before."""
    spans = [(t.prompt([1, 4 + n]), t.sampled([word, EOS], [-1.0, -1.0])) for n, word in enumerate(said)]
    return t.Trajectory("p0", 0, sample, tuple(spans), tuple(t.Turn(reward) for reward in rewards), "done")


def test_an_attempt_is_worth_what_it_earned_itself():
    """A wrong attempt that a right one followed is as bad as another wrong attempt."""
    group = [attempts(0, [5, 6], [0.0, 1.0]), attempts(1, [7, 8], [0.0, 0.0])]
    assert [record["rewards"] for record in episodes.pairs_of_turns(group, 1e-6)] == [[1.0, 0.0]] * 2
    (second,) = episodes.pairs_of_turns(group, 1e-6, discount=0.0)
    assert second["prompt"] == {"ids": [1, 5]} and second["responses"][0] == {"ids": [6, EOS]}
    assert [value for _, _, value in episodes.turns_of(group[0], 0.5)] == [0.5, 1.0]
    configs = [episodes_config.get_config(f"{world},turns") for world in ("program", "guess")]
    assert [config.data.discount for config in configs] == [0.0, 1.0]


def test_a_word_that_names_a_world_and_its_pairs_means_the_same_in_every_process():
    """The order of a set of words is another one in each process: a run could not be resumed."""
    for argument, name, pairs in [
        ("graded,judged", "graded", "judged"),
        ("gripper,judged", "gripper", "judged"),
        ("judged,turns", "judged", "turns"),
        ("judged,episodes", "judged", "episodes"),
        ("judged,good", "judged", "none"),
        ("judged", "judged", "turns"),
    ]:
        config = episodes_config.get_config(argument)
        assert (config.name, config.data.pairs) == (f"episodes_{name}", pairs)


def test_whole_episodes_hold_what_the_environment_wrote_untrained():
    (record,) = episodes.pairs_of_episodes(GROUP, 0.1)
    best, worst = record["responses"]
    assert best == {"ids": [5, EOS, 9, 6, EOS], "trained": [True, True, False, True, True]} and worst["ids"][3] == 7
    arrays, counts = encode_preferences(TOKENIZER, [record], prompt_buckets=(4,), completion_length=6)
    assert counts["num_responses_cut"] == 0
    assert arrays["tokens"][0, 0].tolist() == [0, 0, *PROMPT, 5, EOS, 9, 6, EOS, 0]
    assert arrays["completion_mask"][0, 0].tolist() == [True, True, False, True, True, False]
    assert arrays["segment_ids"][0, 0].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1, 0]
    assert episodes.pairs_of_episodes(GROUP[1:2], 0.1) == []
    assert episodes.pairs_of_episodes([episode(0, [[5]], [1.0], segments=2)], 0.0) == []
    assert [record["rewards"] for record in episodes.labelled(GROUP, 0.5)] == [[1.0], [0.0], [0.0], [1.0]]


def write(folder, steps):
    (folder / "trajectories").mkdir(parents=True)
    for number, found in enumerate(steps):
        pyarrow.parquet.write_table(t.to_table(found), folder / f"trajectories/{number:08d}.parquet")
    return folder


def test_a_runs_folder_is_read(tmp_path):
    failed = episode(4, [[5]], [9.0], status="error")
    lone = [episode(0, [[5]], [1.0], group=1), episode(1, [[6]], [0.0], group=1)]
    folder = write(tmp_path / "run", [[*GROUP, failed, *lone], GROUP])
    found = preferences.load("episodes", path=str(folder), test_share=0.0)
    source = found.data_source("train")
    assert found.kind == "pairs" and len(source) == 5 and source.num_skipped == 0 and not len(found.data_source("test"))
    assert len(preferences.load("episodes", path=str(folder), newest=1, test_share=0.0).data_source("train")) == 2
    assert (
        preferences.load("episodes", path=str(folder / "trajectories"), pairs="none", test_share=0.0).kind == "labels"
    )
    np.testing.assert_array_equal(source[0]["prompt"]["ids"], PROMPT)


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(DataError, match="no recorded episodes .*config.agent.record=true"):
        episodes.load(path=str(tmp_path))
    with pytest.raises(DataError, match="4 recorded episodes hold no pair of turns that differ by 5"):
        episodes.load(path=str(write(tmp_path / "a", [GROUP])), gap=5)
    (write(tmp_path / "b", [GROUP]) / "trajectories/00000000.parquet").write_bytes(b"no")
    with pytest.raises(DataError, match="00000000.parquet is no file of recorded episodes"):
        episodes.load(path=str(tmp_path / "b"))
    with pytest.raises(ValueError, match="pairs='x' must be one of turns, judged, episodes, altered, none"):
        episodes.load(path=str(tmp_path), pairs="x")
    with pytest.raises(ValueError, match=r"discount=2 must be in \[0, 1\]"):
        episodes.load(path=str(tmp_path), discount=2)


def test_a_good_episode_ends_as_another_instructions_does():
    """ARMAP's triplets: one instruction, the good trajectory, and the same with another one's end from a turn on."""
    known = []
    assert episodes.altered(GROUP, known, 0.5) == [] and known == [GROUP[0]]  # no other one is known yet
    group = [episode(0, [[5], [3], [7]], [0.0, 0.0, 1.0], group=1), episode(1, [[4], [6]], [0.0, 0.0], group=1)]
    records = episodes.altered(group, known, 0.5)
    assert len(records) == 3 and known == [GROUP[0], group[0]]
    ends = [[5, EOS, 9, 6, EOS], [5, EOS, 9, 6, EOS], [5, EOS, 9, 3, EOS, 8, 6, EOS]]  # of a shorter one the last
    for record, ids in zip(records, ends, strict=True):
        assert record["prompt"] == {"ids": PROMPT} and record["rewards"] == [1.0, 0.0]
        better, worse = record["responses"]
        for response, expected in ((better, [5, EOS, 9, 3, EOS, 8, 7, EOS]), (worse, ids)):
            assert response == {"ids": expected, "trained": [x not in (8, 9) for x in expected]}
    assert episodes.altered(group, known, 1.5) == [], "no good episode, no triplet"
    assert episodes.altered(GROUP, known[:1], 0.5) == [], "the only other one has the same ending"


def test_the_best_of_n_trajectories_by_hand():
    """The reward model's choice is graded by the environment, over all subsets; the environment's own is the bound."""
    groups = [[episode(i, [[5]], [x], group=g) for i, x in enumerate(rewards)] for g, rewards in
              enumerate([(0.0, 1.0, 0.5), (1.0, 0.0, 0.0)])]  # fmt: skip
    scores = np.array([0.0, 2.0, 1.0, -1.0, 0.0, 1.0])  # right in the first group, wrong in the second
    rows = best_trajectory.measure(groups, scores)
    assert [row[0] for row in rows] == [1, 2, 3]
    np.testing.assert_allclose([row[1] for row in rows], [(0.5 + 1 / 3) / 2, (2.5 / 3 + 0) / 2, 0.5])
    np.testing.assert_allclose([row[2] for row in rows], [(0.5 + 1 / 3) / 2, (2.5 / 3 + 2 / 3) / 2, 1.0])
    done = [row[3:] for row in best_trajectory.measure(groups, scores, solved=0.75)]  # a reward of .5 is not enough
    np.testing.assert_allclose(done, [(1 / 3, 1 / 3), (1 / 3, 2 / 3), (0.5, 1.0)])


def test_only_whole_groups_of_trajectories_are_compared(tmp_path):
    lone = [episode(0, [[5]], [1.0], group=1)]
    found, partial = best_trajectory.whole_groups(write(tmp_path / "two", [[*GROUP, *lone]]), 0)
    assert partial == 1 and [[one.sample for one in group] for group in found] == [[0, 1, 2, 3]]
    other = [[episode(0, [[5]], [1.0], group=2)], GROUP]
    kept, dropped = best_trajectory.unseen(other, str(write(tmp_path / "trained", [GROUP])))
    assert kept == other[:1] and dropped == 1, "prompts of the reward model's own run are left out"
    assert best_trajectory.unseen(other, str(tmp_path / "gone")) == (other, -1)
    with pytest.raises(ValueError, match="all 1 groups are of prompts in .*trained"):
        best_trajectory.unseen([GROUP], str(tmp_path / "trained"))
    with pytest.raises(ValueError, match="no group has two trajectories"):
        best_trajectory.whole_groups(write(tmp_path / "one", [lone]), 0)


@pytest.mark.parametrize("arg", [None, "maze,groups,smoke"])
def test_the_config_of_armap_can_run(arg):
    config = armap.get_config(arg)
    check_config.check(config)
    assert config.data.pairs == ("altered" if arg is None else "episodes") and config.program == "reward_model"


def test_trajectories_are_graded_as_they_were_sampled():
    """The tokens that the reward model reads are those of the prompt, the turns and the answers between them."""
    rollout = SimpleNamespace(prompt_buckets=(4,), completion_length=6)

    def score_rows(rows):
        return (rows.tokens * rows.segment_ids).sum(axis=1).astype(np.float32)

    model = SimpleNamespace(config=SimpleNamespace(rollout=rollout), tokenizer=TOKENIZER, score_rows=score_rows)
    assert best_trajectory.grades(model, GROUP).tolist() == [float(one.ids().sum()) for one in GROUP]


FOUND = {3: 6, 4: 7, 8: 5}  # what the environment shows -> the ending that is right after it


def answered(sample, group, shown, ending):
    """An episode that looks, is shown a token, and ends with another."""
    return episode(sample, [[9], [ending]], [0.0, float(FOUND[shown] == ending)], answers=((shown,),), group=group)


def test_triplets_teach_a_reward_model_to_take_the_best_of_n(tmp_path):
    """The whole of ARMAP: altered episodes, the Bradley-Terry loss, and the best of n by what was learnt.

    The reward model is a table of (what was shown, how it ended), read from the tokens that the encoders give.
    """
    good = [[answered(0, number, shown, FOUND[shown])] for number, shown in enumerate([3, 4, 8] * 20)]
    found = preferences.load("episodes", path=str(write(tmp_path / "first", good)), pairs="altered", test_share=0.0)
    source = found.data_source("train")
    arrays, _ = encode_preferences(TOKENIZER, [source[i] for i in range(len(source))],
                                   prompt_buckets=(4,), completion_length=6)  # fmt: skip
    places = np.where(arrays["segment_ids"] > 0, np.arange(arrays["tokens"].shape[-1]), -1).max(-1)  # the last tokens

    def cells(tokens, last):
        before = [np.take_along_axis(tokens, (last - back)[..., None], -1)[..., 0] for back in (2, 1)]
        return before[0], before[1]  # what was shown, and the ending before its EOS

    table, pick = jnp.zeros((10, 10)), cells(arrays["tokens"], places)
    slope = jax.jit(jax.grad(lambda table: bradley_terry(table[pick], jnp.ones(places.shape, bool)).loss.sum()))
    for _ in range(20):
        table -= 0.1 * slope(table)
    held_out = [[answered(n, 100 + g, shown, ending) for n, ending in enumerate((5, 6, 7))]
                for g, shown in enumerate([3, 4, 8])]  # fmt: skip

    def score_rows(rows):
        last = np.where(rows.segment_ids > 0, np.arange(rows.tokens.shape[-1]), -1).max(-1)
        return np.asarray(table[cells(rows.tokens, last)])

    rollout = SimpleNamespace(prompt_buckets=(4,), completion_length=6)
    model = SimpleNamespace(config=SimpleNamespace(rollout=rollout), tokenizer=TOKENIZER, score_rows=score_rows)
    rows = best_trajectory.measure(held_out, best_trajectory.grades(model, sum(held_out, [])))
    np.testing.assert_allclose([row[3] for row in rows], [1 / 3, 2 / 3, 1.0])  # as the environment's own choice
