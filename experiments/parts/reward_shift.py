"""Reward models that generalise: contrasts of views and MetaRM (Secrets of RLHF II, arXiv 2401.06080).

    L = L_rm(theta') + views.coef L_cl(theta'),   theta' = theta + meta.step_size grad J(theta; a policy's responses)

The gradient at theta' moves theta, as in the paper's algorithm: second derivatives are left out. The unlabelled
responses are those of a file of rankings (experiments.best_of_n writes one of a policy's samples), whose order is not
read.
"""

from typing import Any

import jax
import numpy as np

from experiments.parts.preference_data import flat
from experiments.parts.setup import Setup
from experiments.parts.training import with_adapters
from rl_jax import preferences, reward_model
from rl_jax.core.masked import masked_mean
from rl_jax.core.types import Params, PreferenceBatch, TokenBatch
from rl_jax.losses.reward_model import shifted
from rl_jax.models.heads import make_hidden_last, make_predict_last

SEEDS, META = "view_seeds", "meta_"
FIELDS = ("tokens", "positions", "segment_ids")


def extended(setup: Setup, reader: Any, objective: reward_model.Objective) -> Any:
    """A reward_readers.Reader with the terms of config.algorithm.views and meta; the same one if both are off.

    Raises:
      ValueError: if a term does not fit the run: pairs and one head for views, no adapters for meta.
    """
    config = setup.config.algorithm
    views, meta = config.get("views"), config.get("meta")
    coef, step_size = (views.coef if views else 0.0), (meta.step_size if meta else 0.0)
    if not coef and not step_size:
        return reader
    if coef and config.responses != 2:
        raise ValueError(f"algorithm.views.coef={coef}: views are of pairs, algorithm.responses=2")
    if step_size and (setup.merged or objective.members > 1):
        raise ValueError(f"algorithm.meta.step_size={step_size}: MetaRM moves a whole model with one head; no adapters")
    hidden = with_adapters(setup, make_hidden_last(setup.model))
    predict, rows = make_predict_last(setup.model), unlabelled(setup) if step_size else {}

    def batch(arrays: dict, places: np.ndarray, size: int) -> PreferenceBatch:
        found = reader.batch(arrays, places, size)
        rng, more = np.random.default_rng([setup.config.seed, *map(int, places)]), {}
        if coef:
            more[SEEDS] = rng.integers(0, 2**31, size).astype(np.uint32)
        if step_size:
            drawn = rng.integers(0, len(rows["tokens"]), size)
            more |= {META + name: rows[name][drawn] for name in (*FIELDS, "present")}
        return found._replace(extras={**found.extras, **more})

    def ascend(params: Params, batch: PreferenceBatch) -> Params:
        present = batch.extras[META + "present"]
        tokens = flat(TokenBatch(*(batch.extras[META + name] for name in FIELDS)))

        def spread(params: Params):
            rewards = objective.rewards(predict(params, tokens)).reshape(present.shape)
            return masked_mean(*shifted.difference(rewards, present)).value()

        gradient = jax.grad(spread)(jax.lax.stop_gradient(params))
        return jax.tree.map(lambda x, g: x + step_size * g.astype(x.dtype), params, gradient)

    def loss(params: Params, batch: PreferenceBatch, extra: jax.Array | None = None) -> tuple[Any, dict]:
        at = ascend(params, batch) if step_size else params
        if not coef:
            return reader.loss(at, batch, extra)
        states = hidden(at, flat(batch.batch)).reshape(*batch.present.shape, -1)
        keep = masks(batch.extras[SEEDS], states.shape[-1], views.rate)
        live = batch.present.all(axis=1)
        terms = shifted.view_contrast(states, keep, live, temperature=views.temperature)
        own = coef * terms.loss
        result, metrics = reader.loss(at, batch, own if extra is None else own + extra)
        return result, metrics | {"views": jax.tree.map(jax.lax.stop_gradient, masked_mean(*terms))}

    return reader._replace(batch=batch, loss=loss)


def masks(seeds: jax.Array, width: int, rate: float) -> jax.Array:
    """Dropout masks of two views of two responses, bool [N, 2, 2, D], True at a rate of 1 - rate. seeds: uint32 [N]."""

    def draw(seed: jax.Array) -> jax.Array:
        return jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), seed), 1.0 - rate, (2, 2, width))

    return jax.vmap(draw)(seeds)


def unlabelled(setup: Setup) -> dict[str, np.ndarray]:
    """The arrays of the responses of config.algorithm.meta.path, [M, K, ...]; of generated sums if it is empty."""
    config = setup.config
    more = {"data_dir": config.data.data_dir} if "data_dir" in config.data else {}
    data = preferences.load("given", path=config.algorithm.meta.path, kind="rankings", test_share=0.0, **more)
    source = data.data_source("train")
    arrays, _ = preferences.encode_preferences(
        setup.task.tokenizer,
        [source[place] for place in range(len(source))],
        prompt_buckets=(max(config.rollout.prompt_buckets),),
        completion_length=config.rollout.completion_length,
        truncate=config.encode.truncate,
        identical=config.encode.identical,
        empty="keep",
    )
    return arrays


def check(config) -> None:
    """Raises ValueError if config.algorithm.views or meta are of a model that does not read responses."""
    views, meta = config.algorithm.get("views"), config.algorithm.get("meta")
    if config.algorithm.reads != "response" and ((views and views.coef) or (meta and meta.step_size)):
        raise ValueError(f"algorithm.views and algorithm.meta need reads='response', not {config.algorithm.reads!r}")
