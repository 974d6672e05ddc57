"""The methods that learn from replay: DQN and its kin, DDPG and TD3, SAC for numbers and for choices, REDQ.

Each takes ReplayParts and gives an off_policy.OffPolicy. Rainbow's parts are choices elsewhere: double here, dueling of
the network, n steps and priorities of the replay, distributions of the head. With K critics:

    dqn:          y = r + d Q'(s', argmax_a Q(s', a))                     double; Q' chooses itself without it
    td3:          y = r + d min_k Q'_k(s', mu'(s') + clipped noise),      actor: -Q_1(s, mu(s))
    sac:          y = r + d (min_k Q'_k(s', a') - alpha log pi(a'|s')),   actor: alpha log pi(a|s) - min_k Q_k(s, a)
    discrete_sac: y = r + d sum_a pi(a|s') (min_k Q'_k(s', a) - alpha log pi(a|s'))
    REDQ:         sac with min over `subset` random members of K, actor against their mean, many steps per update
"""

import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.replay import ReplayBatch
from rl_jax.control.replay_types import OffPolicy
from rl_jax.losses import actor as actor_losses

READINGS = ("min", "mean", "first")


class ReplayParts(NamedTuple):
    """What a method is made of.

    Attributes:
      critic: models.agents.value_networks.Critic.
      actor: models.agents.value_networks.Actor, or None.
      head: losses.value_heads.ValueHead, the reading of the critic's outputs.
      smoothing: td3: the distribution of the actions in its target (models.agents.exploration.noisy).
    """

    critic: Any
    actor: Any
    head: Any
    smoothing: Any = None


def dqn(parts: ReplayParts, *, double: bool = True) -> OffPolicy:
    """Q-learning with a slow copy. Sources: DQN (Mnih et al., 2015); double: arXiv 1509.06461.

    Args:
      parts: critic of all actions; no actor. Several members choose by their mean, and the least of them is the target.
      double: the newest critic chooses the action that the slow one values.
    """
    critic, head = parts.critic, parts.head

    def values(params, observations: chex.Array) -> chex.Array:
        return jnp.mean(head.values(critic.apply(params, observations)), axis=0)

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        steps = batch.steps
        following = critic.apply(slow["critic"], steps.next_observations)
        if double:
            choosing = values(params["critic"], steps.next_observations)
        else:
            choosing = jnp.mean(head.values(following), axis=0)
        best = jax.lax.stop_gradient(jnp.argmax(choosing, axis=-1))
        target = least(head, _of_actions(following, best), key, 0)
        outputs = _of_actions(critic.apply(params["critic"], steps.observations), steps.actions)
        return _fitted(head, outputs, steps.rewards, batch.discounts, target)

    return OffPolicy(
        init=lambda key: {"critic": critic.init(key)},
        policy=lambda params, observations: values(params["critic"], observations),
        critic_loss=critic_loss,
        actor_loss=None,
        slow=("critic",),
    )


def td3(parts: ReplayParts, *, subset: int = 0, reads: str = "first") -> OffPolicy:
    """A deterministic actor and K critics; K = 1, no smoothing and an actor that never lags is DDPG.

    Sources: arXiv 1802.09477; DDPG: arXiv 1509.02971.

    Args:
      parts: critic of (s, a); actor; smoothing, the distribution of the target's action.
      subset: random members of which the target takes the least; 0 is all.
      reads: the actor's value: "first" member, "min" or "mean" of them.
    """
    critic, head, actor, noise_of = parts.critic, parts.head, parts.actor, parts.smoothing
    _check_reads(reads, subset, critic.members)

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        steps, (noise_key, member_key) = batch.steps, jax.random.split(key)
        outputs = actor.apply(slow["actor"], steps.next_observations)
        actions = noise_of.sample(outputs, noise_of.noise(noise_key, (len(outputs),)))
        following = critic.apply(slow["critic"], steps.next_observations, actions)
        target = least(head, following, member_key, subset)
        outputs = critic.apply(params["critic"], steps.observations, steps.actions)
        return _fitted(head, outputs, steps.rewards, batch.discounts, target)

    def actor_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        actions = actor.distribution.mode(actor.apply(params["actor"], batch.steps.observations))
        found = head.values(critic.apply(params["critic"], batch.steps.observations, actions))
        return actor_losses.deterministic(read(found, reads)), {}

    return OffPolicy(
        init=lambda key: _init_both(key, critic, actor),
        policy=lambda params, observations: actor.apply(params["actor"], observations),
        critic_loss=critic_loss,
        actor_loss=actor_loss,
        slow=("critic", "actor"),
    )


