"""What dpo and online_dpo share: the objective, the compiled functions, and statistics of the whole batch."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts import processes
from experiments.parts.preference_data import flat
from experiments.parts.processes import to_host
from experiments.parts.setup import Setup
from experiments.parts.trained_heads import add_head
from experiments.parts.training import jit_score, make_trainer, to_mesh, trained_model, with_adapters
from rl_jax import dpo, preferences
from rl_jax.core.binding import bind, supply
from rl_jax.core.masked import zero_masked
from rl_jax.core.packed_rows import rows_of
from rl_jax.core.types import Params, PreferenceBatch, TokenBatch, TokenScores
from rl_jax.losses.preference import batch_stats
from rl_jax.losses.preference.degrees import degree_accuracy
from rl_jax.models.heads import DEGREE, add_degree_head, make_predict_last
from rl_jax.training.scoring import make_score
from rl_jax.training.step import TrainState
from rl_jax.training.vocabulary import make_vocabulary_score, response_weights, sequence_kl

BATCH_STATISTICS = 1  # folded into the key of the batch statistics' randomness


def make_objective(config) -> dpo.Objective:
    """The loss, built from config.algorithm. A notebook builds the same tuple by hand.

    Raises:
      ValueError: if a slot cannot be bound, or MODPO's two slots have different weights.
    """
    check_weights(config)
    return dpo.Objective(
        **{slot: bind(config.algorithm[slot].to_dict(), module) for slot, module in dpo.SLOTS.items()},
        reference=config.algorithm.reference.to_dict(),
        length_power=config.algorithm.length_power,
        beta=config.algorithm.beta,
        regularizer_coef=config.algorithm.regularizer_coef,
    )


def check_weights(config) -> None:
    """Raises ValueError if MODPO's scale and offset are not of the same weight."""
    names = {"scale": "objective_share", "offset": "other_objectives"}
    weights = {
        slot: config.algorithm[slot].get("weight", 0.5) for slot, fn in names.items() if config.algorithm[slot].fn == fn
    }
    if len(set(weights.values())) > 1:
        raise ValueError(
            f"algorithm.scale.weight={weights['scale']} and algorithm.offset.weight={weights['offset']} must be equal: "
            "they are MODPO's one weight"
        )


def make_batch_statistics(config) -> batch_stats.BatchStatistics:
    """What computes statistics of the whole batch before it is split, built from config.algorithm.batch_stats."""
    return bind(config.algorithm.batch_stats.to_dict(), batch_stats, beta=config.algorithm.beta)()


def check_mismatched(config, *fields: str) -> None:
    """Raises ValueError if the method takes the response of another prompt, and a batch has place for one prompt.

    Args:
      config: of the run.
      fields: names of the sizes of batches, as "train.batch_size".
    """
    if not make_batch_statistics(config).reads_mismatched:
        return
    for field in fields:
        group, name = field.split(".")
        if config[group][name] < 2:
            raise ValueError(
                f"{field}={config[group][name]}: algorithm.batch_stats={config.algorithm.batch_stats.fn} takes the "
                "response of another prompt of the batch; set it to 2 or more"
            )


class PreferencePrograms(NamedTuple):
    """The compiled functions of a run; the rest of the loop is Python on the host.

    Attributes:
      score: (params, rows) -> TokenScores [N * K, C].
      train_step: (state, batch, reference) -> (state, metrics). reference: params that full-vocabulary terms compare
        with, or None.
      evaluate: (params, batch, reference) -> (loss and metrics as Mean, batch_stats.GlobalBatch of each response).
      batch_stats: (tracker state, params, batch, mismatched, key, held_out) -> (tracker state, extras). mismatched:
        from mismatched_log_ratios, or None. held_out: a bool, whether the extras are those of BatchStatistics.held_out.
    """

    score: Callable
    train_step: Callable
    evaluate: Callable
    batch_stats: Callable

    def on_host(self, params, rows) -> TokenScores:
        """The scores of `rows`, gathered from all processes."""
        return to_host(self.score(params, rows))

    def compile_count(self) -> int:
        """Number of compiled programs; growth after the first steps means shapes are changing."""
        return sum(program._cache_size() for program in self)


