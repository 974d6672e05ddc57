"""SRL: SAC whose actor gives J actions for one observation, for control at a slow decision rate.

    critics    as SAC's, single steps:  y = r + d (min_k Q'_k(s', a'_1) - alpha log pi(a'_1|s'))
    model      |M(s, a) - s'|^2,  and M' its slow copy
    actor      sum_j alpha log pi(a_j|s, a_<j) - min_k Q_k(s_j, a_j),   s_1 = s,   s_{j+1} = M'(s_j, a_j), data
    alpha      towards the target entropy, by the mean of the J log-probs
    acting     a plan at each decision, whose actions are carried out one after the other without looking

Credit reaches every action of a plan from the state in which it will act ("temporal recall"), though the critics know
single steps only. J = 1 is SAC. Source: arXiv 2410.08979, its losses as in dee0512/Sequence-Reinforcement-Learning. Its
score, the mean over decision rates (FAS), is that of several runs with other `decide_every`.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.replay import ReplayBatch
from rl_jax.control.replay_methods.parts import (
    ReplayParts,
    check_reads,
    fitted,
    init_soft,
    least,
    read,
    soft_metrics,
)
from rl_jax.control.replay_types import OffPolicy
from rl_jax.losses import actor as actor_losses
from rl_jax.rollout.envs.steps import Worlds


def sequence_sac(
    parts: ReplayParts,
    *,
    length: int = 4,
    decide_every: int = 0,
    temperature: float = 1.0,
    learn_temperature: bool = True,
    target_entropy: float | None = None,
    subset: int = 0,
    reads: str = "min",
) -> OffPolicy:
    """SRL, and with length = 1 SAC. Source: arXiv 2410.08979.

    Args:
      parts: critic of (s, a); actor, a models.agents.plans.Planner; model, a StateModel.
      length: J, actions of a plan.
      decide_every: steps between decisions; the last action of a plan is held until the next. 0: J.
      temperature: alpha at the start.
      learn_temperature: whether alpha is moved towards the target entropy.
      target_entropy: of one action, in nats; None is -D.
      subset: random members of which the target takes the least; 0 is all.
      reads: the actor's value: "min" of the members, "mean" or the "first".

    Raises:
      ValueError: if a number is out of its range.
    """
    critic, head, planner, model = parts.critic, parts.head, parts.actor, parts.model
    law, size = planner.distribution, planner.size
    wanted = -float(size) if target_entropy is None else target_entropy
    every = decide_every or length
    check_reads(reads, subset, critic.members)
    if length < 1 or every < length:
        raise ValueError(
            f"algorithm.method: length={length} must be 1 or more, and decide_every={decide_every} as many, or 0"
        )

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        steps, (act_key, member_key) = batch.steps, jax.random.split(key)
        noise = law.noise(act_key, (len(steps.rewards),))[None]
        plan, log_probs = planner.plan(params["actor"]["policy"], steps.next_observations, noise, 1)
        following = critic.apply(slow["critic"]["q"], steps.next_observations, law.to_env(plan[0]))
        target = least(head, following, member_key, subset)
        rewards = steps.rewards - batch.discounts * jnp.exp(params["actor"]["log_temperature"]) * log_probs[0]
        outputs = critic.apply(params["critic"]["q"], steps.observations, steps.actions)
        loss, errors, metrics = fitted(head, outputs, rewards, batch.discounts, target)
        predicted = model.apply(params["critic"]["model"], steps.observations, steps.actions)
        missed = jnp.mean(jnp.square(predicted - steps.next_observations), axis=-1)
        return loss + missed, errors, metrics | {"model/error": jnp.mean(missed)}

    def actor_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        own, observations = params["actor"], batch.steps.observations
        noise = _noise(law, key, len(observations), length)
        plan, log_probs = planner.plan(own["policy"], observations, noise, length)
        alpha, loss = jnp.exp(own["log_temperature"]), jnp.zeros(len(observations))
        for j in range(length):
            actions = law.to_env(plan[j])
            found = read(head.values(critic.apply(params["critic"]["q"], observations, actions)), reads)
            loss += actor_losses.soft(log_probs[j], found, alpha)
            if j + 1 < length:
                following = model.apply(slow["critic"]["model"], observations, actions)
                observations = jax.lax.stop_gradient(following)
        entropies = -jnp.mean(log_probs, axis=0)
        if learn_temperature:
            loss += actor_losses.temperature(own["log_temperature"], entropies, wanted)
        return loss, soft_metrics(own, jnp.mean(entropies))

    def memory(key: chex.PRNGKey, rows: int) -> dict[str, chex.Array]:
        keys = jax.random.key_data(jax.random.split(key, rows))
        return {"keys": keys, "plan": jnp.zeros((rows, length, 2 * size))}

    def init(key: chex.PRNGKey) -> dict[str, Any]:
        soft_key, model_key = jax.random.split(key)
        params = init_soft(soft_key, critic, planner, temperature)
        return params | {"critic": {"q": params["critic"], "model": model.init(model_key)}}

    return OffPolicy(
        init=init,
        policy=None,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
        slow=("critic",),
        acting=_make_acting(planner, length, every),
        memory=memory,
        single_steps=True,
    )


def _make_acting(planner, length: int, every: int):
    """OffPolicy.acting: the plans' actions one by one, a new plan each `every` steps of an episode."""

    def acting(params, slow, worlds: Worlds):
        policy, observations = params["actor"]["policy"], worlds.observation
        keys = jax.vmap(lambda key: jax.random.split(jax.random.wrap_key_data(key)))(worlds.memory["keys"])
        noise = jax.vmap(lambda key: planner.distribution.noise(key, (length,)))(keys[:, 0])
        drawn, mode = (planner.plan(policy, observations, own, length)[0] for own in (jnp.swapaxes(noise, 0, 1), None))
        new = jnp.swapaxes(jnp.concatenate([drawn, mode], axis=-1), 0, 1)
        at = worlds.episode_length % every
        plan = jnp.where((at == 0)[:, None, None], new, worlds.memory["plan"])
        now = jnp.take_along_axis(plan, jnp.minimum(at, length - 1)[:, None, None], axis=1)[:, 0]
        return now, {"keys": jax.random.key_data(keys[:, 1]), "plan": plan}

    return acting


def _noise(law, key: chex.PRNGKey, rows: int, length: int) -> chex.Array:
    """Noise [J, N, D]; that of the first action is SAC's."""
    first = law.noise(key, (rows,))[None]
    if length == 1:
        return first
    return jnp.concatenate([first, law.noise(jax.random.fold_in(key, 1), (length - 1, rows))])
