"""DPO and its family on given preferences: the loop that a reader forks.

    python -m experiments.dpo --config=configs/preferences/given.py --config.data.path=PAIRS.jsonl --workdir=runs/dpo

Each step: records -> token ids -> the reference's log-probs -> statistics of the batch, where the method has some ->
update. The first start runs the config's SFT on the chosen responses in WORKDIR/sft; the same command resumes whatever
was interrupted, bit for bit. Which method it is is config.algorithm, slot by slot (rl_jax.dpo).
"""

import math
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.grpo import warm_start
from experiments.parts import common, processes
from experiments.parts.preference_data import Arrays, Encoder, Packer, flat, for_sft, load_task, records_of
from rl_jax import dpo, preferences
from rl_jax.core.binding import bind, supply
from rl_jax.core.masked import merge, zero_masked
from rl_jax.core.types import Params, PreferenceBatch, TokenBatch, TokenScores
from rl_jax.data import pipeline
from rl_jax.losses.preference import couple
from rl_jax.rewards.benchmarks import length_correlation
from rl_jax.training import checkpoint, distributed
from rl_jax.training.ref_log_prob_cache import ReferenceCache
from rl_jax.training.scoring import make_score
from rl_jax.training.step import TrainState
from rl_jax.training.vocabulary import make_vocabulary_score, response_weights, sequence_kl

COUPLE = 1  # what a coupler's randomness is drawn by


def make_objective(config) -> dpo.Objective:
    """The loss's parts by name, from config.algorithm. A notebook builds the same tuple by hand."""
    return dpo.Objective(
        **{slot: bind(config.algorithm[slot].to_dict(), module) for slot, module in dpo.SLOTS.items()},
        reference=config.algorithm.reference.to_dict(),
        length_power=config.algorithm.length_power,
        beta=config.algorithm.beta,
        regularizer_coef=config.algorithm.regularizer_coef,
    )


def make_coupler(config) -> couple.Coupler:
    """What computes statistics of the whole batch before it is split, by name, from config.algorithm.couple."""
    return bind(config.algorithm.couple.to_dict(), couple, beta=config.algorithm.beta)()


def needs_reference(config) -> bool:
    """Whether something compares with the reference: its share in the score, a KL to it, KTO's anchor."""
    objective = make_objective(config)
    asked = bool(objective.needs() & {"sequence_kl", "token_rewards"})
    return bool(objective.reference) or asked or config.algorithm.couple.fn == "kto_anchor"


class Programs(NamedTuple):
    """The compiled functions of a run; everything else in the loop is Python on the host.

    score: (params, rows) -> TokenScores [N * K, C].
    train_step: (state, batch, reference) -> (state, metrics). reference: params that full-vocabulary terms compare
        with, or None; the same below.
    evaluate: (params, batch, reference) -> (loss and metrics, undivided; what each response scores).
    couple: (tracker state, params, batch, what mismatched_log_ratios gives or None, key) -> (tracker state, extras).
    """

    score: Callable
    train_step: Callable
    evaluate: Callable
    couple: Callable

    def on_host(self, params, rows) -> TokenScores:
        """score of `rows` on the mesh, the whole of it where several processes have a part each."""
        return distributed.whole(self.score(params, rows))

    def compile_count(self) -> int:
        """How many programs stand behind them: constant after the first steps, or shapes are leaking."""
        return sum(program._cache_size() for program in self)


