"""GRPO, from prompts to report: the loop that a reader forks.

    python -m experiments.grpo --config=configs/tasks/arithmetic.py --workdir=runs/arithmetic

Each step: prompts -> rollouts -> rewards -> advantages -> old and reference log-probs -> updates. The first start
runs the config's SFT warm start in WORKDIR/sft; the same command resumes whatever was interrupted, bit for bit.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import sft
from experiments.evaluate import Judged, make_evaluate, make_pool, sample_rows
from experiments.parts import common, processes, rollout_mesh, sample_groups, trackers
from experiments.parts.packers import Packer
from experiments.parts.sample_groups import Collected, collect
from experiments.parts.sampler import make_sampler
from rl_jax import advantages, credit, grpo, token_weights
from rl_jax.core.binding import bind, needs
from rl_jax.core.names import describe
from rl_jax.core.types import PolicyBatch, TokenScores
from rl_jax.credit import CreditRule, shaping
from rl_jax.losses import aggregate, kl, policy
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import checkpoint, distributed
from rl_jax.training.scoring import make_score
from rl_jax.training.step import TrainState


def make_objective(config) -> grpo.Objective:
    """The loss's parts by name, from config.algorithm. A notebook builds the same tuple by hand."""
    return grpo.Objective(
        surrogate=bind(config.algorithm.surrogate.to_dict(), policy),
        kl=bind(config.algorithm.kl.to_dict(), kl),
        kl_coef=config.algorithm.kl_coef,
        entropy_coef=config.algorithm.entropy_coef,
        aggregate=bind(config.algorithm.aggregate.to_dict(), aggregate, max_length=config.rollout.completion_length),
    )


def warm_start(setup: common.Setup, workdir: pathlib.Path, stop: checkpoint.StopSignal):
    """The params that RL starts from: a finished run's, or the SFT's in workdir/sft, or the model's own.

    None where a signal ended the SFT.
    """
    config = setup.config
    if config.init_from:
        return common.load_params(setup, config.init_from)
    if not config.sft.steps:
        return setup.init_params()
    if not sft.run(config, workdir / "sft", stop, setup):
        return None
    return common.load_params(setup, workdir / "sft")


def make_credit(config) -> CreditRule:
    """How rewards become advantages and weights, by name, with their keywords, from config.algorithm."""
    settings, length = config.algorithm, config.rollout.completion_length
    return CreditRule(
        shape=bind(settings.shaping.to_dict(), shaping, max_length=length),
        reward_kl=bind(settings.reward_kl.to_dict(), kl),
        advantage=bind(settings.advantage.to_dict(), advantages, max_length=length),
        behavior_weight=bind(settings.behavior_weight.to_dict(), token_weights),
        token_weight=bind(settings.token_weight.to_dict(), token_weights),
        selection=bind(settings.token_selection.to_dict(), token_weights) if settings.token_selection.fn else None,
        mask_truncated=settings.mask_truncated,
    )


# Arrays that a choice may ask for and that no sampler or judge of this program makes.
NOT_SUPPLIED = ("reference_rewards", "step_ends", "step_rewards", "sum_pi_squared", "versions")


def check_config(config) -> None:
    """Raises ValueError if a choice of config.algorithm needs an array that this program never has."""
    rule = make_credit(config)
    chosen = {
        "shaping": rule.shape,
        "advantage": rule.advantage,
        "behavior_weight": rule.behavior_weight,
        "token_weight": rule.token_weight,
        "token_selection": rule.selection,
    }
    for field, fn in chosen.items():
        for name in sorted(needs(fn) & set(NOT_SUPPLIED)) if fn else ():
            raise ValueError(
                f"algorithm.{field}={config.algorithm[field].fn!r} needs {describe(name)}. No program supplies "
                "it; a loop of your own can pass it to credit.assign"
            )


def make_assign(config) -> Callable:
    """Programs.assign, all of it on the global batch."""
    rule, several = make_credit(config), has_several_updates(config)

    def assign(rollout, rewards, before, reference, key, states, named):
        available = {
            "group_size": config.sample.group_size,
            "key": key,
            "ref_log_probs": reference,
            "log_probs": None if before is None else before.log_probs,
            "entropy": None if before is None else before.entropy,
            **named,
            **trackers.known(config, states),
        }
        batch = trackers.weigh(credit.assign(rule, rollout, rewards, **available), states)
        if before is not None and several:
            batch = batch._replace(old_log_probs=before.log_probs)
        return batch, credit.token_rewards(rule, rollout, rewards, **available).rows

    return assign


