"""A judge that compares rationales by the policy's own hidden states, as they are in the step (GRACE)."""

import jax
import numpy as np

from experiments.parts.judges.base import Judge, Rows, Verdict, in_batches, info_of, token_rows
from experiments.parts.setup import Setup
from rl_jax.core.types import Params
from rl_jax.models.heads import make_hidden_mean
from rl_jax.rewards import embeddings
from rl_jax.tasks.text_triples import ROLES


def contrastive(
    setup: Setup,
    *,
    temperature: float = 0.1,
    clustering_weight: float = 0.2,
    cross_weight: float = 0.2,
    negatives: bool = True,
    cut_reward: float = -1.0,
    batch_size: int = 64,
) -> Judge:
    """GRACE's reward of a positive's rationale, by what the policy of the moment makes of it (arXiv 2510.04506).

    An embedding is the mean of the policy's hidden states over prompt and completion. The rows of queries and negatives
    are sampled and compared, and have reward 0, so that a group of them teaches nothing. Equations and constants:
    rl_jax.rewards.embeddings. It reads the params that sampled the rows: in experiments.grpo and its evaluations.

    Args:
      setup: of the run; its task has triples (rl_jax.tasks.text_triples).
      temperature: divides the reward.
      clustering_weight: of the likeness within a group.
      cross_weight: of the likeness to other groups.
      negatives: whether the hard negatives count; without them it is the unsupervised reward.
      cut_reward: of a positive's rationale that was cut off.
      batch_size: rows per forward pass.
    """
    weights = dict(temperature=temperature, clustering_weight=clustering_weight, cross_weight=cross_weight)
    return _Contrastive(setup, weights, negatives, cut_reward, batch_size)


class _Contrastive:
    """The judge of `contrastive`."""

    def __init__(self, setup: Setup, weights: dict, negatives: bool, cut_reward: float, size: int):
        self._setup, self._weights, self._negatives = setup, weights, negatives
        self._cut, self._size, self._params = cut_reward, size, None
        mean = make_hidden_mean(setup.model)

        def read(params, rows):
            return mean(setup.attached(params) if setup.attached else params, *rows)

        self._read = jax.jit(read)

    def see(self, params: Params) -> None:
        """The policy that samples the next rows."""
        self._params = params

    def __call__(self, judged: Rows) -> Verdict:
        if self._params is None:
            raise ValueError("the judge contrastive reads the policy of the step, which only experiments.grpo shows it")
        batch = token_rows(judged, self._setup.task.tokenizer)
        hidden = in_batches(self._setup, self._read, self._params, (batch, batch.segment_ids != 0), self._size)
        places = places_of([info_of(record) for record in judged.records])
        query, main, negative = (hidden[places[:, role]] for role in range(len(ROLES)))
        parts = embeddings.contrasts(main, query, negative if self._negatives else None)
        rewards, rows = np.zeros(len(hidden), np.float32), places[:, ROLES.index("positive")]
        cut = np.asarray(judged.rollout.truncated)[rows]
        rewards[rows] = np.where(cut, np.float32(self._cut), embeddings.contrastive(parts, **self._weights))
        against = embeddings.contrasts(negative, query).positive  # of each query with its negative
        numbers = parts._asdict() | {"ranked": np.float32(parts.positive > against)}
        columns = {name: np.zeros(len(hidden), np.float32) for name in numbers}
        for name, values in numbers.items():
            columns[name][:] = values.mean()  # a number of the step: the mean over all rows is that of the positives
        return Verdict(rewards, components=columns)


def places_of(infos: list[dict]) -> np.ndarray:
    """Where the rows of each triple are: int [N, 3, G], by role.

    Raises:
      ValueError: if rows are of no triple, or a triple is not whole.
    """
    found: dict[tuple[int, str], list[int]] = {}
    for row, info in enumerate(infos):
        if info.get("role") not in ROLES or "triple" not in info:
            raise ValueError(
                "the judge contrastive reads triples: the info of a record has role and triple, as in "
                "rl_jax.tasks.text_triples"
            )
        found.setdefault((info["triple"], info["role"]), []).append(row)
    triples = list(dict.fromkeys(info["triple"] for info in infos))
    rows = [[found.get((triple, role), []) for role in ROLES] for triple in triples]
    if len({len(of_role) for roles in rows for of_role in roles}) != 1:
        raise ValueError(
            "the judge contrastive needs whole triples in each batch: sample.prompts=dict(fn='ordered'), and "
            "sample.prompts_per_step, eval.num_prompts and eval.batch_size that 3 divides"
        )
    return np.array(rows)
