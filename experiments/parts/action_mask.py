"""algorithm.action_mask: the policy stays inside the nucleus of its own params of some steps ago (NLPO).

    --config.algorithm.action_mask.top_p=0.9 --config.algorithm.action_mask.every=5

The mask policy is carried beside the reference, and saved with it. The nuclei of a step's rows are in their TokenBatch
(allowed), so that whatever scores the rows, before the updates and in them, scores the masked policy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from experiments.parts import processes
from experiments.parts.setup import Setup
from rl_jax.core.types import Params, Rollout
from rl_jax.models.nucleus import make_allowed, make_masked
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.training import sharding


class Lagged(NamedTuple):
    """What a run carries beside its policy.

    Attributes:
      reference: params of the KL's reference.
      mask: params of the mask policy.
    """

    reference: Params
    mask: Params


def is_on(config) -> bool:
    """Whether the config has an action mask."""
    return config.algorithm.action_mask.top_p < 1


def reference_of(carried: Any) -> Params:
    """The reference's params of what a run carries."""
    return carried.reference if isinstance(carried, Lagged) else carried


def mask_of(carried: Any) -> Params:
    """The mask policy's params of what a run carries."""
    return carried.mask if isinstance(carried, Lagged) else carried


def with_mask(config, move: Callable, reference: Params, params: Params) -> tuple[Callable, Any]:
    """(move, what is carried) of experiments.parts.references.start, with the mask policy if the config has one."""
    if not is_on(config):
        return move, reference

    def move_both(carried: Lagged, policy: Params, step: int) -> Lagged:
        mask = carried.mask
        if step % config.algorithm.action_mask.every == 0:
            mask = jax.tree.map(lambda new, old: jax.device_put(new, old.sharding).copy(), policy, mask)
        return Lagged(move(carried.reference, policy, step), mask)

    return move_both, Lagged(reference, jax.tree.map(lambda x: x.copy(), params))


class MaskedGenerate:
    """generate({"policy", "mask"}, tokens, prompt_mask, key) -> Rollout whose rows have their nuclei.

    Args:
      setup: of the run.
      **options: keywords of make_generate.
    """

    def __init__(self, setup: Setup, **options):
        processes.one_process("algorithm.action_mask")
        settings, tokenizer = setup.config.algorithm.action_mask, setup.task.tokenizer
        nucleus = dict(
            top_p=settings.top_p,
            min_tokens=min(settings.min_tokens, setup.model.vocab_size),
            always=tuple(tokenizer.eos_ids),
        )
        generate = make_generate(make_masked(setup.model, **nucleus), **options)
        length, chunk = options["completion_length"], setup.config.score.chunk
        allowed = make_allowed(setup.model, completion_length=length, chunk=chunk, **nucleus)

        def masked(policy, mask, *prompts) -> Rollout:
            rollout = generate({"policy": policy, "reference": mask}, *prompts)
            return rollout._replace(batch=rollout.batch._replace(allowed=allowed(mask, rollout.batch)))

        rows, everywhere = sharding.batch_sharding(setup.mesh), sharding.replicated(setup.mesh)
        params = setup.param_shardings
        self._compiled = jax.jit(masked, in_shardings=(params, params, rows, rows, everywhere), out_shardings=rows)

    def lower(self, params: dict, *rest):
        """As of a jitted function, for compiling ahead."""
        return self._compiled.lower(params["policy"], params["mask"], *rest)

    def __call__(self, params: dict, *rest) -> Rollout:
        return self._compiled(params["policy"], params["mask"], *rest)

    def _cache_size(self) -> int:
        return self._compiled._cache_size()
