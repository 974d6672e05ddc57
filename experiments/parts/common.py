"""What every program does before its loop: flags, mesh, task, model, and placing params on the mesh."""

import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from absl import app, flags, logging
from jax.sharding import Mesh
from ml_collections import ConfigDict, config_flags

from experiments.parts import processes, rollout_mesh
from experiments.parts.budgets import samples_per_step
from rl_jax import tasks, tokenizers
from rl_jax.core import types
from rl_jax.data import pipeline
from rl_jax.models import lora
from rl_jax.models.hf import llama2c, loading
from rl_jax.models.hf.peft import save_peft
from rl_jax.models.partition import freeze, parameter_table
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.runs.logging import write_atomically
from rl_jax.runs.run_record import write_run_record
from rl_jax.training import checkpoint, compilation, distributed, sharding
from rl_jax.training.step import TrainState, init_state, make_schedule, make_train_step

FLAGS = flags.FLAGS
config_flags.DEFINE_config_file("config", None, "configs/FILE.py:arguments; override fields with --config.a.b=value")
flags.DEFINE_string("workdir", None, "where the run is written; the same command resumes it. Default: runs/NAME")
POLICIES = ("dtype", "param_dtype", "remat", "attention")  # what a checkpoint leaves open
flags.DEFINE_string(
    "compile_cache",
    "~/.cache/rl_jax/xla",
    "where compiled programs are kept for the next start; '' keeps none. JAX_COMPILATION_CACHE_DIR goes before it",
)
flags.DEFINE_bool("skip_bad_records", False, "leave bad records out and report them, instead of stopping at the first")


class Setup(NamedTuple):
    """A run's fixed parts. init_params: () -> params on the mesh, from the checkpoint or at random. param_shapes and
    param_shardings: theirs. merged: params -> what the model reads, where adapters are trained beside it (lora).
    rollout: where rollouts are sampled, where that is elsewhere."""

    config: ConfigDict
    mesh: Mesh
    task: Any
    model: types.Model
    init_params: Callable[[], types.Params]
    param_shapes: Any
    param_shardings: Any
    merged: Callable[[types.Params], types.Params] | None = None
    rollout: rollout_mesh.Layout | None = None


def main(run: Callable[[ConfigDict, pathlib.Path], None], *, several_processes: bool = False) -> None:
    """Parses the flags and calls run(config, workdir). several_processes: whether it may be one of several."""

    def start(argv):
        if len(argv) > 1:
            raise app.UsageError(f"unexpected arguments: {argv[1:]}")
        if not any(argument.startswith(("--verbosity", "-v")) for argument in sys.argv):
            logging.set_verbosity(logging.WARNING)  # orbax tells a page of news a checkpoint
        config = FLAGS.config
        compilation.compile_seconds()  # counts from here on
        if FLAGS.compile_cache and not jax.config.jax_compilation_cache_dir:
            compilation.use_cache(FLAGS.compile_cache)
        processes.start(supported=several_processes)
        if FLAGS.skip_bad_records:
            with config.unlocked():
                config["data" if "data" in config else "task"].skip_bad_records = True
        run(config, pathlib.Path(FLAGS.workdir or f"runs/{config.name}"))

    flags.mark_flag_as_required("config")
    app.run(start)


def setup(config: ConfigDict, task: tasks.Task | None = None) -> Setup:
    """The mesh, the task and the model that `config` describes. task: in place of the one that config.task names."""
    processes.simulate_devices(rollout_mesh.num_devices(config))
    mesh = sharding.make_mesh(sharding.parse_mesh(config.mesh))
    processes.check_mesh(mesh)
    task = task or tasks.load(**config.task.to_dict())
    if config.model.path:
        found = _setup_hf(config, mesh, task)
    else:
        found = assemble(config, mesh, task, *load_model(config.model.to_dict(), config.seed, task.tokenizer))
    found = _with_adapters(found) if config.model.lora.rank else found
    layout = rollout_mesh.make_layout(config, mesh, found.param_shapes)
    return found._replace(model=sharding.model_on_mesh(found.model, mesh), rollout=layout)


def lora_config(config: ConfigDict) -> lora.LoraConfig:
    """The adapters of config.model.lora."""
    return lora.LoraConfig(**config.model.lora.to_dict())


