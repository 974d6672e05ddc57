"""Preference optimisation on the policy's own samples: the loop to fork.

    python -m experiments.online_dpo --config=configs/preferences/online.py --workdir=runs/online_dpo

Each step: prompts -> candidates -> rewards -> values of candidates -> pairs or lists -> log-probs of the references ->
updates -> the reference moves. What each arrow does is set by config.sample and config.algorithm (as in
experiments.dpo). The same command resumes an interrupted run, bit for bit.
"""

import pathlib
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts import flags, processes, prompt_limits, references
from experiments.parts.clock import Clock
from experiments.parts.judging import Judged, make_evaluate, need_reward, rewards_by_source, sample_rows
from experiments.parts.preference_data import PreferencePacker, flat, for_sft, load_pairs
from experiments.parts.preference_steps import (
    PreferencePrograms,
    add_batch_statistics,
    build,
    check_mismatched,
    make_objective,
)
from experiments.parts.prompts import make_prompts
from experiments.parts.rewards import make_rewards
from experiments.parts.run import Run, checkpoint_items, state_of
from experiments.parts.sample_candidates import POLICY, REFERENCE, Candidates, Source, make_judge
from experiments.parts.setup import Setup, check_rows, make_setup
from experiments.parts.training import to_mesh
from experiments.parts.warm_start import warm_start
from rl_jax.core.binding import bind
from rl_jax.core.types import Params, PreferenceBatch
from rl_jax.selection import candidate_values, pair_selection, reference_policy
from rl_jax.tasks import Task
from rl_jax.training.step import TrainState


def choose(config, candidates: Candidates, key: jax.Array, needed: set[str]) -> PreferenceBatch:
    """The pairs or lists to train on.

    With algorithm.responses = 1 and an objective that reads labels (KTO, BCO) each place of a list becomes a labelled
    response, the first one desirable.

    Args:
      config: algorithm.candidate_value, algorithm.pair_selection and algorithm.responses.
      candidates: of N prompts.
      key: of the selection.
      needed: names that the objective's slots ask for.

    Returns:
      PreferenceBatch of N * L rows, L lists per prompt.

    Raises:
      ValueError: as check_lists.
    """
    value = bind(config.algorithm.candidate_value.to_dict(), candidate_values)
    rewards = value(jnp.asarray(candidates.rewards), jnp.asarray(candidates.opponents))
    result = bind(config.algorithm.pair_selection.to_dict(), pair_selection)(rewards, key)
    indices, present = np.asarray(result.indices), np.asarray(result.present)
    prompts, lists, responses = indices.shape
    check_lists(config, responses)
    picked = indices.reshape(prompts, -1)

    def take(x):
        chosen = np.take_along_axis(np.asarray(x), picked.reshape(picked.shape + (1,) * (np.ndim(x) - 2)), axis=1)
        return chosen.reshape(prompts * lists, responses, *x.shape[2:])

    present = present.reshape(prompts * lists, responses)
    extras = {"from_reference": candidates.origin == REFERENCE, "sampled": candidates.origin == POLICY}
    batch = PreferenceBatch(
        batch=jax.tree.map(take, candidates.batch),
        completion_mask=take(candidates.completion_mask) & present[:, :, None],
        present=present,
        rewards=take(rewards),
        extras={name: take(x) for name, x in extras.items() if name in needed},
    )
    return batch if config.algorithm.responses == responses else labelled(batch)


def check_lists(config, length: int) -> None:
    """Raises ValueError if lists of `length` are neither algorithm.responses long nor to become labels."""
    found = config.algorithm.responses
    if found == length or (found == 1 and make_objective(config).reads_labels()):
        return
    raise ValueError(
        f"algorithm.pair_selection={config.algorithm.pair_selection.fn} gives lists of {length}: "
        f"set algorithm.responses={length}, not {found}"
    )


