"""Preference optimisation on the policy's own samples: the loop that a reader forks.

    python -m experiments.online_dpo --config=configs/preferences/online.py --workdir=runs/online_dpo

Each step: prompts -> candidates -> rewards -> what they are worth -> pairs or lists -> log-probs of the references ->
updates -> the reference moves. What happens at each arrow is in config.sample and config.algorithm (as in
experiments.dpo). The same command resumes whatever was interrupted, bit for bit.
"""

import contextlib
import pathlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from experiments import dpo, grpo
from experiments.evaluate import Judged, make_evaluate, make_pool, sample_rows
from experiments.parts import common
from experiments.parts.preference_data import flat, for_sft, load_task
from experiments.parts.sample_candidates import POLICY, REFERENCE, Candidates, Source, make_judge
from rl_jax import preferences
from rl_jax.core.binding import bind
from rl_jax.core.types import Params, PreferenceBatch
from rl_jax.data import pipeline
from rl_jax.runs.logging import RunLogger
from rl_jax.selection import candidate_values, pair_selection, reference_policy
from rl_jax.training import checkpoint
from rl_jax.training.step import TrainState


def choose(config, candidates: Candidates, key: jax.Array, needed: set[str]) -> PreferenceBatch:
    """The pairs or lists that are trained on: a PreferenceBatch of N * L prompts, L lists of each one drawn.

    With dpo.responses = 1 each place of a list is a labelled response, the first one desirable (KTO, BCO).
    needed: what the objective's slots ask for by name. Raises ValueError where the lists have not dpo.responses each.
    """
    value = bind(config.algorithm.candidate_value.to_dict(), candidate_values)
    rewards = value(jnp.asarray(candidates.rewards), jnp.asarray(candidates.opponents))
    found = bind(config.algorithm.pair_selection.to_dict(), pair_selection)(rewards, key)
    indices, present = np.asarray(found.indices), np.asarray(found.present)
    prompts, lists, responses = indices.shape
    if config.algorithm.responses not in (1, responses):
        raise ValueError(
            f"algorithm.pair_selection={config.algorithm.pair_selection.fn} gives lists of {responses}; "
            f"algorithm.responses={config.algorithm.responses}"
        )
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


def labelled(batch: PreferenceBatch) -> PreferenceBatch:
    """Each of N * K responses for itself, [N * K, 1], its label for a reward: 1 where it was the best, else 0.

    First places first: the neighbours of a response answer other prompts, as KTO's mismatched pairs must.
    """
    count = len(batch.rewards)
    batch = jax.tree.map(lambda x: np.swapaxes(x, 0, 1).reshape(-1, 1, *x.shape[2:]), batch)
    first = np.arange(len(batch.rewards)) < count
    return batch._replace(rewards=first[:, None].astype(np.float32))


def with_references(
    programs: dpo.Programs, batch: PreferenceBatch, shares: dict[str, float], reference: Params, policy: Params
) -> PreferenceBatch:
    """The batch with the log-probs that the objective compares with: of the reference, of the policy before updates."""
    shape = batch.completion_mask.shape

    def score(params):
        return programs.score(params, flat(batch.batch)).log_probs.reshape(shape)

    return batch._replace(
        ref_log_probs=score(reference) if "ref" in shares else None,
        prev_log_probs=score(policy) if "prev" in shares else None,
    )


def minibatches(config, batch: PreferenceBatch, key: jax.Array) -> Iterator[PreferenceBatch]:
    """The batches of one step's updates, dpo.batch_size lists each, dealt out anew in each epoch.

    Raises ValueError where the lists do not divide into them.
    """
    rows, size = batch.present.shape[0], config.train.batch_size
    if rows % size:
        raise ValueError(f"a step's {rows} lists do not divide into updates of dpo.batch_size={size}")
    for epoch in range(config.train.epochs):
        order = jax.random.permutation(jax.random.fold_in(key, epoch), rows) if size < rows else jnp.arange(rows)
        for chosen in jnp.split(order, rows // size):
            yield jax.tree.map(lambda x, i=chosen: jnp.asarray(x)[i], batch)


def step_metrics(candidates: Candidates, batch: PreferenceBatch, updates: list[dict]) -> dict[str, float]:
    """A step's row of metrics: of its candidates, of the lists made of them, and the mean of the updates."""
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
    }


def first_reference(setup: common.Setup, params: Params) -> Params:
    """What is compared with at first: the params themselves, or a soup of them and another run's."""
    settings = setup.config.algorithm.reference_soup
    if not settings.init_from:
        return params
    other = common.load_params(setup, settings.init_from)
    return reference_policy.soup([params, other], [1.0 - settings.weight, settings.weight])


def make_source(config):
    """(task or None for that of config.task, the source of the records that prompts are taken from)."""
    known = {"": "train", "completion": "sft_train"}
    if config.sample.data == "pairs":
        found = preferences.load(**config.sample.pairs.to_dict())
        return load_task(config), lambda task: found.data_source("train")
    if config.sample.data not in known:
        raise ValueError(f"sample.data={config.sample.data!r} is none of '', 'completion', 'pairs'")
    return None, lambda task: task.data_source(known[config.sample.data])


