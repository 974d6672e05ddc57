"""What a reward model reads, from records to rewards: responses, steps or log-ratios."""

import functools
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts import origin, reward_shift, reward_traces
from experiments.parts.packers import Packing
from experiments.parts.preference_data import (
    Arrays,
    PreferencePacker,
    flat,
    info_arrays,
    naming_lengths,
    records_of,
    take_rows,
)
from experiments.parts.processes import to_host
from experiments.parts.reward_evaluation import evaluate_responses, evaluate_steps
from experiments.parts.setup import Setup, load_params
from experiments.parts.training import to_mesh, trained_model, with_adapters
from rl_jax import preferences, reward_model
from rl_jax.core.binding import bind, needs
from rl_jax.core.masked import masked_mean, zero_masked
from rl_jax.core.packed_rows import hidden_of_one
from rl_jax.core.types import Params, TokenBatch
from rl_jax.losses import reward_model as losses
from rl_jax.losses import value
from rl_jax.losses.reward_model import rankings
from rl_jax.losses.reward_model.implicit import implicit_rewards
from rl_jax.models import user_head
from rl_jax.models.heads import REWARD, add_reward_head, make_hidden_last, make_predict_at, make_predict_last
from rl_jax.training import distributed
from rl_jax.training.scoring import make_score


def make_objective(config) -> reward_model.Objective:
    """The loss of a model that reads responses, built from config.algorithm."""
    loss = bind(config.algorithm.loss.to_dict(), losses)
    objective = reward_model.Objective(
        loss=loss,
        regularizer=bind(config.algorithm.regularizer.to_dict(), rankings),
        regularizer_coef=config.algorithm.regularizer_coef,
        members=config.algorithm.members,
        support=value.Support(**config.algorithm.support.to_dict()) if "support" in needs(loss) else None,
        attribute_weights=tuple(config.algorithm.attribute_weights),
    )
    objective.check()
    return objective


def head_fields(config) -> dict:
    """The layers and the activation of config.algorithm.head; {} of a run that was recorded before there were any."""
    return config.algorithm.head.to_dict() if "head" in config.algorithm else {}


class Reader(NamedTuple):
    """What a reward model reads, from records to rewards.

    Attributes:
      add_head: (params, key) -> params with the trained head added.
      encode: records -> (arrays N first, counts).
      batch: (arrays, rows int [n], size) -> what the loss takes; rows after the first n are absent.
      pack: (batch, micro_batches) -> the batch as config.packing says, packed per micro-batch or as it is.
      loss: (params, batch) -> (Mean, metrics); of responses (params, batch, extra), as reward_model.loss takes it.
      rewards: (params, batch) -> float32 [N, K, M] of K responses (or S steps: their probabilities, M = 1).
      evaluate: (arrays, rewards [N, ...], records) -> metrics.
    """

    add_head: Callable
    encode: Callable
    batch: Callable
    pack: Callable
    loss: Callable
    rewards: Callable
    evaluate: Callable


def make_reader(setup: Setup, workdir: pathlib.Path | None = None) -> Reader:
    """The Reader of config.algorithm.reads. Raises ValueError if it is unknown. workdir: as base_params takes it."""
    makers = {
        "response": _response_reader,
        "steps": _steps_reader,
        "log_ratio": functools.partial(_log_ratio_reader, workdir=workdir),
        "user": _user_reader,
    }
    reads = setup.config.algorithm.reads
    if reads not in makers:
        raise ValueError(f"algorithm.reads={reads!r} is none of {', '.join(makers)}")
    return makers[reads](setup)


