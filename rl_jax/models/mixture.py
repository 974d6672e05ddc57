"""The geometric mixture of two sets of params of one model, as a model: Nash-MD samples its opponent from it.

    log pi_mix(v | s) = (1 - share) log pi(v | s) + share log ref(v | s) + const     token by token

(arXiv 2312.00886; the mixture of logits, then the softmax.) Both networks run side by side, each with its own cache.
"""

import jax
import jax.numpy as jnp

from rl_jax.core.types import Model

NAMES = ("policy", "reference")


def make_mixture(model: Model, share: float) -> Model:
    """A model of params {"policy", "reference"}, for lockstep decoding. share: of the reference's log-probs, 0 to 1."""

    def join(policy, reference):
        return jnp.concatenate([policy, reference], axis=-1)

    def apply(params, batch):
        return join(*(model.apply(params[name], batch) for name in NAMES))

    def prefill(params, batch):
        hidden, caches = zip(*(model.prefill(params[name], batch) for name in NAMES), strict=True)
        return join(*hidden), dict(zip(NAMES, caches, strict=True))

    def decode(params, tokens, positions, cache, column, visible):
        result = (model.decode(params[name], tokens, positions, cache[name], column, visible) for name in NAMES)
        hidden, caches = zip(*result, strict=True)
        return join(*hidden), dict(zip(NAMES, caches, strict=True))

    def unembed(params, hidden):
        policy, reference = (
            jax.nn.log_softmax(model.unembed(params[name], part))
            for name, part in zip(NAMES, jnp.split(hidden, 2, axis=-1), strict=True)
        )
        return (1.0 - share) * policy + share * reference

    return Model(
        init=lambda key: dict(zip(NAMES, map(model.init, jax.random.split(key)), strict=True)),
        apply=apply,
        unembed=unembed,
        prefill=prefill,
        decode=decode,
        init_cache=lambda batch, length: {name: model.init_cache(batch, length) for name in NAMES},
        vocab_size=model.vocab_size,
        unstack=(lambda params: {name: model.unstack(params[name]) for name in NAMES}) if model.unstack else None,
    )