def make_policy_batch(
    assign: Callable, collected: Collected, before: TokenScores | None, reference, key, states: trackers.States
) -> tuple[PolicyBatch, jax.Array]:
    """What one step trains on, and what its rows have earned after shaping and KL, float32 [B].

    Args:
      assign: Programs.assign.
      collected: the step's rows.
      before: [B, C] of the policy before the updates, or None if nothing needs them.
      reference: float32 [B, C] log-probs, or None.
      key: a typed key.
      states: of the trackers, after they have seen the rewards.
    """
    result, named = collected.judged.result, {}
    if collected.greedy_rewards is not None:
        for name in ("greedy_rewards", "greedy_lengths", "greedy_truncated"):
            named[name] = getattr(collected, name)
    if result.components:
        named["components"] = np.stack(list(result.components.values()), axis=1)
    return assign(collected.judged.rollout, result.rewards, before, reference, key, states, named)


def has_several_updates(config) -> bool:
    """Whether a batch gets more than one update; only then do old log-probs differ from current ones."""
    return config.train.epochs * config.train.minibatches > 1


def compares(config) -> bool:
    """Whether a step needs the reference's log-probs: some term asks for them, or their KL is to be measured."""
    settings, objective = config.algorithm, make_objective(config)
    asked = {name for fn in (objective.surrogate, objective.kl, objective.aggregate) for name in needs(fn)}
    moved = any(tracker.fn for place, tracker in settings.trackers.items() if place not in ("reward_scale", "baseline"))
    return bool(settings.measure_kl or settings.kl_coef or settings.reward_kl_coef or moved or "ref_log_probs" in asked)


def minibatches(config, batch, key):
    """The batches of one step's updates: the rows shuffled and split in each epoch, or everything at once.

    Args:
      config: train.minibatches and train.epochs.
      batch: a PolicyBatch, or a batch that has one as `policy`.
      key: of the shuffles.

    Raises:
      ValueError: if the rows do not divide into the minibatches.
    """
    count, epochs = config.train.minibatches, config.train.epochs
    rows = batch.completion_mask.shape[0]
    if rows % count:
        raise ValueError(f"train.minibatches={count} does not divide the {rows} rows of a step")
    if count == 1:
        return [_whole(batch)] * epochs
    return _shuffled(batch, key, count=count, epochs=epochs)


@functools.partial(jax.jit, static_argnames=("count", "epochs"))
def _shuffled(batch, key, *, count: int, epochs: int) -> list:
    rows = batch.completion_mask.shape[0]
    orders = [jax.random.permutation(jax.random.fold_in(key, epoch), rows) for epoch in range(epochs)]
    return [_count_rows(jax.tree.map(lambda x, i=i: x[i], batch)) for order in orders for i in jnp.split(order, count)]


def _count_rows(batch):
    """The batch with its number of rows that have a token, which its micro-batches could not know."""
    if not isinstance(batch, PolicyBatch):
        return batch._replace(policy=_count_rows(batch.policy))
    live = jnp.any(batch.completion_mask, axis=1)
    return batch._replace(extras=batch.extras | {"batch_rows": jnp.full(live.shape, jnp.sum(live, dtype=jnp.float32))})


_whole = jax.jit(_count_rows)


def step_metrics(config, judged: Judged, updates: list[dict[str, float]]) -> dict[str, float]:
    """A step's row of metrics: the data's health, the first update's view of the sampler, the mean of the updates."""
    result, rollout = judged.result, judged.rollout
    groups = result.rewards.reshape(-1, config.sample.group_size)
    metrics = {name: np.mean([update[name] for update in updates]) for name in updates[0]}
    del metrics["sampler/weight"], metrics["sampler/weight_squared"]  # they stand in sampler/ess
    metrics |= {
        "ratio/first_max_dev": updates[0]["ratio/max_dev"],
        "nonfinite/skipped": updates[-1]["nonfinite/skipped"],  # a count so far, not to be averaged
        "sampler/gap_max": updates[0]["sampler/gap_max"],
        "sampler/ess": updates[0]["sampler/weight"] ** 2 / updates[0]["sampler/weight_squared"],
        "reward/mean": result.rewards.mean(),
        "reward/std": result.rewards.std(),
        "reward/timeouts": result.num_timeouts,
        "reward/errors": result.num_errors,
        "group/zero_variance": np.mean(np.ptp(groups, axis=1) == 0),
        "finished": rollout.finished.mean(),
        "truncated": rollout.truncated.mean(),
        "completion_length": rollout.completion_mask.sum(axis=1).mean(),
        "mask_occupancy": rollout.completion_mask.mean(),
    }
    return metrics | {f"reward/{name}": column.mean() for name, column in result.components.items()}


