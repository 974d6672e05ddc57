"""The sentiment model: accuracy, determinism, a score that is a mean over sentences, and files that are refused."""
import math
import shutil

import numpy as np
import pytest

from rl_jax.data import readers
from rl_jax.rewards import sentiment
from rl_jax.rewards.pool import RewardPool
from tests.paths import shared_data

TOY = [(1, "good fun"), (1, "good film ."), (1, "a good time"), (0, "bad fun"), (0, "bad film ."), (0, "a bad time")]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return sentiment.prepare(shared_data("sentiment"), cache_dir=str(tmp_path_factory.mktemp("sentiment")))


def test_accuracy(model_path):
    model = sentiment.load(model_path)
    assert model.dev_accuracy >= 0.78 and model.test_accuracy >= 0.78
    test = [(label, text) for _, label, text in
            readers.read_labelled(shared_data("sentiment/sst2_test.txt.gz"), readers.BadRecords())]
    assert len(test) == 1821
    assert sentiment.accuracy(model, test) == model.test_accuracy  # of the model as loaded, not as trained
    assert sentiment.accuracy(model, [(1 - label, text) for label, text in test]) <= 0.22


def test_the_optimum_of_a_toy_problem():
    """At the optimum the gradient is zero: checked with plain loops, on the published equation."""
    weights, bias = sentiment.train(TOY, l2=0.7, min_count=2)
    assert set(weights) == {"good", "bad", "fun", "film", "a", "time"}
    counts = {f: [1 + sum(f in sentiment.ngrams(t) for y, t in TOY if y == label) for label in (0, 1)] for f in weights}
    totals = [sum(count[label] for count in counts.values()) for label in (0, 1)]
    ratio = {f: math.log(n[1] / totals[1]) - math.log(n[0] / totals[0]) for f, n in counts.items()}
    gradient = {f: 0.7 * weights[f] / ratio[f] if ratio[f] else 0.0 for f in weights}
    slope = 0.0
    for label, text in TOY:
        present = [f for f in weights if f in sentiment.ngrams(text)]
        residual = 1 / (1 + math.exp(-bias - sum(weights[f] for f in present))) - label
        slope += residual
        for f in present:
            gradient[f] += residual * ratio[f]
    assert max(abs(g) for g in [slope, *gradient.values()]) < 1e-3
    assert weights["good"] > 0.5 > -0.5 > weights["bad"] and weights["fun"] == 0.0


def test_prepare_is_cached_deterministic_and_keyed_by_content(tmp_path):
    for split in ("train", "dev", "test"):
        shutil.copy(shared_data("sentiment/sst2_dev.txt.gz"), tmp_path / f"sst2_{split}.txt.gz")
    first = sentiment.prepare(tmp_path, cache_dir=str(tmp_path / "one"))
    stamp = (tmp_path / "one").stat().st_mtime_ns
    assert sentiment.prepare(tmp_path, cache_dir=str(tmp_path / "one")) == first
    assert (tmp_path / "one").stat().st_mtime_ns == stamp
    second = sentiment.prepare(tmp_path, cache_dir=str(tmp_path / "two"))
    assert sentiment.load(first) == sentiment.load(second)
    assert sentiment.prepare(tmp_path, cache_dir=str(tmp_path / "one"), l2=1.0) != first
    shutil.copy(shared_data("sentiment/sst2_test.txt.gz"), tmp_path / "sst2_dev.txt.gz")
    assert sentiment.prepare(tmp_path, cache_dir=str(tmp_path / "one")) != first


def test_bad_lines(tmp_path):
    for split in ("train", "dev", "test"):
        (tmp_path / f"sst2_{split}.txt.gz").write_text("1 good\n0 bad\n1 good\n0 bad\n")
    (tmp_path / "sst2_dev.txt.gz").write_text("1 good\npositive bad\n0 bad\n")
    with pytest.raises(readers.DataError, match=r"sst2_dev.txt.gz, line 2, field 'label'"):
        sentiment.prepare(tmp_path, cache_dir=str(tmp_path))
    assert sentiment.load(sentiment.prepare(tmp_path, cache_dir=str(tmp_path), skip_bad_records=True)).weights
    (tmp_path / "sst2_train.txt.gz").write_text("1 good\n1 fine\n")
    with pytest.raises(readers.DataError, match="both labels"):
        sentiment.prepare(tmp_path, cache_dir=str(tmp_path), skip_bad_records=True)


def test_score_is_the_mean_over_sentences(model_path):
    model = sentiment.load(model_path)
    happy, sad = "It was a wonderful day!", "It was terrible and boring."
    one, two = sentiment.text_score(model, happy), sentiment.text_score(model, sad)
    assert one > 0.6 and two < 0.3
    assert one == pytest.approx(1 / (1 + math.exp(-sentiment.evidence(model, happy))))
    for joined in (f"{happy} {sad}", f"{happy}\n{sad}", f'"{happy}" {sad}'):
        assert sentiment.text_score(model, joined) == pytest.approx((one + two) / 2)
    assert sentiment.text_score(model, happy[:-1]) == pytest.approx(
        1 / (1 + math.exp(-sentiment.evidence(model, happy[:-1]))))  # a cut last sentence counts
    assert 0.0 <= sentiment.text_score(model, "wonderful " * 5000) <= 1.0
    for empty in ("", " \n", "...", "\ufffd"):
        assert sentiment.text_score(model, empty) == 0.0


def test_repetition():
    assert sentiment.distinct_trigrams("the cat sat on the mat") == 1.0
    assert sentiment.distinct_trigrams("so so so so so so") == 0.25
    assert sentiment.distinct_trigrams("hello") == 1.0 and sentiment.distinct_trigrams("") == 0.0


def test_words_and_sentences():
    assert sentiment.split_words("She didn’t, it's Tom's!") == ["she", "did", "n't", "it", "'s", "tom", "'s", "!"]
    assert sentiment.split_sentences('He said, "Go!" Then left.\n\nThe 2.5 end') == [
        'He said, "Go!', "Then left.", "The 2.5 end"]
    assert sentiment.ngrams("a b a b") == ["a", "b", "a b", "b a"]


def test_in_a_pool(model_path):
    with RewardPool(sentiment.score, kwargs={"model_path": model_path}, num_workers=1) as pool:
        result = pool(["p", "p"], ["A wonderful day!", "so so so so so so"], ["{}", "{}"])
    expected = [sentiment.text_score(sentiment.load(model_path), text) for text in ("A wonderful day!", "so " * 6)]
    np.testing.assert_allclose(result.rewards, expected, rtol=1e-6)
    np.testing.assert_array_equal(result.components["reward_repetition"], [1.0, 0.25])


def test_a_file_that_is_no_model_is_refused(tmp_path):
    path = tmp_path / "model.npz"
    path.write_bytes(b"nothing")
    with pytest.raises(readers.DataError, match="not a sentiment model"):
        sentiment.load(str(path))
    np.savez(path.with_name("object.npz"), features=np.array([{}], object), weights=np.ones(1), bias=0.0)
    with pytest.raises(readers.DataError, match="allow_pickle"):
        sentiment.load(str(path.with_name("object.npz")))
