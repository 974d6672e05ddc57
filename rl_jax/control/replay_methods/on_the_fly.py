"""EXPO: a cloned diffusion policy, a small policy that edits its actions, and the best of both by Q, drawn on the fly.

    base          a ~ pi_b(.|s), trained by cloning the replay alone: no gradient of Q goes through its chain
    edit          e ~ pi_e(.|s, a), a Gaussian through tanh;  a~ = clip(a + beta e, -1, 1)
    on the fly    a* = argmax over a_1..a_N and a~_1..a~_N of Q'(s, .),  min over the critics (a random subset)
    acting        a*, with the slow copy of the base
    critics       y = r + d min_k Q'_k(s', a*')           no entropy in it
    edit's loss   alpha (log pi_e(e|s, a) - D log beta) - mean_k Q_k(s, a~),  a of the replay

Source: arXiv 2507.07986, read in a public copy of its authors' code (the paper itself was not at hand). Departures: one
rate for all slow copies (there .005, and .001 for the base); edited actions are clipped here, there the environment
does that; the usual target entropy is -D / 2 for e, thus D (log beta - 1 / 2) for beta e (a choice in copies of that
code): no beta e in [-beta, beta]^D has more than D log 2 beta, so below beta = .303 none would reach -D / 2, and alpha
would only rise. N = 8 and beta = .2 stand in the code's public configs. An adaptive beta of that code is left out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.replay import ReplayBatch
from rl_jax.control.replay_methods.parts import ReplayParts, check_reads, fitted, init_soft, least, soft_metrics
from rl_jax.control.replay_types import OffPolicy
from rl_jax.losses import actor as actor_losses
from rl_jax.rollout.envs.steps import Worlds


def expo(
    parts: ReplayParts,
    *,
    samples: int = 8,
    beta: float = 0.05,
    temperature: float = 1.0,
    learn_temperature: bool = True,
    target_entropy: float | None = None,
    subset: int = 0,
) -> OffPolicy:
    """A cloned base, edits that raise Q, and the best of N of both. Source: arXiv 2507.07986.

    Args:
      parts: critic of (s, a); actor, of the edits, reads (s, a) and has a density on [-1, 1]; base, a diffusion.
      samples: N. With beta = 0 and N = 1 it acts as the clone; with beta = 0 and N above 1 it is the clone's best of N.
      beta: largest edit, in halves of the range; 0: no edits. If it is traced (swept), edits of 0 are made, unlearned.
      temperature: alpha at the start.
      learn_temperature: whether alpha is moved towards the target entropy.
      target_entropy: of the scaled edit beta e, in nats, at most D log 2 beta; None is D (log beta - 1 / 2).
      subset: random members of which the least counts; 0 is all. 2 of 10 published.

    Raises:
      ValueError: if a number is out of its range.
    """
    critic, head, editor, base = parts.critic, parts.head, parts.actor, parts.base
    law, size = editor.distribution, base.size
    edits = not (isinstance(beta, int | float) and beta == 0)
    wanted = edit_entropy(size, beta) if edits and target_entropy is None else target_entropy
    check_reads("min", subset, critic.members)
    if samples < 1 or (isinstance(beta, int | float) and not 0 <= beta <= 2):
        raise ValueError(f"algorithm.method: samples={samples} must be 1 or more, and beta={beta} from 0 to 2")

    fly = _fly(parts, samples, beta if edits else None, subset)

    def critic_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        steps, (noise_key, edit_key, first_key, second_key) = batch.steps, jax.random.split(key, 4)
        rows = len(steps.rewards) * samples
        noise = jax.random.normal(noise_key, (base.steps, rows, size))
        edit_noise = jax.random.normal(edit_key, (rows, size))
        own = params["actor"]
        actions = fly.propose(own["base"], own["edit"], steps.next_observations, noise, edit_noise)
        chosen = base.to_env(fly.best(slow["critic"], steps.next_observations, actions, first_key))
        following = critic.apply(slow["critic"], steps.next_observations, chosen)
        target = least(head, following, second_key, subset)
        outputs = critic.apply(params["critic"], steps.observations, steps.actions)
        return fitted(head, outputs, steps.rewards, batch.discounts, target)

    def actor_loss(params, slow, batch: ReplayBatch, key: chex.PRNGKey):
        own, observations = params["actor"], batch.steps.observations
        base_key, edit_key = jax.random.split(key)
        actions = base.to_unit(batch.steps.actions)
        loss = base.loss(own["base"], observations, actions, base_key)
        metrics = {"base/loss": jnp.mean(loss)}
        if not edits:
            return loss, metrics
        edited, log_probs = fly.edit(own["edit"], observations, actions, law.noise(edit_key, (len(actions),)))
        log_probs = log_probs - size * jnp.log(jnp.where(beta > 0, beta, 1.0))
        found = jnp.mean(head.values(critic.apply(params["critic"], observations, base.to_env(edited))), axis=0)
        each = actor_losses.soft(log_probs, found, jnp.exp(own["log_temperature"]))
        if learn_temperature:
            each += actor_losses.temperature(own["log_temperature"], -log_probs, wanted)
        loss += jnp.where(beta > 0, each, 0.0)
        metrics["edit/size"] = jnp.mean(jnp.abs(edited - actions))
        return loss, metrics | soft_metrics(own, -jnp.mean(log_probs))

    def init(key: chex.PRNGKey) -> dict[str, Any]:
        soft_key, base_key = jax.random.split(key)
        params = init_soft(soft_key, critic, editor, temperature)
        own = params["actor"]
        cloned = base.init(base_key)
        return params | {"actor": {"base": cloned, "edit": own["policy"], "log_temperature": own["log_temperature"]}}

    return OffPolicy(
        init=init,
        policy=None,
        critic_loss=critic_loss,
        actor_loss=actor_loss,
        slow=("critic", "actor"),
        acting=_make_acting(fly, base, samples),
        memory=lambda key, rows: jax.random.key_data(jax.random.split(key, rows)),
    )


def edit_entropy(size: int, beta) -> chex.Array:
    """The target entropy of a scaled edit of `size` numbers, D (log beta - 1 / 2), in nats; of beta = 0 that of 1."""
    return size * (jnp.log(jnp.where(beta > 0, beta, 1.0)) - 0.5)


class OnTheFly(NamedTuple):
    """The choice among the clone's actions and their edits.

    Attributes:
      edit: (editor's params, observations [N, ...], actions [N, D], noise [N, D]) -> (edited actions [N, D], log pi_e
        of the edit before its scale [N]).
      propose: (base's params, editor's, observations [B, ...], noise [T, B N, D], edit noise [B N, D]) -> the N actions
        of each state and their edits, [B, 2 N, D]; without edits [B, N, D].
      best: (critics' params, observations [B, ...], actions [B, M, D], key) -> [B, D], by the least member's value.
    """

    edit: Callable
    propose: Callable
    best: Callable


def _fly(parts: ReplayParts, samples: int, beta, subset: int) -> OnTheFly:
    """beta: None for no edits."""
    critic, head, editor, base = parts.critic, parts.head, parts.actor, parts.base
    law, size = editor.distribution, base.size

    def edit(params, observations: chex.Array, actions: chex.Array, noise: chex.Array):
        flat = jnp.concatenate([observations.reshape(len(actions), -1), actions], axis=1)
        outputs = editor.apply(params, flat)
        stored = law.sample(outputs, noise)
        return jnp.clip(actions + beta * law.to_env(stored), -1.0, 1.0), law.log_prob(outputs, stored)

    def propose(base_params, params, observations: chex.Array, noise: chex.Array, edit_noise: chex.Array) -> chex.Array:
        repeated = jnp.repeat(observations, samples, axis=0)
        actions = base.sample(base_params, repeated, noise)
        found = [actions.reshape(-1, samples, size)]
        if beta is not None:
            found.append(edit(params, repeated, actions, edit_noise)[0].reshape(-1, samples, size))
        return jnp.concatenate(found, axis=1)

    def best(critic_params, observations: chex.Array, actions: chex.Array, key: chex.PRNGKey) -> chex.Array:
        rows, count = actions.shape[:2]
        flat = base.to_env(actions.reshape(rows * count, size))
        outputs = critic.apply(critic_params, jnp.repeat(observations, count, axis=0), flat)
        values = head.values(least(head, outputs, key, subset)).reshape(rows, count)
        return jnp.take_along_axis(actions, jnp.argmax(values, axis=1)[:, None, None], axis=1)[:, 0]

    return OnTheFly(edit, propose, best)


def _make_acting(fly: OnTheFly, base, samples: int) -> Callable:
    """OffPolicy.acting: the best of the slow base's actions and their edits; each environment has a key of its own."""
    size = base.size

    def acting(params, slow, worlds: Worlds):
        keys = jax.vmap(lambda key: jax.random.split(jax.random.wrap_key_data(key), 4))(worlds.memory)
        shapes = (base.steps, samples, size), (samples, size)
        noise, edit_noise = (
            jax.vmap(lambda key, shape=shape: jax.random.normal(key, shape))(keys[:, i])
            for i, shape in enumerate(shapes)
        )
        noise = jnp.moveaxis(noise, 1, 0).reshape(base.steps, -1, size)
        flat = edit_noise.reshape(-1, size)
        actions = fly.propose(slow["actor"]["base"], params["actor"]["edit"], worlds.observation, noise, flat)
        # One subset of the critics for all environments: that of the first one's key.
        chosen = base.to_env(fly.best(slow["critic"], worlds.observation, actions, keys[0, 2]))
        return jnp.concatenate([chosen, chosen], axis=1), jax.random.key_data(keys[:, 3])

    return acting
