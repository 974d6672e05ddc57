"""Q-learning of a team whose value mixes those of its agents: VDN and QMIX, by the mixer."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.replay import ReplayBatch
from rl_jax.control.replay_methods.parts import ReplayParts, fitted
from rl_jax.control.replay_types import OffPolicy


def value_decomposition(parts: ReplayParts, *, agents: int, own: int, double: bool = True) -> OffPolicy:
    """Q-learning with one reward for A agents, who share a network and act by their own values alone.

        y = r + d mix'(Q'_1(o'_1, u_1), ..., Q'_A(o'_A, u_A), s'),   u_a = argmax_u Q_a(o'_a, u)
        loss: of mix(Q_1(o_1, a_1), ..., Q_A(o_A, a_A), s) against y

    Sources: VDN, arXiv 1706.05296; QMIX, arXiv 1803.11485. Networks see single steps; PyMARL's are recurrent.

    Args:
      parts: critic of all actions of one agent, with one member; mixer; a scalar head; no actor. Observations are those
        of envs.agents.as_one.
      agents: A.
      own: features of each agent; those after A of them are the state.
      double: the newest networks choose the actions that the slow ones value; if not, the slow ones do both.

    Raises:
      ValueError: if the head is not scalar, since a mixture of distributions is no distribution of the mixture, or the
        critic has several members.
    """
    critic, head, mixer = parts.critic, parts.head, parts.mixer
    if head.num_outputs != 1 or critic.members != 1:
        raise ValueError(
            f"value_decomposition mixes one number per agent: use algorithm.head=dict(fn='scalar') and "
            f"network.members=1, not {critic.members}"
        )

    def values(params, observations: chex.Array) -> chex.Array:
        """[N, A, n]."""
        seen = observations[:, : agents * own].reshape(-1, own)
        found = head.values(critic.apply(params["agents"], seen))[0]
        return found.reshape(len(observations), agents, -1)

    def mixed(params, found: chex.Array, actions: chex.Array, observations: chex.Array) -> chex.Array:
        chosen = jnp.sum(found * jax.nn.one_hot(actions, found.shape[-1], dtype=found.dtype), axis=-1)
        return mixer.apply(params["mixer"], chosen, observations[:, agents * own :])

    def init(key: chex.PRNGKey):
        agents_key, mixer_key = jax.random.split(key)
        return {"critic": {"agents": critic.init(agents_key), "mixer": mixer.init(mixer_key)}}

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        steps = batch.steps
        chex.assert_shape(steps.actions, (None, agents))
        following = values(slow["critic"], steps.next_observations)
        choosing = values(params["critic"], steps.next_observations) if double else following
        best = jax.lax.stop_gradient(jnp.argmax(choosing, axis=-1))
        target = mixed(slow["critic"], following, best, steps.next_observations)
        own_values = values(params["critic"], steps.observations)
        outputs = mixed(params["critic"], own_values, steps.actions, steps.observations)
        return fitted(head, outputs[None, :, None], steps.rewards, batch.discounts, target[:, None])

    def policy(params, observations: chex.Array) -> chex.Array:
        return values(params["critic"], observations).reshape(len(observations), -1)

    return OffPolicy(init=init, policy=policy, critic_loss=critic_loss, actor_loss=None, slow=("critic",))