def sac(
    parts: ReplayParts,
    *,
    temperature: float = 1.0,
    learn_temperature: bool = True,
    target_entropy: float | None = None,
    subset: int = 0,
    reads: str = "min",
) -> OffPolicy:
    """Soft actor-critic. Sources: arXiv 1812.05905; REDQ: arXiv 2101.05982.

    Args:
      parts: critic of (s, a); an actor with a density (models.agents.exploration.squashed).
      temperature: alpha at the start.
      learn_temperature: whether alpha is moved towards the target entropy.
      target_entropy: in nats, of actions scaled to [-1, 1]; None is -D.
      subset: random members of which the target takes the least; 0 is all. REDQ: 2 of 10.
      reads: the actor's value: "min" of the members, "mean" (REDQ) or the "first".
    """
    critic, head, actor = parts.critic, parts.head, parts.actor
    law = actor.distribution
    wanted = -0.5 * law.num_outputs if target_entropy is None else target_entropy
    _check_reads(reads, subset, critic.members)

    def act(params, observations: chex.Array, key: chex.PRNGKey):
        outputs = actor.apply(params["actor"]["policy"], observations)
        stored = law.sample(outputs, law.noise(key, (len(outputs),)))
        return law.to_env(stored), law.log_prob(outputs, stored)

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        steps, (act_key, member_key) = batch.steps, jax.random.split(key)
        actions, log_probs = act(params, steps.next_observations, act_key)
        following = critic.apply(slow["critic"], steps.next_observations, actions)
        target = least(head, following, member_key, subset)
        alpha = jnp.exp(params["actor"]["log_temperature"])
        rewards = steps.rewards - batch.discounts * alpha * log_probs
        outputs = critic.apply(params["critic"], steps.observations, steps.actions)
        return _fitted(head, outputs, rewards, batch.discounts, target)

    def actor_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        own = params["actor"]
        actions, log_probs = act(params, batch.steps.observations, key)
        found = read(head.values(critic.apply(params["critic"], batch.steps.observations, actions)), reads)
        loss = actor_losses.soft(log_probs, found, jnp.exp(own["log_temperature"]))
        if learn_temperature:
            loss += actor_losses.temperature(own["log_temperature"], -log_probs, wanted)
        return loss, _soft_metrics(own, -jnp.mean(log_probs))

    return OffPolicy(
        init=lambda key: _init_soft(key, critic, actor, temperature),
        policy=lambda params, observations: actor.apply(params["actor"]["policy"], observations),
        critic_loss=critic_loss,
        actor_loss=actor_loss,
        slow=("critic",),
    )


def discrete_sac(
    parts: ReplayParts,
    *,
    temperature: float = 1.0,
    learn_temperature: bool = True,
    entropy_share: float = 0.5,
    subset: int = 0,
) -> OffPolicy:
    """SAC over A choices, its expectations over actions exact. Source: arXiv 1910.07207.

    Args:
      parts: critic of all actions with the scalar head; a categorical actor.
      temperature: alpha at the start.
      learn_temperature: whether alpha is moved towards the target entropy.
      entropy_share: the target entropy as a share of log A. The paper's .98 keeps small problems near random.
      subset: random members of which the target takes the least; 0 is all.

    Raises:
      ValueError: if the head is not scalar: a mixture over actions is no single histogram.
    """
    critic, head, actor = parts.critic, parts.head, parts.actor
    if head.num_outputs != 1:
        raise ValueError("algorithm.head: discrete_sac reads one number per action; use head=dict(fn='scalar')")
    _check_reads("min", subset, critic.members)
    wanted = entropy_share * math.log(actor.distribution.num_outputs)

    def log_probs_of(params, observations: chex.Array) -> chex.Array:
        return jax.nn.log_softmax(actor.apply(params["actor"]["policy"], observations))

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        steps = batch.steps
        log_probs = log_probs_of(params, steps.next_observations)
        found = _members(head.values(critic.apply(slow["critic"], steps.next_observations)), key, subset)
        alpha = jnp.exp(params["actor"]["log_temperature"])
        following = actor_losses.soft_value(log_probs, jnp.min(found, axis=0), alpha)
        outputs = _of_actions(critic.apply(params["critic"], steps.observations), steps.actions)
        return _fitted(head, outputs, steps.rewards, batch.discounts, following[:, None])

    def actor_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        own = params["actor"]
        log_probs = log_probs_of(params, batch.steps.observations)
        found = jnp.min(head.values(critic.apply(params["critic"], batch.steps.observations)), axis=0)
        loss = actor_losses.soft_discrete(log_probs, found, jnp.exp(own["log_temperature"]))
        entropies = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
        if learn_temperature:
            loss += actor_losses.temperature(own["log_temperature"], entropies, wanted)
        return loss, _soft_metrics(own, jnp.mean(entropies))

    return OffPolicy(
        init=lambda key: _init_soft(key, critic, actor, temperature),
        policy=lambda params, observations: actor.apply(params["actor"]["policy"], observations),
        critic_loss=critic_loss,
        actor_loss=actor_loss,
        slow=("critic",),
    )


