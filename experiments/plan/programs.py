"""The programs of a GRPO run as the run would compile them, for devices that are described, not present."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from experiments.parts import hub, policy, schedules
from experiments.parts.setup import POLICIES, Setup, sampling_of
from experiments.parts.training import make_step
from rl_jax import tasks
from rl_jax.core.types import PolicyBatch, TokenBatch
from rl_jax.models.hf import loading
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.training import sharding
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
    if config.model.path:
        folder = hub.local_folder(config.model.path, weights=False)
        return dataclasses.replace(loading.read_config(folder), **policies | changes)
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    fields = {name: value for name, value in config.model.items() if name in known}
    vocabulary = tasks.load(**config.task.to_dict()).tokenizer.vocab_size
    return TransformerConfig(vocab_size=vocabulary, **fields | changes)


def describe(config, model: TransformerConfig, mesh: Mesh) -> Setup:
    """The Setup of a run as shapes: without a task, and with abstract params."""
    shapes = loading.param_shapes(model)
    shardings = sharding.tree_shardings(shapes, mesh)
    return Setup(config, mesh, None, make_transformer(model), None, shapes, shardings)


def _placed(shapes, shardings):
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)


def _rows(setup: Setup, shapes):
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
    init = functools.partial(init_state, optimizer=optimizer, rng=jax.random.key(0))
    state = jax.eval_shape(init, setup.param_shapes)
    shardings = sharding.tree_shardings(state, setup.mesh)
    completion = (rows, config.rollout.completion_length)
    number, flag = jax.ShapeDtypeStruct(completion, jnp.float32), jax.ShapeDtypeStruct(completion, jnp.bool_)
    carried = ["batch_rows", *(schedules.EXTRA + name for name in config.schedules)]
    carried += ["entropy_scale"] if policy.make_objective(config).entropy_aggregate else []
    batch = PolicyBatch(
        batch=_token_batch(config, rows),
        completion_mask=flag,
        advantages=number,
        old_log_probs=number if policy.has_several_updates(config) else None,
        behavior_log_probs=number,
        ref_log_probs=number if policy.needs_ref_log_probs(config) else None,
        extras=dict.fromkeys(carried, jax.ShapeDtypeStruct((rows,), jnp.float32)),
    )
    keywords = {
        "donate_argnums": 0,
        "in_shardings": (shardings, sharding.batch_sharding(setup.mesh)),
        "out_shardings": (shardings, sharding.replicated(setup.mesh)),
    }
    arguments = (_placed(state, shardings), _rows(setup, batch))
    return Planned("train", step, arguments, keywords, _head_slices(config))


def score(setup: Setup, rows: int, micro_batches: int | None = None) -> Planned:
    """The forward for old and reference log-probs. micro_batches: overrides score.micro_batches of the config."""
    rows_sharding = sharding.batch_sharding(setup.mesh)
    keywords = {"in_shardings": (setup.param_shardings, rows_sharding), "out_shardings": rows_sharding}
    arguments = (_params(setup), _rows(setup, _token_batch(setup.config, rows)))
    count = micro_batches or policy.score_micro_batches(setup.config)
    scorer = in_micro_batches(policy.make_scorer(setup), count)
    return Planned("score", scorer, arguments, keywords, _head_slices(setup.config))


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
    arguments = (_params(setup), *_rows(setup, tokens), _placed(key, everywhere))
    return Planned("decode", generate, arguments, keywords, config.rollout.completion_length - 1)


def _params(setup: Setup):
    return _placed(setup.param_shapes, setup.param_shardings)


def _head_slices(config) -> int:
    return -(-config.rollout.completion_length // config.score.chunk)