def _with_adapters(found: Setup) -> Setup:
    """The same with params {"base": the model's, "adapters": what is trained}."""
    config = lora_config(found.config)

    def add(base):
        return {"base": base, "adapters": lora.init_lora(config, base, jax.random.key(found.config.seed))}

    shapes = jax.eval_shape(add, found.param_shapes)
    shardings = sharding.tree_shardings(shapes, found.mesh)
    place = jax.jit(add, out_shardings=shardings, donate_argnums=0)
    return found._replace(
        init_params=lambda: place(found.init_params()),
        param_shapes=shapes,
        param_shardings=shardings,
        merged=lambda params: lora.merge(config, params["base"], params["adapters"]),
    )


def assemble(config: ConfigDict, mesh: Mesh, task: Any, model: types.Model, init: Callable) -> Setup:
    """The Setup of a model whose params init() -> params makes; they are made in their shards."""
    shapes = jax.eval_shape(init)
    shardings = sharding.tree_shardings(shapes, mesh)
    return Setup(config, mesh, task, model, jax.jit(init, out_shardings=shardings), shapes, shardings)


def _setup_hf(config: ConfigDict, mesh: Mesh, task: Any) -> Setup:
    """The same for a Hugging Face folder: its model, its tokenizer in place of the task's, its weights into shards."""
    path = config.model.path
    policies = {name: config.model[name] for name in POLICIES}
    model_config = dataclasses.replace(loading.read_config(path), **policies)
    tokenizer = tokenizers.load_tokenizer(path)
    tokenizers.check_vocabulary(tokenizer, model_config.vocab_size, path)
    longest = max(config.rollout.prompt_buckets) + config.rollout.completion_length
    if 0 < model_config.learned_positions < longest:
        raise ValueError(
            f"{path} knows {model_config.learned_positions} positions; rollout.prompt_buckets and completion_length "
            f"ask for {longest}"
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
    """(model, init) from the config's model fields; init() -> params, numpy leaves of a checkpoint or random."""
    path = fields.pop("checkpoint")
    del fields["path"], fields["chat"], fields["lora"]  # read by setup
    if path:
        loaded, params = llama2c.load(path)
        policies = {name: fields[name] for name in POLICIES}
        model_config = dataclasses.replace(loaded, **policies)
        if model_config.vocab_size != tokenizer.vocab_size:
            raise ValueError(
                f"{path} has a vocabulary of {model_config.vocab_size}, the tokenizer one of {tokenizer.vocab_size}"
            )
        dtype = model_config.param_dtype
        return make_transformer(model_config), lambda: jax.tree.map(lambda x: jax.numpy.asarray(x, dtype), params)
    model = make_transformer(TransformerConfig(vocab_size=tokenizer.vocab_size, **fields))
    return model, lambda: model.init(jax.random.key(seed))


def make_optimizer(fields: ConfigDict) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """(AdamW, its schedule) from a config's optimizer fields (configs.common.optimizer)."""
    fields = fields.to_dict()
    adam = {name: fields.pop(name) for name in ("b1", "b2", "eps", "weight_decay")}
    schedule = make_schedule(**fields)
    return optax.adamw(schedule, **adam), schedule


def place_state(setup: Setup, params: types.Params, optimizer, trackers: Any = ()) -> tuple[TrainState, Any]:
    """A fresh TrainState on the mesh, and its shardings. `params` are given up to it."""
    key = jax.random.key(setup.config.seed)

    def init(params):
        return init_state(params, optimizer, key, trackers)

    shardings = sharding.tree_shardings(jax.eval_shape(init, params), setup.mesh)
    return jax.jit(init, out_shardings=shardings, donate_argnums=0)(params), shardings


def jit_step(step: Callable, setup: Setup, state_shardings, num_beside: int = 0) -> Callable:
    """`step` compiled for the mesh: the state donated, rows over the axes that split them, metrics everywhere, further
    arguments where they are."""
    rows, everywhere = sharding.batch_sharding(setup.mesh), sharding.replicated(setup.mesh)
    return jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(state_shardings, rows, *[None] * num_beside),
        out_shardings=(state_shardings, everywhere),
    )