def least(head, outputs: chex.Array, key: chex.PRNGKey, subset: int) -> chex.Array:
    """The outputs of the member whose value is the least, per entry: float [K, N, H] -> [N, H]. subset: 0 is all K."""
    outputs = _members(outputs, key, subset)
    if len(outputs) == 1:
        return outputs[0]
    if outputs.shape[-1] == 1:
        return jnp.min(outputs, axis=0)
    chosen = jnp.argmin(head.values(outputs), axis=0)
    return jnp.take_along_axis(outputs, chosen[None, :, None], axis=0)[0]


def read(values: chex.Array, reads: str) -> chex.Array:
    """One value per entry of those of K members: float [K, N] -> [N]. reads: of READINGS."""
    return {"min": lambda x: jnp.min(x, axis=0), "mean": lambda x: jnp.mean(x, axis=0), "first": lambda x: x[0]}[reads](
        values
    )


def _members(x: chex.Array, key: chex.PRNGKey, subset: int) -> chex.Array:
    return x[jax.random.permutation(key, len(x))[:subset]] if subset else x


def _of_actions(outputs: chex.Array, actions: chex.Array) -> chex.Array:
    """The outputs of the actions taken, [K, N, A, H] -> [K, N, H]; a sum, whose gradient is no scatter."""
    chosen = jax.nn.one_hot(actions, outputs.shape[2], dtype=outputs.dtype)
    return jnp.sum(outputs * chosen[None, :, :, None], axis=2)


def _fitted(head, outputs: chex.Array, rewards: chex.Array, discounts: chex.Array, target: chex.Array):
    """Losses of all K members against one target, summed: (loss [N], mean size of the errors [N], metrics)."""
    target = jax.lax.stop_gradient(target)
    rewards = jax.lax.stop_gradient(rewards)
    loss, errors = jax.vmap(lambda own: head.loss(own, rewards, discounts, target))(outputs)
    metrics = {"value/mean": jnp.mean(head.values(outputs)), "value/error": jnp.mean(errors)}
    return jnp.sum(loss, axis=0), jnp.mean(errors, axis=0), metrics


def _soft_metrics(own: dict[str, Any], entropy: chex.Array) -> dict[str, chex.Array]:
    return {"temperature": jnp.exp(own["log_temperature"]), "entropy": entropy}


def _init_both(key: chex.PRNGKey, critic, actor) -> dict[str, Any]:
    critic_key, actor_key = jax.random.split(key)
    return {"critic": critic.init(critic_key), "actor": actor.init(actor_key)}


def _init_soft(key: chex.PRNGKey, critic, actor, temperature) -> dict[str, Any]:
    params = _init_both(key, critic, actor)
    log_temperature = jnp.log(jnp.asarray(temperature, jnp.float32))
    return params | {"actor": {"policy": params["actor"], "log_temperature": log_temperature}}


def _check_reads(reads: str, subset: int, members: int) -> None:
    if reads not in READINGS:
        raise ValueError(f"algorithm.method.reads={reads!r} is none of {', '.join(READINGS)}")
    if not 0 <= subset <= members:
        raise ValueError(f"algorithm.method.subset={subset} must be 0 (all) to network.members={members}")
