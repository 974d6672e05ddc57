"""config.agent.step_model: a reward model of turns that is trained beside the policy (OPRL, iStar, arXiv 2509.19199).

    phi starts as the policy. Each step: phi learns from the step's episodes, the better ones of a group against the
    worse, then  implicit_rewards_t = beta (log phi_t - log pi_old_t)  of the same episodes are the credit's.

pi_old is the policy that played them, so nothing is read from a reference. phi, its optimizer and its count of updates
are in every checkpoint. The order (phi first, then its rewards) and Adam's rate are ours: the paper's text was not
readable in full.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts import policy, turn_signals
from experiments.parts.judges.learning import Learner
from experiments.parts.sample_groups import Collected
from experiments.parts.setup import Setup
from experiments.parts.training import to_mesh
from rl_jax.core.binding import needs
from rl_jax.core.masked import Mean, masked_mean, zero_masked
from rl_jax.core.types import Params, TokenScores
from rl_jax.losses.reward_model.implicit import implicit_pairs, implicit_rewards

KIND = "implicit"
FIELDS = {"beta", "learning_rate", "updates"}


def problems(config) -> list[str]:
    """What is wrong with config.agent.step_model, one text each."""
    settings, found = turn_signals.step_model_of(config), []
    if not (name := settings.pop("fn")):
        return found
    if name != KIND:
        found.append(f"agent.step_model.fn={name!r} is none of '', {KIND!r}")
    if set(settings) != FIELDS or settings["updates"] < 1 or settings["beta"] <= 0:
        wanted = ", ".join(sorted(FIELDS))
        found.append(f"agent.step_model={settings} must have {wanted}: a beta above 0 and 1 update or more")
    if config.get("program") != "agents":
        found.append(f"agent.step_model works in experiments.agents, not in {config.get('program')!r}")
    if "implicit_rewards" not in needs(turn_signals.advantage_of(config)[1]):
        found.append(f"agent.step_model: {turn_signals.said(config)} does not ask for implicit_rewards; leave it empty")
    return found


class StepModel:
    """The reward model phi of a run, its training, and what it says about a step's episodes.

    Args:
      setup: of the run.
      params: of the policy before its first step; not donated.
      beta: of the loss and of the rewards.
      learning_rate: of Adam.
      updates: of phi per step, each on all episodes of the step.
    """

    def __init__(self, setup: Setup, params: Params, *, beta: float, learning_rate: float, updates: int):
        merged = setup.merged(params) if setup.merged else params
        self._setup, self._beta, self._updates = setup, beta, updates
        score = policy.make_scorer(setup)
        self._read = jax.jit(lambda params, rows: score(params, rows).log_probs)
        loss = pairs_loss(score, setup.config.sample.group_size, beta)
        own = jax.tree.map(jnp.copy, merged)  # the policy's buffers are donated to its updates
        self._learner = Learner(setup, own, loss, learning_rate=learning_rate, every=1)

    def carried(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {"step_model": self._learner.carried()}

    def set_carried(self, items: dict[str, Any]) -> None:
        """Puts back what `carried` gave."""
        self._learner.set_carried(items["step_model"])

    def __call__(self, collected: Collected, scores: TokenScores) -> Collected:
        """The step's rows with implicit_rewards by name and step_model/... among their metrics; phi is trained first.

        Args:
          collected: the step's rows.
          scores: of the policy that played them.
        """
        rollout, rewards = collected.judged.rollout, collected.judged.result.rewards
        # A row whose environment failed has no turn; the reward it is given is no outcome.
        mask, present = np.asarray(rollout.completion_mask), (rollout.turns.numbers >= 0).any(axis=1)
        old = np.where(mask, scores.log_probs, np.float32(0))
        for _ in range(self._updates):
            self._learner.due()
            told = self._learner.update((rollout.batch, mask, old, present, rewards.astype(np.float32)))
        log_probs = np.asarray(jax.device_get(self._read(self._learner.params, to_mesh(self._setup, rollout.batch))))
        found = np.where(mask, np.float32(self._beta) * (log_probs - old), np.float32(0))
        metrics = {f"step_model/{name}": told[name] for name in ("loss", "accuracy", "grad_norm")}
        return collected._replace(
            named=collected.named | {"implicit_rewards": found}, metrics=collected.metrics | metrics
        )


def pairs_loss(score: Callable, group_size: int, beta: float) -> Callable:
    """Makes loss(phi, (TokenBatch [B, T], mask, old_log_probs [B, C], present [B], rewards [B])) of `implicit_pairs`.

    Args:
      score: (params, TokenBatch) -> TokenScores [B, C].
      group_size: G; the rows of a group are neighbours.
      beta: of the implicit reward.
    """

    def loss(params: Params, batch: tuple) -> tuple[Mean, dict]:
        rows, mask, old, present, rewards = batch
        ratios = zero_masked(score(params, rows).log_probs, mask) - zero_masked(old, mask)
        groups = ratios.reshape(-1, group_size, ratios.shape[-1])
        where, there = mask.reshape(groups.shape), present.reshape(groups.shape[:2])
        targets = rewards.reshape(there.shape)
        mean = masked_mean(*implicit_pairs(groups, where, there, targets=targets, beta=beta))
        sums = implicit_rewards(groups, where, beta=beta)
        pairs = there[:, :, None] & there[:, None, :] & (targets[:, :, None] > targets[:, None, :])
        right = (sums[:, :, None] > sums[:, None, :]).astype(jnp.float32)
        return mean, {"accuracy": masked_mean(right, pairs)}

    return loss


def make_step_model(setup: Setup, params: Params) -> Callable[[Collected, TokenScores | None], Collected]:
    """The StepModel of config.agent.step_model, which starts as the policy; without one, rows stay as they are."""
    settings = turn_signals.step_model_of(setup.config)
    return StepModel(setup, params, **settings) if settings.pop("fn") else lambda collected, scores: collected
