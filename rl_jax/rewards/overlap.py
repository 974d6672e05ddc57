"""BLEU, ROUGE-L and BMAS of a completion with reference answers.

BLEU takes the tokens and counts of sacrebleu, ROUGE that of rouge-score: `pip install -e '.[text]'`. They are loaded
with this module, before the time limit of an item starts, and asked for when they are used.
"""

import hashlib
import importlib
import math
import re
from types import ModuleType

import numpy as np

from rl_jax.rewards import parsing

MAX_CHARS = 20_000  # of a completion; what follows is not read
PACKAGES = {"sacrebleu": "sacrebleu>=2.6,<3", "rouge_score.rouge_scorer": "rouge-score>=0.1.2,<0.2"}


def _load(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            return None
        raise


_LIBRARIES = {name: _load(name) for name in PACKAGES}


def bleu(prompt: str, completion: str, info: dict, *, smooth: bool = True) -> dict[str, float]:
    """BLEU-4 in [0, 1] with the best-matching counts over the references.

        exp(min(0, 1 - r / c) + 1/4 sum_n log((m_n + 1) / (t_n + 1)))

    m_n of t_n n-grams match, c tokens, r those of the shortest reference. Source: the reward of arXiv 2505.11080
    (BLEUBERI), which is that of Hugging Face's evaluate with smooth=True; tokens as in sacrebleu's 13a.

    Args:
      prompt: not read.
      completion: its <answer>, or all of it after the thinking.
      info: "references", texts, or "reference", one.
      smooth: whether 1 is added to the counts; without it an answer without a common 4-gram has 0.

    Returns:
      reward; length: c / r.

    Raises:
      ValueError: if there is no reference.
      ModuleNotFoundError: if sacrebleu is not installed.
    """
    answer, references = parsing.answer(completion)[:MAX_CHARS], _references(info)
    metric = _library("sacrebleu").BLEU(tokenize="13a", smooth_method="none", effective_order=False)
    lengths = [len(metric.tokenizer(text).split()) for text in references]
    found = metric.corpus_score([answer], [[text] for text in references])
    # A reference without a token would make any answer too long, and none too short.
    shortest = min((length for length in lengths if length), default=0)
    if not found.sys_len or not shortest:
        return {"reward": 0.0, "length": found.sys_len / max(shortest, 1)}
    add = 1 if smooth else 0
    shares = [(m + add) / (t + add) if t + add else 0.0 for m, t in zip(found.counts, found.totals, strict=True)]
    brevity = min(0.0, 1.0 - shortest / found.sys_len)
    value = math.exp(brevity + sum(map(math.log, shares)) / len(shares)) if min(shares) > 0 else 0.0
    return {"reward": value, "length": found.sys_len / shortest}


def rouge(prompt: str, completion: str, info: dict, *, kind: str = "rougeL") -> dict[str, float]:
    """F1 of ROUGE in [0, 1], the best over the references: longest common subsequence of words, or n-grams.

    Args:
      prompt: not read.
      completion: its <answer>, or all of it after the thinking.
      info: "references", texts, or "reference", one.
      kind: "rougeL", "rouge1", "rouge2", ..., as in rouge-score.

    Returns:
      reward; precision; recall.

    Raises:
      ValueError: if there is no reference.
      ModuleNotFoundError: if rouge-score is not installed.
    """
    answer, references = parsing.answer(completion)[:MAX_CHARS], _references(info)
    scorer = _library("rouge_score.rouge_scorer").RougeScorer([kind])
    best = scorer.score_multi(references, answer)[kind]
    return {"reward": float(best.fmeasure), "precision": float(best.precision), "recall": float(best.recall)}


def bleu_rouge(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """2 b r / (b + r) of BLEU and ROUGE-L. Source: bleu_rouge_f1 of the code of arXiv 2505.11080.

    Returns:
      reward; bleu; rouge.
    """
    b, r = bleu(prompt, completion, info)["reward"], rouge(prompt, completion, info)["reward"]
    return {"reward": 2 * b * r / (b + r) if b + r else 0.0, "bleu": b, "rouge": r}


def bmas(prompt: str, completion: str, info: dict, *, dim: int = 256) -> dict[str, float]:
    """BMAS of the words of a completion and of each reference, the best one.

    The paper embeds the tokens by a tokenizer's table. Here a word's vector is made of its character trigrams, hashed
    into `dim` signs: a stand-in that needs no model, and for which equal words have similarity 1. Source: arXiv
    2505.24164 (Mixed-R1).

    Args:
      prompt: not read.
      completion: its <answer>, or all of it after the thinking.
      info: "references", texts, or "reference", one.
      dim: size of the vectors.

    Returns:
      reward: clipped at 0; 0 without a word.
    """
    words = _vectors(parsing.answer(completion)[:MAX_CHARS], dim)
    values = [matching_similarity(words, _vectors(text, dim)) for text in _references(info)]
    return {"reward": max(0.0, *values)}


def matching_similarity(first: np.ndarray, second: np.ndarray) -> float:
    """BMAS = 1/2 [mean_i max_j cos(e_i, f_j) + mean_j max_i cos(e_i, f_j)], symmetric; 0 if one is empty.

    Source: arXiv 2505.24164.

    Args:
      first: float [N, D]. e, one vector a token.
      second: float [M, D]. f.
    """
    if not len(first) or not len(second):
        return 0.0
    lengths = [np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (first, second)]
    cosines = (first / lengths[0]) @ (second / lengths[1]).T
    return float(0.5 * (cosines.max(axis=1).mean() + cosines.max(axis=0).mean()))


def _vectors(text: str, dim: int) -> np.ndarray:
    """float64 [N, dim]: one vector for each of the first 2,000 words."""
    words = re.findall(r"\w+|[^\w\s]", text.lower())[:2_000]
    table = {word: _vector(word, dim) for word in set(words)}
    return np.array([table[word] for word in words]).reshape(len(words), dim)


def _vector(word: str, dim: int) -> np.ndarray:
    """float64 [dim]: sum over the word's character trigrams of one random sign per place, the same in every process."""
    padded, total = f"^{word[:50]}$", np.zeros(dim)
    for start in range(max(1, len(padded) - 2)):
        bits = hashlib.shake_128(padded[start : start + 3].encode()).digest((dim + 7) // 8)
        total += 2.0 * np.unpackbits(np.frombuffer(bits, np.uint8))[:dim] - 1.0
    return total


def _references(info: dict) -> list[str]:
    texts = info.get("references", info.get("reference", []))
    texts = [texts] if isinstance(texts, str) else list(texts)
    if not texts or not all(isinstance(text, str) for text in texts):
        has = ", ".join(info) or "nothing"
        raise ValueError(f'info must have "references", texts, or "reference", one; it has {has}')
    return texts


def _library(name: str) -> ModuleType:
    if _LIBRARIES[name] is None:
        package = PACKAGES[name]
        raise ModuleNotFoundError(f"this reward needs {package.partition('>')[0]}: pip install '{package}'")
    return _LIBRARIES[name]