def ahead(setup: Setup) -> compilation.Ahead:
    """What compiles programs before the first step; it tells of each where the config wants to see progress."""
    shown = setup.config.log.progress and distributed.is_main()
    return compilation.Ahead(print if shown else lambda line: None)


def place_rows(setup: Setup, batch):
    """`batch`, the whole of it in every process, with its rows over their devices: a gather or a sort of rows has left
    it anywhere."""
    return distributed.place(batch, sharding.batch_sharding(setup.mesh))


def make_trainer(
    setup: Setup,
    settings: ConfigDict,
    loss_fn: Callable,
    params: types.Params,
    trackers: Any = (),
    num_beside: int = 0,
) -> tuple[Callable, TrainState]:
    """(compiled train step, fresh TrainState) for a program's settings: optimizer, micro_batches, max_grad_norm.

    loss_fn: (params, batch) -> (Mean, metrics). `params` are given up to the state.
    num_beside: how many further arguments step and loss_fn take that are no rows (params of a reference).
    """
    optimizer, step = make_step(setup, settings, loss_fn)
    state, shardings = place_state(setup, params, optimizer, trackers)
    if setup.config.log.progress and distributed.is_main():
        print(parameter_table(state.params, state.opt_state, frozen="base" if setup.merged else None))
    return jit_step(step, setup, shardings, num_beside), state


def make_step(setup: Setup, settings: ConfigDict, loss_fn: Callable) -> tuple[optax.GradientTransformation, Callable]:
    """(optimizer, train step) for a program's settings, as make_trainer takes them; nothing is made or compiled."""
    optimizer, schedule = make_optimizer(settings.optimizer)
    if setup.merged:
        optimizer = freeze(optimizer, "base")
    options = dict(
        num_micro_batches=settings.micro_batches, max_grad_norm=settings.max_grad_norm, schedule=schedule
    )

    def step(state, batch, *beside):
        return make_train_step(lambda params, rows: loss_fn(params, rows, *beside), optimizer, **options)(state, batch)

    return optimizer, step


def with_merged_adapters(setup: Setup, fn: Callable) -> Callable:
    """`fn(params, ...)` of the model's params as a function of what is trained, where that is something else."""
    return (lambda params, *rest: fn(setup.merged(params), *rest)) if setup.merged else fn


def jit_generate(generate: Callable, setup: Setup) -> Callable:
    """`generate` compiled for the mesh: prompts and rollouts by rows."""
    mesh, params = setup.rollout[:2] if setup.rollout else (setup.mesh, setup.param_shardings)
    rows, everywhere = sharding.batch_sharding(mesh), sharding.replicated(mesh)
    sample = sharding.on_mesh(with_merged_adapters(setup, generate), mesh)
    compiled = jax.jit(sample, in_shardings=(params, rows, rows, everywhere), out_shardings=rows)
    return rollout_mesh.Placing(compiled, setup.rollout) if setup.rollout else compiled


def jit_score(score: Callable, setup: Setup) -> Callable:
    """`score` compiled for the mesh."""
    rows = sharding.batch_sharding(setup.mesh)
    return jax.jit(with_merged_adapters(setup, score), in_shardings=(setup.param_shardings, rows), out_shardings=rows)


def sampling_of(fields: ConfigDict) -> Sampling:
    """The sampling rule among a config's fields."""
    return Sampling(fields.temperature, fields.top_k, fields.top_p, fields.min_p)


def check_rows(setup: Setup, **counts: int) -> None:
    """Raises ValueError where one of `counts` rows does not divide over the mesh's axes that split rows."""
    shards = sharding.row_shards(setup.mesh)
    for name, count in counts.items():
        if count % shards:
            raise ValueError(f"{name}={count} rows do not divide over data x expert x fsdp = {shards} devices")


def load_params(setup: Setup, workdir: str | os.PathLike) -> types.Params:
    """The params of a run's newest checkpoint, or of the one named (RUN/checkpoints/40), on this run's mesh.

    FileNotFoundError says how to make one.
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


def record_run(setup: Setup, workdir: pathlib.Path, algorithm: str) -> None:
    """Writes config.json and run.json, in the first process."""
    if not distributed.is_main():
        return
    write_run_record(
        workdir,
        config=_named(setup.config.to_dict()),
        command=[sys.executable, *sys.argv],
        task=setup.config.task.name,
        algorithm=algorithm,
        devices=[str(device) for device in setup.mesh.devices.flat],
    )


def _named(value):
    """A config's values with "module:qualname" for the functions that a notebook may have put among them."""
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    if not callable(value):
        return value
    return f"{value.__module__}:{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)


