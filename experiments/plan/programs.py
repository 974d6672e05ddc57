"""The programs of a GRPO or PPO run as the run would compile them, for devices that are described, not present."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from experiments.parts import actor_critic, critics, hub, policy, quantized, rollout_mesh, schedules, warm_start
from experiments.parts.setup import POLICIES, Setup, add_adapters, sampling_of, with_layout
from experiments.parts.training import make_step, with_adapters
from rl_jax import ppo, tasks
from rl_jax.core.types import PolicyBatch, TokenBatch
from rl_jax.models.heads import make_predict
from rl_jax.models.hf import loading
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rollout.lm import cache_layouts
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.training import resharding, sharding
from rl_jax.training.scoring import in_micro_batches
from rl_jax.training.step import init_state


class Planned(NamedTuple):
    """One program.

    Attributes:
      name: of the program.
      call: the function to jit.
      arguments: shapes with their shardings.
      keywords: of jax.jit.
      while_turns: iterations of its while loops, which a jaxpr does not contain.
    """

    name: str
    call: Callable
    arguments: tuple
    keywords: dict[str, Any]
    while_turns: int

    def lower(self, mesh: Mesh):
        """The program lowered for the mesh's devices."""
        with jax.set_mesh(mesh):
            return jax.jit(self.call, **self.keywords).lower(*self.arguments)

    def jaxpr(self, mesh: Mesh):
        """The program's jaxpr."""
        with jax.set_mesh(mesh):
            return jax.make_jaxpr(self.call)(*self.arguments)


def model_config(config, **changes) -> TransformerConfig:
    """The TransformerConfig of a run, from its folder's config.json or from its fields and its task's vocabulary."""
    policies = {name: config.model[name] for name in POLICIES}
    changes = {"unroll": 1} | changes  # as on the chips, whatever compiles the plan
    if config.model.path:
        folder = hub.local_folder(config.model.path, weights=False)
        found = loading.read_config(folder, ignore=config.model.ignore_fields)
        return dataclasses.replace(found, **policies | changes)
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    fields = {name: value for name, value in config.model.items() if name in known}
    vocabulary = tasks.load(**config.task.to_dict()).tokenizer.vocab_size
    return TransformerConfig(vocab_size=vocabulary, **fields | changes)


def describe(config, model: TransformerConfig, mesh: Mesh, devices: list | None = None) -> Setup:
    """The Setup of a run as shapes: without a task, and with abstract params, adapters included.

    Args:
      config: of the run.
      model: its sizes.
      mesh: of the training.
      devices: among which rollouts on separate devices choose; None: those of the mesh.

    Raises:
      ValueError: if rollout.mesh does not fit.
    """
    shapes = loading.param_shapes(model)
    shardings = sharding.tree_shardings(shapes, mesh)
    setup = Setup(config, mesh, None, make_transformer(model), None, shapes, shardings)
    setup = add_adapters(setup) if config.model.lora.rank else setup
    return with_layout(setup, model.dtype, list(mesh.devices.flat) if devices is None else devices)


def tree_bytes(shapes, shardings) -> float:
    """Bytes of one device's shards."""
    leaves = zip(jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True)
    return float(sum(math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize for x, s in leaves))


def optimizer_bytes(setup: Setup) -> float:
    """Bytes of one device's share of the optimizer state."""
    optimizer, _ = make_step(setup, setup.config.train, None)
    shapes = jax.eval_shape(optimizer.init, setup.param_shapes)
    return tree_bytes(shapes, sharding.tree_shardings(shapes, setup.mesh))


def cache_bytes(setup: Setup, prompts: int) -> float:
    """Bytes of one device's share of the sampler's cache of a whole rollout: keys, values, and their scales in 8 bits.

    Heads that the mesh's tensor axis does not divide are whole on each device.
    """
    config = setup.config
    length = max(config.rollout.prompt_buckets) + config.rollout.completion_length
    cache = jax.eval_shape(lambda: setup.model.init_cache(prompts * config.sample.group_size, length))
    return tree_bytes(cache, cache_layouts.shardings_of(cache, setup.mesh, split_rows=True))


def _in_8_bits(setup: Setup) -> Setup:
    """The Setup with its sampler's weights and cache, where the training has its own."""
    if not any(quantized.kinds(setup.config)):
        return setup
    quantizing = quantized.Quantizing(setup, lambda changed: changed)
    return quantizing.generate._replace(param_shapes=quantizing.shapes, model=quantized.sampling_model(setup))


def sampling(setup: Setup) -> Setup:
    """The Setup of the run's sampler: its mesh, and the weights as they lie there, rounded or in 8 bits."""
    setup = _in_8_bits(setup)
    layout = setup.rollout
    if layout is None:
        return setup
    shapes = setup.param_shapes
    if layout.dtype:
        shapes = jax.eval_shape(functools.partial(rollout_mesh.rounded, dtype=layout.dtype), shapes)
    return setup._replace(mesh=layout.mesh, param_shapes=shapes, param_shardings=layout.param_shardings, rollout=None)


