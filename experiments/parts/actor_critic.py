"""PPO's policy and critic: objective and estimator of a config, what is trained, and the compiled functions.

The loop is in experiments/ppo.py. `build` makes both networks and their programs; `LearnerState` is what a checkpoint
holds of them, and `PPOPrograms.update` one update on one minibatch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from experiments.parts import (
    critic_stages,
    critics,
    foreign_rows,
    players,
    schedules,
    trackers,
    turn_signals,
)
from experiments.parts import policy as policy_parts
from experiments.parts.processes import to_host
from experiments.parts.setup import Setup
from experiments.parts.training import make_trainer, with_adapters
from rl_jax import ppo
from rl_jax.advantages import tokens as token_advantages
from rl_jax.advantages import turn_critics
from rl_jax.core.binding import bind, needs
from rl_jax.core.packed_rows import rows_of
from rl_jax.core.types import Params
from rl_jax.losses import several_critics, value
from rl_jax.models.heads import NAME as HEAD
from rl_jax.models.heads import make_predict, without_value_head
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import sharding
from rl_jax.training.scoring import in_micro_batches, make_score
from rl_jax.training.step import TrainState


def make_objective(config) -> ppo.Objective:
    """The losses, built from config.algorithm and config.critic."""
    settings = config.critic
    value_loss = bind(settings.loss.to_dict(), value)
    objective = ppo.Objective(
        policy=policy_parts.make_objective(config),
        value_loss=value_loss,
        support=support_of(settings) if "support" in needs(value_loss) else None,
        value_coef=settings.value_coef,
        pairs=PAIRS if has_targets(config) else 0,
    )
    objective.check()
    return objective


def support_of(settings) -> value.Support | several_critics.Smallest:
    """The bins of a categorical critic, config.critic.support; with `members` those of several critics.

    Raises:
      ValueError: if there are several critics, and the loss reads one.
    """
    bins = settings.support.to_dict()
    members = bins.pop("members", 1)
    if members < 2:
        return value.Support(**bins)
    if hasattr(value, settings.loss.fn):
        raise ValueError(
            f"critic.support.members={members}: critic.loss={settings.loss.fn!r} reads one critic; "
            '"rl_jax.losses.several_critics:each_two_hot" is of several'
        )
    return several_critics.Smallest(value.Support(**bins), members)


def members_of(objective: ppo.Objective) -> int:
    """The critics on one trunk of which the smallest counts; 1: one critic."""
    return 2 * objective.pairs or getattr(objective.support, "members", 1)


def make_estimator(config) -> ppo.Estimator:
    """How values become advantages, built from config.critic."""
    settings = config.critic
    return ppo.Estimator(
        advantage=bind(settings.advantage.to_dict(), token_advantages),
        whiten=settings.whiten,
        bootstrap_truncated=settings.bootstrap_truncated,
        windowed=config.rollout.window > 0,
    )


PAIRS = 2  # critics Q_k and V_k of turns, if critic.advantage reads those


def has_targets(config) -> bool:
    """Whether the critic is pairs of critics of turns with a slow copy, as in ArCHer."""
    return "target_values" in needs(make_estimator(config).advantage)


class LearnerState(NamedTuple):
    """What is trained.

    Attributes:
      policy: TrainState.
      critic: TrainState, or None if the critic is a head among the policy's params.
      target: the slow copy of the critic's params, or None if nothing reads it.
    """

    policy: TrainState
    critic: TrainState | None
    target: Params | None = None

    def policy_params(self):
        """The policy's own params, without a value head."""
        return without_value_head(self.policy.params)

    def sampler(self, settings, reference) -> Params:
        """The params that sample the answers of a step. settings: config.critic; reference: what a run carries."""
        return critic_stages.sampler_of(settings, self.policy_params(), reference)

    def critic_params(self):
        """The params that predict values."""
        return self.policy.params if self.critic is None else self.critic.params

    def checkpoint_items(self, reference) -> dict[str, Any]:
        """What is saved. "params" are the policy's own, so that any other program can load them."""
        head = {name: group for name, group in self.policy.params.items() if name == HEAD}
        items = {"params": self.policy_params(), "rest": self.policy._replace(params=head)}
        more = {"reference": reference, "critic": self.critic, "target": self.target}
        return items | {name: item for name, item in more.items() if item is not None}

    @classmethod
    def of(cls, items: dict[str, Any]) -> "LearnerState":
        """The LearnerState from the items of checkpoint_items."""
        rest = items["rest"]
        policy = rest._replace(params={**items["params"], **rest.params})
        return cls(policy, items.get("critic"), items.get("target"))


