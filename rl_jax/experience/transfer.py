"""Which context to train in next, from how well training in the others went (MBTL)."""

import numpy as np


def posterior(
    contexts: np.ndarray, trained: np.ndarray, performance: np.ndarray, *, length_scale: float, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """The mean and standard deviation of a Gaussian process at all contexts, float64 [M] each.

    The kernel is v exp(-d^2 / (2 length_scale^2)) + noise^2, v the variance of the performances (noise^2 at least), the
    prior mean their mean.

    Args:
      contexts: float [M].
      trained: int [S]. Indices of the contexts that were trained in.
      performance: float [S]. Measured there.
      length_scale: in the contexts' units.
      noise: standard deviation of a measurement.
    """
    mean, scale = np.mean(performance), max(float(np.var(performance)), noise**2)

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return scale * np.exp(-np.square(a[:, None] - b[None]) / (2 * length_scale**2))

    seen = contexts[trained]
    inverse = np.linalg.inv(kernel(seen, seen) + noise**2 * np.eye(len(seen)))
    cross = kernel(contexts, seen)
    variance = scale - np.sum((cross @ inverse) * cross, axis=1)
    return mean + cross @ inverse @ (performance - mean), np.sqrt(np.maximum(variance, 0.0))


def next_context(
    contexts: np.ndarray,
    trained: np.ndarray,
    performance: np.ndarray,
    *,
    slope: float,
    explore: float = 1.0,
    length_scale: float,
    noise: float = 0.1,
) -> int:
    """The context whose training raises the performance over all contexts most, by the index.

    With J the performance and V(x') = max over trained s of J(s) - slope |s - x'|, the best there is for x' so far:

        argmax_x mean_x' max(mu(x) + explore sigma(x) - slope |x - x'| - V(x'), 0).

    The first one is the middle of the range. Source: MBTL, arXiv 2408.04498 and its code (jhoon-cho/MBTL: noise .1;
    explore is 1 in its `new_ucb` and sqrt(log(k + 1)) at choice k in the compared `new_ucb_beta_log`); the paper fits
    the kernel, here it is given.

    Args:
      contexts: float [M], distinct.
      trained: int [S]. Indices of the contexts that were trained in, S < M.
      performance: float [S]. J there.
      slope: performance lost per unit of distance.
      explore: weight of the standard deviation.
      length_scale: of the process, in the contexts' units.
      noise: standard deviation of a measurement.

    Raises:
      ValueError: if every context was trained in.
    """
    contexts, trained = np.asarray(contexts, np.float64), np.asarray(trained, np.int64)
    if len(trained) >= len(contexts):
        raise ValueError(f"all {len(contexts)} contexts were trained in")
    if not len(trained):
        return int(np.argmin(np.abs(contexts - (contexts.min() + contexts.max()) / 2)))
    performance = np.asarray(performance, np.float64)
    mean, deviation = posterior(contexts, trained, performance, length_scale=length_scale, noise=noise)
    loss = slope * np.abs(contexts[:, None] - contexts[None])
    best = np.max(performance[:, None] - loss[trained], axis=0)
    gains = np.mean(np.maximum((mean + explore * deviation)[:, None] - loss - best[None], 0.0), axis=1)
    gains[trained] = -1.0
    return int(np.argmax(gains))