def build(setup: common.Setup, params: Params) -> tuple[Programs, TrainState]:
    """The programs of this config on this mesh, and the state that they start from. `params` are given up to it."""
    config = setup.config
    objective, coupler = make_objective(config), make_coupler(config)
    score, score_more = make_scores(setup, objective.needs())
    plain = common.on_merged(setup, score)

    def loss_fn(params, batch, reference):
        found, more = score_more(params, batch, reference)
        return dpo.loss(found, batch, objective, more)

    def evaluate(params, batch, reference):
        found, more = score_more(params, batch, reference)
        loss, metrics = dpo.loss(found, batch, objective, more)
        return {"loss": loss, **metrics}, measure(found, batch, objective)

    def update(tracker, params, batch, mismatched, key):
        before = measure(plain(params, flat(batch.batch)), batch, objective)
        ratios, there = mismatched or (None, None)
        before = before._replace(mismatched_log_ratios=ratios, mismatched_present=there)
        return coupler.update(tracker, before, key)

    train_step, state = common.make_trainer(setup, config.train, loss_fn, params, coupler.init(), num_beside=1)
    programs = Programs(common.jit_score(score, setup), train_step, jax.jit(evaluate), jax.jit(update))
    return programs, state


def make_scores(setup: common.Setup, needed: set[str]) -> tuple[Callable, Callable]:
    """(score, score_more): log-probs of rows by the model's params, and (params, batch, reference) -> (TokenScores,
    what slots ask for that only a forward with the whole vocabulary knows)."""
    options = dict(completion_length=setup.config.rollout.completion_length, chunk=setup.config.score.chunk)
    score = make_score(setup.model, **options)
    if not needed & {"sequence_kl", "response_weights"}:
        merged_score = common.on_merged(setup, score)
        return score, lambda params, batch, reference: (merged_score(params, flat(batch.batch)), {})
    if setup.config.packing.mode != "padded":
        raise ValueError(
            f"packing.mode={setup.config.packing.mode!r}: terms of the whole vocabulary need 'padded' rows"
        )
    with_vocabulary = make_vocabulary_score(setup.model, **options)
    merged = setup.merged or (lambda params: params)

    def score_more(params, batch, reference):
        reference = merged(reference) if "sequence_kl" in needed else None
        found, mask = with_vocabulary(merged(params), reference, flat(batch.batch)), batch.completion_mask
        more = {"response_weights": response_weights(found.log_probs, found.log_sum_squares, mask)}
        if reference is not None:
            more["sequence_kl"] = sequence_kl(found.kl, mask)
        return found.scores(), more

    return score, score_more


def measure(found: TokenScores, batch: PreferenceBatch, objective: dpo.Objective) -> couple.Before:
    """What each response scores, float32 [N, K]: u (before score_map and beta), its log-prob and its length."""
    mask = batch.completion_mask
    log_probs = zero_masked(found.log_probs.reshape(mask.shape), mask)
    ratios = log_probs - dpo.reference_log_probs(batch, objective.reference, mask)
    token_weights = supply(objective.token_weight, {"present": batch.present})(mask)
    u = dpo.sequence_scores(ratios, mask, token_weights, objective.length_power)
    lengths = jnp.sum(mask, axis=-1, dtype=jnp.float32)
    of_reference = batch.ref_log_probs
    if of_reference is not None:
        of_reference = dpo.sequence_scores(of_reference, mask, token_weights, objective.length_power)
    return couple.Before(u, batch.present, batch.rewards, lengths, of_reference)


def couple_batch(
    setup: common.Setup, programs: Programs, state: TrainState, batch: PreferenceBatch, reference: Params | None
) -> tuple[TrainState, PreferenceBatch]:
    """The state and the batch of one update with the statistics that its rows share; both as they are where none do.

    batch: before it is packed. reference: the params that its ref_log_probs are of.
    """
    coupler = setup.config.algorithm.couple.fn
    if coupler == "none":
        return state, batch
    key = jax.random.fold_in(processes.step_key(state, state.step), COUPLE)
    mismatched = None
    if coupler == "kto_anchor":
        mismatched = mismatched_log_ratios(setup, programs, batch, state.params, reference)
    placed = common.place_rows(setup, batch)
    tracker, extras = programs.couple(state.trackers, state.params, placed, mismatched, key)
    return state._replace(trackers=tracker), batch._replace(extras=batch.extras | distributed.whole(extras))