class PPOPrograms(NamedTuple):
    """The compiled functions of a run.

    Attributes:
      generate: as in experiments.grpo.
      score: as in experiments.grpo.
      predict: (critic params, rows) -> values float32 [B, C + 1].
      assign: (rollout, rewards, values, before, reference, key, tracker states, named) -> (PPOBatch, metrics).
      policy_step: (state, PolicyBatch) -> (state, metrics). If the critic is shared it trains both and takes a
        PPOBatch.
      critic_step: (state, PPOBatch) -> (state, metrics), or None if the critic is shared.
      follow: (target, critic params) -> target, moved towards them; or None.
      greedy: None; PPO has no use for it.
      references: as in experiments.grpo.
    """

    generate: Callable
    score: Callable
    predict: Callable
    assign: Callable
    policy_step: Callable
    critic_step: Callable | None
    follow: Callable | None = None
    greedy: Callable | None = None
    references: Callable | None = None

    def on_host(self, params, rows):
        """The scores of `rows`, gathered from all processes."""
        return to_host(self.score(params, rows))

    def compile_count(self) -> int:
        """Number of compiled programs; growth after the first steps means shapes are changing."""
        return sum(program._cache_size() for program in self if program is not None)

    def update(self, learner: LearnerState, batch: ppo.PPOBatch, of_critic: ppo.PPOBatch, *, only: str):
        """One update on one minibatch.

        Args:
          learner: before the update.
          batch: a minibatch.
          of_critic: the same as a separate critic reads it.
          only: which network is updated alone, "critic" or "policy"; "": both.

        Returns:
          (learner, metrics of the policy or None, metrics of a separate critic or {}).
        """
        policy, critic, _ = learner
        if critic is None or only == critic_stages.POLICY:
            policy, metrics = self.policy_step(policy, batch if critic is None else batch.policy)
            return learner._replace(policy=policy), metrics, {}
        critic, critic_metrics = self.critic_step(critic, of_critic)
        if only == critic_stages.CRITIC:
            return learner._replace(critic=critic), None, critic_metrics
        policy, metrics = self.policy_step(policy, batch.policy)
        return learner._replace(policy=policy, critic=critic), metrics, critic_metrics


def make_assign(config) -> Callable:
    """Makes PPOPrograms.assign, which sees the global batch."""
    in_loss = turn_signals.in_loss(policy_parts.make_objective(config)) | ({"turns"} if has_targets(config) else set())

    def assign(rollout, rewards, values, before, reference, key, states, named):
        now = schedules.in_credit(config, states)
        rule, estimator = policy_parts.make_credit(now), make_estimator(now)
        rollout = foreign_rows.with_behavior(rollout, before)
        if rollout.turns is not None:
            rollout = rollout._replace(
                token_rewards=turn_critics.earned_early(rollout.turns.rewards, rollout.completion_mask)
            )
        batch, means = ppo.assign(
            rule,
            estimator,
            rollout,
            rewards,
            values,
            group_size=config.sample.group_size,
            key=key,
            ref_log_probs=reference,
            log_probs=before.log_probs,
            entropy=before.entropy,
            **named,
            **trackers.known(now, states, named),
        )
        policy = trackers.weigh(batch.policy, states)
        policy = policy._replace(extras=policy.extras | {name: named[name] for name in in_loss & set(named)})
        if policy_parts.has_several_updates(config):
            policy = policy._replace(old_log_probs=before.log_probs)
        policy = policy_parts.with_row_selection(now, policy, rewards, key)
        return batch._replace(policy=policy), {name: mean.value() for name, mean in means.items()}

    return assign


def build(setup: Setup, params) -> tuple[PPOPrograms, LearnerState]:
    """Compiled functions and the initial learner. The buffers of `params` are donated.

    Raises:
      ValueError: if a shared critic is to be warmed up alone, or to start from another run.
    """
    config, objective = setup.config, make_objective(setup.config)
    length, settings = config.rollout.completion_length, config.critic
    rows, trunk = sharding.batch_sharding(setup.mesh), setup.model
    head = dict(num_outputs=objective.num_outputs(), members=members_of(objective))
    critic_params, critic_shardings = critics.start(setup, params, **head)
    of_policy, policy = policy_parts.build(setup, params)
    predict = with_adapters(setup, make_predict(setup.model, completion_length=length))
    predict_rows = in_micro_batches(predict, policy_parts.score_micro_batches(config))

    def objective_of(batch):
        return make_objective(schedules.in_loss(config, batch.policy.extras))

    def joint_loss(params, batch):
        tokens = batch.policy.batch
        hidden = trunk.apply(params, rows_of(tokens))  # one forward for both heads
        model = trunk._replace(apply=lambda *_: hidden)
        sampling = Sampling(config.rollout.temperature)  # what is trained, as policy_parts.make_scorer has it
        score = make_score(model, completion_length=length, sampling=sampling, chunk=config.score.chunk)
        values = make_predict(model, completion_length=length)(params, tokens)
        return ppo.loss(score(params, tokens), values[:, :-1], batch, objective_of(batch))

    if settings.shared:
        loss_fn = with_adapters(setup, joint_loss)
        policy_step, policy = make_trainer(setup, config.train, loss_fn, critic_params, policy.trackers)
        critic_step, critic = None, None
    else:
        policy_step = of_policy.train_step
        critic_step, critic = make_trainer(setup, settings, critics.make_loss(predict, objective_of), critic_params)
    follow, target = critics.slow_copy(critic, critic_shardings, settings) if objective.pairs else (None, None)
    programs = PPOPrograms(
        generate=of_policy.generate,
        score=of_policy.score,
        predict=jax.jit(
            lambda params, batch: objective.values(predict_rows(params, batch)),
            in_shardings=(critic_shardings, rows),
            out_shardings=rows,
        ),
        assign=jax.jit(make_assign(config), out_shardings=(rows, sharding.replicated(setup.mesh))),
        policy_step=policy_step,
        critic_step=critic_step,
        follow=follow,
        references=of_policy.references,
    )
    return players.with_player(setup, programs), LearnerState(policy, critic, target)