def log_options(config: ConfigDict, program: str | None = None) -> dict[str, Any]:
    """The RunLogger's settings among a config's fields. program: where another one than the config's logs: "sft"."""
    switches = {"progress": config.log.progress, "tensorboard": config.log.tensorboard}
    return switches | {"samples_per_step": samples_per_step(config, program)}


def write_final(setup: Setup, workdir: pathlib.Path, step: int, params: types.Params, **more: types.Params) -> None:
    """workdir/final.json: the run is complete, and the checksum of what it ended with. more: beside the model's params.

    A model that came from a Hugging Face folder is saved as one, too: workdir/hf, and its adapters in workdir/peft.
    """
    path = setup.config.model.path
    main = distributed.is_main()
    if path and distributed.any_process(main and not (workdir / "hf").exists()):
        model_params = distributed.whole(setup.merged(params) if setup.merged else params)
        if main:
            loading.save_hf(workdir / "hf", loading.read_config(path), model_params, like=path)
        if setup.merged:
            adapters, settings = distributed.whole(params["adapters"]), lora_config(setup.config)
            if main:
                save_peft(workdir / "peft", settings, adapters, model_type=loading.model_type(path), base_model=path)
    final = {"step": step, "params_sha256": checkpoint.checksum({"policy": params, **more} if more else params)}
    if main:
        write_atomically(workdir / "final.json", (json.dumps(final) + "\n").encode())


class Clock:
    """Seconds by stage of one step: lap("rollout_s", arrays) is what passed since the lap before."""

    def __init__(self):
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str, arrays=()) -> None:
        """Ends a stage once `arrays`, what it dispatched, are there. (Simulated devices must not run ahead, too.)"""
        jax.block_until_ready(arrays)
        now = time.perf_counter()
        self._laps[name] = self._laps.get(name, 0.0) + now - self._last
        self._last = now

    def totals(self, num_tokens: int) -> dict[str, float]:
        """The stages; step_s, their sum; tokens_per_s, num_tokens over that; compile_s of the process so far."""
        seconds = self._last - self._start
        compiled = {"compile_s": compilation.compile_seconds()}
        return self._laps | {"step_s": seconds, "tokens_per_s": float(num_tokens) / seconds} | compiled


def encode_prompts(setup: Setup, records: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """(tokens int32 [B, P], prompt_mask bool [B, P]) of the records' prompts, left-padded to the config's buckets.

    records: this process's own. All processes get the width that the longest prompt of them all needs.
    """
    buckets, tokenizer = setup.config.rollout.prompt_buckets, setup.task.tokenizer
    tokens, mask = pipeline.encode_prompts(tokenizer, [record["prompt"] for record in records], buckets=buckets)
    width = distributed.largest(tokens.shape[1])
    return pipeline.pad_left(tokens, width, tokenizer.pad_id), pipeline.pad_left(mask, width)


def checkpoint_items(state: TrainState, **more) -> dict[str, Any]:
    """What is saved: params as an item of their own, so that another run can load just them, and all the rest."""
    return {"params": state.params, "rest": state._replace(params=()), **more}


def state_of(items: dict[str, Any]) -> TrainState:
    """The TrainState that checkpoint_items took apart."""
    return items["rest"]._replace(params=items["params"])


def stop_on_nonfinite(state: TrainState, batch, workdir: pathlib.Path, step: int, limit: int) -> None:
    """Saves the batch and raises FloatingPointError once `limit` gradients in a row were not finite."""
    if int(state.skipped_in_a_row) < limit:
        return
    path = workdir / f"nonfinite_step_{step}.npz"
    leaves = jax.tree_util.tree_leaves_with_path(distributed.whole(batch))
    if distributed.is_main():
        np.savez(path, **{types.path_name(name): np.asarray(leaf) for name, leaf in leaves})
    raise FloatingPointError(f"{limit} gradients in a row were not finite; the batch of step {step} is in {path}")
