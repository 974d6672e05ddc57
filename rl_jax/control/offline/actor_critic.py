"""Methods whose policy asks Q for actions outside of the data, and what keeps them near it: TD3+BC, A2PR, CQL."""

import jax
import jax.numpy as jnp

from rl_jax.control.offline.recipe import Batch, Recipe, mean, td_targets, total, with_targets
from rl_jax.losses import offline as losses


def _continuous(nets, name: str) -> None:
    if nets.num_actions:
        raise ValueError(f"{name} moves actions along Q's gradient: it needs continuous ones, not {nets.num_actions}")


def _frozen(params, name: str):
    """The params with those of one network as data."""
    return {**params, name: jax.lax.stop_gradient(params[name])}


def _td3_targets(nets, params, batch: Batch, noise: float, noise_clip: float, discount: float):
    """(y, the smoothed action of the target policy in s'). y = r + gamma min Q'(s', clip(pi'(s') + noise))."""
    steps, frozen = batch.data.steps, with_targets(params, batch)
    action = nets.distribution.mode(nets.policy(frozen, steps.next_observations))
    drawn = noise * jax.random.normal(batch.key, action.shape)
    action = jnp.clip(action + jnp.clip(drawn, -noise_clip, noise_clip), -1.0, 1.0)
    following = jnp.min(nets.q(frozen, steps.next_observations, action), axis=0)
    return td_targets(batch, following, discount), action


def td3_bc(
    nets,
    *,
    alpha: float = 2.5,
    discount: float = 0.99,
    noise: float = 0.2,
    noise_clip: float = 0.5,
    delay: int = 2,
    target_rate: float = 0.005,
) -> Recipe:
    """TD3 with a cloning term. Source: arXiv 2106.06860, sfujim/TD3_BC.

    Args:
      nets: OfflineNetworks.
      alpha: weight of Q against cloning.
      discount: gamma.
      noise: deviation of the target action's noise.
      noise_clip: its largest size.
      delay: updates of the critics per update of the policy.
      target_rate: of all targets.

    Raises:
      ValueError: for discrete actions.
    """
    _continuous(nets, "td3_bc")

    def loss(params, batch: Batch):
        steps = batch.data.steps
        targets, _ = _td3_targets(nets, params, batch, noise, noise_clip, discount)
        q_loss = losses.bellman(nets.q(params, steps.observations, steps.actions), targets)
        actions = nets.distribution.mode(nets.policy(params, steps.observations))
        q = nets.q(_frozen(params, "q"), steps.observations, actions)[0]
        policy_loss = losses.td3_bc(q, actions, steps.actions, alpha=alpha)
        metrics = {"loss/q": mean(q_loss), "loss/policy": mean(policy_loss), "q/mean": mean(q)}
        return total(q_loss, policy_loss), metrics

    return Recipe(loss, ("policy", "q"), ("policy", "q"), ("policy",), delay, target_rate)


def a2pr(
    nets,
    *,
    alpha: float = 2.5,
    discount: float = 0.99,
    noise: float = 0.2,
    noise_clip: float = 0.5,
    delay: int = 2,
    target_rate: float = 0.005,
) -> Recipe:
    """A2PR: TD3+BC that stays near the better of the data's action and one of an autoencoder of good actions.

    V(s) regresses min(y, r + gamma min Q(s', a')); the autoencoder proposes from (s, pi(s)), as in the code. Source:
    arXiv 2405.19909, ltlhuuu/A2PR.

    Args:
      nets: OfflineNetworks.
      alpha: as in `td3_bc`, and so are the others.
      discount: gamma.
      noise: see `td3_bc`.
      noise_clip: see `td3_bc`.
      delay: see `td3_bc`.
      target_rate: see `td3_bc`.

    Raises:
      ValueError: for discrete actions.
    """
    _continuous(nets, "a2pr")

    def loss(params, batch: Batch):
        steps = batch.data.steps
        observations, recorded = steps.observations, steps.actions
        code_key, propose_key, target_key = jax.random.split(batch.key, 3)
        targets, following = _td3_targets(nets, params, batch._replace(key=target_key), noise, noise_clip, discount)
        q = nets.q(params, observations, recorded)
        q_loss = losses.bellman(q, targets)
        own = jnp.min(nets.q(params, steps.next_observations, following), axis=0)
        values = nets.value(params, observations)
        lower = jnp.minimum(targets, td_targets(batch, own, discount))
        value_loss = losses.expectile(values, lower, expectile=0.5) * 2.0  # tau = .5 has a factor 1/2
        shape = (len(recorded), nets.latent)
        good = (q[0] > values).astype(jnp.float32)
        vae_loss = losses.vae(
            *_reordered(nets.vae(params, observations, recorded, jax.random.normal(code_key, shape)), recorded), good
        )
        actions = nets.distribution.mode(nets.policy(params, observations))
        proposals = nets.vae(params, observations, actions, jax.random.normal(propose_key, shape))[0]
        frozen = _frozen(params, "q")
        proposed = nets.q(frozen, observations, proposals)[0] - values
        anchors, weights = losses.a2pr_targets(recorded, proposals, q[0] - values, proposed)
        q_policy = nets.q(frozen, observations, actions)[0]
        policy_loss = losses.td3_bc(q_policy, actions, anchors, weights, alpha=alpha)
        return total(q_loss, value_loss, vae_loss, policy_loss), {
            "loss/q": mean(q_loss),
            "loss/value": mean(value_loss),
            "loss/vae": mean(vae_loss),
            "loss/policy": mean(policy_loss),
            "q/mean": mean(q_policy),
            "policy/weight": mean(weights),
        }

    uses = ("policy", "q", "value", "vae")
    return Recipe(loss, uses, ("policy", "q"), ("policy",), delay, target_rate)