def mismatched_log_ratios(
    setup: common.Setup, programs: Programs, batch: PreferenceBatch, params: Params, reference: Params
) -> tuple[jax.Array, jax.Array]:
    """(logp - ref_logp, float32 [N], of each prompt with the response of the one before it (KTO); whether that one has
    a response, bool [N])."""
    rows = {name: np.asarray(x) for name, x in batch.batch._asdict().items() if x is not None}
    rows |= {name: np.asarray(getattr(batch, name)) for name in ("completion_mask", "present")}
    rows = preferences.mismatched(rows)
    tokens = flat(TokenBatch(rows["tokens"], rows["positions"], rows["segment_ids"]))
    log_probs, before = (
        programs.on_host(found, common.place_rows(setup, tokens)).log_probs for found in (params, reference)
    )
    ratios = jnp.sum(zero_masked(log_probs - before, jnp.asarray(rows["completion_mask"][:, 0])), axis=1)
    return ratios, jnp.asarray(rows["present"][:, 0])


def with_reference(config, workdir: pathlib.Path, score: Callable, params: Params, arrays: Arrays) -> Arrays:
    """`arrays` with the log-probs that `params` give to every response, from disk where they were made before."""
    folder = pathlib.Path(config.train.reference_cache or workdir / "reference").expanduser()
    settings = {"model": config.model.to_dict(), "chunk": config.score.chunk}
    cache = ReferenceCache(folder, identity={"params": checkpoint.checksum(params), "score": settings})

    def score_rows(rows):
        tokens = flat(TokenBatch(rows["tokens"], rows["positions"], rows["segment_ids"]))
        return np.asarray(score(params, tokens).log_probs).reshape(rows["completion_mask"].shape)

    return arrays | {"ref_log_probs": cache.get_or_make(arrays, score_rows, batch_size=config.train.batch_size)}


def with_token_rewards(
    config, workdir: pathlib.Path, score: Callable, params: Params, encoder: Encoder, arrays: Arrays
):
    """`arrays` with T-REG's token_rewards, float32 [N, K, C]: sigma(log of how much likelier `params` hold each token
    after the better instruction than after the worse one) - 1/2."""
    found = []
    for side in ("better", "worse"):
        if not config.algorithm.contrast[side]:
            raise ValueError(f"algorithm.contrast.{side} is empty: token rewards are read from two instructions")
        rows = encoder.instructed(arrays, config.algorithm.contrast[side])
        found.append(with_reference(config, workdir, score, params, rows)["ref_log_probs"])
    # sigma(x) - 1/2 = tanh(x / 2) / 2, which never overflows.
    return arrays | {"token_rewards": 0.5 * np.tanh(0.5 * (found[0] - found[1]))}


def make_evaluate(setup: common.Setup, programs: Programs, encoder: Encoder, arrays: Arrays, reference: Params | None):
    """evaluate(state) -> metrics of held-out prompts: eval/loss, eval/rewards/accuracy and what else the loss reports,
    and eval/length_correlation of the scores u with the lengths of their responses.

    arrays: of the held-out prompts. reference: see couple_batch.
    """
    size, number = setup.config.eval.batch_size, len(arrays["tokens"])
    parts = [np.arange(number)[start : start + size] for start in range(0, number, size)]

    def evaluate(state: TrainState) -> dict[str, float]:
        total, points = None, []
        for part in parts:
            batch = couple_batch(setup, programs, state, encoder.batch(arrays, part, size), reference)[1]
            batch = common.place_rows(setup, batch)
            means, scored = jax.device_get(distributed.whole(programs.evaluate(state.params, batch, reference)))
            total = means if total is None else merge(total, means)
            points.append(np.stack([scored.sequence_scores, scored.lengths])[:, scored.present])
        metrics = {f"eval/{name}": float(mean.value()) for name, mean in total.items()}
        return metrics | {"eval/length_correlation": length_correlation(*np.concatenate(points, axis=1))}

    return evaluate


def check(config, objective: dpo.Objective) -> None:
    """Raises ValueError for an objective that needs more than given preferences."""
    if "prev" in objective.reference:
        raise ValueError("algorithm.reference names 'prev', the previous policy: run experiments.online_dpo")


