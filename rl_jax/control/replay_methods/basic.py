"""DQN and its kin, DDPG and TD3, SAC for numbers and for choices, REDQ: the methods with one action per decision."""

import math

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.replay import ReplayBatch
from rl_jax.control.replay_methods.parts import (
    ReplayParts,
    check_reads,
    fitted,
    init_both,
    init_soft,
    least,
    of_actions,
    read,
    soft_metrics,
    some_members,
)
from rl_jax.control.replay_types import OffPolicy
from rl_jax.losses import actor as actor_losses


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
        target = least(head, of_actions(following, best), key, 0)
        outputs = of_actions(critic.apply(params["critic"], steps.observations), steps.actions)
        return fitted(head, outputs, steps.rewards, batch.discounts, target)

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
    check_reads(reads, subset, critic.members)

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        steps, (noise_key, member_key) = batch.steps, jax.random.split(key)
        outputs = actor.apply(slow["actor"], steps.next_observations)
        actions = noise_of.sample(outputs, noise_of.noise(noise_key, (len(outputs),)))
        following = critic.apply(slow["critic"], steps.next_observations, actions)
        target = least(head, following, member_key, subset)
        outputs = critic.apply(params["critic"], steps.observations, steps.actions)
        return fitted(head, outputs, steps.rewards, batch.discounts, target)

    def actor_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        actions = actor.distribution.mode(actor.apply(params["actor"], batch.steps.observations))
        found = head.values(critic.apply(params["critic"], batch.steps.observations, actions))
        return actor_losses.deterministic(read(found, reads)), {}

    return OffPolicy(
        init=lambda key: init_both(key, critic, actor),
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
    options = dict(learn_temperature=learn_temperature, target_entropy=target_entropy, subset=subset, reads=reads)
    return _soft(parts, temperature, lambda own, observations: own["log_temperature"], **options)


def task_sac(
    parts: ReplayParts,
    *,
    tasks: int,
    temperature: float = 1.0,
    learn_temperature: bool = True,
    target_entropy: float | None = None,
    subset: int = 0,
    reads: str = "min",
) -> OffPolicy:
    """Soft actor-critic with a temperature for each of K tasks: alpha(s) = alpha_k, k the 1 in the last K features.

    Sources: arXiv 1910.10897, multi-task SAC; the "disentangled alphas" of its authors' code (garage, MTSAC).

    Args:
      parts: as of `sac`; observations end with the task's id, K numbers of which one is 1.
      tasks: K.
      temperature: of each task at the start.
      learn_temperature: as of `sac`; each task's alpha moves by that task's steps alone.
      target_entropy: as of `sac`, the same for all tasks.
      subset: as of `sac`.
      reads: as of `sac`.

    Raises:
      ValueError: if there are not several tasks.
    """
    if tasks < 2:
        raise ValueError("algorithm.method: task_sac needs observations that end with the id of a task: use sac")
    options = dict(learn_temperature=learn_temperature, target_entropy=target_entropy, subset=subset, reads=reads)

    def log_temperature_of(own, observations: chex.Array) -> chex.Array:
        return observations[..., -tasks:] @ own["log_temperature"]

    return _soft(parts, temperature, log_temperature_of, shape=(tasks,), **options)


def _soft(
    parts: ReplayParts,
    temperature,
    log_temperature_of,
    *,
    learn_temperature: bool,
    target_entropy: float | None,
    subset: int,
    reads: str,
    shape: tuple[int, ...] = (),
) -> OffPolicy:
    """SAC; log_temperature_of: (the actor's params, observations [N, F]) -> log alpha, float [] or [N]; shape: its."""
    critic, head, actor = parts.critic, parts.head, parts.actor
    law = actor.distribution
    wanted = -0.5 * law.num_outputs if target_entropy is None else target_entropy
    check_reads(reads, subset, critic.members)

    def act(params, observations: chex.Array, key: chex.PRNGKey):
        outputs = actor.apply(params["actor"]["policy"], observations)
        stored = law.sample(outputs, law.noise(key, (len(outputs),)))
        return law.to_env(stored), law.log_prob(outputs, stored)

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        steps, (act_key, member_key) = batch.steps, jax.random.split(key)
        actions, log_probs = act(params, steps.next_observations, act_key)
        following = critic.apply(slow["critic"], steps.next_observations, actions)
        target = least(head, following, member_key, subset)
        alpha = jnp.exp(log_temperature_of(params["actor"], steps.next_observations))
        rewards = steps.rewards - batch.discounts * alpha * log_probs
        outputs = critic.apply(params["critic"], steps.observations, steps.actions)
        return fitted(head, outputs, rewards, batch.discounts, target)

    def actor_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        own = params["actor"]
        actions, log_probs = act(params, batch.steps.observations, key)
        found = read(head.values(critic.apply(params["critic"], batch.steps.observations, actions)), reads)
        log_temperature = log_temperature_of(own, batch.steps.observations)
        loss = actor_losses.soft(log_probs, found, jnp.exp(log_temperature))
        if learn_temperature:
            loss += actor_losses.temperature(log_temperature, -log_probs, wanted)
        return loss, soft_metrics(own, -jnp.mean(log_probs))

    return OffPolicy(
        init=lambda key: init_soft(key, critic, actor, temperature, shape),
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
    check_reads("min", subset, critic.members)
    wanted = entropy_share * math.log(actor.distribution.num_outputs)

    def log_probs_of(params, observations: chex.Array) -> chex.Array:
        return jax.nn.log_softmax(actor.apply(params["actor"]["policy"], observations))

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        steps = batch.steps
        log_probs = log_probs_of(params, steps.next_observations)
        found = some_members(head.values(critic.apply(slow["critic"], steps.next_observations)), key, subset)
        alpha = jnp.exp(params["actor"]["log_temperature"])
        following = actor_losses.soft_value(log_probs, jnp.min(found, axis=0), alpha)
        outputs = of_actions(critic.apply(params["critic"], steps.observations), steps.actions)
        return fitted(head, outputs, steps.rewards, batch.discounts, following[:, None])

    def actor_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        own = params["actor"]
        log_probs = log_probs_of(params, batch.steps.observations)
        found = jnp.min(head.values(critic.apply(params["critic"], batch.steps.observations)), axis=0)
        loss = actor_losses.soft_discrete(log_probs, found, jnp.exp(own["log_temperature"]))
        entropies = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
        if learn_temperature:
            loss += actor_losses.temperature(own["log_temperature"], entropies, wanted)
        return loss, soft_metrics(own, jnp.mean(entropies))

    return OffPolicy(
        init=lambda key: init_soft(key, critic, actor, temperature),
        policy=lambda params, observations: actor.apply(params["actor"]["policy"], observations),
        critic_loss=critic_loss,
        actor_loss=actor_loss,
        slow=("critic",),
    )