def _reordered(coded, recorded):
    """(decoded, mean, log_std) and the actions in the order of losses.offline.vae."""
    decoded, mean_, log_std = coded
    return decoded, recorded, mean_, log_std


def cql(
    nets,
    *,
    weight: float = 5.0,
    num_actions: int = 10,
    entropy_coef: float = 0.1,
    discount: float = 0.99,
    target_rate: float = 0.005,
) -> Recipe:
    """CQL(H): a soft actor-critic whose Q is pushed down at actions that the data lack.

    Source: arXiv 2006.04779, aviralkumar2907/CQL (rho of section F: uniform actions, and the policy's in s and s'). The
    entropy's weight is fixed here, the code tunes it; the backup has no entropy, as in the code. The code's policy is
    squashed into the box of actions, ours is a normal that is clipped when it acts: a candidate that would be clipped
    has no term in the integral over the box, but counts among those drawn, so 1 / M of the sum stays unbiased.

    Args:
      nets: OfflineNetworks.
      weight: of the conservative term; 5 published for locomotion.
      num_actions: of each of the three sets; a finite set of actions is summed as a whole.
      entropy_coef: of the policy.
      discount: gamma.
      target_rate: of the critics' targets.
    """
    distribution = nets.distribution

    def over(params, observations, actions):
        """Q of [M, n, A] actions: float [2, n, M]."""
        return jnp.moveaxis(jax.vmap(lambda a: nets.q(params, observations, a))(actions), 0, -1)

    def finite(params, batch: Batch):
        steps = batch.data.steps
        count = len(steps.observations)
        every = jnp.broadcast_to(jnp.eye(nets.num_actions)[:, None], (nets.num_actions, count, nets.num_actions))
        q = nets.q(params, steps.observations, nets.encode(steps.actions))
        gap = losses.conservative(q, over(params, steps.observations, every))
        next_probs = jax.nn.softmax(nets.policy(params, steps.next_observations))
        ahead = jnp.min(over(with_targets(params, batch), steps.next_observations, every), axis=0)
        targets = td_targets(batch, jnp.sum(next_probs * ahead, axis=-1), discount)
        outputs = nets.policy(params, steps.observations)
        known = jax.lax.stop_gradient(jnp.min(over(params, steps.observations, every), axis=0))
        policy_loss = -jnp.sum(jax.nn.softmax(outputs) * known, axis=-1) - entropy_coef * distribution.entropy(outputs)
        return _cql_terms(losses.bellman(q, targets), gap, policy_loss, q, weight)

    def continuous(params, batch: Batch):
        steps = batch.data.steps
        uniform_key, now_key, next_key, target_key, policy_key = jax.random.split(batch.key, 5)
        shape = (num_actions, len(steps.observations))

        def drawn(observations, key, rows: tuple[int, ...]):
            outputs = nets.policy(params, observations)
            outputs = jnp.broadcast_to(outputs, (*rows[:-1], *outputs.shape))
            actions = distribution.sample(outputs, distribution.noise(key, rows))
            return actions, distribution.log_prob(outputs, actions)

        uniform = jax.random.uniform(uniform_key, (*shape, nets.size), minval=-1.0, maxval=1.0)
        now, now_log = drawn(steps.observations, now_key, shape)
        later, later_log = drawn(steps.next_observations, next_key, shape)
        candidates = jax.lax.stop_gradient(jnp.concatenate([uniform, now, later]))
        flat = jnp.full(shape, -nets.size * jnp.log(2.0))
        # The density is that of the draw, not of the clipped action: at the bounds it would count for far too much.
        inside = jnp.all(jnp.abs(candidates) <= 1.0, axis=-1)
        log_weights = jnp.where(inside, jnp.concatenate([flat, now_log, later_log]), jnp.inf).T
        q = nets.q(params, steps.observations, steps.actions)
        sampled = over(params, steps.observations, jnp.clip(candidates, -1.0, 1.0))
        gap = losses.conservative(q, sampled, log_weights)
        following, _ = drawn(steps.next_observations, target_key, shape[1:])
        ahead = nets.q(with_targets(params, batch), steps.next_observations, jnp.clip(following, -1.0, 1.0))
        targets = td_targets(batch, jnp.min(ahead, axis=0), discount)
        actions, log_probs = drawn(steps.observations, policy_key, shape[1:])
        known = jnp.min(nets.q(_frozen(params, "q"), steps.observations, jnp.clip(actions, -1.0, 1.0)), axis=0)
        return _cql_terms(losses.bellman(q, targets), gap, entropy_coef * log_probs - known, q, weight)

    return Recipe(finite if nets.num_actions else continuous, ("policy", "q"), targets=("q",), target_rate=target_rate)


def _cql_terms(q_loss, gap, policy_loss, q, weight):
    return total(q_loss, weight * gap, policy_loss), {
        "loss/q": mean(q_loss),
        "loss/policy": mean(policy_loss),
        "q/gap": mean(gap),
        "q/mean": mean(q),
    }
