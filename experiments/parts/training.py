"""A program's compiled functions on its mesh: the train step and its state, the scorer, the sampler."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from experiments.parts import rollout_mesh
from experiments.parts.setup import Setup
from rl_jax.core import types
from rl_jax.core.binding import bind
from rl_jax.models.partition import freeze, parameter_table
from rl_jax.training import distributed, optimizers, sharding
from rl_jax.training.step import TrainState, init_state, make_schedule, make_train_step
from rl_jax.training.streaming import StreamingStep, Sums, make_streaming_step


def make_optimizer(fields: ConfigDict) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """(the optimizer, its schedule) from a config's optimizer fields (configs.common.optimizer)."""
    fields = fields.to_dict()
    adam = {name: fields.pop(name) for name in ("b1", "b2", "eps", "weight_decay")}
    adam["decayed"] = fields.pop("decayed", "all")  # runs of before there was a choice have neither
    rule = fields.pop("rule", "adamw")
    schedule = make_schedule(**fields)
    return bind(rule, optimizers, **adam)(schedule), schedule


def place_state(setup: Setup, params: types.Params, optimizer, trackers: Any = ()) -> tuple[TrainState, Any]:
    """A fresh TrainState on the mesh.

    Args:
      setup: of the run.
      params: to start from. Their buffers are donated.
      optimizer: optax transformation.
      trackers: states of the trackers.

    Returns:
      (TrainState, its shardings).
    """
    key = jax.random.key(setup.config.seed)

    def init(params):
        return init_state(params, optimizer, key, trackers)

    shardings = sharding.tree_shardings(jax.eval_shape(init, params), setup.mesh)
    return jax.jit(init, out_shardings=shardings, donate_argnums=0)(params), shardings


def jit_step(step: Callable, setup: Setup, state_shardings, num_extra_args: int = 0) -> Callable:
    """Compiles `step` for the mesh and donates the state.

    Batch sharded over the data axes, metrics replicated, extra arguments left as placed.

    Args:
      step: (state, batch, *extra) -> (state, metrics).
      setup: of the run.
      state_shardings: tree of shardings.
      num_extra_args: number of extra arguments.
    """
    rows, everywhere = sharding.batch_sharding(setup.mesh), sharding.replicated(setup.mesh)
    return jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(state_shardings, rows, *[None] * num_extra_args),
        out_shardings=(state_shardings, everywhere),
    )


def to_mesh(setup: Setup, batch):
    """Reshards a host-replicated batch over the data axes (indexing leaves it with arbitrary placement)."""
    return distributed.place(batch, sharding.batch_sharding(setup.mesh))


def make_trainer(
    setup: Setup,
    settings: ConfigDict,
    loss_fn: Callable,
    params: types.Params,
    trackers: Any = (),
    num_extra_args: int = 0,
) -> tuple[Callable, TrainState]:
    """Compiles the train step and makes its first state.

    Args:
      setup: of the run.
      settings: optimizer, micro_batches and max_grad_norm.
      loss_fn: (params, batch, *extra) -> (Mean, metrics).
      params: to start from. Their buffers are donated.
      trackers: states of the trackers.
      num_extra_args: number of extra arguments of step and loss_fn that are no rows (params of a reference).

    Returns:
      (compiled train step, fresh TrainState).

    Raises:
      ValueError: if what is trained is stored in 16 bits.
    """
    stored = setup.config.model.get("param_dtype", "float32")
    if not setup.merged and stored != "float32":
        raise ValueError(
            f"model.param_dtype={stored!r} does not train: steps below 1/256 of a weight would be rounded away, and so "
            "would the optimizer's means. Leave it at 'float32' (model.dtype is what is computed in), or train "
            "adapters beside a frozen model, --config.model.lora.rank=16"
        )
    optimizer, step = make_step(setup, settings, loss_fn)
    state, shardings = place_state(setup, params, optimizer, trackers)
    if setup.config.log.progress and distributed.is_main():
        print(parameter_table(state.params, state.opt_state, frozen="base" if setup.merged else None))
    return jit_step(step, setup, shardings, num_extra_args), state


def _rule(setup: Setup, settings: ConfigDict) -> tuple[optax.GradientTransformation, dict]:
    """(optimizer of what is trained, what a step reads beside it: its largest norm and the schedule)."""
    optimizer, schedule = make_optimizer(settings.optimizer)
    if setup.merged:
        optimizer = freeze(optimizer, "base")
    return optimizer, dict(max_grad_norm=settings.max_grad_norm, schedule=schedule)


def make_step(setup: Setup, settings: ConfigDict, loss_fn: Callable) -> tuple[optax.GradientTransformation, Callable]:
    """(optimizer, train step), as make_trainer compiles them; nothing is allocated or compiled here."""
    optimizer, options = _rule(setup, settings)
    options["num_micro_batches"] = settings.micro_batches

    def step(state, batch, *beside):
        return make_train_step(lambda params, rows: loss_fn(params, rows, *beside), optimizer, **options)(state, batch)

    return optimizer, step


def jit_streaming_step(setup: Setup, settings: ConfigDict, loss_fn: Callable, state: TrainState) -> StreamingStep:
    """Compiles a step in pieces for the mesh; sums and state are donated.

    Args:
      setup: of the run.
      settings: optimizer and max_grad_norm.
      loss_fn: (params, batch) -> (Mean, metrics).
      state: of the run, on the mesh.
    """
    optimizer, options = _rule(setup, settings)
    step = make_streaming_step(loss_fn, optimizer, **options)
    rows, everywhere = sharding.batch_sharding(setup.mesh), sharding.replicated(setup.mesh)
    of_state = jax.tree.map(lambda x: x.sharding, state)
    sums = Sums(of_state.params, everywhere)
    return StreamingStep(
        jax.jit(step.begin, in_shardings=(of_state.params, rows), out_shardings=sums),
        jax.jit(step.add, in_shardings=(of_state.params, sums, rows), out_shardings=sums, donate_argnums=1),
        jax.jit(step.apply, in_shardings=(of_state, sums), out_shardings=(of_state, everywhere), donate_argnums=0),
    )


def with_adapters(setup: Setup, fn: Callable) -> Callable:
    """Wraps `fn(model_params, ...)` to take the trained params, with LoRA adapters beside their kernels."""
    attached = setup.attached
    if not attached:
        return fn

    @functools.wraps(fn)  # it says which arguments there are: core.packed_rows.hidden_at asks
    def call(params, *rest, **keywords):
        return fn(attached(params), *rest, **keywords)

    return call


def trained_model(setup: Setup) -> types.Model:
    """The model with an `apply` of the trained params; a head is as wide as its hidden states."""
    return setup.model._replace(apply=with_adapters(setup, setup.model.apply))


def jit_generate(generate: Callable, setup: Setup) -> Callable:
    """Compiles `generate` for the mesh; prompts and rollouts are sharded by rows."""
    mesh, params = setup.rollout[:2] if setup.rollout else (setup.mesh, setup.param_shardings)
    rows, everywhere = sharding.batch_sharding(mesh), sharding.replicated(mesh)
    sample = sharding.on_mesh(with_adapters(setup, generate), mesh)
    compiled = jax.jit(sample, in_shardings=(params, rows, rows, everywhere), out_shardings=rows)
    return rollout_mesh.Placing(compiled, setup.rollout) if setup.rollout else compiled


def jit_score(score: Callable, setup: Setup) -> Callable:
    """Compiles `score` for the mesh."""
    rows = sharding.batch_sharding(setup.mesh)
    return jax.jit(with_adapters(setup, score), in_shardings=(setup.param_shardings, rows), out_shardings=rows)