def _response_reader(setup: Setup) -> Reader:
    objective = make_objective(setup.config)
    predict = with_adapters(setup, make_predict_last(setup.model))

    def outputs(params, batch):
        return predict(params, flat(batch.batch)).reshape(*batch.present.shape, -1)

    def add_head(params, key):
        outputs = objective.num_outputs()
        return add_reward_head(trained_model(setup), params, key, num_outputs=outputs, **head_fields(setup.config))

    reader = Reader(
        add_head=add_head,
        encode=lambda records: encode_responses(setup, records, needs(objective.loss)),
        batch=lambda arrays, rows, size: take_rows(arrays, rows, size, needs(objective.loss)),
        pack=PreferencePacker(setup, to_end=True),
        loss=lambda params, batch, extra=None: reward_model.loss(outputs(params, batch), batch, objective, extra),
        rewards=lambda params, batch: objective.rewards(outputs(params, batch)),
        evaluate=lambda arrays, rewards, records: evaluate_responses(
            arrays, rewards, records, logits=objective.is_logit()
        ),
    )
    return reward_traces.extended(setup, reward_shift.extended(setup, reader, objective))


def _steps_reader(setup: Setup) -> Reader:
    config = setup.config
    fn = bind(config.algorithm.loss.to_dict(), losses)
    predict = with_adapters(setup, make_predict_at(setup.model))

    def encode(records):
        lengths = _lengths(config) | {"separator": config.encode.separator}
        with naming_lengths():
            arrays, counts = preferences.encode_steps(setup.task.tokenizer, records, unlabelled="drop", **lengths)
        prompt_length = arrays["tokens"].shape[1] - config.rollout.completion_length
        columns = np.where(arrays["step_ends"] < 0, -1, arrays["step_ends"] + prompt_length).astype(np.int32)
        return arrays | {"columns": columns}, counts

    def batch(arrays, rows, size):
        rows, kept = _padded(rows, size)
        x = {name: part[rows] for name, part in arrays.items()}
        mask = (x["step_labels"] >= 0) & (x["columns"] >= 0) & kept[:, None]
        tokens = TokenBatch(x["tokens"], x["positions"], x["segment_ids"])
        return reward_model.StepBatch(tokens, x["columns"], np.maximum(x["step_labels"], 0).astype(np.float32), mask)

    def outputs(params, batch):
        return predict(params, batch.batch, batch.columns)

    return Reader(
        add_head=lambda params, key: add_reward_head(
            trained_model(setup), params, key, num_outputs=2, **head_fields(config)
        ),
        encode=encode,
        batch=batch,
        pack=functools.partial(pack_steps, Packing(setup), config.rollout.completion_length),
        loss=lambda params, batch: reward_model.steps_loss(outputs(params, batch), batch, fn),
        rewards=lambda params, batch: jax.nn.softmax(outputs(params, batch), axis=-1)[..., 1:],
        evaluate=lambda arrays, rewards, records: evaluate_steps(
            arrays, rewards[..., 0], records, config.algorithm.aggregate.to_dict()
        ),
    )


def pack_steps(
    packing: Packing, completion_length: int, batch: reward_model.StepBatch, micro_batches: int
) -> reward_model.StepBatch:
    """The batch with its solutions packed up to their last labelled steps; unchanged if rows are padded.

    Args:
      packing: of the run.
      completion_length: C.
      batch: on the host, with columns of rows that are T long.
      micro_batches: of the train step.
    """
    if packing.padded:
        return batch
    start = batch.batch.tokens.shape[1] - completion_length
    mask = np.zeros((len(batch.mask), completion_length), bool)
    rows, steps = np.nonzero(batch.mask)
    mask[rows, batch.columns[rows, steps] - start] = True
    columns = np.where(batch.columns < 0, -1, batch.columns - start + 1).astype(np.int32)  # as Packed.columns counts
    return batch._replace(batch=packing.pack(batch.batch, mask, micro_batches), columns=columns)