def check_config(setup: common.Setup) -> None:
    """Raises ValueError for sizes that do not divide."""
    sample, settings = setup.config.sample, setup.config.train
    if sample.prompts_per_step % sample.prompts_per_batch:
        raise ValueError(
            f"sample.prompts_per_step={sample.prompts_per_step} is no multiple of prompts_per_batch="
            f"{sample.prompts_per_batch}"
        )
    if setup.config.packing.mode != "padded":
        raise ValueError(f"packing.mode={setup.config.packing.mode!r}: sampled pairs are padded rows; set 'padded'")
    common.check_rows(
        setup, prompts_per_batch=sample.prompts_per_batch, micro_batch=settings.batch_size // settings.micro_batches
    )


def collect(
    setup: common.Setup, programs: dpo.Programs, draw: Source, sampler: Params, policy: Params, ref: Params, keys, clock
) -> tuple[Candidates, Judged, PreferenceBatch]:
    """What one step trains on: candidates of `sampler`, judged and chosen, with what the objective compares with."""
    objective = dpo.make_objective(setup.config)
    candidates, judged = draw(sampler, ref, keys[0], clock)
    batch = choose(setup.config, candidates, keys[1], objective.needs())
    batch = with_references(programs, batch, objective.reference, ref, policy)
    clock.lap("score_s", batch)
    return candidates, judged, batch


def train(
    setup: common.Setup, programs: dpo.Programs, state: TrainState, batch: PreferenceBatch, ref: Params, key, workdir
) -> tuple[TrainState, list[dict]]:
    """All updates of one step: (state, the metrics of each)."""
    updates, limit = [], setup.config.train.max_nonfinite_in_a_row
    for part in minibatches(setup.config, batch, key):
        state, part = dpo.couple_batch(setup, programs, state, part, ref)
        part = common.place_rows(setup, part)
        state, metrics = programs.train_step(state, part, ref)
        updates.append(jax.device_get(metrics))
        common.stop_on_nonfinite(state, part, workdir, int(state.step), limit)
    return state, updates


def run(config, workdir: pathlib.Path) -> None:
    """The whole of it: warm start, restore if there is something, loop, save."""
    stop = checkpoint.StopSignal()  # from the first moment, and one for both loops: no signal falls in between
    task, source_of = make_source(config)
    setup = common.setup(config, task)
    if config.sample.data == "pairs":  # its SFT, if any, is on the chosen sides
        setup = for_sft(setup, preferences.load(**config.sample.pairs.to_dict()))
    check_config(setup)
    common.record_run(setup, workdir, "online_dpo")
    params = grpo.warm_start(setup, workdir, stop)
    if params is None:
        return
    schedule = bind(config.algorithm.reference_schedule.to_dict(), reference_policy)
    compared = reference_policy.start(schedule, params, first_reference(setup, params))
    programs, state = dpo.build(setup, params)
    source = source_of(setup.task)
    prompts = pipeline.train_iterator(source, batch_size=config.sample.prompts_per_batch, seed=config.seed)
    checkpoints = checkpoint.Checkpointer(workdir / "checkpoints", **config.checkpoint.to_dict())
    step = 0
    if checkpoints.latest_step() is not None:
        items, host = checkpoints.restore(common.checkpoint_items(state, references=compared))
        state, compared = common.state_of(items), items["references"]
        prompts.set_state(host["data"])
        step = host["step"]
    log = RunLogger(workdir, total_steps=config.train.steps, resume_step=step or None, **common.log_options(config))
    verified = setup.task.reward_fn is not None
    with checkpoints, make_pool(setup) if verified else contextlib.nullcontext() as pool, log:
        evaluate = make_evaluate(setup, pool) if verified else lambda params: ({}, [])
        draw = Source(setup, make_judge(setup, pool), prompts)
        if step == 0:
            metrics, samples = evaluate(state.params)
            log.log(0, metrics)
            log.samples(0, samples)
        while step < config.train.steps and not stop.received:
            step += 1
            clock = common.Clock()
            keys = jax.random.split(jax.random.fold_in(state.rng, step), 5)
            sampler = state.params
            if config.algorithm.extragradient:  # a trial step, to see where the opponents go; the real one starts here
                _, _, batch = collect(setup, programs, draw, sampler, sampler, compared.ref, keys[3:], clock)
                trial = jax.tree.map(jnp.copy, state)
                trial, _ = train(setup, programs, trial, batch, compared.ref, keys[2], workdir)
                sampler = trial.params
            candidates, judged, batch = collect(
                setup, programs, draw, sampler, state.params, compared.ref, keys[:2], clock
            )
            state, updates = train(setup, programs, state, batch, compared.ref, keys[2], workdir)
            compared, moved = schedule(compared, state.params, step)
            state = state._replace(params=moved)
            clock.lap("train_s")
            metrics = step_metrics(candidates, batch, updates) | {"data/skipped_records": source.num_skipped}
            if step % config.eval.every == 0 or step == config.train.steps:
                evaluated, samples = evaluate(state.params)
                metrics |= evaluated
                log.samples(step, samples + sample_rows(judged, "train", config.log.sample_rows))
            timings = clock.totals(candidates.completion_mask.sum()) | {"compile_count": programs.compile_count()}
            log.log(step, metrics, timings)
            if checkpoints.due(step) or step == config.train.steps or stop.received:
                items = common.checkpoint_items(state, references=compared)
                checkpoints.save(step, items, {"step": step, "data": prompts.get_state()}, metrics)
    if step == config.train.steps:
        common.write_final(setup, workdir, step, state.params)


if __name__ == "__main__":
    common.main(run)
