"""Pathwise gradients: the cost of whole paths, differentiated through the environment itself.

    loss(theta) = -1 / (B T) sum_{b, t} r(s_t, a_t),   a_t = mode of pi_theta(. | s_t),   s_{t+1} = f(s_t, a_t, z_t),

The gradient follows from the chain rule through f, with the noise z (the demand) sampled ahead. It needs no critic and
no score function, and has a fraction of their variance. It is for environments whose step has a useful derivative with
respect to the action and whose noise does not depend on the actions: "hindsight differentiable" ones. Source: HDPO,
arXiv 2306.11246.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.algorithm import Algorithm, check_unread
from rl_jax.control.update import ControlState, make_parts, over_turns, own_key, unraveler
from rl_jax.core.masked import Max, Mean
from rl_jax.core.types import Params
from rl_jax.rollout.envs.steps import at_the_mode, collect, memoryless, start
from rl_jax.training.step import make_train_step


def path_loss(
    agent, params: Params, env, key: chex.PRNGKey, *, num_steps: int
) -> tuple[Mean, dict[str, Mean | Max]]:
    """The path loss over num_steps steps from new starts. The policy acts with its mode.

    Args:
      agent: models.agents.actor_critic.Agent.
      params: differentiated.
      env: an envs.Vector with a differentiable step.
      key: for the starts and the noise.
      num_steps: T.

    Returns:
      (minus the reward per step, undivided; metrics of the episodes that ended).
    """
    start_key, key = jax.random.split(key)
    worlds = start(env, start_key)
    policy = memoryless(lambda observation: agent.policy(params, observation))
    _, rows, metrics = collect(policy, at_the_mode(agent.distribution), env, worlds, key, num_steps=num_steps)
    return Mean(-jnp.sum(rows.rewards), jnp.float32(rows.rewards.size)), metrics


def make_pathwise_update(
    agent, env, algorithm: Algorithm, optimizer: optax.GradientTransformation, *, num_steps: int, axis_name=None
) -> tuple[Callable, Callable, Callable]:
    """Builds (init, update, policy_of) as update.make_update does; an update is one optimizer step.

    Every update takes num_steps steps from new starts, best chosen as the length of an episode (if none ends, the
    episode metrics are 0). The environments in the state are not stepped. Of the algorithm only max_grad_norm is used;
    the critic is not trained.

    Args:
      agent: models.agents.actor_critic.Agent with real-valued actions.
      env: envs.Vector with a differentiable step.
      algorithm: see above.
      optimizer: any optax transformation.
      num_steps: T.
      axis_name: mapped axis over which the environments are spread.

    Returns:
      (init, update, policy_of), see update.make_update.

    Raises:
      ValueError: if actions have no gradient, the environments run on the host, or a setting has no meaning here.
    """
    outputs = jax.ShapeDtypeStruct((1, agent.distribution.num_outputs), jnp.float32)
    if not jnp.issubdtype(jax.eval_shape(agent.distribution.mode, outputs).dtype, jnp.floating):
        raise ValueError("pathwise gradients: actions are whole numbers, which have no derivative; use another method")
    if not env.pure:
        raise ValueError("pathwise gradients: the environment lives on the host and cannot be differentiated")
    unread = dict(normalize_observations=False, normalize_rewards=False, actor_lag=1, epochs=1, minibatches=1)
    unread |= dict(entropy_coef=0.0, kl_coef=0.0, kl_control=None, auxiliary=None, relabel=None)
    check_unread(algorithm, "pathwise gradients", **unread)
    parts = make_parts(agent, env, algorithm, optimizer, num_steps=num_steps, axis_name=axis_name)
    unravel = unraveler(agent)

    def loss_fn(params: chex.Array, key: chex.PRNGKey):
        return path_loss(agent, unravel(params), env, key, num_steps=num_steps)

    train_step = make_train_step(loss_fn, optimizer, max_grad_norm=algorithm.max_grad_norm, axis_name=axis_name)

    def update(state: ControlState):
        key = own_key(jax.random.fold_in(state.train.rng, state.train.step), axis_name)
        train, learned = train_step(state.train, key)
        return state._replace(train=train), over_turns(jax.tree.map(lambda x: x[None], learned))

    return parts.init, update, parts.policy_of