def _log_ratio_reader(setup: Setup, workdir: pathlib.Path | None = None) -> Reader:
    config = setup.config
    fn, beta = bind(config.algorithm.loss.to_dict(), losses), config.algorithm.beta
    options = dict(completion_length=config.rollout.completion_length, chunk=config.score.chunk)
    score = with_adapters(setup, make_score(setup.model, **options))
    reference_score = jax.jit(score)

    def encode(records):
        """Scores the responses once with the reference, which is the initial model."""
        arrays, counts = encode_responses(setup, records, set())
        params, result = base_params(setup, workdir), []
        for rows, size in _parts(len(arrays["tokens"]), config.eval.batch_size):
            batch = take_rows(arrays, rows, size, set())
            rows_placed = to_mesh(setup, flat(batch.batch))
            log_probs = np.asarray(to_host(reference_score(params, rows_placed).log_probs))
            result.append(log_probs.reshape(batch.completion_mask.shape)[: len(rows)])
        return arrays | {"ref_log_probs": np.concatenate(result)}, counts

    def rewards(params, batch):
        mask = batch.completion_mask
        log_probs = score(params, flat(batch.batch)).log_probs.reshape(mask.shape)
        ratios = zero_masked(log_probs, mask) - zero_masked(batch.ref_log_probs, mask)
        return implicit_rewards(ratios, mask, beta=beta)[..., None]

    return Reader(
        add_head=lambda params, key: params,
        encode=encode,
        batch=lambda arrays, rows, size: take_rows(arrays, rows, size, set()),
        pack=PreferencePacker(setup),
        loss=lambda params, batch: reward_model.implicit_loss(score(params, flat(batch.batch)), batch, fn, beta=beta),
        rewards=rewards,
        evaluate=lambda arrays, rewards, records: evaluate_responses(arrays, rewards, records, logits=True),
    )


def _user_reader(setup: Setup) -> Reader:
    """Responses as their user would grade them, whose other pairs of the batch are read (rl_jax.models.user_head)."""
    config, objective = setup.config, make_objective(setup.config)
    if objective.num_outputs() != 1 or config.algorithm.responses != 2:
        raise ValueError("algorithm.reads='user' has one reward per response and reads pairs: responses=2")
    settings = config.algorithm.users
    hidden_last = with_adapters(setup, make_hidden_last(setup.model))
    wanted = {"user", "noise", *needs(objective.loss)}

    def encode(records):
        arrays, counts = encode_responses(setup, records, {"user", *needs(objective.loss)})
        if "user" not in arrays:
            raise ValueError(f"algorithm.reads='user' needs a number info.user, which the records of {config.data.name}"
                             " lack: use data with users, or reads='response'")  # fmt: skip
        return arrays, counts

    def batch(arrays, rows, size):
        noise = np.random.default_rng([config.seed, *rows.tolist()]).normal(size=(size, settings.latent))
        noise *= settings.noise
        found = take_rows(arrays, rows, size, wanted)
        return found._replace(extras={**found.extras, "noise": noise.astype(np.float32)})

    def outputs(params, batch, noise):
        hidden = hidden_last(params, flat(batch.batch)).reshape(*batch.present.shape, -1)
        return user_head.user_rewards(params[REWARD], hidden, batch.extras["user"], batch.present.all(axis=1), noise)

    def loss(params, batch):
        rewards, kl = outputs(params, batch, batch.extras["noise"])
        live = batch.present.all(axis=1)
        kl = zero_masked(kl, live)
        result, metrics = reward_model.loss(rewards[..., None], batch, objective, settings.kl_coef * kl)
        return result, metrics | {"kl": jax.tree.map(jax.lax.stop_gradient, masked_mean(kl, live))}

    def add_head(params, key):
        width = hidden_of_one(hidden_last, params).shape[-1]
        return {**params, REWARD: user_head.init_user_head(key, width, hidden=settings.hidden, latent=settings.latent)}

    return Reader(
        add_head=add_head,
        encode=encode,
        batch=batch,
        pack=PreferencePacker(setup, to_end=True),
        loss=loss,
        rewards=lambda params, batch: outputs(params, batch, jnp.zeros_like(batch.extras["noise"]))[0][..., None],
        evaluate=lambda arrays, rewards, records: evaluate_responses(arrays, rewards, records, logits=True),
    )


