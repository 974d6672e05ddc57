"""Q-learning of combined actions: the best of a feasible set is found by a search, not by a row of outputs."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.replay import ReplayBatch
from rl_jax.control.replay_methods.parts import ReplayParts, fitted, least
from rl_jax.control.replay_types import OffPolicy


def sequoia(parts: ReplayParts, *, search: str = "program") -> OffPolicy:
    """DQN whose largest value is found by a search over feasible binary actions. Source: arXiv 2503.01919.

        y = r + d Q'(s', a*),    a* = argmax over feasible a of Q'(s', a)

    As in its code, the slow copy chooses and values. Exploration is a random feasible action with the probability of
    algorithm.exploration. Of its code, pre-training on myopic rewards and the second step on perturbed actions are not
    here: the code's perturbed step keeps the reward and the next state of the action that was taken.

    Args:
      parts: critic of (s, a); searches, name -> (critic params, observations [N, ...]) -> actions [N, n].
      search: of parts.searches: "program" (a mixed-integer program) or "enumeration".

    Raises:
      ValueError: if there is no such search.
    """
    critic, head = parts.critic, parts.head
    if search not in parts.searches:
        raise ValueError(f"algorithm.method.search={search!r} is none of {', '.join(parts.searches)}")
    best = parts.searches[search]

    def policy(params, observations: chex.Array) -> chex.Array:
        actions = jax.lax.stop_gradient(best(params["critic"], observations))
        return jnp.concatenate([actions, actions], axis=1)  # the drawn one and the mode: it is no law

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        steps = batch.steps
        actions = best(slow["critic"], steps.next_observations)
        target = least(head, critic.apply(slow["critic"], steps.next_observations, actions), key, 0)
        outputs = critic.apply(params["critic"], steps.observations, steps.actions)
        return fitted(head, outputs, steps.rewards, batch.discounts, target)

    return OffPolicy(
        init=lambda key: {"critic": critic.init(key)},
        policy=policy,
        critic_loss=critic_loss,
        actor_loss=None,
        slow=("critic",),
    )
