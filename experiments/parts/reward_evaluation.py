"""Metrics of a reward model's scores of held-out records, on the host."""

import numpy as np

from rl_jax.core.binding import bind
from rl_jax.credit import process_rewards
from rl_jax.rewards import benchmarks


def evaluate_responses(arrays, rewards: np.ndarray, records: list[dict], *, logits: bool) -> dict[str, float]:
    """Metrics of the mean member's rewards: of pairs and rankings, or of labelled responses if K is 1.

    Pairs are a list's first response and each one of a lower grade. Their metrics: accuracy (also per file), margin,
    longer_is_chosen, and for log-odds log_loss against the annotators' label_probs, and ece.

    Metrics of labels: accuracy, auc, for log-odds log_loss and ece, and, if several records share a prompt, the
    accuracy of choosing the best of them.

    Args:
      arrays: N first, as preferences.encode_preferences returns them; indices refers to `records`.
      rewards: float [N, K, M].
      records: of the split.
      logits: whether a reward is a log-odds (of being right), not a probability or a grade.

    Returns:
      Numbers by name.
    """
    mean = rewards.mean(axis=-1)
    lengths = arrays["completion_mask"].sum(axis=-1)
    present = arrays["present"]
    metrics = {
        "reward_mean": float(mean[present].mean()),
        "reward_std": float(mean[present].std()),
        "length_correlation": benchmarks.length_correlation(mean[present], lengths[present]),
    }
    if rewards.shape[-1] > 1:
        metrics["disagreement"] = float(rewards.std(axis=-1)[present].mean())
    of = _of_pairs if present.shape[1] > 1 else _of_labels
    return metrics | of(arrays, mean, [records[index] for index in arrays["indices"]], logits)


def _of_pairs(arrays, mean: np.ndarray, records: list[dict], logits: bool) -> dict[str, float]:
    present, grades = arrays["present"], arrays["rewards"]
    pairs = present[:, :1] & present[:, 1:]
    if present.shape[1] > 2:  # two responses are already in order
        pairs &= grades[:, :1] > grades[:, 1:]
    gaps = (mean[:, :1] - mean[:, 1:])[pairs]
    metrics = {
        "accuracy": benchmarks.pair_accuracy(gaps, np.zeros_like(gaps)),
        "margin": float(gaps.mean()),
        # How often the longer response is the preferred one, whatever it says.
        "longer_is_chosen": _longer(arrays, pairs),
    }
    if logits:
        probs = np.broadcast_to(arrays["label_probs"][:, None], pairs.shape)[pairs]
        metrics["log_loss"] = _log_loss(gaps, probs)
        # The pairs are put in a random order, so that half of the labels are 0.
        metrics["ece"] = _calibration(gaps, probs)
    subsets = np.broadcast_to(_subsets(records)[:, None], pairs.shape)[pairs]
    for name in _several(subsets):
        chosen = gaps[subsets == name]
        metrics[f"accuracy/{name}"] = benchmarks.pair_accuracy(chosen, np.zeros_like(chosen))
    return metrics


def _of_labels(arrays, mean: np.ndarray, records: list[dict], logits: bool) -> dict[str, float]:
    scores, labels = mean[:, 0], arrays["rewards"][:, 0] > 0.5
    metrics = {
        "accuracy": float(np.mean((scores > (0.0 if logits else 0.5)) == labels)),
        "share_right": float(labels.mean()),
    }
    if labels.any() and not labels.all():
        metrics["auc"] = benchmarks.area_under_curve(scores, labels)
    if logits:
        metrics["log_loss"] = _log_loss(scores, labels.astype(np.float64))
        probs = 1.0 / (1.0 + np.exp(-scores.astype(np.float64)))
        metrics["ece"] = benchmarks.calibration_error(probs, labels.astype(np.float64))
    groups = {}
    for place, record in enumerate(records):
        groups.setdefault(str(record["prompt"]), []).append(place)
    several = [places for places in groups.values() if len(places) > 1]
    if several:
        result = benchmarks.rerank_accuracy([scores[p] for p in several], [labels[p] for p in several])
        metrics |= {f"rerank/{name}": number for name, number in result.items()}
    return metrics