def _lengths(config) -> dict:
    rollout = config.rollout
    return dict(
        prompt_buckets=(max(rollout.prompt_buckets),),  # a single one, so that every batch has one shape
        completion_length=rollout.completion_length,
        truncate=config.encode.truncate,
    )


def encode_responses(setup: Setup, records: list[dict], needed: set[str]) -> tuple[Arrays, dict[str, int]]:
    """Encodes records and the labels that the loss needs.

    Args:
      setup: of the run.
      records: attribute_targets, [K][A] in a record, may have a null for a missing label.
      needed: names in a record's info to add as arrays.

    Returns:
      (arrays of the records, counts of what was truncated and dropped).

    Raises:
      ValueError: as in info_arrays.
    """
    config = setup.config
    with naming_lengths():
        arrays, counts = preferences.encode_preferences(
            setup.task.tokenizer, records, identical=config.encode.identical, **_lengths(config)
        )
    columns = info_arrays(records, arrays, needed)
    arrays |= {name: column.astype(np.float32) for name, column in columns.items()}
    if "attribute_targets" in arrays:
        arrays["attribute_mask"] = np.isfinite(arrays["attribute_targets"])
    return arrays, counts


def _padded(rows: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows repeated up to `size`, which of them are real)."""
    return np.resize(rows, size), np.arange(size) < len(rows)


def _parts(count: int, size: int):
    """(rows, size) of each batch of `size`; the last may have fewer rows."""
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count)), size


def make_rewards(setup: Setup, reader: Reader) -> Callable:
    """Makes rewards(params, arrays) -> float32 [N, K, M] of all rows, in batches of config.eval.batch_size."""
    compiled = jax.jit(reader.rewards)
    size = setup.config.eval.batch_size

    def rewards(params: Params, arrays: Arrays) -> np.ndarray:
        result = []
        for rows, size_ in _parts(len(arrays["tokens"]), size):
            batch = to_mesh(setup, reader.batch(arrays, rows, size_))
            result.append(np.asarray(to_host(compiled(params, batch)))[: len(rows)])
        return np.concatenate(result)

    return rewards


def base_params(setup: Setup, workdir: pathlib.Path | None = None) -> Params:
    """The language model to start from: the config's, or another run's.

    Args:
      setup: of the run.
      workdir: of the run, which then starts from where the other one was at its first start; None: from the newest.
    """
    if not (init_from := setup.config.init_from):
        return setup.init_params()
    if workdir:  # one process reads for all, as run.json may just be written
        init_from = distributed.gather(origin.started_from(init_from, workdir))[0]
    return load_params(setup, init_from)


def check_labels(config, arrays: Arrays) -> None:
    """Raises ValueError if the loss needs labels that the data do not have."""
    for name in sorted(needs(bind(config.algorithm.loss.to_dict(), losses)) & set(UNSAID)):
        if np.all(arrays[name] == UNSAID[name]):
            raise ValueError(
                f"algorithm.loss={config.algorithm.loss.fn} needs {name}, but all of {config.data.name}'s are "
                f"{UNSAID[name]}: use data that have them, or the loss bradley_terry"
            )


def load_records(config, data: preferences.Preferences, split: str, limit: int | None = None) -> list[dict]:
    """A split's records, with as many responses as the config sets.

    Args:
      config: algorithm.reads and algorithm.responses.
      data: the preferences.
      split: "train" or "test".
      limit: how many of the split's records are used; None for all.

    Raises:
      ValueError: if the data are of another kind than the config reads.
    """
    if config.algorithm.reads == "steps":
        if data.kind != "steps":
            raise ValueError(f"algorithm.reads='steps' needs data.kind=steps, but {data.name} has {data.kind}")
        source = data.data_source(split)
        return [source[index] for index in range(len(source))][:limit]
    return records_of(data, split, config.algorithm.responses, limit=limit)


# Defaults of labels that the data lack: a loss that reads only these is plain bradley_terry.
UNSAID = {"margins": 0.0, "label_probs": 1.0}
