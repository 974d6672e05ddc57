"""How strong preferences are by the votes of several reward models: Secrets of RLHF II (arXiv 2401.06080). No jax.

    mu_i = mean over the M models of r_w - r_l,   sd_i its standard deviation

Pairs with a negative mu are likely to be labelled the wrong way round, those near 0 are ambiguous. `relabel` writes
what the losses of experiments.reward_model read: label_prob (bradley_terry_soft) and margin (bradley_terry_margin).
"""

from collections.abc import Sequence

import numpy as np

FLIPS = ("negative", "lowest", "none")


def strengths(gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mu, sd) over the models, float64 [N] each. gaps: float [M, N], r_w - r_l of each model; sd has ddof 0."""
    gaps = np.asarray(gaps, np.float64)
    if gaps.ndim != 2 or not len(gaps):
        raise ValueError(f"expected gaps of [models, pairs], found {gaps.shape}")
    return gaps.mean(axis=0), gaps.std(axis=0)


def flipped(mu: np.ndarray, *, flip: str = "negative", share: float = 0.2) -> np.ndarray:
    """Which pairs are turned round. bool [N].

    Args:
      mu: float [N].
      flip: "negative": mu < 0; "lowest": the share with the lowest mu, as in the paper, which takes its lowest 20 %;
        "none".
      share: for "lowest", in [0, 1].

    Raises:
      ValueError: if flip is unknown or share is out of its range.
    """
    if flip not in FLIPS:
        raise ValueError(f"flip={flip!r} is none of {', '.join(FLIPS)}")
    if not 0 <= share <= 1:
        raise ValueError(f"share={share} must be in [0, 1]")
    if flip == "negative":
        return np.asarray(mu) < 0
    result = np.zeros(len(mu), bool)
    if flip == "lowest":
        result[np.argsort(mu, kind="stable")[: round(share * len(mu))]] = True
    return result


def relabel(records: Sequence[dict], gaps: np.ndarray, *, flip: str = "negative", share: float = 0.2) -> list[dict]:
    """The pairs with their strengths, as rows of a JSONL file of pairs.

        label_prob = sigma(mu), margin = max(mu, 0), of the order that is written; flipped: whether it was turned round

    Args:
      records: pairs, as rl_jax.preferences gives them.
      gaps: float [M, N].
      flip: as in `flipped`.
      share: as in `flipped`.
    """
    mu, deviation = strengths(gaps)
    if len(mu) != len(records):
        raise ValueError(f"{len(mu)} gaps for {len(records)} pairs")
    turned = flipped(mu, flip=flip, share=share)
    rows = []
    for record, own, spread, turn in zip(records, mu, deviation, turned, strict=True):
        chosen, rejected = record["responses"][:: -1 if turn else 1]
        own = -own if turn else own
        row = {"prompt": record["prompt"], "chosen": chosen, "rejected": rejected}
        row |= {"label_prob": float(1.0 / (1.0 + np.exp(-own))), "margin": float(max(own, 0.0))}
        rows.append(row | {"strength": float(own), "strength_std": float(spread), "flipped": bool(turn)})
    return rows
