"""Imitation in codes that preferences taught: optimal transport between encoded trajectories (RAPL).

    u(a, b)  = -sum_ij T_ij C_ij,  C_ij = 1 - cos(phi(a_i), phi(b_j)),  T the Sinkhorn plan
    P        = sigma(s [u(best, middle) - u(best, worst)])      of three trajectories that an annotator has ranked
    loss     = -log P;  -(log P + log(1 - P)) / 2 if middle and worst are equally good
    r_t      = -scale T_t,: C_t,:                               of the policy's steps and the best trajectory

What the annotator ignores, phi may ignore: distractors in the observation no longer cost anything.
Source: arXiv 2412.04835, 2310.07932; the plan, the distance and the triplets are those of its authors' training script
(triplets of positive, neutral and negative; losses 1 - P and 1 / 2 - P there, the paper's likelihood here).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling import demonstrations
from rl_jax.control.relabelling.base import begin, descend
from rl_jax.control.relabelling.transport import cosine, step_costs
from rl_jax.core.masked import Mean, masked_mean
from rl_jax.losses.preference import links
from rl_jax.rollout.envs.steps import Transitions


class Triplets(NamedTuple):
    """N rankings of three trajectories.

    Attributes:
      index: int32 [N, 3]. The best, the middle and the worst.
      tied: bool [N]. The middle and the worst are equally good.
      mask: bool [N]. False if all three are equally good: such a ranking says nothing.
    """

    index: chex.Array
    tied: chex.Array
    mask: chex.Array


def ranked_triplets(key: chex.PRNGKey, scores: chex.Array, *, count: int, beta: float) -> Triplets:
    """`count` random triplets of different trajectories, ranked by a synthetic annotator.

    The order is Plackett-Luce: P(i first) = exp(beta f_i) / sum_j exp(beta f_j), and so on among the rest.

    Args:
      key: for the triplets and their order.
      scores: f, float [E].
      count: N.
      beta: rationality of the annotator, per unit of the score; math.inf never errs.

    Raises:
      ValueError: if E < 3, or beta is not above 0.
    """
    chex.assert_rank(scores, 1)
    chex.assert_type(scores, float)
    if len(scores) < 3 or not beta > 0.0:
        raise ValueError(f"ranked_triplets: {len(scores)} trajectories must be 3 or more, beta={beta} above 0")
    draw_key, noise_key = jax.random.split(key)
    drawn = jax.vmap(lambda k: jax.random.choice(k, len(scores), (3,), replace=False))(
        jax.random.split(draw_key, count)
    )
    # The order of f + Gumbel / beta is a sample of Plackett-Luce.
    noisy = scores[drawn] + jax.random.gumbel(noise_key, drawn.shape) / beta
    index = jnp.take_along_axis(drawn, jnp.argsort(-noisy, axis=1), axis=1)
    best, middle, worst = scores[index].T
    return Triplets(index, middle == worst, (middle != worst) | (best != worst))


def triplet_margins(codes: chex.Array, **plan) -> chex.Array:
    """u(best, middle) - u(best, worst): float [B], above 0 if the order is the annotator's.

    Args:
      codes: phi of best, middle and worst, float [B, 3, F, Z].
      plan: temperature and iterations of `transport.sinkhorn`.
    """
    chex.assert_rank(codes, 4)

    def cost(a: chex.Array, b: chex.Array) -> chex.Array:
        return jnp.sum(step_costs(cosine(a, b), **plan))

    def margin(triplet: chex.Array) -> chex.Array:
        best, middle, worst = triplet
        return cost(best, worst) - cost(best, middle)

    return jax.vmap(margin)(codes)


def triplet_loss(
    codes: chex.Array, tied: chex.Array, mask: chex.Array, *, sharpness: float, **plan
) -> tuple[Mean, Mean]:
    """-log sigma(s x) of margins x; -(log sigma(s x) + log sigma(-s x)) / 2 of ties.

    Args:
      codes: float [B, 3, F, Z], differentiated.
      tied: bool [B].
      mask: bool [B].
      sharpness: s.
      plan: as for `triplet_margins`.

    Returns:
      (loss, share of the untied triplets whose order is the annotator's), undivided.
    """
    chex.assert_equal_shape([tied, mask])
    chex.assert_type([tied, mask], bool)
    margins = triplet_margins(codes, **plan)
    each = links.soft_label(sharpness * margins, label_probs=jnp.where(tied, 0.5, 1.0))
    right = (jax.lax.stop_gradient(margins) > 0.0).astype(jnp.float32)
    return masked_mean(each, mask), masked_mean(right, mask & ~tied)


class Aligned(NamedTuple):
    """State of `by_aligned_transport`.

    Attributes:
      params: of phi; they do not change after the fit.
      agreement: float32 []. Share of held-out triplets that phi orders as the annotator does.
      cost: float32 []. Mean transport cost of the last batch.
    """

    params: Any
    agreement: chex.Array
    cost: chex.Array


def by_aligned_transport(
    *,
    observation_size: int,
    make_net: Callable,
    demos: str = "",
    frames: int = 16,
    triplets: int = 1000,
    rationality: float = float("inf"),
    code: int = 8,
    hidden: tuple[int, ...] = (64,),
    updates: int = 200,
    batch_size: int = 16,
    learning_rate: float = 1e-2,
    temperature: float = 0.1,
    iterations: int = 20,
    sharpness: float = 10.0,
    scale: float = 1.0,
    keep: float = 0.0,
    axis_name=None,
) -> Relabel:
    """Pays each step minus its share of the transport cost to the best demonstration, between learned codes.

    Before the first update the annotator ranks triplets of the file's episodes by their rewards, and phi is fitted to
    the rankings; the policy is never paid by these rewards. Each row of T steps is one trajectory: sample.num_steps
    should be the episodes' length. Source: arXiv 2412.04835. Stand-ins: vectors in place of video, a function in place
    of the annotator; PPO in place of fine-tuning a diffusion policy.

    Args:
      observation_size: numbers in an observation.
      make_net: models.agents.features.make_net.
      demos: episodes.jsonl of a run of experiments.control.ppo: good episodes and bad ones, 3 or more.
      frames: F; this many steps of each episode, evenly spread, are compared.
      triplets: rankings to train on; a quarter as many are held out.
      rationality: of the annotator, per unit of the return (`ranked_triplets`).
      code: Z.
      hidden: widths of phi.
      updates: minibatches of phi's fit.
      batch_size: triplets per minibatch.
      learning_rate: of Adam; 0 leaves phi as it is drawn, a random projection.
      temperature: of Sinkhorn; 1 in the authors' script, whose plan is nearly uniform.
      iterations: of Sinkhorn.
      sharpness: s; 1 in the authors' script.
      scale: of the reward.
      keep: weight of the environment's reward.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if a number is out of range, the demonstrations are of another size, have no rewards or are fewer than
        3, or the environments are spread over devices.
    """
    if axis_name is not None:
        raise ValueError("by_aligned_transport fits its encoder on one device: set mesh without envs")
    if min(frames, triplets, code, updates, batch_size) < 1:
        sizes = f"frames={frames}, triplets={triplets}, code={code}, updates={updates}, batch_size={batch_size}"
        raise ValueError(f"by_aligned_transport: {sizes} must all be 1 or more")
    videos, scores = _shown(demos, observation_size, frames)
    target = jnp.asarray(videos[int(np.flatnonzero(scores == scores.max())[-1])])  # the last of the best
    videos, scores = jnp.asarray(videos), jnp.asarray(scores)
    plan = dict(temperature=temperature, iterations=iterations)
    net, optimizer = make_net(observation_size, code, hidden=hidden), optax.adam(learning_rate)

    def encode(params: Any, x: chex.Array) -> chex.Array:
        return net.apply(params, x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], code)

    def loss_of(params: Any, chosen: Triplets) -> tuple[Mean, Mean]:
        codes = encode(params, videos[chosen.index])
        return triplet_loss(codes, chosen.tied, chosen.mask, sharpness=sharpness, **plan)

    def init(key: chex.PRNGKey) -> Aligned:
        net_key, train_key, held_key, fit_key = jax.random.split(key, 4)
        known = ranked_triplets(train_key, scores, count=triplets, beta=rationality)
        held_out = ranked_triplets(held_key, scores, count=max(triplets // 4, 1), beta=rationality)

        def loss_fn(params: Any, key: chex.PRNGKey) -> chex.Array:
            index = jax.random.randint(key, (batch_size,), 0, triplets)
            return loss_of(params, jax.tree.map(lambda x: x[index], known))[0].value()

        learned = descend(loss_fn, begin(net.init(net_key), optimizer, fit_key), optimizer, steps=updates)
        return Aligned(learned.params, loss_of(learned.params, held_out)[1].value(), jnp.float32(0.0))

    def apply(state: Aligned, rows: Transitions) -> tuple[Aligned, Transitions]:
        own, shown = encode(state.params, rows.next_observations), encode(state.params, target)
        paid = jax.vmap(lambda x: step_costs(cosine(x, shown), **plan))(own)
        # Times T: a step's mean cost, whatever the length of the row.
        rewards = -scale * paid * own.shape[1] + keep * rows.rewards
        moved = state._replace(cost=jnp.mean(jnp.sum(paid, axis=1)))
        return moved, rows._replace(rewards=jax.lax.stop_gradient(rewards))

    def measure(state: Aligned) -> dict[str, chex.Array]:
        return {"relabel/agreement": state.agreement, "relabel/cost": state.cost}

    return Relabel(init, apply, seeded=True, measure=measure)


def _shown(demos: str, observation_size: int, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """(float32 [E, F, D] of the file's episodes, their scores float32 [E])."""
    shown = demonstrations.read(demos, last=None)
    if shown.observations.shape[1] != observation_size:
        raise ValueError(f"{demos}: observations of {shown.observations.shape[1]} numbers, but {observation_size} here")
    if len(shown.starts) < 3 or np.isnan(shown.scores).any():
        raise ValueError(f"{demos}: rankings need 3 episodes or more, with their rewards")
    if (shown.scores == shown.scores[0]).all():
        raise ValueError(f"{demos}: all episodes have the return {shown.scores[0]}: there is nothing to rank")
    spread = [x[np.linspace(0, len(x) - 1, frames).round().astype(int)] for x in shown.trajectories()]
    return np.stack(spread), shown.scores
