"""What a program is set up with: mesh, task, model, and the model's params on the mesh."""

import dataclasses
import datetime
import functools
import inspect
import json
import math
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from experiments.parts import hub, processes, prompt_limits, refusals, rollout_mesh
from rl_jax import tasks, tokenizers
from rl_jax.core import types
from rl_jax.core.binding import resolve
from rl_jax.data import readers
from rl_jax.models import lora
from rl_jax.models.hf import llama2c, loading
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.runs import run_record
from rl_jax.training import checkpoint, distributed, sharding

NOT_OF_SHAPES = {f"model.{name}" for name in ("dtype", "remat", "attention", "chat", "ignore_fields")}
NOT_OF_SHAPES |= {"task.data_dir"}
REPLAYING = ("grpo", "grpo_async")  # programs that pass on the experts that ran in sampling
RECORDING = {  # what keeps them: field -> values
    "rollout.engine.name": ("lockstep", "continuous"),
    "packing.mode": ("padded",),
    "rollout.window": (0,),
}
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
      attached: trained params -> what the model and any heads run on, if adapters are trained (LoRA); else None.
      merged: trained params -> the same without adapters, for files, servers and other runs; None as `attached`.
      rollout: sampling layout, if it differs from the training layout; else None.
    """

    config: ConfigDict
    mesh: Mesh
    task: Any
    model: types.Model
    init_params: Callable[[], types.Params]
    param_shapes: Any
    param_shardings: Any
    attached: Callable[[types.Params], types.Params] | None = None
    merged: Callable[[types.Params], types.Params] | None = None
    rollout: rollout_mesh.Layout | None = None


def make_setup(config: ConfigDict, task: tasks.Task | None = None) -> Setup:
    """The mesh, the task and the model of `config`.

    Args:
      config: of the run. config.reward.function replaces the reward of the task.
      task: replaces that of config.task.
    """
    processes.simulate_devices(rollout_mesh.num_devices(config))
    sizes = rollout_mesh.mesh_sizes(config)[0]
    mesh = sharding.make_mesh(sizes, processes.devices_for(math.prod(sizes.values())))
    processes.check_mesh(mesh)
    task = with_reward_function(task or load_task(config), config.reward.function)
    replays_routes(config)
    if config.model.path:
        result = _setup_hf(config, mesh, task)
    else:
        result = assemble(config, mesh, task, *load_model(config.model.to_dict(), config.seed, task.tokenizer))
    result = add_adapters(result) if config.model.lora.rank else result
    _check_sampling(config, result.model)
    result = result._replace(task=prompt_limits.limited(config, result.task))
    result = result._replace(model=sharding.model_on_mesh(result.model, mesh))
    return with_layout(result, policies_of(config.model)["dtype"])


def _check_sampling(config: ConfigDict, model: types.Model) -> None:
    """Raises ValueError if config.rollout or config.eval asks for more tokens (top_k) than the vocabulary has."""
    for group in ("rollout", "eval"):
        if "top_k" in config.get(group, {}) and hasattr(model, "vocab_size"):
            with refusals.naming_fields(group, config[group]):
                sampling_of(config[group]).check(model.vocab_size)


def with_layout(setup: Setup, dtype: str, devices: list | None = None) -> Setup:
    """The setup with the layout of its rollouts, if they have one of their own.

    Args:
      setup: with the params as they are trained, adapters included.
      dtype: that the model computes in.
      devices: as in rollout_mesh.make_layout.
    """
    dtype = "" if setup.config.model.lora.rank or dtype == "float32" else dtype
    layout = rollout_mesh.make_layout(setup.config, setup.mesh, setup.param_shapes, dtype, devices)
    return setup._replace(rollout=layout)


def with_reward_function(task: tasks.Task, path: str) -> tasks.Task:
    """The task with the reward of config.reward.function, "module:function"; the task itself for ""."""
    if not path:
        return task
    try:
        found = resolve(path)
    except ValueError as error:
        raise ValueError(f"reward.function: {error}") from error
    if "completions" in inspect.signature(found).parameters:
        raise ValueError(f"reward.function: {path} scores all completions of a prompt: name it in reward.terms instead")
    return task._replace(reward_fn=found, reward_kwargs={})


def load_task(config: ConfigDict) -> tasks.Task:
    """The task of config.task. Its files may be of the Hub (experiments.parts.hub).

    Raises:
      ValueError: if it is unknown, or does not take the fields of config.task.
    """
    fields = hub.local_fields(config.task.to_dict())
    try:
        return refusals.loaded(tasks.load, "task", fields)
    except ValueError as error:
        if "takes no" not in str(error):
            raise
        replaced = f'--config.task="{ {"name": fields["name"]} }"'
        raise ValueError(
            f"{error}. config.task still has fields of another task: replace the group as a whole, {replaced} with the "
            "keywords of yours"
        ) from error


def lora_config(config: ConfigDict) -> lora.LoraConfig:
    """The adapters of config.model.lora."""
    return lora.LoraConfig(**config.model.lora.to_dict())


def add_adapters(setup: Setup) -> Setup:
    """The setup with params {"base": the model's, "adapters": what is trained}."""
    config, seed = lora_config(setup.config), setup.config.seed

    def add(base):
        return {"base": base, "adapters": lora.init_lora(config, base, jax.random.key(seed))}

    with refusals.naming_fields("model.lora", setup.config.model.lora):
        shapes = jax.eval_shape(add, setup.param_shapes)
    shardings = sharding.tree_shardings(shapes, setup.mesh)
    place = jax.jit(add, out_shardings=shardings, donate_argnums=0)
    return setup._replace(
        init_params=lambda: place(setup.init_params()),
        param_shapes=shapes,
        param_shardings=shardings,
        attached=lambda params: lora.attach_trained(config, params),
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
    path = hub.local_folder(config.model.path)
    policies = policies_of(config.model)
    ignore = config.model.ignore_fields
    model_config = dataclasses.replace(loading.read_config(path, ignore=ignore), **policies)
    tokenizer = tokenizers.load_tokenizer(path)
    tokenizers.check_vocabulary(tokenizer, model_config.vocab_size, path)
    longest = max(config.rollout.prompt_buckets) + longest_completion(config)
    if 0 < model_config.learned_positions < longest:
        raise ValueError(
            f"{path} has {model_config.learned_positions} positions, but rollout.prompt_buckets and "
            f"rollout.completion_length (or eval.completion_length) need {longest}"
        )
    shapes = loading.param_shapes(model_config)
    shardings = sharding.tree_shardings(shapes, mesh)

    def init_params():
        return loading.load(path, shardings=lambda _: shardings, ignore=ignore, **policies)[1]

    task = task._replace(tokenizer=_with_chats(config, path, tokenizer))
    model = make_transformer(model_config, record_routes=replays_routes(config))
    return Setup(config, mesh, task, model, init_params, shapes, shardings)


def replays_routes(config: ConfigDict) -> bool:
    """Whether rollouts record the experts that ran, which scoring and training then run again (model.replay_routes).

    Raises:
      ValueError: if the program, its sampler, packing or foreign rows would lose them.
    """
    if not config.model.get("replay_routes", False):  # runs of before there was a choice have none
        return False
    for name, wanted in RECORDING.items():
        value = functools.reduce(lambda group, part: group[part], name.split("."), config)
        if value not in wanted:
            known = " or ".join(map(repr, wanted))
            raise ValueError(f"model.replay_routes=true needs {name}={known}, not {value!r}: routes would be lost")
    if (program := config.get("program", "grpo")) not in REPLAYING:
        known = " and ".join(f"experiments.{name}" for name in REPLAYING)
        raise ValueError(f"model.replay_routes=true: only {known} replay routes, experiments.{program} does not")
    if config.get("foreign"):
        raise ValueError(
            f"model.replay_routes=true needs foreign={{}}, not {list(config.foreign)}: they have no routes"
        )
    return True


def _with_chats(config: ConfigDict, folder: str, tokenizer: Any) -> Any:
    """The folder's tokenizer, which also encodes chats: by the folder's template, or as plain text if it has none.

    Raises:
      readers.DataError: if config.model.chat asks for a template and there is none.
      tokenizers.ChatTemplateError: if it asks for one that cannot be used.
    """
    try:
        template = tokenizers.ChatTemplate.load(folder, tokenizer)
    except (readers.DataError, tokenizers.ChatTemplateError):
        if config.model.chat:
            raise
        return tokenizers.PlainPrompts(tokenizer)
    arguments = config.model.template.to_dict()
    return tokenizers.ChatPrompts(template, texts=config.model.chat, arguments=arguments)


def fix_date(setup: Setup, run: str | os.PathLike) -> None:
    """Lets a chat template that writes the date write that of a run's first start (UTC), on whatever day it goes on.

    Args:
      setup: whose tokenizer may have a template.
      run: workdir of the run, or one of its checkpoints. If it has no run.json, the date is now.
    """
    template = getattr(setup.task.tokenizer, "template", None)
    if not isinstance(template, tokenizers.ChatTemplate):
        return
    path = pathlib.Path(run)
    path = (path.parent.parent if path.parent.name == "checkpoints" else path) / "run.json"
    started = run_record.read_json(path).get("started") if path.is_file() else None
    now = datetime.datetime.now(datetime.UTC).isoformat()
    template.fix_date(datetime.datetime.fromisoformat(distributed.gather(started or now)[0]))


def policies_of(fields: ConfigDict | dict) -> dict[str, str]:
    """The fields that a checkpoint does not set. dtype="auto" is bfloat16 on an accelerator, float32 on a CPU."""
    result = {name: fields[name] for name in POLICIES}
    if result["dtype"] == "auto":
        result["dtype"] = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return result


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
    path, replay = fields.pop("checkpoint"), fields.pop("replay_routes", False)
    for name in ("path", "ignore_fields", "chat", "template", "lora"):  # make_setup reads them
        fields.pop(name, None)
    fields |= policies_of(fields)
    if path:
        loaded, params = llama2c.load(path)
        model_config = dataclasses.replace(loaded, **policies_of(fields))
        if model_config.vocab_size != tokenizer.vocab_size:
            raise ValueError(
                f"{path} has a vocabulary of {model_config.vocab_size}, but the tokenizer has {tokenizer.vocab_size}"
            )
        dtype = model_config.param_dtype
        model = make_transformer(model_config, record_routes=replay)
        return model, lambda: jax.tree.map(lambda x: jax.numpy.asarray(x, dtype), params)
    model = make_transformer(TransformerConfig(vocab_size=tokenizer.vocab_size, **fields), record_routes=replay)
    return model, lambda: model.init(jax.random.key(seed))


def model_config(setup: Setup) -> TransformerConfig:
    """The sizes of the run's model."""
    fields = setup.config.model
    if fields.path:
        return loading.read_config(hub.local_folder(fields.path, weights=False), ignore=fields.ignore_fields)
    if fields.checkpoint:
        return llama2c.load(fields.checkpoint)[0]
    known = {field.name for field in dataclasses.fields(TransformerConfig)} & set(fields)
    return TransformerConfig(vocab_size=setup.task.tokenizer.vocab_size, **{name: fields[name] for name in known})


def check_batches(setup: Setup) -> None:
    """Raises ValueError if a micro-batch of config.train or a batch of config.eval does not divide over the devices."""
    train, sizes = setup.config.train, {"eval.batch_size": setup.config.eval.batch_size}
    check_rows(setup, **{"train.batch_size / micro_batches": train.batch_size // train.micro_batches}, **sizes)


def load_params(setup: Setup, workdir: str | os.PathLike) -> types.Params:
    """The params of a run's newest checkpoint, or of a given one (RUN/checkpoints/40), on this run's mesh.

    Raises:
      FileNotFoundError: if there is no checkpoint; the message says how to make one.
      ValueError: if it cannot be read, is of another model (names the fields that differ), or is no language model's.
    """
    return load_checkpoint(setup, workdir)[0]


def load_checkpoint(setup: Setup, workdir: str | os.PathLike) -> tuple[types.Params, dict[str, Any]]:
    """As load_params: (the params, the host's state, with the "step" of the checkpoint that could be read)."""
    folder, step = pathlib.Path(workdir) / "checkpoints", None
    if (path := pathlib.Path(workdir)).parent.name == "checkpoints" and path.name.isdecimal():
        folder, step = path.parent, int(path.name)
    if not folder.is_dir():
        if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
            raise FileNotFoundError(
                f"init_from={workdir}: a model's folder, not that of a run: give it as --config.model.path={workdir}"
            )
        raise FileNotFoundError(f"init_from={workdir}: no checkpoints there; run experiments.sft or .grpo first")
    if other := _other_program(folder.parent):
        raise ValueError(f"init_from={workdir} is a run of {other}, which has no language model")
    shapes = jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        setup.param_shapes,
        setup.param_shardings,
    )
    with checkpoint.Checkpointer(folder, every=1) as checkpoints:
        try:
            items, host = checkpoints.restore({"params": shapes}, step)
            return items["params"], host
        except ValueError as error:
            if "other shapes" in str(error) and (differing := _other_fields(setup.config, folder.parent)):
                raise ValueError(f"init_from={workdir} is of another model: {differing}") from error
            raise


def _other_program(run: pathlib.Path) -> str:
    """What trained a run whose config.json has no language model; "" if it has one, or cannot be read."""
    try:
        config, record = run_record.read_json(run / "config.json"), run_record.read_json(run / "run.json")
    except (OSError, ValueError):
        return ""
    return "" if "model" in config else str(record.get("algorithm"))


def _other_fields(config: ConfigDict, run: pathlib.Path) -> str:
    """The fields of the model and the task that differ from a run's config.json, in words; "" if none can be told."""
    try:
        theirs = run_record.stored_config(run / "config.json")
    except (OSError, ValueError):
        return ""
    ours = json.loads(json.dumps(config.to_dict(), default=str))  # tuples are lists, as in theirs
    here, there = (
        run_record.flatten({name: tree.get(name, {}) for name in ("model", "task")}) for tree in (ours, theirs)
    )
    unlike = [name for name in here if name in there and here[name] != there[name] and name not in NOT_OF_SHAPES]
    told = [f"{name} is {there[name]!r} there and {here[name]!r} here" for name in unlike]
    return "; ".join(told[:6]) + (f" (and {len(told) - 6} more)" if len(told) > 6 else "")


def sampling_of(fields: ConfigDict) -> Sampling:
    """The sampling rule of config.rollout or config.eval."""
    return Sampling(fields.temperature, fields.top_k, fields.top_p, fields.min_p, fields.repetition_penalty)


def longest_completion(config: ConfigDict) -> int:
    """The most tokens that training or evaluation samples."""
    return max(config.rollout.completion_length, config.eval.completion_length)


def check_rows(setup: Setup, **counts: int) -> None:
    """Raises ValueError if one of `counts` rows does not divide over the mesh axes that split rows."""
    shards = sharding.row_shards(setup.mesh)
    for name, count in counts.items():
        if count % shards:
            raise ValueError(f"{name}={count} rows do not divide over data x expert x fsdp = {shards} devices")
