"""Search of a tree of a model's states, by DeepMind's mctx (the optional extra `muzero`).

    gumbel   the root tries actions by sequential halving of logits + Gumbel noise + q; the improved policy is
             softmax(logits + sigma(completed q))                             Danihelka et al., ICLR 2022, Gumbel MuZero
    puct     q + p sqrt(sum n) / (1 + n) c(n), Dirichlet noise at the root; the policy is that of the visits
                                                                              arXiv 1911.08265 appendix B

The library is imported when a search is made, not with this module.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp


class Searched(NamedTuple):
    """What searches from N states found.

    Attributes:
      actions: int32 [N], to take, chosen with the search's noise.
      policies: float32 [N, A], the improved policies, which the policy learns.
      values: float32 [N], of the roots: the mean of all that the search backed up there.
    """

    actions: chex.Array
    policies: chex.Array
    values: chex.Array


class Plannable(NamedTuple):
    """A model as a search needs it, its params closed over.

    Attributes:
      predict: (states) -> (policy logits [N, A], values [N]).
      step: (states, actions int32 [N]) -> (next states, rewards [N]).
      discount: gamma; may be traced.
    """

    predict: Callable
    step: Callable
    discount: Any


def mctx_module() -> ModuleType:
    """The module mctx. Raises ImportError if it is not installed."""
    try:
        import mctx
    except ImportError as error:
        raise ImportError("a tree search needs the extra: pip install -e '.[muzero]'") from error
    return mctx


def gumbel(model: Plannable, states: Any, key: chex.PRNGKey, *, simulations: int) -> Searched:
    """Gumbel MuZero's search from N states, with the library's numbers (value_scale .1, maxvisit_init 50).

    Args:
      model: to search in.
      states: pytree with N first.
      key: typed PRNG key.
      simulations: states that are added to each tree; 2 or more tell actions apart.
    """
    mctx = mctx_module()
    root, expand = _of_mctx(mctx, model, states)
    return _found(mctx.gumbel_muzero_policy((), key, root, expand, simulations))


def puct(model: Plannable, states: Any, key: chex.PRNGKey, *, simulations: int) -> Searched:
    """MuZero's search from N states, with the published numbers (c 1.25 and 19,652, noise .25 of Dirichlet(.3)).

    The action is drawn from the visits with temperature 1; the published temperature falls during the training.

    Args:
      model: to search in.
      states: pytree with N first.
      key: typed PRNG key.
      simulations: states that are added to each tree.
    """
    mctx = mctx_module()
    root, expand = _of_mctx(mctx, model, states)
    return _found(mctx.muzero_policy((), key, root, expand, simulations))


SEARCHES = {"gumbel": gumbel, "puct": puct}


def _of_mctx(mctx: ModuleType, model: Plannable, states: Any):
    """(the root, the function that adds a state to a tree) as mctx takes them."""
    logits, values = model.predict(states)
    chex.assert_rank([logits, values], [2, 1])

    def expand(params: Any, key: chex.PRNGKey, actions: chex.Array, states: Any):
        states, rewards = model.step(states, actions)
        logits, values = model.predict(states)
        discounts = jnp.broadcast_to(jnp.asarray(model.discount, values.dtype), values.shape)
        return mctx.RecurrentFnOutput(reward=rewards, discount=discounts, prior_logits=logits, value=values), states

    return mctx.RootFnOutput(prior_logits=logits, value=values, embedding=states), expand


def _found(output: Any) -> Searched:
    found = Searched(output.action.astype(jnp.int32), output.action_weights, output.search_tree.summary().value)
    return jax.lax.stop_gradient(found)
