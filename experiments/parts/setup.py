"""What a program is set up with: mesh, task, model, and the model's params on the mesh."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from experiments.parts import processes, rollout_mesh
from rl_jax import tasks, tokenizers
from rl_jax.core import types
from rl_jax.core.binding import resolve
from rl_jax.models import lora
from rl_jax.models.hf import llama2c, loading
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import checkpoint, sharding

POLICIES = ("dtype", "param_dtype", "remat", "attention")  # fields that a checkpoint does not set


class Setup(NamedTuple):
    """A run's fixed parts.

    Attributes:
      config: of the run.
      mesh: of the training.
      task: Task.
      model: types.Model.
      init_params: () -> params on the mesh, from the checkpoint or random.
      param_shapes: tree of jax.ShapeDtypeStruct.
      param_shardings: tree of shardings.
      merged: trained params -> the model's params and any heads, if adapters are trained (LoRA); else None.
      rollout: sampling layout, if it differs from the training layout; else None.
    """

    config: ConfigDict
    mesh: Mesh
    task: Any
    model: types.Model
    init_params: Callable[[], types.Params]
    param_shapes: Any
    param_shardings: Any
    merged: Callable[[types.Params], types.Params] | None = None
    rollout: rollout_mesh.Layout | None = None


def make_setup(config: ConfigDict, task: tasks.Task | None = None) -> Setup:
    """The mesh, the task and the model of `config`.

    Args:
      config: of the run. config.reward.function replaces the reward of the task.
      task: replaces that of config.task.
    """
    processes.simulate_devices(rollout_mesh.num_devices(config))
    mesh = sharding.make_mesh(sharding.parse_mesh(config.mesh))
    processes.check_mesh(mesh)
    task = task or tasks.load(**config.task.to_dict())
    if config.reward.function:
        task = task._replace(reward_fn=resolve(config.reward.function), reward_kwargs={})
    if config.model.path:
        result = _setup_hf(config, mesh, task)
    else:
        result = assemble(config, mesh, task, *load_model(config.model.to_dict(), config.seed, task.tokenizer))
    result = _with_adapters(result) if config.model.lora.rank else result
    layout = rollout_mesh.make_layout(config, mesh, result.param_shapes)
    return result._replace(model=sharding.model_on_mesh(result.model, mesh), rollout=layout)


def lora_config(config: ConfigDict) -> lora.LoraConfig:
    """The adapters of config.model.lora."""
    return lora.LoraConfig(**config.model.lora.to_dict())


def _with_adapters(setup: Setup) -> Setup:
    """The setup with params {"base": the model's, "adapters": what is trained}."""
    config = lora_config(setup.config)

    def add(base):
        return {"base": base, "adapters": lora.init_lora(config, base, jax.random.key(setup.config.seed))}

    shapes = jax.eval_shape(add, setup.param_shapes)
    shardings = sharding.tree_shardings(shapes, setup.mesh)
    place = jax.jit(add, out_shardings=shardings, donate_argnums=0)
    return setup._replace(
        init_params=lambda: place(setup.init_params()),
        param_shapes=shapes,
        param_shardings=shardings,
        merged=lambda params: lora.merge_trained(config, params),
    )


def assemble(config: ConfigDict, mesh: Mesh, task: Any, model: types.Model, init: Callable) -> Setup:
    """The Setup of a model whose params are made by a function, directly in their shards.

    Args:
      config: of the run.
      mesh: of the training.
      task: Task.
      model: types.Model.
      init: () -> params.
    """
    shapes = jax.eval_shape(init)
    shardings = sharding.tree_shardings(shapes, mesh)
    return Setup(config, mesh, task, model, jax.jit(init, out_shardings=shardings), shapes, shardings)


def _setup_hf(config: ConfigDict, mesh: Mesh, task: Any) -> Setup:
    """The Setup of a Hugging Face folder: its model and weights, and its tokenizer in place of the task's."""
    path = config.model.path
    policies = {name: config.model[name] for name in POLICIES}
    model_config = dataclasses.replace(loading.read_config(path), **policies)
    tokenizer = tokenizers.load_tokenizer(path)
    tokenizers.check_vocabulary(tokenizer, model_config.vocab_size, path)
    longest = max(config.rollout.prompt_buckets) + config.rollout.completion_length
    if 0 < model_config.learned_positions < longest:
        raise ValueError(
            f"{path} has {model_config.learned_positions} positions, but rollout.prompt_buckets and completion_length "
            f"need {longest}"
        )
    shapes = loading.param_shapes(model_config)
    shardings = sharding.tree_shardings(shapes, mesh)

    def init_params():
        return loading.load(path, shardings=lambda _: shardings, **policies)[1]

    if config.model.chat:
        tokenizer = tokenizers.ChatPrompts(tokenizers.ChatTemplate.load(path, tokenizer))
    task = task._replace(tokenizer=tokenizer)
    return Setup(config, mesh, task, make_transformer(model_config), init_params, shapes, shardings)


def load_model(fields: dict, seed: int, tokenizer) -> tuple[types.Model, Callable[[], types.Params]]:
    """The model of the config's model fields.

    Args:
      fields: config.model as a dict; it is changed.
      seed: of random params.
      tokenizer: its vocabulary is the model's.

    Returns:
      (model, init). init() -> params, from a checkpoint or random.

    Raises:
      ValueError: if the vocabulary of a checkpoint has another size.
    """
    path = fields.pop("checkpoint")
    del fields["path"], fields["chat"], fields["lora"]  # make_setup reads them
    if path:
        loaded, params = llama2c.load(path)
        policies = {name: fields[name] for name in POLICIES}
        model_config = dataclasses.replace(loaded, **policies)
        if model_config.vocab_size != tokenizer.vocab_size:
            raise ValueError(
                f"{path} has a vocabulary of {model_config.vocab_size}, but the tokenizer has {tokenizer.vocab_size}"
            )
        dtype = model_config.param_dtype
        return make_transformer(model_config), lambda: jax.tree.map(lambda x: jax.numpy.asarray(x, dtype), params)
    model = make_transformer(TransformerConfig(vocab_size=tokenizer.vocab_size, **fields))
    return model, lambda: model.init(jax.random.key(seed))


def check_batches(setup: Setup) -> None:
    """Raises ValueError if a micro-batch of config.train or a batch of config.eval does not divide over the devices."""
    train, sizes = setup.config.train, {"eval.batch_size": setup.config.eval.batch_size}
    check_rows(setup, **{"train.batch_size / micro_batches": train.batch_size // train.micro_batches}, **sizes)


def load_params(setup: Setup, workdir: str | os.PathLike) -> types.Params:
    """The params of a run's newest checkpoint, or of a given one (RUN/checkpoints/40), on this run's mesh.

    Raises:
      FileNotFoundError: if there is no checkpoint; the message says how to make one.
    """
    folder, step = pathlib.Path(workdir) / "checkpoints", None
    if (path := pathlib.Path(workdir)).parent.name == "checkpoints" and path.name.isdecimal():
        folder, step = path.parent, int(path.name)
    if not folder.is_dir():
        raise FileNotFoundError(f"init_from={workdir}: no checkpoints there; run experiments.sft or .grpo first")
    shapes = jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        setup.param_shapes,
        setup.param_shardings,
    )
    with checkpoint.Checkpointer(folder, every=1) as checkpoints:
        return checkpoints.restore({"params": shapes}, step)[0]["params"]


def sampling_of(fields: ConfigDict) -> Sampling:
    """The sampling rule of a config's fields."""
    return Sampling(fields.temperature, fields.top_k, fields.top_p, fields.min_p)


def check_rows(setup: Setup, **counts: int) -> None:
    """Raises ValueError if one of `counts` rows does not divide over the mesh axes that split rows."""
    shards = sharding.row_shards(setup.mesh)
    for name, count in counts.items():
        if count % shards:
            raise ValueError(f"{name}={count} rows do not divide over data x expert x fsdp = {shards} devices")