def _placed(shapes, shardings):
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)


def on_rows(setup: Setup, shapes):
    """Shapes with their rows sharded over data and fsdp."""
    rows = sharding.batch_sharding(setup.mesh)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows), shapes)


def _token_batch(config, rows: int) -> TokenBatch:
    length = max(config.rollout.prompt_buckets) + config.rollout.completion_length
    return TokenBatch(*[jax.ShapeDtypeStruct((rows, length), jnp.int32)] * 3)


def train(setup: Setup, rows: int, micro_batches: int | None = None) -> Planned:
    """The train step on a minibatch of `rows` rows. micro_batches: overrides the config's."""
    config = setup.config
    settings = config.train.copy_and_resolve_references()
    if micro_batches:
        settings.update(micro_batches=micro_batches)
    optimizer, step = make_step(setup, settings, policy.make_loss(setup, policy.make_scorer(setup)))
    return update("train", setup, step, optimizer, setup.param_shapes, _policy_batch(setup, rows))


def sft(setup: Setup, rows: int, micro_batches: int | None = None) -> Planned:
    """The train step of config.sft on `rows` padded rows: a run of experiments.sft, or another run's warm start.

    Args:
      setup: of the run.
      rows: of a step.
      micro_batches: overrides the config's.

    Raises:
      ValueError: if the loss draws tokens (config.sft.loss), whose rows have seeds too.
    """
    config = setup.config
    settings = config.sft.copy_and_resolve_references()
    if settings.loss.fn:
        raise ValueError(f"sft.loss.fn={settings.loss.fn!r}: the SFT that is planned has the loss of rl_jax.sft only")
    if micro_batches:
        settings.update(micro_batches=micro_batches)
    optimizer, step = make_step(setup, settings, warm_start.make_loss(setup))
    mask = jax.ShapeDtypeStruct((rows, config.rollout.completion_length), jnp.bool_)
    return update("sft", setup, step, optimizer, setup.param_shapes, (_token_batch(config, rows), mask))


def critic(setup: Setup, rows: int, micro_batches: int | None = None) -> Planned:
    """The train step of PPO's critic on a minibatch of `rows` rows. micro_batches: overrides the config's.

    Raises:
      ValueError: if the critic is a head of the policy: its step is the policy's.
    """
    config = setup.config
    settings, objective = config.critic.copy_and_resolve_references(), actor_critic.make_objective(config)
    if settings.shared:
        raise ValueError("critic.shared=true: the critic has no program of its own to plan; leave `critic` out")
    if micro_batches:
        settings.update(micro_batches=micro_batches)
    predict = make_predict(setup.model, completion_length=config.rollout.completion_length)
    loss = critics.make_loss(with_adapters(setup, predict), lambda batch: objective)
    optimizer, step = make_step(setup, settings, loss)
    policy_batch = _policy_batch(setup, rows)
    values = policy_batch.advantages  # of pairs of critics there are more, which no recipe has
    batch = ppo.PPOBatch(policy_batch, values, values)
    return update("critic", setup, step, optimizer, _critic_shapes(setup), batch)


def _critic_shapes(setup: Setup):
    objective = actor_critic.make_objective(setup.config)
    add_head = critics.head_of(setup, objective.num_outputs(), actor_critic.members_of(objective))
    return jax.eval_shape(add_head, setup.param_shapes)


def predict(setup: Setup, rows: int, micro_batches: int | None = None) -> Planned:
    """The forward of PPO's critic. micro_batches: not used."""
    del micro_batches
    config, batch = setup.config, _token_batch(setup.config, rows)
    shapes = _critic_shapes(setup)
    call = with_adapters(setup, make_predict(setup.model, completion_length=config.rollout.completion_length))
    arguments = (_placed(shapes, sharding.tree_shardings(shapes, setup.mesh)), on_rows(setup, batch))
    return Planned("predict", call, arguments, {}, 0)


def _policy_batch(setup: Setup, rows: int) -> PolicyBatch:
    config = setup.config
    completion = (rows, config.rollout.completion_length)
    number, flag = jax.ShapeDtypeStruct(completion, jnp.float32), jax.ShapeDtypeStruct(completion, jnp.bool_)
    carried = ["batch_rows", *(schedules.EXTRA + name for name in config.schedules)]
    carried += ["entropy_scale"] if policy.make_objective(config).entropy_aggregate else []
    return PolicyBatch(
        batch=_token_batch(config, rows),
        completion_mask=flag,
        advantages=number,
        old_log_probs=number if policy.has_several_updates(config) else None,
        behavior_log_probs=number,
        ref_log_probs=number if policy.needs_ref_log_probs(config) else None,
        extras=dict.fromkeys(carried, jax.ShapeDtypeStruct((rows,), jnp.float32)),
    )


