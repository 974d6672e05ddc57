"""config.rollout.engine: what samples a step's rollouts. All engines are called like engine.make_generate's function.

    --config.rollout.engine.name=lockstep      # one compiled program, all rows until the last has ended
    --config.rollout.engine.name=continuous    # slots that are refilled, programs that shrink with the live rows
    --config.rollout.engine.name=openai --config.rollout.engine.url=http://HOST:PORT    # a server
"""

from collections.abc import Callable

import jax
from absl import logging

from experiments.parts import processes, rollout_mesh
from experiments.parts.setup import Setup
from experiments.parts.training import jit_generate
from rl_jax.core import types
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.external import OpenAIGenerate
from rl_jax.rollout.lm.generate import ContinuousGenerate
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import sharding
from rl_jax.training.scoring import make_score


def make_sampler(setup: Setup, num_prompts: int, **options) -> Callable:
    """Makes generate(params, tokens, prompt_mask, key) -> Rollout of the config's engine.

    Args:
      setup: of the run.
      num_prompts: prompts per call.
      **options: keywords of make_generate.

    Raises:
      ValueError: if the engine is unknown, or there are several processes and it is not lockstep.
    """
    name = setup.config.rollout.engine.name
    if name != "lockstep":
        processes.one_process(f"rollout.engine.name={name!r}")
    if name == "continuous":
        return Merging(setup, _continuous(setup, num_prompts, **options))
    if name == "openai":
        return Merging(setup, _openai(setup, **options))
    if name != "lockstep":
        raise ValueError(f"rollout.engine.name={name!r} is none of lockstep, continuous, openai")
    return jit_generate(make_generate(setup.model, **options), setup)


class Merging:
    """A generate that is not a jitted function, called with merged params in the rollouts' layout.

    It counts its compiled programs as a jitted function does.
    """

    def __init__(self, setup: Setup, generate: Callable):
        self.generate = generate
        self._merge = jax.jit(setup.merged) if setup.merged else None
        self._layout = setup.rollout

    def __call__(self, params: types.Params, *rest) -> types.Rollout:
        params = rollout_mesh.place(self._layout, params)
        return self.generate(self._merge(params) if self._merge else params, *rest)

    def _cache_size(self) -> int:
        return self.generate._cache_size()


def _continuous(setup: Setup, num_prompts: int, *, group_size: int, **options) -> ContinuousGenerate:
    settings, mesh = setup.config.rollout, (setup.rollout or setup).mesh
    return ContinuousGenerate(
        sharding.model_on_mesh(setup.model, mesh),
        prompt_length=max(settings.prompt_buckets),
        group_size=group_size,
        slots=settings.engine.slots or num_prompts * group_size,
        rows_sharding=sharding.batch_sharding(mesh) if mesh.size > 1 else None,
        **options,
    )


def _openai(setup: Setup, *, sampling: Sampling, **options) -> OpenAIGenerate:
    settings = setup.config.rollout.engine
    if settings.sync is None:
        logging.warning("rollout.engine.sync is None: the server's weights are never updated. Watch sampler/ess")
    score = None
    if sampling != Sampling():
        length, chunk = options["completion_length"], setup.config.score.chunk
        score = jax.jit(make_score(setup.model, completion_length=length, chunk=chunk))
    return OpenAIGenerate(
        settings.url,
        model=settings.model,
        vocab_size=setup.model.vocab_size,
        sampling=sampling,
        timeout_s=settings.timeout_s,
        sync=settings.sync,
        score=score,
        **options,
    )