def with_degree_head(setup: Setup, params: Params) -> Params:
    """`params` with a new head for the degrees of config.data if the objective asks for its logits, else `params`.

    Their buffers are donated.

    Raises:
      ValueError: if the data have no degrees, or their copies end with them.
    """
    config = setup.config
    if "degree_logits" not in make_objective(config).needs():
        return params
    if "degrees" not in config.data or config.data.get("said", True):
        raise ValueError(
            f"algorithm.regularizer={config.algorithm.regularizer.fn} learns degrees that no response says: use data "
            "with degrees and said=False, as configs/preferences/spo_degree.py has them"
        )
    model = trained_model(setup)
    return add_head(setup, lambda own: add_degree_head(model, own, num_outputs=config.data.degrees), params)


def build(setup: Setup, params: Params) -> tuple[PreferencePrograms, TrainState]:
    """Compiled functions and the initial state. The buffers of `params` are donated.

    Raises:
      ValueError: if the objective asks for a head that the params do not have.
    """
    config = setup.config
    objective, statistics = make_objective(config), make_batch_statistics(config)
    if "degree_logits" in objective.needs() and DEGREE not in params:
        raise ValueError(
            f"algorithm.regularizer={config.algorithm.regularizer.fn} needs a head that only experiments.dpo trains"
        )
    score, score_more = make_scores(setup, objective.needs())
    plain = with_adapters(setup, score)

    def loss_fn(params, batch, reference):
        return loss_and_scores(params, batch, reference)[0]

    def loss_and_scores(params, batch, reference):
        scores, extras = score_more(params, batch, reference)
        loss, metrics = dpo.loss(scores, batch, objective, extras)
        if "degree_logits" in extras:
            metrics["degrees/accuracy"] = degree_accuracy(
                extras["degree_logits"], batch.extras["degrees"], batch.present
            )
        return (loss, metrics), scores

    def evaluate(params, batch, reference):
        (loss, metrics), scores = loss_and_scores(params, batch, reference)
        return {"loss": loss, **metrics}, measure(scores, batch, objective)

    def update(tracker, params, batch, mismatched, key, held_out):
        before = measure(plain(params, flat(batch.batch)), batch, objective)
        ratios, present = mismatched or (None, None)
        before = before._replace(mismatched_log_ratios=ratios, mismatched_present=present)
        return (tracker, statistics.held_out(tracker, before)) if held_out else statistics.update(tracker, before, key)

    train_step, state = make_trainer(setup, config.train, loss_fn, params, statistics.init(), num_extra_args=1)
    statistics_of = jax.jit(update, static_argnums=5)
    return PreferencePrograms(jit_score(score, setup), train_step, jax.jit(evaluate), statistics_of), state


def make_scores(setup: Setup, needed: set[str]) -> tuple[Callable, Callable]:
    """The functions that score rows.

    Args:
      setup: of the run.
      needed: names that the objective's slots ask for.

    Returns:
      (score, score_more). score(params, rows) -> TokenScores, with the model's params. score_more(params, batch,
      reference) -> (TokenScores, {name: array}), with the trained params; the arrays are those that need the logits of
      the whole vocabulary, or of a head.

    Raises:
      ValueError: if arrays of the whole vocabulary are needed and rows are packed, or there is a head.
    """
    options = dict(completion_length=setup.config.rollout.completion_length, chunk=setup.config.score.chunk)
    score = make_score(setup.model, **options)
    if "degree_logits" in needed:
        if more := sorted(needed & {"sequence_kl", "response_weights"}):
            raise ValueError(f"{' and '.join(more)} of the whole vocabulary cannot be had beside degree_logits")
        return score, with_adapters(setup, make_degree_score(setup, options))
    if not needed & {"sequence_kl", "response_weights"}:
        adapted_score = with_adapters(setup, score)
        return score, lambda params, batch, reference: (adapted_score(params, flat(batch.batch)), {})
    if setup.config.packing.mode != "padded":
        raise ValueError(
            f"packing.mode={setup.config.packing.mode!r}: terms of the whole vocabulary need 'padded' rows"
        )
    with_vocabulary = make_vocabulary_score(setup.model, **options)
    attached = setup.attached or (lambda params: params)

    def score_more(params, batch, reference):
        reference = attached(reference) if "sequence_kl" in needed else None
        result, mask = with_vocabulary(attached(params), reference, flat(batch.batch)), batch.completion_mask
        extras = {"response_weights": response_weights(result.log_probs, result.log_sum_squares, mask)}
        if reference is not None:
            extras["sequence_kl"] = sequence_kl(result.kl, mask)
        return result.scores(), extras

    return score, score_more


