"""What grpo and ppo share: a policy's objective, credit, compiled functions and minibatches (logged.py: metrics)."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts import (
    action_mask,
    check_groups,
    episode_replay,
    evolving_tasks,
    foreign_rows,
    mirror,
    perception,
    pretraining,
    rollout_mesh,
    schedules,
    trackers,
    turn_signals,
    windows,
)
from experiments.parts.judging import need_reward
from experiments.parts.processes import to_host
from experiments.parts.prompts import make_prompts
from experiments.parts.sample_groups import Collected
from experiments.parts.sampler import make_sampler
from experiments.parts.setup import Setup, check_rows, sampling_of
from experiments.parts.training import jit_score, make_trainer, with_adapters
from rl_jax import advantages, credit, grpo, token_weights
from rl_jax.core.binding import bind, needs
from rl_jax.core.names import describe
from rl_jax.core.types import PolicyBatch, TokenScores
from rl_jax.credit import CreditRule, shaping
from rl_jax.experience import PromptStream
from rl_jax.losses import aggregate, kl, policy
from rl_jax.rewards.pool import RewardResult
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.selection import rows as row_selection
from rl_jax.training.scoring import in_micro_batches, make_score
from rl_jax.training.step import TrainState


def make_objective(config) -> grpo.Objective:
    """The loss, built from config.algorithm. A notebook builds the same tuple by hand."""
    settings, length = config.algorithm, config.rollout.completion_length
    own = settings.entropy_aggregate
    return grpo.Objective(
        surrogate=bind(settings.surrogate.to_dict(), policy, group_size=config.sample.group_size),
        kl=bind(settings.kl.to_dict(), kl, group_size=config.sample.group_size),
        kl_coef=settings.kl_coef,
        entropy_coef=settings.entropy_coef,
        aggregate=bind(settings.aggregate.to_dict(), aggregate, max_length=length),
        entropy_aggregate=bind(own.to_dict(), aggregate, max_length=length) if own.fn else None,
    )


TURN = "turn_"  # before the name of what an environment counts: turn_calls


def turn_counts(config) -> list[str]:
    """What an environment counts per turn and a choice of config.algorithm asks for: "calls", asked for as turn_calls.

    What a loss asks for is not among them.
    """
    rule = make_credit(config)
    fns = (rule.shape, rule.advantage, rule.behavior_weight, rule.token_weight, rule.selection, rule.entropy_weight)
    asked = set().union(*(needs(fn) for fn in fns if fn is not None))
    return sorted(name.removeprefix(TURN) for name in asked if name.startswith(TURN) and name != "turn_rewards")


def make_credit(config) -> CreditRule:
    """How rewards become advantages and weights, built from config.algorithm."""
    settings, length = config.algorithm, config.rollout.completion_length
    advantage = {}
    if "advantage" in settings:  # PPO's configs have none: its advantages are the critic's
        advantage = {"advantage": bind(settings.advantage.to_dict(), advantages, max_length=length)}
    return CreditRule(
        **advantage,
        shape=bind(settings.shaping.to_dict(), shaping, max_length=length),
        reward_kl=bind(settings.reward_kl.to_dict(), kl),
        behavior_weight=bind(settings.behavior_weight.to_dict(), token_weights),
        token_weight=bind(settings.token_weight.to_dict(), token_weights),
        selection=bind(settings.token_selection.to_dict(), token_weights) if settings.token_selection.fn else None,
        entropy_weight=bind(settings.entropy_weight.to_dict(), token_weights) if settings.entropy_weight.fn else None,
        mask_truncated=settings.mask_truncated,
    )


# Arrays that only some configs have: name -> (whether this one has it, what supplies it).
SUPPLIED_BY: dict[str, tuple[Callable, str]] = {
    **dict.fromkeys(
        ("step_ends", "step_rewards"),
        (lambda config: bool(config.judge), "a judge of tokens does, as config.judge's process_reward_model"),
    ),
    "reference_rewards": (lambda config: config.sample.references > 0, "--config.sample.references=10 does"),
    "best_lengths": (lambda config: config.sample.memory.on, "--config.sample.memory.on=true does"),
    "versions": (lambda c: c.rollout.window > 0 or "flow" in c, "grpo_async does, and ppo with rollout.window"),
    "lags": (lambda config: "flow" in config, "rows of older policies do: python -m experiments.grpo_async"),
    **dict.fromkeys(
        ("turns", "turn_rewards", "state_keys"),
        (lambda config: "agent" in config, "episodes do: python -m experiments.agents, or config.agent in ppo"),
    ),
    **turn_signals.SUPPLIED_BY,
}


def check_choices(config) -> None:
    """Raises ValueError if a choice of config.algorithm needs an array that the config does not supply."""
    rule = make_credit(config)
    chosen = {
        "shaping": rule.shape,
        "advantage": rule.advantage,
        "behavior_weight": rule.behavior_weight,
        "token_weight": rule.token_weight,
        "token_selection": rule.selection,
        "entropy_weight": rule.entropy_weight,
        "surrogate": make_objective(config).surrogate,
    }
    for field, fn in chosen.items():
        for name in sorted(needs(fn) & set(SUPPLIED_BY)) if fn else ():
            supplied, remedy = SUPPLIED_BY[name]
            if not supplied(config):
                raise ValueError(
                    f"algorithm.{field}={config.algorithm[field].fn!r} needs {describe(name)}. Nothing in this config "
                    f"supplies it: {remedy}"
                )


def make_assign(config) -> Callable:
    """Makes PolicyPrograms.assign of experiments.grpo, which sees the global batch."""
    several, in_loss = has_several_updates(config), turn_signals.in_loss(make_objective(config))

    def assign(rollout, rewards, before, reference, key, states, named):
        now = schedules.in_credit(config, states)
        rule, rollout = make_credit(now), foreign_rows.with_behavior(rollout, before)
        available = {
            "group_size": config.sample.group_size,
            "key": key,
            "ref_log_probs": reference,
            "log_probs": None if before is None else before.log_probs,
            "entropy": None if before is None else before.entropy,
            "sum_pi_squared": None if before is None else before.sum_pi_squared,
            "implicit_rewards": None if before is None or reference is None else before.log_probs - reference,
            **named,
            **trackers.known(now, states, named),
        }
        batch = trackers.weigh(credit.assign(rule, rollout, rewards, **available), states)
        batch = batch._replace(extras=batch.extras | {name: named[name] for name in in_loss & set(named)})
        if before is not None and several:
            batch = batch._replace(old_log_probs=before.log_probs)
        batch = with_row_selection(now, batch, rewards, key)
        return batch, credit.token_rewards(rule, rollout, rewards, **available).rows

    return assign


SELECTED_ROWS = "selected_rows"  # among a batch's extras


def with_row_selection(config, batch: PolicyBatch, rewards: jax.Array, key: jax.Array) -> PolicyBatch:
    """The batch with the rows to train on (algorithm.row_selection), which `minibatches` takes."""
    spec = config.algorithm.row_selection
    if not spec.fn:
        return batch
    chosen = bind(spec.to_dict(), row_selection, group_size=config.sample.group_size)
    rows = chosen(rewards, jax.random.fold_in(key, 2))  # shaping and weights have used the other two
    return batch._replace(extras=batch.extras | {SELECTED_ROWS: rows})


def has_several_updates(config) -> bool:
    """Whether a batch gets more than one update; only then do old log-probs differ from current ones."""
    return config.train.epochs * config.train.minibatches > 1 or episode_replay.adds_rows(config)


def needs_ref_log_probs(config) -> bool:
    """Whether a step needs the reference's log-probs: for some term, or to measure their KL."""
    settings, objective = config.algorithm, make_objective(config)
    reading = (objective.surrogate, objective.kl, objective.aggregate, make_credit(config).advantage)
    asked = {name for fn in reading for name in needs(fn)}
    moved = any(tracker.fn for place, tracker in settings.trackers.items() if place not in ("reward_scale", "baseline"))
    used = any(schedules.may_be_used(config, f"algorithm.{name}") for name in ("kl_coef", "reward_kl_coef"))
    if turn_signals.step_model_of(config)["fn"]:  # against the policy itself, not the reference
        asked -= {"implicit_rewards"}
    return bool(settings.measure_kl or used or moved or asked & {"ref_log_probs", "implicit_rewards"})