def update(name: str, setup: Setup, step: Callable, optimizer: Any, params: Any, batch: Any) -> Planned:
    """A train step as experiments.parts.training.make_trainer compiles it.

    Args:
      name: of the program.
      setup: of the run.
      step: (state, batch) -> (state, metrics).
      optimizer: of the state.
      params: shapes of what is trained.
      batch: shapes of its rows.
    """
    init = functools.partial(init_state, optimizer=optimizer, rng=jax.random.key(0))
    state = jax.eval_shape(init, params)
    shardings = sharding.tree_shardings(state, setup.mesh)
    keywords = {
        "donate_argnums": 0,
        "in_shardings": (shardings, sharding.batch_sharding(setup.mesh)),
        "out_shardings": (shardings, sharding.replicated(setup.mesh)),
    }
    arguments = (_placed(state, shardings), on_rows(setup, batch))
    return Planned(name, step, arguments, keywords, head_slices(setup.config) if name in ("train", "sft") else 0)


def score(setup: Setup, rows: int, micro_batches: int | None = None) -> Planned:
    """The forward for old and reference log-probs. micro_batches: overrides score.micro_batches of the config."""
    count = micro_batches or policy.score_micro_batches(setup.config)
    return forward(setup, in_micro_batches(policy.make_scorer(setup), count), _token_batch(setup.config, rows))


def forward(setup: Setup, scorer: Callable, batch: TokenBatch) -> Planned:
    """A scorer as experiments.parts.training.jit_score compiles it. scorer: (the model's params, rows) -> scores."""
    rows = sharding.batch_sharding(setup.mesh)
    keywords = {"in_shardings": (setup.param_shardings, rows), "out_shardings": rows}
    arguments = (_params(setup), on_rows(setup, batch))
    return Planned("score", with_adapters(setup, scorer), arguments, keywords, head_slices(setup.config))


def decode(setup: Setup, prompts: int) -> Planned:
    """The whole rollout of `prompts` prompts: prefill, and the loop over decode steps with its cache."""
    config = setup.config
    generate = make_generate(
        setup.model,
        completion_length=config.rollout.completion_length,
        group_size=config.sample.group_size,
        sampling=sampling_of(config.rollout),
        eos_ids=(0,),
    )
    rows, everywhere = sharding.batch_sharding(setup.mesh), sharding.replicated(setup.mesh)
    keywords = {"in_shardings": (setup.param_shardings, rows, rows, everywhere), "out_shardings": rows}
    shape = (prompts, max(config.rollout.prompt_buckets))
    tokens = [jax.ShapeDtypeStruct(shape, kind) for kind in (jnp.int32, jnp.bool_)]
    key = jax.eval_shape(functools.partial(jax.random.key, 0))
    arguments = (_params(setup), *on_rows(setup, tokens), _placed(key, everywhere))
    sample = with_adapters(setup, generate)
    return Planned("decode", sample, arguments, keywords, config.rollout.completion_length - 1)


def move(setup: Setup, rows: int, micro_batches: int | None = None) -> Planned:
    """The weights on their way from the training's layout to the sampler's, once per step; rounding sends nothing.

    On a real slice the two meshes may order the devices differently; here they have one order, so that the bytes are
    the run's, but not which links they take. If the sampler has other devices, this is what happens before each part is
    sent to its twin: the trainer's devices lay the weights out as the sampler's will have them.

    Args:
      setup: of the run, with a layout of its rollouts.
      rows: not used.
      micro_batches: not used.
    """
    del rows, micro_batches
    there, mesh, target = sampling(setup), setup.mesh, move_mesh(setup)
    here = Mesh(target.devices.reshape(mesh.devices.shape), mesh.axis_names, axis_types=mesh.axis_types)
    shardings = jax.tree.map(lambda s: NamedSharding(here, s.spec), _in_8_bits(setup).param_shardings)
    leaves = jax.tree.leaves(_placed(there.param_shapes, shardings))
    targets = [NamedSharding(target, to.spec) for to in jax.tree.leaves(there.param_shardings)]
    return Planned("move", resharding.exchange(leaves, targets), (leaves,), {}, 0)


def move_mesh(setup: Setup) -> Mesh:
    """The mesh on which `move` leaves the weights: the sampler's, or that of its devices' twins."""
    return setup.rollout.mesh if setup.config.rollout.devices == "shared" else twins(setup)[0]


def twins(setup: Setup) -> tuple[Mesh, dict]:
    """As resharding.twins, of the training's devices and the sampler's.

    Raises:
      ValueError: if they cannot be paired.
    """
    found = resharding.twins(list(setup.mesh.devices.flat), setup.rollout.mesh)
    if found is None:
        raise ValueError(
            f"rollout.mesh={setup.config.rollout.mesh!r}: its devices cannot be paired with those of "
            f"mesh={setup.config.mesh!r}, so a run would send the whole weights through every host, which is not "
            "planned. Let its axes but data divide the training's devices, and those of each host"
        )
    return found


def _params(setup: Setup):
    return _placed(setup.param_shapes, setup.param_shardings)


def head_slices(config) -> int:
    """Turns of the loop over the head's slices."""
    return -(-config.rollout.completion_length // config.score.chunk)
