"""What a critic starts from: the policy's params, or another run's, as a reward model's (config.critic.init_from)."""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts.judges.base import run_of
from experiments.parts.judges.table import specs_of
from experiments.parts.judges.trained import load_head
from experiments.parts.setup import Setup
from experiments.parts.training import trained_model
from rl_jax import ppo
from rl_jax.core.types import Params
from rl_jax.models.heads import NAME, REWARD, add_value_head, add_value_heads, without_head
from rl_jax.runs.run_record import read_json
from rl_jax.training import sharding
from rl_jax.training.step import TrainState


def start(setup: Setup, params: Params, *, num_outputs: int, members: int = 1) -> tuple[Params, Any]:
    """A critic's first params, with a value head, and their shardings.

    A reward model's head, with its hidden layers, becomes the value head if both have one output: the first values are
    then the rewards that the reward model would give at each token, standardised if it is used so.

    Args:
      setup: of the run.
      params: the policy's.
      num_outputs: of the value head, of all its members together.
      members: critics on one trunk, of which the smallest counts.

    Raises:
      FileNotFoundError: if critic.init_from is no run.
      ValueError: if a shared critic is to be trained alone or to start from another run, if that run's model has
        another shape, or if critic.epochs does not fit.
    """
    settings = setup.config.critic
    if settings.shared and settings.warmup_steps:
        raise ValueError("critic.warmup_steps: a critic that shares the policy's trunk cannot be trained alone")
    if settings.shared and (settings.init_from or setup.config.algorithm.ptx.coef):
        raise ValueError("critic.shared: its trunk is the policy's, so leave critic.init_from empty and ptx.coef 0")
    if settings.epochs < 1 or (settings.shared and settings.epochs > 1):
        raise ValueError(f"critic.epochs={settings.epochs!r} must be 1 or more, and 1 with critic.shared")
    add_head = head_of(setup, num_outputs, members)
    shardings = sharding.tree_shardings(jax.eval_shape(add_head, params), setup.mesh)
    if not settings.init_from:
        return jax.jit(add_head, out_shardings=shardings)(params), shardings
    model, head = load(setup, pathlib.Path(settings.init_from), like=params)
    result = jax.jit(add_head, out_shardings=shardings)(model)
    alone = head is not None and members == 1
    if alone and all(np.shape(head.get(name, 0)) == x.shape for name, x in result[NAME].items()):
        shardings = {**shardings, NAME: sharding.tree_shardings({NAME: head}, setup.mesh)[NAME]}  # hidden layers, too
        result = {**result, NAME: jax.device_put(head, shardings[NAME])}
    return result, shardings


def head_of(setup: Setup, num_outputs: int, members: int) -> Callable[[Params], Params]:
    """params -> params with a value head, or with the heads of several critics. The arguments are those of `start`."""
    if members == 1:
        return functools.partial(add_value_head, trained_model(setup), num_outputs=num_outputs)
    options = dict(key=jax.random.key(setup.config.seed), members=members, num_outputs=num_outputs // members)
    return functools.partial(add_value_heads, trained_model(setup), **options)


def make_loss(predict: Callable, objective_of: Callable) -> Callable:
    """Makes loss_fn(params, PPOBatch) -> (Mean, metrics) of a critic alone, as the train step takes it.

    Args:
      predict: (critic params, rows) -> float [B, C + 1, num_outputs].
      objective_of: (PPOBatch) -> rl_jax.ppo.Objective.
    """

    def loss_fn(params, batch):
        objective = objective_of(batch)
        return ppo.value_loss(objective.read(predict(params, batch.policy.batch), batch), batch, objective)

    return loss_fn


def slow_copy(critic: TrainState, shardings: Any, settings: Any) -> tuple[Callable, Params]:
    """((target, params) -> target + critic.target_rate (params - target), the first target: a copy of the params).

    Raises:
      ValueError: if critic.target_rate is not in (0, 1].
    """
    rate = settings.target_rate
    if not 0 < rate <= 1:
        raise ValueError(f"critic.target_rate={rate!r} must be above 0 and at most 1, a copy")

    def follow(target, params):
        return jax.tree.map(lambda slow, new: slow + rate * (new - slow), target, params)

    copied = jax.jit(lambda params: jax.tree.map(jnp.copy, params), out_shardings=shardings)
    return jax.jit(follow, out_shardings=shardings, donate_argnums=0), copied(critic.params)


def load(setup: Setup, folder: pathlib.Path, like: Params) -> tuple[Params, Params | None]:
    """(a run's model as params of this run's critic, the head of a reward model or None)."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"critic.init_from={str(folder)!r} is no run: there is no config.json")
    head = None
    if "reads" in read_json(folder / "config.json").get("algorithm", {}):
        own, params = load_head(folder, setup.config.mesh)
        model = params["model"] if "model" in params else without_head(params)
        head = params.get(REWARD)
        if head is not None and _is_standardized(setup, folder, own):
            moments = read_json(folder / "rewards.json")
            alone = head["kernel"].shape[1] == len(moments["means"])  # one output a member, not a distribution's bins
            head = standardized(head, moments) if alone else None
    else:
        model = run_of(setup, folder)[1]
    base = like["base"] if setup.merged else like
    if jax.tree.map(jnp.shape, model) != jax.tree.map(jnp.shape, base):
        raise ValueError(f"critic.init_from={str(folder)!r}: its model has another shape than this run's")
    return ({**like, "base": model} if setup.merged else model), head


def _is_standardized(setup: Setup, folder: pathlib.Path, own: Setup) -> bool:
    """Whether this reward model's rewards are standardised in this run: as its judge says, else as it was trained."""
    if not (folder / "rewards.json").is_file():  # a model of steps has no moments
        return False
    for spec in specs_of(setup.config).values():
        paths = spec.get("path", ())
        if str(folder) in ((paths,) if isinstance(paths, str) else paths) and spec.get("standardize") is not None:
            return bool(spec["standardize"])
    return bool(own.config.algorithm.get("standardize", False))


def standardized(head: Params, moments: Mapping[str, Sequence[float]]) -> Params:
    """A reward head whose outputs are (r - mean) / std, as rl_jax.credit.ensembles.standardized has it.

    Args:
      head: kernel float [D, M] and bias float [M].
      moments: "means" and "stds" of the M outputs; a std of 0 counts as 1.
    """
    means, stds = (jnp.asarray(moments[name], jnp.float32) for name in ("means", "stds"))
    scale = jnp.where(stds > 0, stds, 1.0)
    return {**head, "kernel": head["kernel"] / scale[None, :], "bias": (head["bias"] - means) / scale}
