"""Trained reward models, alone or several as an ensemble.

model = load_reward_model("runs/reward_model")
rewards = jax.jit(model.score)(model.params, rollout.batch)          # the same tokenizer: token ids as they are
rewards = model.score_texts(prompts, responses)                      # or texts
"""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import origin, reward_readers
from experiments.parts.judges.base import setup_of
from experiments.parts.setup import Setup, load_params
from experiments.parts.stored import read_config
from experiments.parts.trained_heads import head_of
from rl_jax import preferences
from rl_jax.core.binding import bind
from rl_jax.core.masked import zero_masked
from rl_jax.core.types import Params, TokenBatch
from rl_jax.credit import ensembles
from rl_jax.losses.reward_model.implicit import implicit_rewards
from rl_jax.models.heads import make_predict_last
from rl_jax.runs.run_record import is_complete, read_json
from rl_jax.training import checkpoint, sharding
from rl_jax.training.scoring import make_score

CONFIG = "configs/preferences/reward_models.py"


class RewardModel(NamedTuple):
    """One reward model, or several as one.

    Rewards are read at the last real token of each row. A model that reads steps gives the log-odds that the last step
    is right. An implicit reward covers the last config.rollout.completion_length columns.

    Attributes:
      score: (params, TokenBatch [B, T]) -> float32 [B], the members combined.
      members: (params, TokenBatch [B, T]) -> float32 [B, M].
      params: of all runs, stacked.
      tokenizer: of all runs.
      config: of the first run.
      setup: of the first run.
      combine: members float32 [B, M] -> float32 [B].
    """

    score: Callable
    members: Callable
    params: Params
    tokenizer: Any
    config: ConfigDict
    setup: Setup | None = None
    combine: Callable = ensembles.mean

    def score_texts(self, prompts: Sequence, responses: Sequence[str]) -> np.ndarray:
        """The reward of each response to its prompt (a text or a chat), an EOS after it, truncated as in training.

        Returns float32 [B].
        """
        return self.score_rows(self.encode(prompts, responses))

    def score_rows(self, rows: TokenBatch) -> np.ndarray:
        """The reward of each row, read in batches of the run's evaluation. rows: in numpy, [B, T]. Returns float32 [B].

        They are combined all at once: some ensembles couple the rows of a call (max_min, robust).
        """
        size, count, result = self.config.eval.batch_size, len(rows.tokens), []
        compiled = _compiled(self.members)
        for start in range(0, count, size):
            chosen = np.resize(np.arange(start, min(start + size, count)), size)
            part = jax.tree.map(lambda x, chosen=chosen: x[chosen], rows)
            result.append(np.asarray(compiled(self.params, part)))
        return np.asarray(self.combine(jnp.asarray(np.concatenate(result)[:count])))

    def encode(self, prompts: Sequence, responses: Sequence[str]) -> TokenBatch:
        """The rows of prompts with their responses, in numpy, as the model was trained on them."""
        rollout = self.config.rollout
        width = max(rollout.prompt_buckets)
        rows = [
            {"prompt": p, "responses": [r], "rewards": [0.0], "info": {}}
            for p, r in zip(prompts, responses, strict=True)
        ]
        truncate = "left" if self.config.encode.truncate == "drop" else self.config.encode.truncate
        arrays, _ = preferences.encode_labels(
            self.tokenizer,
            rows,
            prompt_buckets=(width,),
            completion_length=rollout.completion_length,
            truncate=truncate,
            empty="keep",  # a policy may sample only an EOS
        )
        rows = preferences.rows_of(arrays)
        return TokenBatch(rows["tokens"], rows["positions"], rows["segment_ids"])


@functools.lru_cache(maxsize=8)
def _compiled(members: Callable) -> Callable:
    return jax.jit(members)


def load_reward_model(
    workdirs: str | pathlib.Path | Sequence,
    combine: dict | None = None,
    mesh: str | None = None,
    standardize: bool | None = None,
) -> RewardModel:
    """Loads a finished run of experiments.reward_model, or several runs as an ensemble.

    Args:
      workdirs: one folder or several. Several must have one architecture; their params are stacked.
      combine: {"fn": ...} of rl_jax.credit.ensembles, replaces the first config's.
      mesh: to place the params on, "data:2,fsdp:2"; "" is one device, None the first run's own.
      standardize: whether the members are standardised first; None: as the first config says.

    Returns:
      RewardModel.

    Raises:
      FileNotFoundError: if a folder holds no finished run.
      ValueError: if no folder is given, or the architectures differ.
    """
    folders = [pathlib.Path(x) for x in ([workdirs] if isinstance(workdirs, (str, pathlib.Path)) else workdirs)]
    if not folders:
        raise ValueError("no reward model: give the workdir of at least one")
    result = [_load(folder, mesh) for folder in folders]
    config, tokenizer, members = result[0].setup.config, result[0].setup.task.tokenizer, result[0].members
    shapes = [jax.tree.map(lambda x: (x.shape, str(x.dtype)), other.params) for other in result]
    for folder, shape in zip(folders, shapes, strict=True):
        if shape != shapes[0]:
            raise ValueError(
                f"{folder} and {folders[0]} have different architectures: all members of an ensemble need the same"
            )
    stacked = jax.jit(lambda *all_of: jax.tree.map(lambda *x: jnp.stack(x), *all_of))(*(x.params for x in result))

    def all_members(params: Params, batch: TokenBatch) -> chex.Array:
        rewards = jax.vmap(members, in_axes=(0, None))(params, batch)  # [runs, B, members of a run]
        rewards = jnp.moveaxis(rewards, 0, 1).reshape(batch.tokens.shape[0], -1)
        return ensembles.standardized(rewards, means, stds) if standardize else rewards

    standardize = config.algorithm.standardize if standardize is None else standardize
    fn = bind(combine or config.algorithm.combine.to_dict(), ensembles)
    means, stds = (jnp.concatenate([other.moments[name] for other in result]) for name in ("means", "stds"))

    def score(params: Params, batch: TokenBatch) -> chex.Array:
        return fn(all_members(params, batch))

    return RewardModel(score, all_members, stacked, tokenizer, config, result[0].setup, fn)