def check_selection(config) -> None:
    """Raises ValueError, before anything is sampled, if the lists of candidates are refused. Given pairs are unread."""
    sample = config.sample
    if sample.data == "pairs":
        return
    count = sample.group_size + sample.opponents.samples * sample.opponents.candidates + bool(sample.data)
    selection = bind(config.algorithm.pair_selection.to_dict(), pair_selection)
    check_lists(config, selection(jnp.zeros((1, count)), jax.random.key(0)).indices.shape[2])


def labelled(batch: PreferenceBatch) -> PreferenceBatch:
    """Makes each of N * K responses a row of its own, [N * K, 1]. Reward 1 if it was the best of its list, else 0."""
    count = len(batch.rewards)
    batch = jax.tree.map(lambda x: np.swapaxes(x, 0, 1).reshape(-1, 1, *x.shape[2:]), batch)
    first = np.arange(len(batch.rewards)) < count
    return batch._replace(rewards=first[:, None].astype(np.float32))


def with_references(
    setup: Setup,
    programs: PreferencePrograms,
    batch: PreferenceBatch,
    shares: dict[str, float],
    reference: Params,
    policy: Params,
) -> PreferenceBatch:
    """The batch with the log-probs that the objective compares with.

    Args:
      setup: of the run.
      programs: compiled functions.
      batch: of one step.
      shares: reference -> weight, as in dpo.Objective.reference.
      reference: params for "ref".
      policy: params for "prev", those before the step.

    Returns:
      The batch with ref_log_probs and prev_log_probs, float32 [N, K, C]; each None if `shares` lacks it.
    """
    shape, rows = batch.completion_mask.shape, flat(PreferencePacker(setup)(batch).batch)

    def score(params):
        return programs.on_host(params, to_mesh(setup, rows)).log_probs.reshape(shape)

    return batch._replace(
        ref_log_probs=score(reference) if "ref" in shares else None,
        prev_log_probs=score(policy) if "prev" in shares else None,
    )


