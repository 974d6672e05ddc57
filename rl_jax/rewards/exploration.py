"""Rewards for exploring, whatever the answer is worth.

Named in a config by their import path, "rl_jax.rewards.exploration:steps".
"""


def steps(prompt: str, completion: str, info: dict, *, separator: str = "\n", enough: int = 8) -> dict[str, float]:
    """min(1, number of steps / enough): more intermediate steps earn more, up to a point.

    A step is a part between separators that is not blank. Source: the simplest exploration reward of RLSP, arXiv
    2502.06773, as its abstract tells it; `enough` and the linear form are our choice.

    Args:
      prompt: not read.
      completion: the answer with its steps.
      info: not read.
      separator: text between steps.
      enough: steps from which the reward is 1.

    Returns:
      reward; steps: their number.

    Raises:
      ValueError: if there is no separator, or enough is below 1.
    """
    if not separator or enough < 1:
        raise ValueError(f"separator={separator!r} must be a text, and enough={enough} at least 1")
    count = sum(bool(part.strip()) for part in completion.split(separator))
    return {"reward": min(1.0, count / enough), "steps": float(count)}