class _Loaded(NamedTuple):
    """A finished run.

    Attributes:
      setup: of the run.
      members: (params, TokenBatch [B, T]) -> float32 [B, M].
      params: of the model, adapters merged, and its head.
      moments: means and stds, float32 [M].
    """

    setup: Setup
    members: Callable
    params: Params
    moments: dict[str, chex.Array]


def _load(workdir: pathlib.Path, mesh: str | None) -> _Loaded:
    """Reads one finished run."""
    setup, params = load_head(workdir, mesh)
    reads, count = setup.config.algorithm.reads, setup.config.algorithm.members
    if reads == "user":
        raise ValueError(f"{workdir} is a reward model of users: it grades with a user's pairs, and cannot be a judge")
    makers = {"log_ratio": log_ratio, "steps": _last_step}
    moments = {"means": [0.0] * count, "stds": [1.0] * count}
    if (workdir / "rewards.json").exists():
        moments = read_json(workdir / "rewards.json")
    moments = {name: jnp.asarray(values, jnp.float32) for name, values in moments.items()}
    return _Loaded(setup, makers.get(reads, _last_token)(setup), params, moments)


def need_finished(workdir: str | pathlib.Path, config: str = CONFIG) -> None:
    """Checks for a finished run of experiments.reward_model.

    Args:
      workdir: of the run.
      config: the --config that trains it; its `smoke` if the folder is one, runs/smoke_NAME.

    Raises:
      FileNotFoundError: if the folder holds none. The message is the command to run first.
    """
    workdir = pathlib.Path(workdir)
    if is_complete(workdir):
        return
    smoke = (",smoke" if ":" in config else ":smoke") if workdir.name.startswith("smoke_") else ""
    other = ", or with another config of configs/preferences" if config == CONFIG else ""
    raise FileNotFoundError(
        f"{workdir} has no finished run: train a reward model with python -m experiments.reward_model "
        f"--config={config}{smoke} --workdir={workdir}{other}"
    )


def load_head(workdir: pathlib.Path, mesh: str | None = None) -> tuple[Setup, Params]:
    """A finished run of experiments.reward_model: (its setup, the model's merged params and its head).

    Of a run that reads log-ratios the params are {"model": ..., "reference": ...}.

    Args:
      workdir: of the run.
      mesh: to place the params on; "" is one device, None the run's own.

    Raises:
      FileNotFoundError: if the folder holds no finished run.
      ValueError: if it is one of another program, or the reference of its log-ratios has changed.
    """
    need_finished(workdir)
    config = read_config(workdir)
    if "reads" not in config.algorithm:
        raise ValueError(
            f"{workdir} is a run of experiments.{config.get('program')}: give one of experiments.reward_model"
        )
    setup = setup_of(workdir, mesh)
    merged, params = setup.merged or (lambda params: params), load_params(setup, workdir)
    if setup.config.algorithm.reads == "log_ratio":
        base = reward_readers.base_params(setup, workdir)
        if wrong := origin.other_reference(workdir, checkpoint.checksum(base)):
            raise ValueError(f"a reward model that reads log-ratios needs its reference: {wrong}")
        return setup, {"model": merged(params), "reference": merged(base)}
    return setup, merged(params) | _load_head(setup, workdir, params)


def _load_head(setup: Setup, workdir: pathlib.Path, params: Params) -> Params:
    """The head of the newest checkpoint, on the mesh."""
    reader = reward_readers.make_reader(setup, workdir)
    like = head_of(jax.eval_shape(reader.add_head, params, jax.random.key(0)))
    shardings = sharding.tree_shardings(like, setup.mesh)
    like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), like, shardings)
    with checkpoint.Checkpointer(workdir / "checkpoints", every=1) as checkpoints:
        return checkpoints.restore({"head": like})[0]["head"]


def _last_token(setup: Setup) -> Callable:
    objective, predict = reward_readers.make_objective(setup.config), make_predict_last(setup.model)
    return lambda params, batch: objective.rewards(predict(params, batch))


def _last_step(setup: Setup) -> Callable:
    predict = make_predict_last(setup.model)

    def members(params, batch):
        logits = predict(params, batch)
        return logits[:, 1:] - logits[:, :1]

    return members


def log_ratio(setup: Setup) -> Callable:
    """(params, batch) -> float [B, 1], beta log (pi / pi_ref) of params["model"] and params["reference"]."""
    config = setup.config
    length, beta = config.rollout.completion_length, config.algorithm.beta
    score = make_score(setup.model, completion_length=length, chunk=config.score.chunk)

    def members(params, batch):
        mask = batch.segment_ids[:, -length:] != 0
        ratios = score(params["model"], batch).log_probs - score(params["reference"], batch).log_probs
        return implicit_rewards(zero_masked(ratios, mask)[:, None], mask[:, None], beta=beta)

    return members
