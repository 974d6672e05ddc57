"""Sentiment reward: a linear model over words and word pairs, trained on SST-2; scoring is numpy only.

Model: logistic regression on the presence of n-grams, each scaled by its naive-Bayes log-count ratio (the NBSVM recipe
of Wang & Manning, ACL 2012, with the logistic loss):

    evidence(x) = b + sum over distinct n-grams j of x:  w_j r_j
    r = log((1 + n_pos) / |1 + n_pos|) - log((1 + n_neg) / |1 + n_neg|)
    w, b minimise sum_i log(1 + exp(-s_i evidence(x_i))) + l2/2 |w|^2,   s_i = +-1  (L-BFGS, deterministic)

Score of a text: the mean over its sentences of sigmoid(evidence(sentence)). Evidence over a whole story would saturate
(one happy ending outweighs everything). The mean over sentences is in [0, 1], does not grow with length, and each
sentence can change it by at most 1/n. A sentence without a known word is near 0.5; a text without words scores 0.
"""
import collections
import functools
import json
import os
import pathlib
import re
import uuid
import zipfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rl_jax.data import readers

DEFAULT_CACHE_DIR = "~/.cache/rl_jax/sentiment"
_CLITIC = re.compile(r"(n't|'(?:s|re|ve|ll|d|m))\b")
_WORD = re.compile(r"n't|'(?:s|re|ve|ll|d|m)\b|[a-z0-9]+(?:[-'][a-z0-9]+)*|[!?]")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’]*\s+|\n+")


class Model(NamedTuple):
    """A trained sentiment model.

    Attributes:
      weights: n-gram -> w_j r_j.
      bias: b.
      dev_accuracy: on the dev sentences.
      test_accuracy: on the test sentences.
    """
    weights: dict[str, float]
    bias: float
    dev_accuracy: float
    test_accuracy: float


def split_words(text: str) -> list[str]:
    """Lower-case words as in SST-2 ("didn't" -> did n't), with ! and ? and without other punctuation."""
    text = text.lower().replace("’", "'")
    return _WORD.findall(_CLITIC.sub(r" \1", text))


def ngrams(text: str) -> list[str]:
    """The distinct words and neighbouring word pairs of a text, in order."""
    words = split_words(text)
    pairs = [f"{first} {second}" for first, second in zip(words, words[1:], strict=False)]
    return list(dict.fromkeys(words + pairs))


def split_sentences(text: str) -> list[str]:
    """Pieces ended by . ! ? or a line break that have at least one word; an unfinished last sentence counts."""
    return [piece for piece in _SENTENCE_END.split(text) if split_words(piece)]


def evidence(model: Model, text: str) -> float:
    """Log-odds that the text is positive."""
    return model.bias + sum(model.weights.get(feature, 0.0) for feature in ngrams(text))


def text_score(model: Model, text: str) -> float:
    """Mean over sentences of p(positive), in [0, 1]; 0 if there is no word."""
    log_odds = np.array([evidence(model, sentence) for sentence in split_sentences(text)])
    if not len(log_odds):
        return 0.0
    return float(np.mean(0.5 + 0.5 * np.tanh(0.5 * log_odds)))  # sigmoid, without overflow


def distinct_trigrams(text: str) -> float:
    """Fraction of distinct word trigrams: 1 means no repetition, near 0 a loop; 0 without words."""
    words = split_words(text)
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    if not trigrams:
        return float(bool(words))
    return len(set(trigrams)) / len(trigrams)


def score(prompt: str, completion: str, info: dict, *, model_path: str) -> dict[str, float]:
    """Scores one completion.

    Returns:
      reward: sentiment of the completion in [0, 1] (the prompt is not scored). reward_repetition: fraction of distinct
      word trigrams, not part of the reward; it reveals degenerate text.
    """
    return {"reward": text_score(load(model_path), completion), "reward_repetition": distinct_trigrams(completion)}


@functools.cache
def load(model_path: str) -> Model:
    """Reads a model, once per process.

    Raises:
      readers.DataError: if the file is not a sentiment model.
    """
    try:
        with np.load(model_path, allow_pickle=False) as file:
            words = file["features"].tobytes().decode("utf-8").split("\n")
            values = file["weights"].tolist()
            bias, dev, test = (float(file[name]) for name in ("bias", "dev_accuracy", "test_accuracy"))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise readers.DataError(f"{model_path}: not a sentiment model ({error}): make it with "
                                "rl_jax.rewards.sentiment.prepare") from error
    if len(words) != len(values):
        raise readers.DataError(f"{model_path}: {len(words)} features and {len(values)} weights: make it again")
    return Model(dict(zip(words, values, strict=True)), bias, dev, test)