def make_degree_score(setup: Setup, options: dict) -> Callable:
    """Makes (model and head params, batch, reference) -> (TokenScores, {"degree_logits": float32 [N, K, D]}).

    Args:
      setup: of the run.
      options: of make_score.
    """

    def score_more(params, batch, reference):
        del reference
        tokens = flat(batch.batch)
        hidden = setup.model.apply(params, rows_of(tokens))  # one forward for both heads
        model = setup.model._replace(apply=lambda *_: hidden)
        logits = make_predict_last(model, DEGREE)(params, tokens)
        scores = make_score(model, **options)(params, tokens)
        return scores, {"degree_logits": logits.reshape(*batch.present.shape, -1)}

    return score_more


def measure(scores: TokenScores, batch: PreferenceBatch, objective: dpo.Objective) -> batch_stats.GlobalBatch:
    """The scores of each response before an update, for batch statistics and evaluation.

    Args:
      scores: TokenScores of the rows [N * K, C].
      batch: N prompts, K responses each.
      objective: of the run.

    Returns:
      batch_stats.GlobalBatch, float32 [N, K]: u (before score_map and beta), lengths, and the reference's sequence
      scores.
    """
    mask = batch.completion_mask
    log_probs = zero_masked(scores.log_probs.reshape(mask.shape), mask)
    ratios = log_probs - dpo.reference_log_probs(batch, objective.reference, mask)
    token_weights = supply(objective.token_weight, {"present": batch.present})(mask)
    u = dpo.sequence_scores(ratios, mask, token_weights, objective.length_power)
    lengths = jnp.sum(mask, axis=-1, dtype=jnp.float32)
    of_reference = batch.ref_log_probs
    if of_reference is not None:
        of_reference = dpo.sequence_scores(of_reference, mask, token_weights, objective.length_power)
    return batch_stats.GlobalBatch(u, batch.present, batch.rewards, lengths, of_reference)


def add_batch_statistics(
    setup: Setup,
    programs: PreferencePrograms,
    state: TrainState,
    batch: PreferenceBatch,
    reference: Params | None,
    held_out: bool = False,
) -> tuple[TrainState, PreferenceBatch]:
    """Adds the statistics that the rows of one update share.

    Args:
      setup: of the run.
      programs: compiled functions.
      state: its trackers are the state of the batch statistics.
      batch: of one update, before it is packed.
      reference: the params that its ref_log_probs come from.
      held_out: whether the batch is of an evaluation; use no state that it returns.

    Returns:
      (state, batch); unchanged if the method has no such statistics.
    """
    statistics = make_batch_statistics(setup.config)
    if not statistics.reads_batch:
        return state, batch
    key = jax.random.fold_in(processes.step_key(state, state.step), BATCH_STATISTICS)
    mismatched = None
    if statistics.reads_mismatched:
        mismatched = mismatched_log_ratios(setup, programs, batch, state.params, reference)
    placed = to_mesh(setup, batch)
    held_out = held_out and statistics.held_out is not None
    tracker, extras = programs.batch_stats(state.trackers, state.params, placed, mismatched, key, held_out)
    return state._replace(trackers=tracker), batch._replace(extras=batch.extras | to_host(extras))


def mismatched_log_ratios(
    setup: Setup, programs: PreferencePrograms, batch: PreferenceBatch, params: Params, reference: Params
) -> tuple[jax.Array, jax.Array]:
    """Log-ratios of each prompt with the response of the previous other prompt (KTO).

    Args:
      setup: of the run.
      programs: compiled functions.
      batch: N prompts with one response each.
      params: of the policy.
      reference: params of the reference.

    Returns:
      (logp - ref_logp, float32 [N]; whether there is such a response, bool [N]).
    """
    rows = {name: np.asarray(x) for name, x in batch.batch._asdict().items() if x is not None}
    rows |= {name: np.asarray(getattr(batch, name)) for name in ("completion_mask", "present")}
    rows = preferences.mismatched(rows)
    tokens = flat(TokenBatch(rows["tokens"], rows["positions"], rows["segment_ids"]))
    log_probs, before = (programs.on_host(own, to_mesh(setup, tokens)).log_probs for own in (params, reference))
    ratios = jnp.sum(zero_masked(log_probs - before, jnp.asarray(rows["completion_mask"][:, 0])), axis=1)
    return ratios, jnp.asarray(rows["present"][:, 0])