def evaluate_steps(arrays, probs: np.ndarray, records: list[dict], aggregate: dict) -> dict[str, float]:
    """Metrics of each step's probability of being right, and of the solutions' scores (`aggregate` of the steps).

    accuracy is over the labelled steps; always_right is their fraction of right ones. solution/auc: are all labelled
    steps right? first_mistake: how often the first step below 0.5 is the first wrong one (or both are absent);
    process_bench: the same on solutions with and without an error, and their F1 (benchmarks.first_error_f1).

    Args:
      arrays: as preferences.encode_steps returns them.
      probs: float [N, S].
      records: of the split.
      aggregate: {"fn": ...} of rl_jax.credit.process_rewards.

    Returns:
      Numbers by name.
    """
    labels, labelled = arrays["step_labels"], arrays["step_labels"] >= 0
    right = labels[labelled] > 0
    metrics = {
        "accuracy": float(np.mean((probs[labelled] > 0.5) == right)),
        "always_right": float(right.mean()),
        "ece": benchmarks.calibration_error(probs[labelled], right.astype(np.float64)),
    }
    if right.any() and not right.all():
        metrics["auc"] = benchmarks.area_under_curve(probs[labelled], right)
    kept = labelled.any(axis=1)
    solved = ((labels > 0) | ~labelled)[kept].all(axis=1)
    scores = np.asarray(bind(aggregate, process_rewards)(probs[kept], labelled[kept]))
    if solved.any() and not solved.all():
        metrics["solution/auc"] = benchmarks.area_under_curve(scores, solved)
        metrics["solution/right"] = float(solved.mean())
    subsets = _subsets([records[index] for index in arrays["indices"]])[:, None]
    subsets = np.broadcast_to(subsets, labelled.shape)[labelled]
    for name in _several(subsets):
        chosen = subsets == name
        metrics[f"accuracy/{name}"] = float(np.mean((probs[labelled][chosen] > 0.5) == right[chosen]))
        metrics[f"always_right/{name}"] = float(right[chosen].mean())
    first = [_first(labelled & (x <= 0.5)) for x in (probs, labels)]
    metrics["first_mistake"] = float(np.mean((first[0] == first[1])[kept]))
    found = benchmarks.first_error_f1(first[0][kept], first[1][kept])
    return metrics | {f"process_bench/{name}": number for name, number in found.items()}


def _subsets(records: list[dict]) -> np.ndarray:
    """The name of each record's file, "" if the source does not give it."""
    return np.array([str(record["info"].get("file", "")).partition(".")[0] for record in records])


def _several(subsets: np.ndarray) -> list[str]:
    """The sorted names; none if there is only one."""
    names = sorted(set(subsets.tolist()))
    return names if len(names) > 1 else []


def _first(wrong: np.ndarray) -> np.ndarray:
    """The column of the first wrong step per row, -1 if there is none. bool [N, S] -> int [N]."""
    return np.where(wrong.any(axis=1), wrong.argmax(axis=1), -1)


def _longer(arrays, pairs: np.ndarray) -> float:
    lengths = arrays["completion_mask"].sum(axis=-1)
    gaps = (lengths[:, :1] - lengths[:, 1:])[pairs]
    return float(np.mean((gaps > 0) + 0.5 * (gaps == 0)))


def _log_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    logits = logits.astype(np.float64)
    return float(np.mean(labels * np.logaddexp(0, -logits) + (1 - labels) * np.logaddexp(0, logits)))


def _calibration(gaps: np.ndarray, probs: np.ndarray) -> float:
    turned = np.random.default_rng(0).random(len(gaps)) < 0.5
    chosen = 1.0 / (1.0 + np.exp(-np.where(turned, -gaps, gaps).astype(np.float64)))
    return benchmarks.calibration_error(chosen, np.where(turned, 1 - probs, probs))
