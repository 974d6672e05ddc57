"""The preference probe of rl_jax.testing as the configs of preference methods build it."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments import online_dpo
from experiments.parts import preference_steps
from experiments.parts.sample_candidates import DATA, POLICY, REFERENCE, Candidates
from rl_jax.core.types import TokenScores
from rl_jax.testing import preference_probes as probes


def of_config(config) -> probes.Probe:
    """The probe that trains by a method's own config."""
    objective, statistics = preference_steps.make_objective(config), preference_steps.make_batch_statistics(config)

    def batch_stats(state, scores: TokenScores, batch):
        before = preference_steps.measure(scores, batch, objective)
        before = before._replace(
            mismatched_log_ratios=jnp.roll(before.sequence_scores[:, 0], 1),
            mismatched_present=jnp.roll(before.present[:, 0], 1),
        )
        return statistics.update(state, before, jax.random.key(0))

    sample = (lambda rng, logits: sampled(config, rng, logits)) if "sample" in config else None
    measured = batch_stats if statistics.reads_batch else None  # as experiments.parts.preference_steps does
    return probes.Probe(objective, config.algorithm.responses, sample, statistics.init, measured)


def sampled(config, rng, logits) -> probes.ProbeBatch:
    """The choice of experiments.online_dpo from candidates of policy, reference and data."""
    settings, prompts = config.sample, np.arange(probes.ROWS) % probes.PROMPTS
    actions = probes.draw(rng, probes.start() if settings.share else logits, prompts, settings.group_size)
    origin = np.full(actions.shape, REFERENCE if settings.share == 1.0 else POLICY, np.int32)
    opponents = np.zeros((probes.ROWS, 0), np.float32)
    if others := settings.opponents.samples:
        share = settings.opponents.share
        drawn = probes.draw(rng, (1 - share) * logits + share * probes.start(), prompts, others)
        opponents = probes.REWARDS[prompts[:, None], drawn].astype(np.float32)
        if settings.opponents.candidates:
            actions = np.concatenate([actions, drawn], axis=1)
            origin = np.concatenate([origin, np.full(drawn.shape, REFERENCE)], axis=1)
    if settings.data:
        demonstrated = probes.draw(rng, jnp.where(probes.REWARDS > 0, 0.0, -5.0), prompts, 1)
        added = probes.pairs(rng, prompts)[0] if settings.data == "pairs" else demonstrated
        actions = np.concatenate([actions, added], axis=1)
        origin = np.concatenate([origin, np.full(added.shape, DATA)], axis=1)
    batch = probes.batch_of(actions, probes.REWARDS[prompts[:, None], actions])
    candidates = Candidates(batch.batch, batch.completion_mask, batch.rewards, origin, opponents)
    key = jax.random.key(int(rng.integers(1 << 30)))
    batch = online_dpo.choose(config, candidates, key, preference_steps.make_objective(config).needs())
    chosen = np.asarray(batch.batch.tokens[:, :, 0])
    return probes.ProbeBatch(batch, np.repeat(prompts, len(chosen) // probes.ROWS), chosen)
