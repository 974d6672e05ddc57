"""How stale a batch is: versions between the policy that is trained and the one that drew each token. numpy."""

import numpy as np

MOST = 16  # lags from here on are counted together


def lag_metrics(version: int, versions: np.ndarray, mask: np.ndarray, *, bound: int) -> dict[str, float]:
    """Mean and maximum of the lag, per token and per row, and its histogram over tokens.

    d_it = v - u_it. A row's lag is that of its oldest token.

    Args:
      version: v, of the policy before the step's updates.
      versions: int [B, C], u.
      mask: bool [B, C]. Sampled tokens.
      bound: the largest lag that can be; it decides which shares lag/tokens/D are there.

    Raises:
      ValueError: if a token is of a version that does not exist yet.
    """
    lag = np.where(mask, version - versions, 0)
    if lag.min() < 0:
        raise ValueError(f"a token has version {version - lag.min()}, above the policy's {version}")
    tokens, rows = lag[mask], lag.max(axis=1)[mask.any(axis=1)]
    if not len(tokens):
        return {}
    top = min(bound, MOST)
    shares = np.bincount(np.minimum(tokens, top), minlength=top + 1) / len(tokens)
    spans = [len(np.unique(row[seen])) for row, seen in zip(versions, mask, strict=True) if seen.any()]
    return {
        "lag/token_mean": float(tokens.mean(dtype=np.float64)),
        "lag/token_max": float(tokens.max()),
        "lag/row_mean": float(rows.mean(dtype=np.float64)),
        "lag/row_max": float(rows.max()),
        "lag/versions_per_row": float(np.mean(spans)),
        **{f"lag/tokens/{d}": float(share) for d, share in enumerate(shares)},
    }


def gaps_by_lag(
    version: int, versions: np.ndarray, mask: np.ndarray, log_probs: np.ndarray, sampled: np.ndarray, *, bound: int
) -> dict[str, float]:
    """What staleness does to the importance weights w = exp(log_probs - sampled), lag by lag.

    sampler/gap/D = mean |log w|, sampler/ess/D = (sum w)^2 / (n sum w^2), over the n tokens of lag D. Lags without a
    token are left out.

    Args:
      version: v, of the policy before the step's updates.
      versions: int [B, C].
      mask: bool [B, C]. Sampled tokens.
      log_probs: float [B, C], of the policy before the step's updates.
      sampled: float [B, C], of the distribution that was sampled from.
      bound: as in lag_metrics.
    """
    lag, found = np.minimum(version - versions, min(bound, MOST)), {}
    for d in range(min(bound, MOST) + 1):
        here = mask & (lag == d)
        if not here.any():
            continue
        gap = (log_probs[here] - sampled[here]).astype(np.float64)
        weight = np.exp(np.clip(gap, -20.0, 20.0))
        found[f"sampler/gap/{d}"] = float(np.abs(gap).mean())
        found[f"sampler/ess/{d}"] = float(weight.sum() ** 2 / (len(weight) * np.square(weight).sum()))
    return found


def columns(versions: np.ndarray | None, mask: np.ndarray, row: int) -> dict[str, np.ndarray]:
    """{"lag": int [C]}, by how many versions each token of a row is behind the batch's newest; {} without versions.

    Args:
      versions: int [B, C], or None.
      mask: bool [B, C]. Sampled tokens.
      row: which one.
    """
    if versions is None:
        return {}
    newest = np.max(versions, where=np.asarray(mask), initial=0)
    return {"lag": np.where(mask[row], newest - versions[row], 0)}
