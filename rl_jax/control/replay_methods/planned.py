"""MuZero: acting by a search in a learned model, which is trained on what the searches found."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.replay import ReplayBatch
from rl_jax.control.replay_methods.parts import ReplayParts
from rl_jax.control.replay_types import OffPolicy
from rl_jax.control.transitions import Transitions
from rl_jax.control.tree_search import SEARCHES, Plannable, mctx_module
from rl_jax.losses import planning
from rl_jax.losses.td import cross_entropy
from rl_jax.rollout.envs.steps import Worlds


class SearchedSteps(NamedTuple):
    """Steps and the searches that chose their actions; leading axes as at Transitions.

    Attributes:
      observations: [N, *shape].
      actions: int32 [N], as they were taken, at random too.
      rewards: float32 [N].
      terminated: bool [N].
      truncated: bool [N].
      search_policies: float32 [N, A].
      search_values: float32 [N].
    """

    observations: chex.Array
    actions: chex.Array
    rewards: chex.Array
    terminated: chex.Array
    truncated: chex.Array
    search_policies: chex.Array
    search_values: chex.Array


def muzero(
    parts: ReplayParts,
    *,
    discount: Any,
    steps: int,
    search: str = "gumbel",
    simulations: int = 16,
    unroll: int = 5,
    value_coef: float = 1.0,
    reward_coef: float = 1.0,
    absorbing: bool = True,
) -> OffPolicy:
    """MuZero, its model unrolled over K actions from a stored observation.

        acting: the search's action; the replay keeps the search's policy pi and value nu of each step
        loss:   losses.planning.unrolled_loss; the gradient is halved where a state enters the dynamics

    The pseudocode halves the gradient between two steps of the dynamics only, the text ("at the start of the dynamics
    function") before the first one too, as here. Values and rewards are read by the head as they are: the published
    scaling h(x) = sign(x) (sqrt(|x| + 1) - 1) + .001 x is not applied. The stored pi and nu are those of the time when
    the step was taken (no Reanalyze). Sources: arXiv 1911.08265; Danihelka et al., ICLR 2022 (Gumbel MuZero).

    Args:
      parts: model, a models.agents.latent_model.LatentModel; head, of its values and rewards. `scalar` is the mean
        squared error; `categorical` a cross-entropy to both neighbouring atoms.
      discount: gamma, of the search and of the targets.
      steps: n, rewards before the search's value in a value target.
      search: "gumbel" or "puct" (control.tree_search).
      simulations: of a search.
      unroll: K.
      value_coef: of the value's loss.
      reward_coef: of the reward's loss.
      absorbing: as at losses.planning.plan_targets.

    Raises:
      ValueError: if a number is out of its range or the search unknown.
      ImportError: if mctx is not installed.
    """
    if search not in SEARCHES:
        raise ValueError(f"algorithm.method.search={search!r} is none of {', '.join(SEARCHES)}")
    if min(simulations, unroll) < 1:
        raise ValueError(f"algorithm.method: simulations={simulations} and unroll={unroll} must be 1 or more")
    mctx_module()  # what is missing is said here, outside of a trace
    plan = dict(discount=discount, steps=steps, unroll=unroll, absorbing=absorbing)
    return OffPolicy(
        init=lambda key: {"critic": parts.model.init(key)},
        policy=None,
        critic_loss=_make_loss(parts, plan, dict(value_coef=value_coef, reward_coef=reward_coef)),
        actor_loss=None,
        slow=(),
        acting=_make_acting(parts, discount, functools.partial(SEARCHES[search], simulations=simulations)),
        memory=lambda key, rows: {"keys": jax.random.key_data(jax.random.split(key, rows))},
        window=unroll + steps + 1,
        keep=_kept,
    )


def _make_acting(parts: ReplayParts, discount: Any, search: Callable) -> Callable:
    """OffPolicy.acting: outputs are those of models.agents.exploration.searched. search: of control.tree_search."""
    model, head = parts.model, parts.head

    def acting(params, slow, worlds: Worlds):
        own = params["critic"]

        def predict(states):
            logits, value = model.predict(own, states)
            return logits, head.values(value)

        def step(states, actions):
            states, reward = model.step(own, states, actions)
            return states, head.values(reward)

        # Key data, so that a checkpoint holds them; the one search of all rows takes the first row's.
        keys = jax.vmap(lambda key: jax.random.split(jax.random.wrap_key_data(key)))(worlds.memory["keys"])
        states = model.represent(own, worlds.observation)
        found = search(Plannable(predict, step, discount), states, keys[0, 0])
        best = jnp.argmax(found.policies, axis=-1)
        numbers = jnp.stack([found.actions, best, found.values], axis=1).astype(jnp.float32)
        return jnp.concatenate([numbers, found.policies], axis=1), {"keys": jax.random.key_data(keys[:, 1])}

    return acting


def _kept(rows: Transitions, outputs: chex.Array) -> SearchedSteps:
    """OffPolicy.keep: outputs of `acting`, and the probability of a random action after them."""
    named = {name: x for name, x in rows._asdict().items() if name != "next_observations"}
    return SearchedSteps(**named, search_policies=outputs[..., 3:-1], search_values=outputs[..., 2])


def _make_loss(parts: ReplayParts, plan: dict[str, Any], weights: dict[str, Any]) -> Callable:
    """OffPolicy.critic_loss. plan: of losses.planning.plan_targets. weights: of losses.planning.unrolled_loss."""
    head, positions = parts.head, plan["unroll"] + 1

    def fitted(outputs: chex.Array, targets: chex.Array):
        """(losses, sizes of errors), both [N, M], of outputs [N, M, H] against numbers [N, M]."""
        flat = outputs.reshape(-1, outputs.shape[-1])
        nothing = jnp.zeros(len(flat))  # r + d V(s') with d = 0
        return (x.reshape(targets.shape) for x in head.loss(flat, targets.reshape(-1), nothing, flat))

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        rows = batch.steps
        targets = planning.plan_targets(rows.rewards, rows.terminated, rows.truncated, rows.search_values, **plan)
        actions, wanted = rows.actions[:, : positions - 1], rows.search_policies[:, :positions]
        logits, values, rewards = unrolled(parts.model, params["critic"], rows.observations[:, 0], actions)
        flat = (x.reshape(-1, x.shape[-1]) for x in (logits, wanted))
        policy_losses = cross_entropy(*flat).reshape(targets.values.shape)
        value_losses, errors = fitted(values, targets.values)
        reward_losses, missed = fitted(rewards, targets.rewards)
        loss = planning.unrolled_loss(policy_losses, value_losses, reward_losses, targets, **weights)
        entropies = -jnp.sum(wanted * jnp.log(jnp.maximum(wanted, 1e-12)), axis=-1)
        metrics = {
            "value/mean": jnp.mean(head.values(values[:, 0])),
            "value/error": jnp.mean(errors[:, 0]),
            "model/reward_error": _mean(missed, targets.reward_mask),
            "policy/cross_entropy": _mean(policy_losses, targets.policy_mask),
            "search/entropy": _mean(entropies, targets.policy_mask),
        }
        return loss, errors[:, 0], metrics

    return critic_loss


def unrolled(model, params: Any, observations: chex.Array, actions: chex.Array):
    """What a model predicts after each of K actions; the gradient is halved at the start of each step.

    Args:
      model: models.agents.latent_model.LatentModel.
      params: its params.
      observations: [N, ...], of the state before the first action.
      actions: int32 [N, K].

    Returns:
      (policy logits [N, K + 1, A], outputs of the values [N, K + 1, H], of the rewards [N, K, H]).
    """
    states = model.represent(params, observations)
    predicted, rewards = [model.predict(params, states)], []
    for k in range(actions.shape[1]):
        states, reward = model.step(params, planning.scale_gradient(states, 0.5), actions[:, k])
        predicted.append(model.predict(params, states))
        rewards.append(reward)
    logits, values = (jnp.stack(x, axis=1) for x in zip(*predicted, strict=True))
    return logits, values, jnp.stack(rewards, axis=1)


def _mean(x: chex.Array, mask: chex.Array) -> chex.Array:
    """The mean of what is not masked, 0 of nothing."""
    return jnp.sum(jnp.where(mask, x, 0.0)) / jnp.maximum(jnp.sum(mask), 1)
