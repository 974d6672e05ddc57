"""How far the policy has moved since a prompt's last visit: SPO's D, by which the prompt's old rewards fade."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from experiments.parts.judging import Judged
from experiments.parts.packers import RolloutPacker
from experiments.parts.setup import Setup
from experiments.parts.training import to_mesh
from rl_jax.core.types import Params, Rollout, TokenScores


def newest_of(judged: Judged, group_size: int) -> list[dict[str, list]]:
    """Each group's first completion: its tokens and the log-probs that they were sampled with."""
    rollout, length = judged.rollout, judged.rollout.completion_mask.shape[1]
    found = []
    for row in range(0, len(rollout.completion_mask), group_size):
        mask = np.asarray(rollout.completion_mask[row])
        tokens = np.asarray(rollout.batch.tokens[row, -length:])[mask]
        log_probs = np.asarray(rollout.sampled_log_probs[row])[mask]
        found.append({"tokens": tokens.tolist(), "log_probs": log_probs.tolist()})
    return found


def with_completions(rollout: Rollout, completions: Sequence[Sequence[int]], pad_id: int) -> Rollout:
    """The rows of a rollout with other completions to the same prompts.

    Args:
      rollout: on the host, B rows.
      completions: B lists of at most C token ids.
      pad_id: fills the rest.

    Returns:
      Rollout whose batch and completion_mask are of these completions; its other fields are those of `rollout`.
    """
    length = rollout.completion_mask.shape[1]
    tokens = np.full(rollout.completion_mask.shape, pad_id, np.int32)
    for row, ids in enumerate(completions):
        tokens[row, : len(ids)] = ids
    mask = np.arange(length)[None] < np.asarray([len(ids) for ids in completions])[:, None]
    segments = np.concatenate([np.asarray(rollout.batch.segment_ids[:, :-length]), mask.astype(np.int32)], axis=1)
    positions = np.maximum(np.cumsum(segments, axis=1, dtype=np.int32) - 1, 0) * segments
    tokens = np.concatenate([np.asarray(rollout.batch.tokens[:, :-length]), tokens], axis=1)
    batch = rollout.batch._replace(tokens=tokens, positions=positions, segment_ids=segments)
    return rollout._replace(batch=batch, completion_mask=mask)


class Revisits:
    """Scores the completions of the last visits again.

    Args:
      setup: of the run.
      on_host: (params, rows) -> TokenScores on the host, of the policy at the rollout's temperature.
    """

    def __init__(self, setup: Setup, on_host: Callable[..., TokenScores]):
        self._setup, self._on_host, self._packer = setup, on_host, RolloutPacker(setup)

    def __call__(self, params: Params, rollout: Rollout, last: Sequence[Mapping | None]) -> np.ndarray:
        """D of each row: the mean |change of log-prob| over the tokens of the last completion to its prompt.

        Args:
          params: of the policy, before the step's updates.
          rollout: the step's rows, on the host.
          last: per row what was kept at the prompt's last visit, {"tokens", "log_probs"}; None at the first visit.

        Returns:
          float32 [B], 0 at the first visit.
        """
        found = np.zeros(len(last), np.float32)
        if not any(last):
            return found
        length = rollout.completion_mask.shape[1]
        tokens, masks = np.asarray(rollout.batch.tokens[:, -length:]), np.asarray(rollout.completion_mask)
        kept = [entry["tokens"] if entry else tokens[row][masks[row]] for row, entry in enumerate(last)]
        again = with_completions(rollout, kept, self._setup.task.tokenizer.pad_id)
        scores = np.asarray(self._on_host(params, to_mesh(self._setup, self._packer.to_score(again))).log_probs)
        for row, entry in enumerate(last):
            if entry and entry["tokens"]:
                change = scores[row, : len(entry["tokens"])] - np.asarray(entry["log_probs"], np.float32)
                found[row] = np.mean(np.abs(change))
        return found
