"""SePPO (arXiv 2410.05255): a diffusion model learns from samples that won, beside samples of its own checkpoints.

    D      = winners x_w, each the best of C samples of the pretrained model for its prompt; made once, without losers
    ref    ~ U{checkpoints 0 .. k-1},   one per `every` updates, 0 the pretrained model;   x_r ~ ref( . | prompt of x_w)
    err(x) = mean_d (e - e_hat(x_t, t))^2        of a step t that both samples share, each with a noise of its own
    s      = sign( err_ref(x_w) - err(x_w) )     1: the reference is worse at the winner, so its sample is a loser
    loss   = -log sigmoid( -beta ( err(x_w) - err_ref(x_w) - s (err(x_r) - err_ref(x_r)) ) )

No reward and no reward model is read once the winners are chosen. Without the sign and with the newest checkpoint it is
SPIN-Diffusion, with the first one DITTO: `anchor="loser"` with checkpoints=1, or with every above all updates.

The official repository (DwanZhang-AI/SePPO) has no training code. The loss, the sign, its indicator variant, the
uniform draw and 30 x 7 are as public reviews of the paper quote its equations 7, 8 and 14, algorithm 1 and tables 4, 5.
Not read, so chosen here: one draw of ref per round, and a step that the pair shares.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.algorithm import Algorithm
from rl_jax.control.denoising import check_chains
from rl_jax.control.denoising_chains import GAIN, chain_metrics, means_at, prompts_of, sample_chains
from rl_jax.control.update import TURN_METRICS, ControlState, make_parts, over_turns, shuffled, unraveler
from rl_jax.core.masked import Max, Mean
from rl_jax.losses import denoising as losses
from rl_jax.training.step import TrainState, make_train_step

# How samples of the reference are judged, from the errors of the model and of the reference at the winners.
ANCHORS = {
    "sign": losses.anchored_signs,
    # The paper's ablation: what is likely to have won is left out instead of learned.
    "indicator": lambda errors, ref_errors: jnp.maximum(losses.anchored_signs(errors, ref_errors), 0.0),
    "loser": lambda errors, ref_errors: jnp.ones_like(errors),
}


class NoisedPairs(NamedTuple):
    """Winners and samples of the reference, in this order, each at one noised step.

    Attributes:
      observations: float32 [N, 2, 9].
      actions: what predicts the noise, float32 [N, 2, 2].
      ref_means: of the reference, float32 [N, 2, 2].
    """

    observations: chex.Array
    actions: chex.Array
    ref_means: chex.Array


def pair_loss(
    means: chex.Array, batch: NoisedPairs, *, beta: float | chex.Array, anchor: str = "sign"
) -> tuple[Mean, dict[str, Mean | Max]]:
    """The loss of pairs.

    Args:
      means: of the policy, float32 [N, 2, 2], differentiated.
      batch: NoisedPairs.
      beta: of losses.denoising.semi_policy.
      anchor: one of ANCHORS.

    Returns:
      (loss, metrics), undivided.
    """
    chex.assert_equal_shape([means, batch.actions, batch.ref_means])
    gains, count = batch.observations[..., GAIN], jnp.float32(len(means))
    errors, ref_errors = (losses.prediction_error(batch.actions, x, gains) for x in (means, batch.ref_means))
    signs = ANCHORS[anchor](errors[:, 0], ref_errors[:, 0])
    each = losses.semi_policy(errors, ref_errors, signs, beta=beta)
    metrics = {
        "anchor/winners": Mean(jnp.sum(signs < 0), count),
        "error/winner": Mean(jnp.sum(errors[:, 0]), count),
        "error/reference": Mean(jnp.sum(errors[:, 1]), count),
    }
    return Mean(jnp.sum(each), count), metrics


def make_semi_policy_update(
    agent,
    env,
    algorithm: Algorithm,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    axis_name=None,
    beta: Any = 1.0,
    anchor: str = "sign",
    every: int = 30,
    checkpoints: int = 7,
    winners: int = 1024,
    candidates: int = 2,
) -> tuple[Callable, Callable, Callable]:
    """Builds (init, update, policy_of) as update.make_update does.

    Args:
      agent: models.agents.denoiser's.
      env: envs.Vector of probes/denoise.
      algorithm: its epochs, minibatches and max_grad_norm.
      optimizer: any optax transformation.
      num_steps: T, of a whole chain.
      axis_name: must be None.
      beta: of losses.denoising.semi_policy.
      anchor: one of ANCHORS.
      every: updates between checkpoints.
      checkpoints: how many are kept, the newest; 7 times 30 updates are the paper's whole run.
      winners: size of D.
      candidates: C.

    Returns:
      (init, update, policy_of), see update.make_update.

    Raises:
      ValueError: if a setting does not fit the chain, or has no meaning here.
    """
    counts = dict(every=every, checkpoints=checkpoints, winners=winners, candidates=candidates)
    check_chains(env, algorithm, num_steps, axis_name, counts)
    _check(env, algorithm, anchor, candidates)
    parts = make_parts(agent, env, algorithm._replace(minibatches=1), optimizer, num_steps=num_steps)
    unravel, turns = unraveler(agent), algorithm.epochs * algorithm.minibatches
    sample = functools.partial(sample_chains, env=env, num_steps=num_steps, branch_at=jnp.int32(0))

    def init(key: chex.PRNGKey) -> ControlState:
        state = parts.init(key)
        keys = jax.random.split(jax.random.fold_in(key, 1), -(-winners * candidates // env.num_envs))
        images, prompts = jax.lax.map(functools.partial(best_of, sample, env.num_envs, candidates), keys)
        kept = {"winners": images.reshape(-1, 2)[:winners], "prompts": prompts.reshape(-1, 2)[:winners]}
        kept["checkpoints"] = jnp.tile(state.train.params, (checkpoints, 1))
        return state._replace(train=state.train._replace(trackers=kept))

    def means_of(params: chex.Array, observations: chex.Array) -> chex.Array:
        return means_at(functools.partial(agent.policy, unravel(params)), observations)

    def loss_fn(params: chex.Array, batch: NoisedPairs):
        return pair_loss(means_of(params, batch.observations), batch, beta=beta, anchor=anchor)

    train_step = make_train_step(loss_fn, optimizer, max_grad_norm=algorithm.max_grad_norm)

    def noised(reference: chex.Array, pairs: chex.Array, prompts: chex.Array, key: chex.PRNGKey) -> NoisedPairs:
        step_key, noise_key = jax.random.split(key)
        steps = jax.random.randint(step_key, (len(pairs),), 0, num_steps)
        each = jax.vmap(jax.vmap(env.noised, (0, 0, None, None)))
        observations, actions = each(jax.random.normal(noise_key, pairs.shape), pairs, prompts, steps)
        return NoisedPairs(observations, actions, means_of(reference, observations))

    def update(state: ControlState):
        train = state.train
        count = train.step // turns
        key, shuffle_key, pick_key = jax.random.split(jax.random.fold_in(train.rng, count), 3)
        kept = train.trackers
        pool = with_newest(kept["checkpoints"], train.params, count, every=every)
        reference = pool[pick_checkpoint(train.rng, count, every=every, checkpoints=checkpoints)]
        picked = jax.random.randint(pick_key, (env.num_envs,), 0, winners)
        prompts = kept["prompts"][picked]
        policy = functools.partial(agent.policy, unravel(reference))
        chains = sample(policy, key=key, branches=1, prompts=prompts)
        pairs = jnp.stack([kept["winners"][picked], chains.ends], axis=1)

        def turn(train: TrainState, drawn):
            rows, key = drawn
            train, learned = train_step(train, noised(reference, pairs[rows], prompts[rows], key))
            return train, {name: learned[name] for name in TURN_METRICS}

        order = shuffled(shuffle_key, algorithm.epochs, env.num_envs).reshape(turns, -1)
        train = train._replace(trackers=kept | {"checkpoints": pool})
        train, learned = jax.lax.scan(turn, train, (order, jax.random.split(jax.random.fold_in(key, 1), turns)))
        ended = loss_fn(train.params, noised(reference, pairs, prompts, jax.random.fold_in(key, 2)))[1]
        return state._replace(train=train), chain_metrics(chains) | over_turns(learned) | ended

    return init, update, parts.policy_of


def best_of(sample: Callable, num_envs: int, candidates: int, key: chex.PRNGKey) -> tuple[chex.Array, chex.Array]:
    """Winners: of each group of chains of the pretrained model the one with the highest reward, the first in a tie.

    Args:
      sample: denoising_chains.sample_chains of an env.
      num_envs: B.
      candidates: C, chains of a group.
      key: typed PRNG key.

    Returns:
      (x_0 float32 [B / C, 2], prompts float32 [B / C, 2]).
    """
    chains = sample(lambda observations: jnp.zeros((num_envs, 2)), key=key, branches=candidates)
    groups = jnp.arange(num_envs).reshape(-1, candidates)
    best = groups[:, 0] + jnp.argmax(chains.rewards[groups], axis=1)
    return chains.ends[best], prompts_of(chains)[best]


def with_newest(pool: chex.Array, params: chex.Array, count: chex.Array, *, every: int) -> chex.Array:
    """The pool with `params` in the oldest one's place, if a round begins: float32 [K, P].

    Args:
      pool: float32 [K, P].
      params: of the model, float32 [P].
      count: updates so far, int32 [].
      every: updates between checkpoints.
    """
    chex.assert_shape(pool, (None, len(params)))
    return jnp.where(count % every == 0, pool.at[count // every % len(pool)].set(params), pool)


def pick_checkpoint(rng: chex.PRNGKey, count: chex.Array, *, every: int, checkpoints: int) -> chex.Array:
    """The place of the reference in the pool: one draw for `every` updates among those saved so far, int32 [].

    Args:
      rng: typed PRNG key of the run.
      count: updates so far, int32 [].
      every: updates between checkpoints.
      checkpoints: places of the pool.
    """
    saved = count // every
    key = jax.random.fold_in(jax.random.fold_in(rng, 2**31 - 5), saved)
    return jax.random.randint(key, (), 0, jnp.minimum(saved + 1, checkpoints))


def _check(env, algorithm: Algorithm, anchor: str, candidates: int) -> None:
    if anchor not in ANCHORS:
        raise ValueError(f"updater.anchor={anchor!r} is none of {', '.join(ANCHORS)}")
    if env.num_envs % candidates or env.num_envs % algorithm.minibatches:
        raise ValueError(
            f"{env.num_envs} chains do not divide into groups of {candidates}, or not into {algorithm.minibatches} "
            "minibatches"
        )