def components_of(result: RewardResult) -> list[np.ndarray]:
    """What an advantage sees as components: the composed terms times their weights, or the task's own components."""
    weighted = [column for name, column in result.components.items() if name.endswith("/weighted")]
    return weighted or [column for name, column in result.components.items() if "/" not in name]


def arrays_of(collected: Collected) -> dict[str, np.ndarray]:
    """What a step's rows have for choices that ask by name, apart from the rollout and the rewards."""
    result, named = collected.judged.result, dict(collected.named)
    if (turns := collected.judged.rollout.turns) is not None:
        named |= {"turns": turns.numbers, "turn_rewards": turns.rewards, "state_keys": turns.state_keys}
        named |= {f"{TURN}{name}": array for name, array in turns.counts.items()} | turns.signals
    if collected.greedy_rewards is not None:
        named |= {name: getattr(collected, name) for name in ("greedy_rewards", "greedy_lengths", "greedy_truncated")}
    if columns := components_of(result):
        named["components"] = np.stack(columns, axis=1)
    for name, column in result.components.items():
        if name.rpartition("/")[2] == "difficulty":
            named["difficulty"] = column
    return named


def rows_per_minibatch(batch, count: int) -> int:
    """The rows of each of `count` minibatches of a batch. Raises ValueError if its rows do not divide into them."""
    rows = batch.completion_mask.shape[0]
    if rows % count:
        raise ValueError(f"train.minibatches={count} must divide the {rows} rows of a step")
    return rows // count


