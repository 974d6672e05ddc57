"""rewards/overlap.py: BLEU and ROUGE-L against loops, BMAS against its identities, and a missing library."""

import collections
import math
import random
import re

import numpy as np
import pytest

from rl_jax.rewards import overlap

INFO = {"references": ["The cat sat on the mat.", "A cat was sitting there."]}


def loop_bleu(answer, references, smooth):
    """BLEU-4 as the formula says, on words that need no tokenizer."""

    def grams(text, n):
        words = text.split()
        return collections.Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))

    logs = []
    for n in (1, 2, 3, 4):
        best = collections.Counter()
        for reference in references:
            best |= grams(reference, n)
        found = grams(answer, n)
        matches, total = sum((found & best).values()), sum(found.values())
        if smooth:
            matches, total = matches + 1, total + 1
        logs.append(math.log(matches / total) if matches else -math.inf)
    shortest = min(len(reference.split()) for reference in references)
    return math.exp(min(0.0, 1 - shortest / len(answer.split())) + sum(logs) / 4)


def loop_rouge_l(answer, reference):
    a, b = (re.findall(r"[a-z0-9]+", text.lower()) for text in (answer, reference))
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, j in np.ndindex(len(a), len(b)):
        equal = a[i] == b[j]
        table[i + 1, j + 1] = table[i, j] + 1 if equal else max(table[i, j + 1], table[i + 1, j])
    return 2 * table[-1, -1] / (len(a) + len(b))


@pytest.mark.parametrize("smooth", [True, False])
def test_bleu_against_a_loop(smooth):
    pytest.importorskip("sacrebleu")
    rng = random.Random(0)
    for _ in range(300):
        answer, *references = (" ".join(rng.choices("abcd", k=rng.randrange(4, 12))) for _ in range(3))
        got = overlap.bleu("", answer, {"references": references}, smooth=smooth)["reward"]
        assert got == pytest.approx(loop_bleu(answer, references, smooth), abs=1e-12)


def test_bleu_of_texts():
    pytest.importorskip("sacrebleu")
    for text in (*INFO["references"], "<think>hm</think>\n<answer>\nThe cat sat on the mat.\n</answer>"):
        assert overlap.bleu("", text, INFO)["reward"] == pytest.approx(1.0)
    assert overlap.bleu("", "no", {"reference": "no"})["reward"] == pytest.approx(1.0)
    assert overlap.bleu("", "the mat", INFO)["reward"] < 0.3  # too short
    assert overlap.bleu("", "the cat sat on the mat.", INFO)["reward"] < 1.0  # the case counts
    for nothing in ("", "  \n", "<answer></answer>"):
        assert overlap.bleu("", nothing, INFO)["reward"] == 0.0
    long = overlap.bleu("", "The cat sat on the mat. " * 50, INFO)
    assert long["length"] == pytest.approx(7 * 50 / 6) and long["reward"] < 0.05


def test_rouge_against_a_loop():
    pytest.importorskip("rouge_score")
    rng = random.Random(0)
    for _ in range(200):
        answer, *references = (" ".join(rng.choices("abcd", k=rng.randrange(1, 9))) for _ in range(3))
        got = overlap.rouge("", answer, {"references": references})["reward"]
        assert got == pytest.approx(max(loop_rouge_l(answer, text) for text in references))
    assert overlap.rouge("", "", INFO)["reward"] == 0.0


def test_the_mean_of_both():
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    both = overlap.bleu_rouge("", "The cat sat.", INFO)
    b, r = (fn("", "The cat sat.", INFO)["reward"] for fn in (overlap.bleu, overlap.rouge))
    assert both == {"reward": pytest.approx(2 * b * r / (b + r)), "bleu": b, "rouge": r}
    assert overlap.bleu_rouge("", "dog", INFO)["reward"] == 0.0


def test_identities_of_bmas():
    """Identical 1, orthogonal 0, symmetric: the atlas's numbers."""
    rng = np.random.default_rng(0)
    e, f = rng.normal(size=(5, 8)), rng.normal(size=(3, 8))
    assert overlap.matching_similarity(e, e) == pytest.approx(1.0)
    assert overlap.matching_similarity(e, 3.0 * e[::-1]) == pytest.approx(1.0)  # neither order nor length counts
    assert overlap.matching_similarity(np.eye(4)[:2], np.eye(4)[2:]) == 0.0
    assert overlap.matching_similarity(e, f) == pytest.approx(overlap.matching_similarity(f, e))
    cos = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in f] for a in e]
    expected = 0.5 * (np.mean([max(row) for row in cos]) + np.mean([max(column) for column in zip(*cos, strict=True)]))
    assert overlap.matching_similarity(e, f) == pytest.approx(expected)
    assert overlap.matching_similarity(np.zeros((0, 8)), f) == 0.0


def test_bmas_of_texts():
    def score(text):
        return overlap.bmas("", text, INFO)["reward"]

    assert score("the CAT sat on the mat.") == pytest.approx(1.0)
    assert score("The cats sat on mats.") > score("Dogs ran home!") > 0.0
    assert score("") == 0.0 and score("\x00\x01") < 0.2


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(overlap, "_LIBRARIES", dict.fromkeys(overlap.PACKAGES))
    with pytest.raises(ModuleNotFoundError, match="needs sacrebleu: pip install 'sacrebleu>="):
        overlap.bleu("", "a", INFO)
    with pytest.raises(ModuleNotFoundError, match="needs rouge-score: pip install 'rouge-score>="):
        overlap.rouge("", "a", INFO)
    with pytest.raises(ValueError, match='info must have "references".*; it has answer'):
        overlap.bmas("", "a", {"answer": "a"})


def test_noise_is_worth_little_and_never_fails():
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choices("éß☃<>&;%$ \n\t\"'qzxj0", k=rng.randrange(50)))
        scores = [fn("", text, INFO)["reward"] for fn in (overlap.bmas, *_installed())]
        assert all(0.0 <= score < 0.6 for score in scores) and not any(scores[2:])


def _installed():
    return [fn for fn, name in ((overlap.bleu, "sacrebleu"), (overlap.rouge, "rouge_score.rouge_scorer"))
            if overlap._LIBRARIES[name]]  # fmt: skip