def prepare(data: str | os.PathLike, *, cache_dir: str = DEFAULT_CACHE_DIR, l2: float = 3.0, min_count: int = 2,
            skip_bad_records: bool = False) -> str:
    """Trains a model on sst2_train.txt.gz, unless it is cached.

    The path contains a hash of the three data files, the arguments and this module's code. `load(path)` has the dev and
    test accuracies.

    Args:
      data: folder of sst2_{train,dev,test}.txt.gz.
      cache_dir: where models are stored.
      l2: regularisation.
      min_count: n-grams in fewer sentences are ignored.
      skip_bad_records: whether to skip and count bad records instead of refusing them.

    Returns:
      The path of the model.

    Raises:
      readers.DataError: if a record is bad, or a file lacks sentences of both labels.
    """
    files = {split: pathlib.Path(data) / f"sst2_{split}.txt.gz" for split in ("train", "dev", "test")}
    arguments = json.dumps({"l2": l2, "min_count": min_count, "skip_bad_records": skip_bad_records})
    folder = pathlib.Path(cache_dir).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    key = readers.content_hash([*files.values(), __file__, readers.__file__])
    path = folder / f"sst2-{key[:24]}-{readers.text_hash(arguments)[:8]}.npz"
    if path.exists():
        return str(path)
    bad = readers.BadRecords(skip=skip_bad_records)
    examples = {split: [(label, text) for _, label, text in readers.read_labelled(file, bad)]
                for split, file in files.items()}
    for split, file in files.items():
        if len({label for label, _ in examples[split]}) < 2:
            raise readers.DataError(f"{file}: needs sentences of both labels, has {len(examples[split])} usable lines")
    weights, bias = train(examples["train"], l2=l2, min_count=min_count)
    model = Model(weights, bias, 0.0, 0.0)
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.npz")
    features = np.frombuffer("\n".join(weights).encode("utf-8"), np.uint8)
    np.savez_compressed(temporary, features=features, weights=np.array(list(weights.values())), bias=bias,
                        dev_accuracy=accuracy(model, examples["dev"]), test_accuracy=accuracy(model, examples["test"]))
    temporary.replace(path)  # another process may do the same concurrently: the files are equal
    return str(path)


def accuracy(model: Model, examples: Sequence[tuple[int, str]]) -> float:
    """Fraction of (label, text) pairs whose evidence has the sign of the label."""
    return float(np.mean([(evidence(model, text) > 0) == bool(label) for label, text in examples]))


def train(examples: Sequence[tuple[int, str]], *, l2: float, min_count: int) -> tuple[dict[str, float], float]:
    """(n-gram -> w_j r_j, bias) from (label, text) pairs and the n-grams in at least `min_count` of them.

    scipy is imported here because workers that only score do not need it.

    Raises:
      RuntimeError: if the optimizer does not converge.
    """
    from scipy import optimize, sparse

    rows = [ngrams(text) for _, text in examples]
    counts = collections.Counter(feature for row in rows for feature in row)
    index = {feature: place for place, feature in enumerate(sorted(f for f, n in counts.items() if n >= min_count))}
    columns = [[index[feature] for feature in row if feature in index] for row in rows]
    starts = np.cumsum([0] + [len(row) for row in columns])
    flat = np.array([column for row in columns for column in row], np.int64)
    present = sparse.csr_matrix((np.ones(len(flat)), flat, starts), shape=(len(rows), len(index)))
    positive = np.array([label == 1 for label, _ in examples])
    in_positive = 1 + np.asarray(present[positive].sum(axis=0)).ravel()
    in_negative = 1 + np.asarray(present[~positive].sum(axis=0)).ravel()
    ratio = np.log(in_positive / in_positive.sum()) - np.log(in_negative / in_negative.sum())
    scaled, sign = present.multiply(ratio[None, :]).tocsr(), np.where(positive, 1.0, -1.0)

    def objective(parameters):
        weights, bias = parameters[:-1], parameters[-1]
        margin = sign * (scaled @ weights + bias)
        slope = -sign * (0.5 - 0.5 * np.tanh(0.5 * margin))
        value = np.logaddexp(0.0, -margin).sum() + 0.5 * l2 * weights @ weights
        return value, np.append(scaled.T @ slope + l2 * weights, slope.sum())

    result = optimize.minimize(objective, np.zeros(len(index) + 1), jac=True, method="L-BFGS-B",
                              options={"maxiter": 500})
    if not result.success:
        raise RuntimeError(f"the sentiment model did not converge: {result.message}")
    values = (result.x[:-1] * ratio).tolist()
    return dict(zip(index, values, strict=True)), float(result.x[-1])