def run(config, workdir: pathlib.Path) -> None:
    """The whole of it: warm start, restore if there is something, loop, save."""
    stop = checkpoint.StopSignal()
    settings, objective = config.train, make_objective(config)
    check(config, objective)
    found = preferences.load(**config.data.to_dict())
    setup = for_sft(common.setup(config, load_task(config)), found)
    micro_batch = settings.batch_size // settings.micro_batches
    common.check_rows(
        setup, **{"train.batch_size / micro_batches": micro_batch, "eval.batch_size": config.eval.batch_size}
    )
    common.record_run(setup, workdir, "dpo")
    encoder, packer = Encoder(setup, objective.needs()), Packer(setup)
    arrays, counts = encoder(records_of(found, "train", config.algorithm.responses))
    held_out, _ = encoder(records_of(found, "test", config.algorithm.responses, limit=config.eval.num_prompts))
    params = warm_start(setup, workdir, stop)
    if params is None:
        return
    reference = jax.tree.map(jnp.copy, params) if needs_reference(config) else None
    programs, state = build(setup, params)
    if reference is not None:

        def score(params, rows):
            return programs.on_host(params, common.place_rows(setup, rows))

        if "token_rewards" in objective.needs():
            arrays, held_out = (
                with_token_rewards(config, workdir, score, reference, encoder, x) for x in (arrays, held_out)
            )
        arrays, held_out = (with_reference(config, workdir, score, reference, x) for x in (arrays, held_out))
    steps = math.ceil(settings.data_epochs * len(arrays["tokens"]) / settings.batch_size) or settings.steps
    batches = pipeline.train_iterator(range(len(arrays["tokens"])), batch_size=settings.batch_size, seed=config.seed)
    checkpoints = checkpoint.Checkpointer(workdir / "checkpoints", **config.checkpoint.to_dict())
    step = 0
    if checkpoints.latest_step() is not None:
        items, host = checkpoints.restore(common.checkpoint_items(state), in_place=True)
        state, step = common.state_of(items), host["step"]
        batches.set_state(host["data"])
    log = processes.run_logger(workdir, step, total_steps=steps, **common.log_options(config))
    with checkpoints, log:
        if step < steps:
            first = encoder.batch(arrays, np.array(pipeline.peek(batches)))
            first = couple_batch(setup, programs, state, first, reference)[1]
            first = common.place_rows(setup, packer(first, settings.micro_batches))
            common.ahead(setup)("train_step", programs.train_step)(state, first, reference)
        evaluate = make_evaluate(setup, programs, encoder, held_out, reference)
        if step == 0:
            counts |= {"skipped_records": found.data_source("train").num_skipped}
            log.log(0, evaluate(state) | {f"data/{name}": count for name, count in counts.items()})
        stopping = distributed.any_process(stop.received)
        while step < steps and not stopping:
            step += 1
            clock = common.Clock()
            batch = encoder.batch(arrays, np.array(next(batches)))
            state, batch = couple_batch(setup, programs, state, batch, reference)
            batch = common.place_rows(setup, packer(batch, settings.micro_batches))
            clock.lap("prepare_s", batch)
            state, metrics = programs.train_step(state, batch, reference)
            metrics = jax.device_get(metrics)
            clock.lap("train_s")
            common.stop_on_nonfinite(state, batch, workdir, step, settings.max_nonfinite_in_a_row)
            if step % config.eval.every == 0 or step == steps:
                metrics |= evaluate(state)
            timings = clock.totals(batch.completion_mask.sum()) | {"compile_count": programs.compile_count()}
            log.log(step, metrics, timings)
            stopping = distributed.any_process(stop.received)
            if checkpoints.due(step) or step == steps or stopping:
                items, host = common.checkpoint_items(state), {"step": step, "data": batches.get_state()}
                checkpoints.save(step, items, host, metrics)
    if step == steps:
        common.write_final(setup, workdir, step, state.params)


if __name__ == "__main__":
    common.main(run, several_processes=True)