def minibatches(config, batch: PreferenceBatch, key: jax.Array) -> Iterator[PreferenceBatch]:
    """The batches of one step's updates, train.batch_size lists each, reshuffled in each epoch.

    Args:
      config: train.batch_size and train.epochs.
      batch: of the whole step.
      key: of the shuffles.

    Raises:
      ValueError: if the number of lists is no multiple of train.batch_size.
    """
    rows, size = batch.present.shape[0], config.train.batch_size
    if rows % size:
        raise ValueError(f"a step's {rows} lists do not divide into updates of train.batch_size={size}")
    for epoch in range(config.train.epochs):
        order = jax.random.permutation(jax.random.fold_in(key, epoch), rows) if size < rows else jnp.arange(rows)
        for chosen in jnp.split(order, rows // size):
            yield jax.tree.map(lambda x, i=chosen: jnp.asarray(x)[i], batch)


def step_metrics(
    candidates: Candidates, judged: Judged, source, batch: PreferenceBatch, updates: list[dict]
) -> dict[str, float]:
    """The metrics of one step: of its candidates, of the selected lists, and the mean over the updates.

    Args:
      candidates: of the step.
      judged: its first samples.
      source: the prompts' source, for its num_skipped.
      batch: the selected lists.
      updates: metrics of each update.
    """
    metrics = {name: np.mean([update[name] for update in updates]) for name in updates[0]}
    rewards, kept = candidates.rewards, np.asarray(batch.present).all(axis=1)
    lengths = candidates.completion_mask.sum(axis=2)
    return metrics | {
        "nonfinite/skipped": updates[-1]["nonfinite/skipped"],
        "reward/mean": rewards.mean(),
        "reward/std": rewards.std(),
        "reward/best": rewards.max(axis=1).mean(),
        "selection/kept": kept.mean(),
        "selection/gap": float(np.ptp(np.asarray(batch.rewards), axis=1)[kept].mean()) if kept.any() else 0.0,
        "completion_length": lengths.mean(),
        "data/skipped_records": prompt_limits.num_skipped(source),
        **rewards_by_source(judged),
    }


def first_references(setup: Setup, params: Params) -> tuple[Callable, reference_policy.References]:
    """(the schedule that moves the references, the references before the first step)."""
    schedule = references.make_schedule(setup.config)
    return schedule, reference_policy.start(schedule, params, references.first(setup, params))


def make_source(config):
    """Where the prompts come from: task -> source of the prompts' records, rollout.long_prompts applied.

    Raises:
      ValueError: if sample.data is unknown.
    """
    known = {"": "train", "completion": "sft_train"}
    if config.sample.data == "pairs":
        found, rule = load_pairs("sample.pairs", config.sample.pairs).data_source, prompt_limits.rule_of(config)
        return lambda task: prompt_limits.limited_source(config, task.tokenizer, found("train"), "sample.pairs", rule)
    if config.sample.data not in known:
        raise ValueError(f"sample.data={config.sample.data!r} is none of '', 'completion', 'pairs'")
    return lambda task: task.data_source(known[config.sample.data])


def set_up(config, task: Task | None) -> Setup:
    """The setup. With given pairs its SFT, if any, is on the chosen responses."""
    setup = make_setup(config, task)
    if config.sample.data != "pairs":
        return setup
    return for_sft(setup, load_pairs("sample.pairs", config.sample.pairs))


def check_config(setup: Setup) -> None:
    """Raises ValueError if sizes do not divide or are too small, lists are as `check_lists`, or nothing judges."""
    check_mismatched(setup.config, "train.batch_size")
    check_selection(setup.config)
    if setup.config.sample.data != "pairs":
        need_reward(setup)
    sample, settings = setup.config.sample, setup.config.train
    if sample.prompts_per_step % sample.prompts_per_batch:
        raise ValueError(
            f"sample.prompts_per_step={sample.prompts_per_step} is no multiple of prompts_per_batch="
            f"{sample.prompts_per_batch}"
        )
    check_rows(
        setup, prompts_per_batch=sample.prompts_per_batch, micro_batch=settings.batch_size // settings.micro_batches
    )


def prepare(
    setup: Setup, programs: PreferencePrograms, candidates: Candidates, policy: Params, ref: Params, key
) -> PreferenceBatch:
    """What one step trains on: the selected lists, with the log-probs that the objective compares with.

    Args:
      setup: of the run.
      programs: compiled functions.
      candidates: of the step.
      policy: params before the step.
      ref: params of the reference.
      key: of the selection.
    """
    objective = make_objective(setup.config)
    batch = choose(setup.config, candidates, key, objective.needs())
    return with_references(setup, programs, batch, objective.reference, ref, policy)


def update(
    loop: Run, setup: Setup, programs: PreferencePrograms, state: TrainState, batch: PreferenceBatch, ref: Params, key
) -> tuple[TrainState, list[dict]]:
    """All updates of one step.

    Args:
      loop: checks that the gradients are finite.
      setup: of the run.
      programs: compiled functions.
      state: before the updates.
      batch: of the whole step.
      ref: params of the reference.
      key: of the shuffles.

    Returns:
      (state, the metrics of each update).
    """
    updates, packer = [], PreferencePacker(setup)
    for part in minibatches(setup.config, batch, key):
        state, part = add_batch_statistics(setup, programs, state, part, ref)
        part = to_mesh(setup, packer(part, setup.config.train.micro_batches))
        state, metrics = programs.train_step(state, part, ref)
        updates.append(jax.device_get(metrics))
        loop.check_finite(state, part)
    return state, updates


def look_ahead(
    loop: Run,
    setup: Setup,
    programs: PreferencePrograms,
    draw: Source,
    state: TrainState,
    ref: Params,
    keys,
    clock: Clock,
) -> Params:
    """The params to sample from: the policy's, or with algorithm.extragradient those after a trial step.

    Extragradient: look ahead one step, then update from the original point.

    Args:
      loop: checks that the gradients are finite.
      setup: of the run.
      programs: compiled functions.
      draw: samples the candidates.
      state: before the step; left as it is.
      ref: params of the reference.
      keys: five typed keys; those at 2, 3 and 4 are used.
      clock: of the step.
    """
    if not setup.config.algorithm.extragradient:
        return state.params
    candidates, _ = draw(state.params, ref, keys[3], clock, learn=False)
    batch = prepare(setup, programs, candidates, state.params, ref, keys[4])
    trial, _ = update(loop, setup, programs, jax.tree.map(jnp.copy, state), batch, ref, keys[2])
    return trial.params


def compile_ahead(
    loop: Run, setup: Setup, programs: PreferencePrograms, draw: Source, state: TrainState, ref: Params
) -> None:
    """Compiles what the first step calls by running it on its prompts, with zeros in place of samples.

    The shapes of packed rows depend on the samples: with packing only the rollout is compiled.

    Args:
      loop: compiles and reports; nothing happens if the run is complete.
      setup: of the run.
      programs: compiled functions.
      draw: samples the candidates.
      state: before the first step.
      ref: params of the reference.
    """
    ahead, key = loop.ahead, processes.step_key(state, 0)
    candidates = None if loop.done else draw.compile_ahead(ahead, state.params, ref, key)
    if candidates is None or setup.config.packing.mode != "padded":
        return
    compiled = programs._replace(score=ahead("score", programs.score))
    batch = prepare(setup, compiled, candidates, state.params, ref, key)
    part = add_batch_statistics(setup, programs, state, next(minibatches(setup.config, batch, key)), ref)[1]
    ahead("train_step", programs.train_step)(state, to_mesh(setup, part), ref)


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> None:
    """Warm start, restore the latest checkpoint if any, loop, save. task: replaces config.task."""
    loop, source_of = Run(config, workdir, "online_dpo", config.train), make_source(config)
    setup = set_up(config, task)
    check_config(setup)
    loop.record(setup)
    if (params := warm_start(setup, workdir, loop.stop)) is None:
        return
    schedule, compared = first_references(setup, params)
    (programs, state), source = build(setup, params), source_of(setup.task)
    prompts = make_prompts(setup, source, batch_size=config.sample.prompts_per_batch)
    scorer, items = loop.carry(make_rewards(setup)), loop.restore(checkpoint_items(state, references=compared), prompts)
    state, compared = state_of(items), items["references"]
    with loop, scorer as rewards:
        evaluate, draw = make_evaluate(setup, rewards), Source(setup, make_judge(setup, rewards), prompts)
        compile_ahead(loop, setup, programs, draw, state, compared.ref)
        loop.begin(lambda: evaluate(state.params))
        for step in loop.steps():
            keys = jax.random.split(processes.step_key(state, step.number), 5)
            sampler = look_ahead(loop, setup, programs, draw, state, compared.ref, keys, step.clock)
            candidates, judged = draw(sampler, compared.ref, keys[0], step.clock)
            batch = prepare(setup, programs, candidates, state.params, compared.ref, keys[1])
            step.clock.lap("score_s", batch)
            state, updates = update(loop, setup, programs, state, batch, compared.ref, keys[2])
            compared, moved = schedule(compared, state.params, step.number)
            state = state._replace(params=moved)
            step.clock.lap("train_s")
            metrics = step_metrics(candidates, judged, source, batch, updates) | draw.metrics()
            if step.evaluates:
                evaluated, samples = evaluate(state.params)
                metrics |= evaluated
                loop.log.samples(step.number, samples + sample_rows(judged, "train", config.log.sample_rows))
            timings = step.clock.totals(candidates.completion_mask.sum()) | {"compile_count": programs.compile_count()}
            step.end(checkpoint_items(state, references=compared), metrics, timings)
    loop.finish(setup, state.params)


if __name__ == "__main__":
    flags.main(run, several_processes=True)
