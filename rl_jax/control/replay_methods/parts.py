"""What the methods of replay share: their parts, the reading of several critics, and the losses of a fit."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

READINGS = ("min", "mean", "first")


class ReplayParts(NamedTuple):
    """What a method is made of.

    Attributes:
      critic: models.agents.value_networks.Critic; muzero: None.
      actor: models.agents.value_networks.Actor, or None; expo: of the edits; sequence_sac: models.agents.plans.Planner.
      head: losses.value_heads.ValueHead, the reading of the critic's outputs.
      smoothing: td3: the distribution of the actions in its target (models.agents.exploration.noisy).
      base: expo: the models.agents.diffusion.Diffusion that is edited.
      model: sequence_sac: models.agents.plans.StateModel; muzero: models.agents.latent_model.LatentModel.
      mixer: value_decomposition: models.agents.mixers.Mixer.
      searches: sequoia: name -> (critic params, observations [N, ...]) -> its best actions float32 [N, n]
        (models.agents.relu_programs).
    """

    critic: Any
    actor: Any
    head: Any
    smoothing: Any = None
    base: Any = None
    model: Any = None
    mixer: Any = None
    searches: Any = None


def least(head, outputs: chex.Array, key: chex.PRNGKey, subset: int) -> chex.Array:
    """The outputs of the member whose value is the least, per entry: float [K, N, H] -> [N, H]. subset: 0 is all K."""
    outputs = some_members(outputs, key, subset)
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


def some_members(x: chex.Array, key: chex.PRNGKey, subset: int) -> chex.Array:
    """`subset` random ones of K members, [K, ...] -> [subset, ...]; 0 is all of them."""
    return x[jax.random.permutation(key, len(x))[:subset]] if subset else x


def of_actions(outputs: chex.Array, actions: chex.Array) -> chex.Array:
    """The outputs of the actions taken, [K, N, A, H] -> [K, N, H]; a sum, whose gradient is no scatter."""
    chosen = jax.nn.one_hot(actions, outputs.shape[2], dtype=outputs.dtype)
    return jnp.sum(outputs * chosen[None, :, :, None], axis=2)


def fitted(head, outputs: chex.Array, rewards: chex.Array, discounts: chex.Array, target: chex.Array):
    """Losses of all K members against one target, summed: (loss [N], mean size of the errors [N], metrics)."""
    target = jax.lax.stop_gradient(target)
    rewards = jax.lax.stop_gradient(rewards)
    loss, errors = jax.vmap(lambda own: head.loss(own, rewards, discounts, target))(outputs)
    metrics = {"value/mean": jnp.mean(head.values(outputs)), "value/error": jnp.mean(errors)}
    return jnp.sum(loss, axis=0), jnp.mean(errors, axis=0), metrics


def soft_metrics(own: dict[str, Any], entropy: chex.Array) -> dict[str, chex.Array]:
    """{"temperature", "entropy"} of an actor's params with a log_temperature, or several. entropy: float []."""
    return {"temperature": jnp.mean(jnp.exp(own["log_temperature"])), "entropy": entropy}


def init_both(key: chex.PRNGKey, critic, actor) -> dict[str, Any]:
    """Params {"critic", "actor"}."""
    critic_key, actor_key = jax.random.split(key)
    return {"critic": critic.init(critic_key), "actor": actor.init(actor_key)}


def init_soft(key: chex.PRNGKey, critic, actor, temperature, shape: tuple[int, ...] = ()) -> dict[str, Any]:
    """Params {"critic", "actor": {"policy", "log_temperature"}}.

    Args:
      key: for the weights.
      critic: of ReplayParts.
      actor: of ReplayParts.
      temperature: alpha at the start, a number, which may be traced.
      shape: of log_temperature; (K,) for K of them.

    Raises:
      ValueError: if the temperature is not positive.
    """
    # Whether it is learned or not: log alpha is one of the actor's params, which are to be finite after each step.
    if isinstance(temperature, int | float) and not temperature > 0:
        raise ValueError(
            f"algorithm.method.temperature={temperature} must be above 0, for its log is what is kept: for nearly none "
            "set a small one, as 1e-6, and learn_temperature=False"
        )
    params = init_both(key, critic, actor)
    log_temperature = jnp.log(jnp.full(shape, temperature, jnp.float32))
    return params | {"actor": {"policy": params["actor"], "log_temperature": log_temperature}}


def check_reads(reads: str, subset: int, members: int) -> None:
    """Raises ValueError if `reads` is none of READINGS, or there are fewer than `subset` members."""
    if reads not in READINGS:
        raise ValueError(f"algorithm.method.reads={reads!r} is none of {', '.join(READINGS)}")
    if not 0 <= subset <= members:
        raise ValueError(f"algorithm.method.subset={subset} must be 0 (all) to network.members={members}")