def minibatches(config, batch, key, count: int | None = None):
    """The batches of one step's updates: the rows reshuffled and split in each epoch, or all rows at once.

    Args:
      config: train.minibatches and train.epochs.
      batch: a PolicyBatch, or a batch that has one as `policy`.
      key: of the shuffles.
      count: of the minibatches of an epoch; None: train.minibatches.

    Raises:
      ValueError: if the rows do not divide into the minibatches.
    """
    count, epochs, batch = count or config.train.minibatches, config.train.epochs, _selected(batch)
    rows_per_minibatch(batch, count)
    parts = [_whole(batch)] * epochs if count == 1 else _shuffled(batch, key, count=count, epochs=epochs)
    objective = make_objective(config)
    return [pretraining.weigh(config, objective, _with_entropy_scale(part, objective)) for part in parts]


def _with_entropy_scale(batch, objective: grpo.Objective):
    if not isinstance(batch, PolicyBatch):
        return batch._replace(policy=_with_entropy_scale(batch.policy, objective))
    return grpo.with_entropy_scale(batch, objective)


def _selected(batch):
    """The rows of algorithm.row_selection; the batch itself without one."""
    extras = batch.extras if isinstance(batch, PolicyBatch) else batch.policy.extras
    if SELECTED_ROWS not in extras:
        return batch
    rows = np.asarray(extras[SELECTED_ROWS])
    return jax.tree.map(lambda x: x[rows], batch)


@functools.partial(jax.jit, static_argnames=("count", "epochs"))
def _shuffled(batch, key, *, count: int, epochs: int) -> list:
    rows = batch.completion_mask.shape[0]
    orders = [jax.random.permutation(jax.random.fold_in(key, epoch), rows) for epoch in range(epochs)]
    return [_count_rows(jax.tree.map(lambda x, i=i: x[i], batch)) for order in orders for i in jnp.split(order, count)]


def _count_rows(batch):
    """Adds batch_rows: the number of rows with a token, which its micro-batches cannot count."""
    if not isinstance(batch, PolicyBatch):
        return batch._replace(policy=_count_rows(batch.policy))
    live = jnp.any(batch.completion_mask, axis=1)
    return batch._replace(extras=batch.extras | {"batch_rows": jnp.full(live.shape, jnp.sum(live, dtype=jnp.float32))})


_whole = jax.jit(_count_rows)


def make_scorer(setup: Setup, *, sum_pi_squared: bool = False) -> Callable:
    """Makes score(params, batch) -> TokenScores of the trained policy: the model at the rollout's temperature.

    With top-k or top-p the sampler's distribution differs; sampler/gap_max and sampler/ess show by how much.

    Args:
      setup: of the run.
      sum_pi_squared: as in make_score.
    """
    rollout, chunk = setup.config.rollout, setup.config.score.chunk
    options = dict(completion_length=rollout.completion_length, chunk=chunk, sum_pi_squared=sum_pi_squared)
    return make_score(setup.model, sampling=Sampling(rollout.temperature), **options)


def score_micro_batches(config) -> int:
    """Parts in which a step's rows are scored; runs of before there was a choice have one."""
    return config.score.get("micro_batches", 1)


def make_loss(setup: Setup, score: Callable) -> Callable:
    """Makes loss_fn(params, PolicyBatch) -> (Mean, metrics), as the train step takes it."""
    adapted_score, add_ptx = with_adapters(setup, score), pretraining.make_term(setup)

    base = perception.with_terms(setup, adapted_score, make_objective)

    def loss_fn(params, batch):
        return add_ptx(params, batch, *base(params, batch))

    return loss_fn


