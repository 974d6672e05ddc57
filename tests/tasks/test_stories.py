"""The stories task: prompt + completion is the story, splits share no prompt, and real stories are not saturated."""
import gzip
import json

import numpy as np
import pytest

from rl_jax import tasks
from rl_jax.data import readers
from rl_jax.tasks import moods, stories
from tests.paths import shared_data


def load(folder, path, **kwargs):
    return tasks.load("stories", path=str(path), tokenizer_path=str(shared_data("models/tok512.bin")),
                      sentiment_path=str(shared_data("sentiment")), data_dir=str(folder),
                      sentiment_cache_dir=str(folder), **kwargs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tfds")


@pytest.fixture(scope="module")
def task(folder):
    return load(folder, shared_data("text/tinystories_2MiB.txt.gz"))


def rows(task, split):
    source = task.data_source(split)
    return [source[i] for i in range(len(source))]


def test_stories_come_back_whole_and_split_without_overlap(task):
    train, test = rows(task, "train"), rows(task, "test")
    text = gzip.decompress(shared_data("text/tinystories_2MiB.txt.gz").read_bytes()).decode()
    published = {story.strip() for story in text.split("<|endoftext|>")[:-1]}
    assert len(train) + len(test) == 2316 and 150 < len(test) < 350
    assert {row["prompt"] + row["completion"] for row in train + test} <= published
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in test}
    lengths = [len(task.tokenizer.encode(row["prompt"], bos=True)) for row in train + test]
    assert max(lengths) <= 48 and min(lengths) >= 2
    assert sum(row["prompt"][-1] in ".!?\"'”’" for row in train) > 0.97 * len(train)


def test_sentiment_of_real_stories_is_in_the_middle(task):
    values = [task.reward_fn(row["prompt"], row["completion"], {}, **task.reward_kwargs) for row in rows(task, "test")]
    rewards = np.array([value["reward"] for value in values])
    assert 0.4 < rewards.mean() < 0.7 and 0.03 < rewards.std() and 0.1 < rewards.min() and rewards.max() < 0.9
    assert np.mean([value["reward_repetition"] for value in values]) > 0.9


def test_split_story(task):
    tok = task.tokenizer
    assert stories.split_story('He said, "Go!" Then he left. End.', tok, max_prompt_tokens=48) == (
        'He said, "Go!"', " Then he left. End.")
    long = "once " * 100 + "upon. A time."
    prompt, rest = stories.split_story(long, tok, max_prompt_tokens=20)
    assert prompt + rest == long and prompt.endswith("once") and rest.startswith(" once")
    assert len(tok.encode(prompt, bos=True)) <= 20 < len(tok.encode(prompt + " once", bos=True))
    assert stories.split_story("x" * 500, tok, max_prompt_tokens=20) == ("", "x" * 500)
    assert stories.split_story("No end", tok, max_prompt_tokens=20) == ("No end", "")


@pytest.mark.slow
def test_small_file(tmp_path, folder):
    path = tmp_path / "stories.txt"
    texts = [f"Tale {i} begins. It goes on." for i in range(60)] + ["Only one sentence.", "Tale 1 begins. It goes on."]
    path.write_text("<|endoftext|>".join(texts) + "<|endoftext|>cut")
    report = load(folder, path).data_source("train").report
    assert (report["num_too_short"], report["num_duplicates"], report["num_skipped"]) == (1, 1, 0)
    assert sum(report["num_records"].values()) == 60
    path.write_bytes(path.read_bytes() + b"\n<|endoftext|>\n\xff<|endoftext|>")
    with pytest.raises(readers.DataError, match="stories.txt, line 3, field 'story'.*UTF-8"):
        load(folder, path)
    assert load(folder, path, skip_bad_records=True).data_source("test").num_skipped == 1


def test_bad_arguments(folder):
    with pytest.raises(ValueError, match="max_prompt_tokens"):
        load(folder, "unused", max_prompt_tokens=2)
    with pytest.raises(readers.DataError, match="cannot be opened"):
        load(folder, folder / "none.txt")


def test_generated_stories_need_no_file(tmp_path):
    task = tasks.load("stories", num_stories=300, data_dir=str(tmp_path))
    train, test = ([task.data_source(s)[i] for i in range(len(task.data_source(s)))] for s in ("train", "test"))
    assert len(train) + len(test) == 300 and 15 < len(test) < 50
    assert not {r["prompt"] for r in train} & {r["prompt"] for r in test}
    rewards = []
    for record in train:
        ids = task.tokenizer.encode(record["prompt"], bos=True) + task.tokenizer.encode_continuation(
            record["completion"], eos=True)
        assert task.tokenizer.decode(ids) == record["prompt"] + record["completion"]
        info = json.loads(record["info"])
        rewards.append(task.reward_fn(record["prompt"], record["completion"], info)["reward"])
        assert rewards[-1] == pytest.approx(info["num_good"] / 3), "a sentence for each mood"
    assert sum(rewards) / len(rewards) == pytest.approx(0.5, abs=0.1), "neither mood is what the data teach"


def test_stories_of_a_seed(tmp_path):
    first, again, other = (moods.make_stories(num_stories=50, num_sentences=2, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    all_good = moods.make_stories(num_stories=20, num_sentences=2, seed=0, good_share=1.0)
    assert {json.loads(record["info"])["num_good"] for record in all_good} == {2}
    wrong = dict(num_stories=5, num_sentences=2, good_share=1.5)
    for settings in (dict(num_stories=10**6, num_sentences=2), dict(num_stories=5, num_sentences=0), wrong):
        with pytest.raises(ValueError, match="must be"):
            moods.make_stories(seed=0, **settings)


@pytest.mark.parametrize("given", [{"path": "x"}, {"tokenizer_path": "x", "sentiment_path": "y"}])
def test_some_of_the_files_are_not_enough(given):
    with pytest.raises(ValueError, match="or none of them for generated ones"):
        tasks.load("stories", **given)
