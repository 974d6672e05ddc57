"""config.rollout.engine: what samples a step's rollouts. All engines are called like engine.make_generate's function.

    --config.rollout.engine.name=lockstep      # one compiled program, all rows until the last has ended
    --config.rollout.engine.name=continuous    # slots that are refilled, programs that shrink with the live rows
    --config.rollout.engine.name=openai --config.rollout.engine.url=http://HOST:PORT    # a server
"""

from collections.abc import Callable

import jax
from absl import logging
from ml_collections import ConfigDict

from experiments.parts import hub, processes, quantized, rollout_mesh
from experiments.parts.encoding import whole_text
from experiments.parts.setup import Setup, model_config, policies_of
from experiments.parts.training import jit_generate, with_adapters
from rl_jax.core import types
from rl_jax.core.binding import bind, needs
from rl_jax.models.hf import loading
from rl_jax.rollout.lm import weight_sync
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.external import OpenAIGenerate
from rl_jax.rollout.lm.generate import ContinuousGenerate
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import distributed, sharding
from rl_jax.training.scoring import make_score


def make_sampler(setup: Setup, num_prompts: int, **options) -> Callable:
    """Makes generate(params, tokens, prompt_mask, key) -> Rollout of the config's engine.

    Args:
      setup: of the run.
      num_prompts: prompts per call.
      **options: keywords of make_generate.

    Raises:
      ValueError: if the engine is unknown, or there are several processes and it is a server.
    """
    name = setup.config.rollout.engine.name
    in_8_bits = any(quantized.kinds(setup.config))
    if name == "openai":
        processes.one_process("rollout.engine.name='openai'", "each would ask the server for all rows")
    if name == "continuous":
        generate = Together(setup, _continuous(setup, num_prompts, **options))
        return quantized.Quantizing(setup, lambda _: generate) if in_8_bits else Attaching(setup, generate)
    if name == "openai":
        return _openai(setup, **options)
    if name != "lockstep":
        raise ValueError(f"rollout.engine.name={name!r} is none of lockstep, continuous, openai")
    if in_8_bits:
        generate = make_generate(quantized.sampling_model(setup), **options)
        return quantized.Quantizing(setup, lambda setup: jit_generate(generate, setup))
    return jit_generate(make_generate(setup.model, **options), setup)


def say_engine(config, ahead: Callable) -> None:
    """Says before the first rollout that the engine compiles. ahead: Run.ahead."""
    if config.rollout.engine.name == "continuous":
        ahead.write("the continuous engine compiles its programs before its first rollout: this can take minutes\n")


class Attaching:
    """A generate that is not a jitted function, called with attached adapters in the rollouts' layout.

    It counts its compiled programs as a jitted function does.
    """

    def __init__(self, setup: Setup, generate: Callable):
        self.generate = generate
        self._attach = jax.jit(setup.attached) if setup.attached else None
        self._layout = setup.rollout

    def __call__(self, params: types.Params, *rest) -> types.Rollout:
        params = rollout_mesh.place(self._layout, params)
        return self.generate(self._attach(params) if self._attach else params, *rest)

    def _cache_size(self) -> int:
        return self.generate._cache_size()


class Together:
    """A generate that the host drives, run by all processes at once: each takes the same decisions.

    Every process schedules all rows: it has all prompts, and the tokens that its decisions depend on come back
    replicated (programs.EnginePrograms). Weights and caches are spread over the mesh. The rollout's rows are then split
    over the mesh, as the lockstep sampler's are. In one process it is `generate` itself.
    """

    def __init__(self, setup: Setup, generate: Callable):
        self.generate, self._rows = generate, sharding.batch_sharding(setup.mesh)

    def __call__(self, params: types.Params, tokens, prompt_mask, key, *rest) -> types.Rollout:
        rollout = self.generate(params, *distributed.whole((tokens, prompt_mask, key)), *rest)
        return distributed.place(rollout, self._rows) if jax.process_count() > 1 else rollout

    def _cache_size(self) -> int:
        return self.generate._cache_size()


def _continuous(setup: Setup, num_prompts: int, *, group_size: int, **options) -> ContinuousGenerate:
    settings, mesh = setup.config.rollout, (setup.rollout or setup).mesh
    return ContinuousGenerate(
        sharding.model_on_mesh(quantized.sampling_model(setup), mesh),
        prompt_length=max(settings.prompt_buckets),
        group_size=group_size,
        slots=settings.engine.slots or num_prompts * group_size,
        rows_sharding=sharding.batch_sharding(mesh) if mesh.size > 1 else None,
        stop_strings=tuple(settings.stop_strings),
        decode_text=whole_text(setup.task.tokenizer),
        **options,
    )


def _openai(setup: Setup, *, sampling: Sampling, **options) -> OpenAIGenerate:
    """It takes params as they are trained: merged anew at every call, they would be sent at every call."""
    settings = setup.config.rollout.engine
    sync = merged_sync = make_sync(setup)
    if sync is None:
        logging.warning("rollout.engine.sync is not set: the server's weights are never updated. Watch sampler/ess")
    elif setup.merged:
        merge = jax.jit(setup.merged)

        def merged_sync(params):
            sync(merge(params))

    score = None
    if sampling != Sampling():
        length, chunk = options["completion_length"], setup.config.score.chunk
        score = jax.jit(with_adapters(setup, make_score(setup.model, completion_length=length, chunk=chunk)))
    return OpenAIGenerate(
        settings.url,
        model=settings.model,
        vocab_size=setup.model.vocab_size,
        sampling=sampling,
        timeout_s=settings.timeout_s,
        sync=merged_sync,
        score=score,
        stop_strings=tuple(setup.config.rollout.stop_strings),
        **options,
    )


def make_sync(setup: Setup) -> Callable | None:
    """(params) -> None that sends the model's params to the server (config.rollout.engine.sync); None if it is unset.

    Raises:
      ValueError: if the function is unknown, or lacks a keyword.
    """
    settings, path = setup.config.rollout.engine, setup.config.model.path
    spec = settings.sync.to_dict() if isinstance(settings.sync, ConfigDict) else settings.sync
    if not spec or spec == {"fn": ""}:
        return None

    def save(folder, params):
        like, dtype = hub.local_folder(path, weights=False) if path else None, policies_of(setup.config.model)["dtype"]
        dtype = None if dtype == "float32" else dtype  # what the policy computes in
        loading.save_hf(folder, model_config(setup), jax.device_get(params), like=like, dtype=dtype)

    sync = bind(spec, weight_sync, url=settings.url, timeout_s=settings.timeout_s, save=save)
    if lacking := needs(sync):
        raise ValueError(f"rollout.engine.sync={spec['fn']!r} needs {', '.join(sorted(lacking))}: set them beside fn")
    return sync