class PolicyPrograms(NamedTuple):
    """The compiled functions of a run; the rest of the loop is Python on the host.

    Attributes:
      generate: (params, tokens, prompt_mask, key) -> Rollout.
      score: (params, rows) -> TokenScores [B, C].
      train_step: (state, PolicyBatch) -> (state, metrics).
      assign: (rollout, rewards, before, reference, key, tracker states, named) -> (PolicyBatch, float32 [B]: the
        rewards after shaping and KL).
      greedy: like generate, with one row per prompt; None if the advantage does not need its reward.
      references: like generate, with sample.references rows per prompt; None if nothing needs them.
    """

    generate: Callable
    score: Callable
    train_step: Callable
    assign: Callable
    greedy: Callable | None = None
    references: Callable | None = None

    def on_host(self, params, rows) -> TokenScores:
        """The scores of `rows`, gathered from all processes."""
        return to_host(self.score(params, rows))

    def compile_count(self) -> int:
        """Number of compiled programs; growth after the first steps means shapes are changing."""
        return sum(program._cache_size() for program in self if program is not None)


def build(setup: Setup, params) -> tuple[PolicyPrograms, TrainState]:
    """Compiled functions and the initial state. The buffers of `params` are donated."""
    config = setup.config
    if setup.rollout and not setup.rollout.in_8_bits and config.log.progress:
        print(rollout_mesh.cost(setup.rollout, params))
    length, tokenizer = config.rollout.completion_length, setup.task.tokenizer
    sampling = sampling_of(config.rollout)

    def sampler(group_size: int, sampling: Sampling, own: Callable | None = None) -> Callable:
        options = dict(
            completion_length=config.rollout.window or length,
            group_size=group_size,
            sampling=sampling,
            eos_ids=tokenizer.eos_ids,
            pad_id=tokenizer.pad_id,
        )
        return own(setup, **options) if own else make_sampler(setup, config.sample.prompts_per_step, **options)

    rule, score = make_credit(config), make_scorer(setup)
    loss_fn = make_loss(setup, score)
    if "sum_pi_squared" in needs(rule.advantage):
        score = make_scorer(setup, sum_pi_squared=True)
    compares = "reference_rewards" in needs(rule.shape) | needs(rule.advantage)
    states = trackers.init(trackers.make_trackers(config, setup.task))
    loss_fn = mirror.with_term(setup, loss_fn, make_objective)
    extra = int(mirror.is_on(config))
    train_step, state = make_trainer(setup, config.train, loss_fn, params, states, num_extra_args=extra)
    own = action_mask.MaskedGenerate if action_mask.is_on(config) else None
    return PolicyPrograms(
        generate=sampler(config.sample.group_size, sampling, own),
        score=jit_score(in_micro_batches(score, score_micro_batches(config)), setup),
        train_step=train_step,
        assign=jax.jit(make_assign(config)),
        greedy=sampler(1, Sampling(top_k=1), own) if "greedy_rewards" in needs(rule.advantage) else None,
        references=sampler(config.sample.references, sampling) if compares else None,
    ), state


def check_sizes(setup: Setup, **more: int) -> None:
    """Checks a config before anything is trained.

    Args:
      setup: of the run.
      **more: further numbers of micro-batches, by name.

    Raises:
      ValueError: if the rows of a step, or of a micro-batch, do not divide over the devices, `check_choices` does, or
        the task has no reward.
    """
    need_reward(setup)
    check_choices(setup.config)
    check_groups.check(setup.config)
    sample, train = setup.config.sample, setup.config.train
    minibatch = sample.prompts_per_step * sample.group_size // train.minibatches
    counts = {name: minibatch // count for name, count in {"micro_batch": train.micro_batches, **more}.items()}
    if (parts := score_micro_batches(setup.config)) > 1:
        counts["part of score.micro_batches"] = sample.prompts_per_step * sample.group_size // parts
    check_rows(setup, prompts_per_step=sample.prompts_per_step, **counts)


def own_prompts(setup: Setup) -> tuple[Any, PromptStream]:
    """The prompts of this process.

    Returns:
      (source of the task's training records, endless batches of this process's share of prompts_per_step records).
    """
    source, batch_size = setup.task.data_source("train"), setup.config.sample.prompts_per_step
    prompts = windows.carrying(setup.config, make_prompts(setup, source, batch_size=batch_size))
    return source, evolving_tasks.evolving_prompts(setup.config, foreign_rows.remembering(setup.config, prompts))