def group_view(
    setup: common.Setup, judged: Judged, batch: PolicyBatch, before: TokenScores, after: TokenScores
) -> dict:
    """The step's first group with a signal, token by token. before, after: the scores around the step's updates."""
    size = setup.config.sample.group_size
    groups = judged.result.rewards.reshape(-1, size)
    chosen = int(np.argmax(np.ptp(groups, axis=1) > 0)) * size
    length = judged.rollout.completion_mask.shape[1]
    rows = []
    for i in range(chosen, chosen + size):
        # The head of the padding is left out of the picture; one masked column shows where it begins.
        used = min(int(judged.rollout.completion_mask[i].sum()) + 1, length)
        tokens = judged.rollout.batch.tokens[i, -length:][:used].tolist()
        columns = {
            "mask": batch.completion_mask[i],
            "log_prob": before.log_probs[i],
            "log_ratio": after.log_probs[i] - before.log_probs[i],
            "advantage": batch.advantages[i],
            "entropy": before.entropy[i],
        }
        row = {name: np.asarray(values)[:used].tolist() for name, values in columns.items()}
        row["tokens"] = [setup.task.tokenizer.token_text(t) for t in tokens]
        row["reward"] = float(judged.result.rewards[i])
        rows.append(row)
    return {"prompt": judged.records[chosen]["prompt"], "rows": rows}


class Programs(NamedTuple):
    """The compiled functions of a run; everything else in the loop is Python on the host."""

    generate: Callable
    score: Callable
    train_step: Callable
    assign: Callable
    """(rollout, rewards, before, reference, key, tracker states, named) -> (PolicyBatch, what the rows have earned)."""
    greedy: Callable | None = None
    """One row per prompt, if the advantage asks for its reward."""

    def on_host(self, params, rows) -> TokenScores:
        """score of `rows` on the mesh, the whole of it where several processes have a part each."""
        return distributed.whole(self.score(params, rows))

    def compile_count(self) -> int:
        """How many programs stand behind them: constant after the first steps, or shapes are leaking."""
        return sum(program._cache_size() for program in self if program is not None)


def make_scorer(setup: common.Setup) -> Callable:
    """score(params, batch) -> TokenScores of the policy that is trained: the model at the rollout's temperature.

    Where top-k or top-p cut off more, the sampler's log-probs are of another distribution, and sampler/gap_max and
    sampler/ess show by how much.
    """
    rollout, chunk = setup.config.rollout, setup.config.score.chunk
    sampling = Sampling(rollout.temperature)
    return make_score(setup.model, completion_length=rollout.completion_length, sampling=sampling, chunk=chunk)


def make_loss(setup: common.Setup, score: Callable) -> Callable:
    """loss_fn(params, PolicyBatch) -> (Mean, metrics), as the train step takes it."""
    objective, merged_score = make_objective(setup.config), common.on_merged(setup, score)

    def loss_fn(params, batch):
        return grpo.loss(merged_score(params, batch.batch), batch, objective)

    return loss_fn


def build(setup: common.Setup, params) -> tuple[Programs, TrainState]:
    """The programs of this config on this mesh, and the state that they start from. `params` are given up to it."""
    config = setup.config
    if setup.rollout and config.log.progress:
        print(rollout_mesh.cost(setup.rollout, params))
    length, tokenizer = config.rollout.completion_length, setup.task.tokenizer
    sampling = common.sampling_of(config.rollout)

    def sampler(group_size: int, sampling: Sampling) -> Callable:
        return make_sampler(
            setup,
            config.sample.prompts_per_step,
            completion_length=length,
            group_size=group_size,
            sampling=sampling,
            eos_ids=tokenizer.eos_ids,
            pad_id=tokenizer.pad_id,
        )

    score = make_scorer(setup)
    loss_fn = make_loss(setup, score)
    states = trackers.init(trackers.make_trackers(config))
    train_step, state = common.make_trainer(setup, config.train, loss_fn, params, states)
    return Programs(
        generate=sampler(config.sample.group_size, sampling),
        score=common.jit_score(score, setup),
        train_step=train_step,
        assign=jax.jit(make_assign(config)),
        greedy=sampler(1, Sampling(top_k=1)) if "greedy_rewards" in needs(make_credit(config).advantage) else None,
    ), state


def compile_ahead(setup: common.Setup, programs: Programs, packer: Packer, pool, prompts, state: TrainState) -> None:
    """Compiles what the first step calls: the step itself, with its prompts, and zeros in place of results.

    Packed rows have shapes that depend on the samples: there only the rollout is compiled.
    """
    config, ahead, key = setup.config, common.ahead(setup), processes.step_key(state, 0)
    params = rollout_mesh.place(setup.rollout, state.params, common.Clock())
    collected = sample_groups.compile_ahead(setup, pool, programs.generate, programs.greedy, prompts, params, key)
    if collected is None or config.packing.mode != "padded":
        return
    rows = common.place_rows(setup, packer.to_score(collected.judged.rollout))
    before = distributed.whole(ahead("score", programs.score)(state.params, rows))
    reference = before.log_probs if compares(config) else None
    assign, states = ahead("assign", programs.assign), distributed.whole(state.trackers)
    batch, _ = make_policy_batch(assign, collected, before, reference, key, states)
    part = common.place_rows(setup, packer.to_train(minibatches(config, batch, key)[0]))
    ahead("train_step", programs.train_step)(state, part)


