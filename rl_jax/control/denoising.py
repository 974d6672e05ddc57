"""Policy gradients over denoising steps: whole chains of one length, credit from the reward of x_0.

    r_0 .. r_B                   B chains of T steps; up to step T - n the G chains of a group are the same one
    A_i  = clip((r_i - mean) / std, +-5)      over the chains of the same prompt, of this update and of those before it
    loss = mean over the last n steps of ( a loss of losses.denoising + ref_coef |m|^2 / 2 )

`clipped` with n = T and G = 1 is DDPO (arXiv 2305.13301) and, for a flow, Flow-GRPO (arXiv 2505.05470). `guarded` is
GRPO-Guard (arXiv 2510.22319): the normalised ratio, and each step's loss over its |dt|. A growing n, G > 1 and the
choice of the best and worst of a group are B2-DiffuRL (arXiv 2503.11240): backward progressive training and sampling by
branches. `preferred` is D3PO (arXiv 2311.13231): the two chains of a group, one of them preferred. DPPO (2409.00588)
is control.make_update in the same environment.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax.control.algorithm import Algorithm, check_unread
from rl_jax.control.denoising_chains import (
    Chains,
    chain_metrics,
    keep_extremes,
    means_at,
    prompt_scores,
    prompts_of,
    sample_chains,
    steps_trained,
)
from rl_jax.control.update import TURN_METRICS, ControlState, make_parts, over_turns, shuffled, unraveler
from rl_jax.core.masked import Max, Mean
from rl_jax.losses import denoising as losses
from rl_jax.training.step import TrainState, make_train_step

LOSSES = ("clipped", "guarded", "preferred")
STD, SPAN, LEFT = 6, 7, 8  # places in the observation of worlds.denoising
ADVANTAGE_CLIP = 5.0


class ChainBatch(NamedTuple):
    """What is trained on; the leading axes are groups and their chains, [B / G, G].

    Attributes:
      observations: float32 [..., T, 9].
      actions: float32 [..., T, 2].
      means: float32 [..., T, 2].
      advantages: float32 [...]; of D3PO the sign of the preference.
      weights: float32 [..., T], 1 for a step that is trained on.
    """

    observations: chex.Array
    actions: chex.Array
    means: chex.Array
    advantages: chex.Array
    weights: chex.Array


def chain_batch(
    chains: Chains,
    seen: dict[str, chex.Array],
    trained: chex.Array,
    *,
    branches: int,
    keep: tuple[float, float] | None,
    pairs: bool,
) -> ChainBatch:
    """Credit: scores of the prompts, the choice within the groups, and the steps that are trained on.

    Args:
      chains: B of them.
      seen: rewards, prompts [.., 2] and filled of the last updates, [history, B], these chains included.
      trained: n, int32 [].
      branches: G.
      keep: (high, low) of keep_extremes, or None.
      pairs: whether the advantage is the sign of a preference between the two chains of a group.
    """
    steps = chains.actions.shape[1]
    flat = (seen[name].reshape(-1, *seen[name].shape[2:]) for name in ("rewards", "prompts", "filled"))
    scores = prompt_scores(chains.rewards, prompts_of(chains), *flat).reshape(-1, branches)
    kept = jnp.ones_like(scores) if keep is None else keep_extremes(scores, high=keep[0], low=keep[1])
    advantages = jnp.clip(scores, -ADVANTAGE_CLIP, ADVANTAGE_CLIP)
    if pairs:
        paid = chains.rewards.reshape(-1, branches)
        advantages = jnp.sign(paid - paid[:, ::-1])
    late = (jnp.arange(steps) >= steps - trained).astype(jnp.float32)
    arrays = (x.reshape(-1, branches, *x.shape[1:]) for x in (chains.observations, chains.actions, chains.means))
    return ChainBatch(*arrays, advantages, kept[..., None] * late[None, None])


def chain_loss(
    means: chex.Array,
    batch: ChainBatch,
    *,
    loss: str,
    clip: float | chex.Array,
    beta: float | chex.Array = 0.1,
    ref_coef: float | chex.Array = 0.0,
) -> tuple[Mean, dict[str, Mean | Max]]:
    """The loss of groups of chains.

    Args:
      means: of the policy, float32 [groups, G, T, 2], differentiated.
      batch: ChainBatch.
      loss: one of LOSSES.
      clip: of the ratio.
      beta: of `preferred`.
      ref_coef: weight of KL(model || pretrained) per step and coordinate.

    Returns:
      (loss, metrics), undivided.
    """
    weights, total = batch.weights, jnp.sum(batch.weights)
    gaps = losses.step_log_prob(batch.actions, means) - losses.step_log_prob(batch.actions, batch.means)
    ratios, advantages = jnp.exp(gaps), jnp.broadcast_to(batch.advantages[..., None], gaps.shape)
    apart = 0.5 * jnp.mean(jnp.square(means), axis=-1)  # the pretrained model's means are 0
    if loss == "preferred":
        # Of both chains at once, so half of the pair's loss stands at each.
        pair = losses.step_log_prob(batch.actions, means) - losses.step_log_prob(batch.actions, jnp.zeros_like(means))
        step = losses.preferred(jnp.swapaxes(pair, -1, -2), jnp.swapaxes(advantages, -1, -2), beta=beta, clip=clip)
        each = jnp.broadcast_to(step[..., None, :], gaps.shape)
    elif loss == "guarded":
        observed = batch.observations
        ratios = losses.normalized_ratio(batch.actions, means, batch.means, observed[..., STD])
        each = losses.clipped(ratios, advantages, clip=clip) / observed[..., SPAN]
    else:
        each = losses.clipped(ratios, advantages, clip=clip)
    metrics = {
        "clip/low": Mean(jnp.sum(weights * (ratios < 1.0 - clip)), total),
        "clip/high": Mean(jnp.sum(weights * (ratios > 1.0 + clip)), total),
        "ratio/log_mean": Mean(jnp.sum(weights * jnp.log(ratios)), total),
        "kl/pretrained": Mean(jnp.sum(apart), jnp.float32(apart.size)),
    }
    return Mean(jnp.sum(weights * (each + ref_coef * apart)), total), metrics


def make_denoising_update(
    agent,
    env,
    algorithm: Algorithm,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    axis_name=None,
    loss: str = "clipped",
    clip: Any = 0.1,
    beta: Any = 0.1,
    ref_coef: Any = 0.0,
    branches: int = 1,
    first_steps: int = 0,
    growth: int = 1,
    history: int = 1,
    keep: tuple[float, float] | None = None,
) -> tuple[Callable, Callable, Callable]:
    """Builds (init, update, policy_of) as update.make_update does.

    Args:
      agent: models.agents.denoiser's.
      env: envs.Vector of probes/denoise.
      algorithm: its epochs, minibatches and max_grad_norm.
      optimizer: any optax transformation.
      num_steps: T, of a whole chain.
      axis_name: must be None.
      loss: one of LOSSES.
      clip: of the ratio.
      beta: of `preferred`.
      ref_coef: weight of the KL from the pretrained model.
      branches: G.
      first_steps: n of the first update; 0 is T.
      growth: updates until n is T.
      history: updates whose rewards make a prompt's mean and std.
      keep: (high, low) of keep_extremes; None keeps all chains.

    Returns:
      (init, update, policy_of), see update.make_update.

    Raises:
      ValueError: if a setting does not fit the chain, or has no meaning here.
    """
    check_chains(env, algorithm, num_steps, axis_name, dict(branches=branches, growth=growth, history=history))
    _check(env, algorithm, num_steps, loss, first_steps, branches)
    plain = algorithm._replace(minibatches=1)
    parts = make_parts(agent, env, plain, optimizer, num_steps=num_steps)
    unravel, turns = unraveler(agent), algorithm.epochs * algorithm.minibatches

    def init(key: chex.PRNGKey) -> ControlState:
        state = parts.init(key)
        return state._replace(train=state.train._replace(trackers=_nothing_seen(history, env.num_envs)))

    def loss_fn(params: chex.Array, batch: ChainBatch):
        means = means_at(functools.partial(agent.policy, unravel(params)), batch.observations)
        return chain_loss(means, batch, loss=loss, clip=clip, beta=beta, ref_coef=ref_coef)

    train_step = make_train_step(loss_fn, optimizer, max_grad_norm=algorithm.max_grad_norm)

    def turn(train: TrainState, batch: ChainBatch):
        train, learned = train_step(train, batch)
        return train, {name: learned[name] for name in TURN_METRICS}

    def update(state: ControlState):
        count = state.train.step // turns
        sample_key, shuffle_key = jax.random.split(jax.random.fold_in(state.train.rng, count))
        trained = steps_trained(count, first=first_steps or num_steps, last=num_steps, growth=growth)
        policy = functools.partial(agent.policy, unravel(state.train.params))
        lengths = dict(num_steps=num_steps, branch_at=num_steps - trained, branches=branches)
        chains = sample_chains(policy, env, sample_key, **lengths)
        trackers = _remember(state.train.trackers, count % history, chains)
        batch = chain_batch(chains, trackers, trained, branches=branches, keep=keep, pairs=loss == "preferred")
        order = shuffled(shuffle_key, algorithm.epochs, env.num_envs // branches).reshape(turns, -1)
        train = state.train._replace(trackers=trackers)
        train, learned = jax.lax.scan(turn, train, jax.tree.map(lambda x: x[order], batch))
        metrics = chain_metrics(chains) | over_turns(learned) | loss_fn(train.params, batch)[1]
        kept, one = jnp.mean(jnp.max(batch.weights, axis=-1)), jnp.float32(1.0)
        metrics |= {"chains/kept": Mean(kept, one), "chains/steps": Mean(trained.astype(jnp.float32), one)}
        return state._replace(train=train), metrics

    return init, update, parts.policy_of


def _nothing_seen(history: int, num_envs: int) -> dict[str, chex.Array]:
    shape = (history, num_envs)
    return {"rewards": jnp.zeros(shape), "prompts": jnp.zeros((*shape, 2)), "filled": jnp.zeros(shape)}


def _remember(trackers: dict[str, Any], row: chex.Array, chains: Chains) -> dict[str, Any]:
    new = {"rewards": chains.rewards, "prompts": prompts_of(chains), "filled": jnp.ones_like(chains.rewards)}
    return {name: trackers[name].at[row].set(x) for name, x in new.items()}


def check_chains(env, algorithm: Algorithm, num_steps: int, axis_name, counts: dict[str, int]) -> None:
    """Checks what an update of whole chains of denoising steps is given.

    Args:
      env: envs.Vector.
      algorithm: of the update.
      num_steps: T.
      axis_name: of the update.
      counts: settings of the updater that are 1 or more, by name.

    Raises:
      ValueError: if the environment is no probes/denoise of T steps or keeps its starts, or a setting is out of range
        or is not used here.
    """
    high = env.observation_space.high
    length = int(high[LEFT]) if env.observation_space.shape == (9,) and np.isfinite(high[LEFT]) else 0
    if not length:
        raise ValueError("denoising updates are for whole chains of probes/denoise: set env.name to it, and env.jump=0")
    if not hasattr(jax.eval_shape(env.reset, jax.random.key(0))[0], "direction"):  # sample_chains sets prompts there
        raise ValueError("denoising updates start chains themselves: leave env.fresh_starts and env.snapshots unset")
    if num_steps != length:
        raise ValueError(f"sample.num_steps={num_steps}, but a chain has {length} steps: set it to env.steps")
    if axis_name is not None:
        raise ValueError("denoising updates compare the chains of a prompt: use mesh=seeds:N, not envs:N")
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"updater.{name}={count} must be 1 or more")
    unread = dict(normalize_observations=False, normalize_rewards=False, actor_lag=1)
    unread |= dict(entropy_coef=0.0, kl_coef=0.0, kl_control=None, auxiliary=None, relabel=None)
    check_unread(algorithm, "denoising updates", **unread)


def _check(env, algorithm: Algorithm, num_steps: int, loss: str, first_steps: int, branches: int) -> None:
    if loss not in LOSSES:
        raise ValueError(f"updater.loss={loss!r} is none of {', '.join(LOSSES)}")
    if not 0 <= first_steps <= num_steps:
        raise ValueError(f"updater.first_steps={first_steps} must be from 0 to {num_steps}")
    if loss == "preferred" and branches != 2:
        raise ValueError(f"updater.loss='preferred' compares pairs: set updater.branches=2, not {branches}")
    if env.num_envs % (branches * algorithm.minibatches):
        raise ValueError(
            f"{env.num_envs} chains in groups of {branches} do not divide into {algorithm.minibatches} minibatches"
        )
