"""The texts of studies: words to ids and back, stories whose sentences have moods, lists with rare words."""

import numpy as np
import pytest

from experiments.studies import texts
from rl_jax.rewards import lexicon


def test_words_are_read_and_written():
    tokenizer = texts.WordTokenizer(("It", "was", "sad", "."))
    ids = tokenizer.encode("It was sad.", bos=True, eos=True)
    assert ids == [1, 3, 4, 5, 6, 2] and tokenizer.vocab_size == 7
    assert tokenizer.decode([*ids, 0]) == "It was sad." and tokenizer.encode_continuation(" was", eos=True) == [4, 2]
    with pytest.raises(ValueError, match="distinct"):
        texts.WordTokenizer(("was", "was"))
    with pytest.raises(KeyError, match="glad"):
        tokenizer.encode("It was glad.")


def test_a_share_of_the_sentences_has_a_mood():
    task = texts.story_task(count=400, sentences=2, moody=0.75, seed=1)
    train, test = task.data_source("train"), task.data_source("test")
    assert task.data_source("sft_train") == train and len(train) + len(test) == 400
    assert not {r["prompt"] for r in train} & {r["prompt"] for r in test}
    moods = [lexicon.sentence_score(x) for r in train + test for x in r["completion"].strip().split(".") if x]
    assert len(moods) == 800 and np.mean(np.equal(moods, 0.5)) == pytest.approx(0.25, abs=0.05)
    assert np.mean(moods) == pytest.approx(0.5, abs=0.05)
    for record in train[:20]:
        assert task.tokenizer.decode(task.tokenizer.encode(record["completion"])) == record["completion"].strip()


def test_rare_words_are_rare_bad_and_count_once():
    sizes = dict(words=6, topics=4, common=5, rare=10, rare_share=0.1, rare_value=-3.0)
    task = texts.rare_words_task(**sizes, count=300, seed=2)
    records = task.data_source("sft_train")
    written = [r["completion"].split() for r in records]
    assert all(len(set(words)) == 6 for words in written)
    assert 0.1 < np.mean([word.startswith("rare") for words in written for word in words]) < 0.3
    assert {len(r["prompt"].split()) for r in records} == {2}
    common = {f"common{i}": task.reward_fn("", f" common{i}", {})["reward"] * 6 + 5 for i in range(5)}
    assert sorted(common.values()) == pytest.approx([-1.0, -0.5, 0.0, 0.5, 1.0])
    best = [name for name, _ in sorted(common.items(), key=lambda x: -x[1])]

    def gold(*words):
        return task.reward_fn("", " ".join(words), {})["reward"] * 6

    assert gold(*best, "rare3") == pytest.approx(0.0 - 3.0)
    assert gold(*best[:3], *best[:3]) == pytest.approx(1.5)  # each again: of no value
    assert gold(*best[:3]) == pytest.approx(1.5 - 3) and gold() == -6
    assert gold(*best[:3], "topic1", "topic1", best[0]) == pytest.approx(1.5 - 1)


def test_unseen_words_are_bad_and_words_have_their_places():
    sizes = dict(words=4, topics=3, common=5, unseen=10, value=-2.0, count=200, seed=2)
    task, without = (texts.unseen_words_task(**sizes, share=share) for share in (0.3, 0.0))
    written = [record["completion"].split() for record in task.data_source("sft_train")]
    assert np.mean([word[1:4] == "bad" for words in written for word in words]) == pytest.approx(0.3, abs=0.05)
    assert not any("bad" in record["completion"] for record in without.data_source("train"))
    assert {tuple(word[0] for word in words) for words in written} == {("a", "b", "a", "b")}
    text = "acommon0 bcommon4 abad3 bcommon2"
    assert task.tokenizer.encode(text) == without.tokenizer.encode(text)

    def gold(text):
        return task.reward_fn("", text, {})["reward"] * 4

    assert gold(text) == -1 + 1 - 2 + 0 and gold("acommon4 bcommon4 acommon4 bcommon4 abad1") == 4
    assert gold("acommon4 acommon4") == 1 - 2 - 4 and gold("") == -8 and gold("topic1") == -8