def run(config, workdir: pathlib.Path) -> None:
    """The whole of it: warm start, restore if there is something, loop, save."""
    check_config(config)
    stop = checkpoint.StopSignal()  # from the first moment, and one for both loops: no signal falls in between
    setup = common.setup(config)
    packer = Packer(setup)
    minibatch = (
        config.sample.prompts_per_step
        * config.sample.group_size
        // config.train.minibatches
        // config.train.micro_batches
    )
    common.check_rows(setup, prompts_per_step=config.sample.prompts_per_step, micro_batch=minibatch)
    common.record_run(setup, workdir, "grpo")
    params = warm_start(setup, workdir, stop)
    if params is None:
        return
    reference_params = jax.tree.map(jnp.copy, params)
    programs, state = build(setup, params)
    source = setup.task.data_source("train")
    prompts = processes.own_batches(setup.mesh, source, batch_size=config.sample.prompts_per_step, seed=config.seed)
    checkpoints = checkpoint.Checkpointer(workdir / "checkpoints", **config.checkpoint.to_dict())
    step = 0
    if checkpoints.latest_step() is not None:
        items, host = checkpoints.restore(common.checkpoint_items(state, reference=reference_params), in_place=True)
        state, reference_params = common.state_of(items), items["reference"]
        prompts.set_state(host["data"])
        step = host["step"]
    made = trackers.make_trackers(config)
    in_reward = bool(config.algorithm.reward_kl_coef) or "reward_kl" in made
    needs_reference = compares(config)
    needs_before = has_several_updates(config) or in_reward or make_credit(config).needs_scores()
    log = processes.run_logger(workdir, step, total_steps=config.train.steps, **common.log_options(config))
    with checkpoints, make_pool(setup) as pool, log:
        if step < config.train.steps:
            compile_ahead(setup, programs, packer, pool, prompts, state)
        evaluate = make_evaluate(setup, pool)
        if step == 0:
            metrics, samples = evaluate(state.params)
            log.log(0, metrics)
            log.samples(0, samples)
        stopping = distributed.any_process(stop.received)
        while step < config.train.steps and not stopping:
            step += 1
            looking = step % config.eval.every == 0 or step == config.train.steps
            clock = common.Clock()
            rollout_key, credit_key, order_key = jax.random.split(processes.step_key(state, step), 3)
            params = rollout_mesh.place(setup.rollout, state.params, clock)
            collected = collect(setup, pool, programs.generate, programs.greedy, prompts, params, rollout_key, clock)
            del params  # a second copy of the weights, which the updates have no room for
            judged, rewards = collected.judged, collected.judged.result.rewards
            rows = common.place_rows(setup, packer.to_score(judged.rollout))
            before = programs.on_host(state.params, rows) if needs_before or looking else None
            reference = programs.on_host(reference_params, rows).log_probs if needs_reference else None
            state = state._replace(trackers=trackers.see_rewards(made, state.trackers, rewards))
            states = distributed.whole(state.trackers)
            batch, earned = make_policy_batch(programs.assign, collected, before, reference, credit_key, states)
            clock.lap("score_s", batch)
            updates = []
            for part in minibatches(config, batch, order_key):
                part = common.place_rows(setup, packer.to_train(part))
                state, metrics = programs.train_step(state, part)
                updates.append(jax.device_get(metrics))
                common.stop_on_nonfinite(state, part, workdir, step, config.train.max_nonfinite_in_a_row)
            clock.lap("train_s")
            metrics = step_metrics(config, judged, updates) | collected.metrics | packer.metrics(part)
            states = trackers.observe(made, state.trackers, earned, metrics)
            state = state._replace(trackers=processes.replicate(setup.mesh, states))
            metrics |= trackers.metrics_of(states) | {"data/skipped_records": source.num_skipped}
            if looking:
                evaluated, samples = evaluate(state.params)
                metrics |= evaluated
                log.samples(step, samples + sample_rows(judged, "train", config.log.sample_rows))
                after = programs.on_host(state.params, rows)
                log.group_view(step, group_view(setup, judged, batch, before, after))
            sampled = judged.rollout.completion_mask.sum()
            log.log(step, metrics, clock.totals(sampled) | {"compile_count": programs.compile_count()})
            stopping = distributed.any_process(stop.received)
            if checkpoints.due(step) or step == config.train.steps or stopping:
                items = common.checkpoint_items(state, reference=reference_params)
                checkpoints.save(step, items, {"step": step, "data": prompts.get_state()}, metrics)
    if step == config.train.steps:
        common.write_final(setup, workdir, step, state.params)


if __name__ == "__main__":
    common.main(run, several_processes=True)
