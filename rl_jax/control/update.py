"""One update of an actor and a critic, as a pure function of everything a training run carries."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from rl_jax import ppo
from rl_jax.control.algorithm import Algorithm, assign, loss
from rl_jax.control.anchors import minibatch_of, observed
from rl_jax.core.masked import Max, Mean, all_reduce
from rl_jax.core.trackers import Tracker, feature_moments, reward_scale
from rl_jax.rollout.envs.steps import Transitions, Worlds, collect, memoryless, start
from rl_jax.training.step import TrainState, init_state, make_train_step

TURN_METRICS = ("loss", "grad_norm", "nonfinite/skipped")  # measured in every turn of an update
OBSERVATION_CLIP = 10.0  # normalised observations and rewards, in standard deviations


class ControlState(NamedTuple):
    """Everything a training run carries, as arrays.

    Attributes:
      train: TrainState. params is one flat vector; trackers is {"observations": Moments, "rewards": ReturnScale, "kl":
        ...}, as far as they are in use.
      worlds: state of the environments.
      actor: the params that act, if they lag behind the newest, else ().
    """

    train: TrainState
    worlds: Worlds
    actor: Any


class LearnRule(NamedTuple):
    """How an agent acts, and the batch that it is trained on.

    Attributes:
      policy: (params, normalize) -> a policy as rollout.envs.steps takes it.
      assign: (params, rows, normalize, the Worlds at the start of the rows) -> (PPOBatch, metrics).
      size: number of entries of the batch, which are shuffled and split into minibatches.
    """

    policy: Callable
    assign: Callable
    size: int


class UpdateParts(NamedTuple):
    """What all kinds of update share.

    Attributes:
      init: (key) -> ControlState.
      gather: (state) -> (state, batch, order int32 [turns, n], metrics). T steps of all environments as a batch with
        credit, and the entries of each minibatch over all epochs. In the new state the environments and trackers have
        advanced.
      policy_of: (state) -> the newest policy, with its normalisation, as rollout.envs.steps takes it.
      loss: (params as one vector, minibatch) -> (Mean, metrics), all undivided.
      unravel: params as one vector -> the agent's.
    """

    init: Callable
    gather: Callable
    policy_of: Callable
    loss: Callable
    unravel: Callable


def by_steps(agent, env, algorithm: Algorithm, *, num_steps: int, axis_name=None) -> LearnRule:
    """The LearnRule of a models.agents.actor_critic.Agent, trained on single steps.

    Raises:
      ValueError: if the steps do not divide into the minibatches.
    """
    size = env.num_envs * num_steps
    if size % algorithm.minibatches:
        raise ValueError(
            f"{env.num_envs} environments x {num_steps} steps do not divide into {algorithm.minibatches} minibatches"
        )
    return LearnRule(
        policy=lambda params, normalize: memoryless(lambda observation: agent.policy(params, normalize(observation))),
        assign=lambda params, rows, normalize, began: assign(agent, params, rows, normalize, algorithm, axis_name),
        size=size,
    )


def make_parts(
    agent,
    env,
    algorithm: Algorithm,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    axis_name=None,
    learner: Callable = by_steps,
) -> UpdateParts:
    """The UpdateParts of an update. Arguments and errors as in `make_update`."""
    algorithm.objective.check()
    unravel = unraveler(agent)
    trackers = _trackers(env, algorithm, axis_name)
    learning = learner(agent, env, algorithm, num_steps=num_steps, axis_name=axis_name)

    def init(key: chex.PRNGKey) -> ControlState:
        params_key, worlds_key, train_key = jax.random.split(key, 3)
        params = ravel_pytree(agent.init(params_key))[0]
        carried = {name: tracker.init() for name, tracker in trackers.items() if name != "relabel"}
        if algorithm.relabel is not None:
            carried["relabel"] = algorithm.relabel.begin(jax.random.fold_in(train_key, 2**31 - 3))
        if algorithm.anchors is not None:
            carried["anchors"] = algorithm.anchors.begin()
        train = init_state(params, optimizer, train_key, carried)
        # A copy: two leaves that share a buffer cannot be donated.
        actor = params + 0.0 if algorithm.actor_lag > 1 else ()
        worlds = start(env, own_key(worlds_key, axis_name), agent.initial_state(env.num_envs))
        return ControlState(train, worlds, actor)

    def gather(state: ControlState):
        train = state.train
        count = train.step // (algorithm.epochs * algorithm.minibatches)
        act_key, shuffle_key = jax.random.split(own_key(jax.random.fold_in(train.rng, count), axis_name))
        actor = state.actor
        if algorithm.actor_lag > 1:
            actor = jnp.where(count % algorithm.actor_lag == 0, train.params, actor)
        normalize = normalizer(train.trackers)
        policy = learning.policy(unravel(actor if algorithm.actor_lag > 1 else train.params), normalize)
        worlds, rows, metrics = collect(policy, agent.distribution, env, state.worlds, act_key, num_steps=num_steps)
        carried, rows = _observe(trackers, train.trackers, rows)
        if algorithm.relabel is not None and algorithm.relabel.measure is not None:
            measured = algorithm.relabel.measure(carried["relabel"])
            metrics = metrics | {name: Mean(x, jnp.float32(1.0)) for name, x in measured.items()}
        rule = learning
        if algorithm.relabel is not None and algorithm.relabel.discount is not None:
            discount = algorithm.relabel.discount(carried["relabel"])
            paced = algorithm._replace(advantage=functools.partial(algorithm.advantage, discount=discount))
            rule = learner(agent, env, paced, num_steps=num_steps, axis_name=axis_name)
        batch, credit_metrics = rule.assign(unravel(train.params), rows, normalize, state.worlds)
        order = shuffled(shuffle_key, algorithm.epochs, learning.size)
        order = order.reshape(-1, learning.size // algorithm.minibatches)
        return ControlState(train._replace(trackers=carried), worlds, actor), batch, order, metrics | credit_metrics

    def policy_of(state: ControlState) -> Callable:
        return learning.policy(unravel(state.train.params), normalizer(state.train.trackers))

    def loss_of(params: chex.Array, batch: ppo.PPOBatch):
        whole = unravel(params)
        total, metrics = loss(*agent.predict(whole, batch.policy.batch), batch, algorithm)
        if algorithm.auxiliary is None:
            return total, metrics
        extra, weight = algorithm.auxiliary(whole, batch)
        summed = Mean(total.total + weight * extra * total.count, total.count)
        return summed, metrics | {"auxiliary": Mean(extra, jnp.float32(1.0))}

    return UpdateParts(init, gather, policy_of, loss_of, unravel)


def make_update(
    agent,
    env,
    algorithm: Algorithm,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    axis_name=None,
    learner: Callable = by_steps,
) -> tuple[Callable, Callable, Callable]:
    """Builds the pure functions of a training run.

    Args:
      agent: models.agents.actor_critic.Agent.
      env: envs.Vector.
      algorithm: the choices that make the update.
      optimizer: any optax transformation.
      num_steps: T.
      axis_name: mapped axis over which the environments are spread. Gradients and all statistics are summed over it;
        params stay equal on all parts.
      learner: makes the LearnRule. sequences.by_rows is the one for agents with memory.

    Returns:
      (init, update, policy_of). init(key) -> ControlState; update(state) -> (state, metrics, undivided);
      policy_of(state) -> the newest policy with its normalisation, for evaluation (rollout.envs.steps). A step that
      makes a param non-finite is not refused, since looking at the params each time would cost a tenth of an update:
      all later steps are skipped then. training.step.unless_poisoned undoes any number of updates at once.

    Raises:
      ValueError: if the batch does not divide into the minibatches.
    """
    parts = make_parts(agent, env, algorithm, optimizer, num_steps=num_steps, axis_name=axis_name, learner=learner)
    train_step = make_train_step(
        parts.loss, optimizer, max_grad_norm=algorithm.max_grad_norm, axis_name=axis_name, check_params=False
    )

    def update(state: ControlState):
        state, batch, order, metrics = parts.gather(state)
        coefs = state.train.trackers.get("kl")

        def minibatch(train: TrainState, index: chex.Array) -> tuple[TrainState, ppo.PPOBatch]:
            return observed(algorithm.anchors, parts.unravel, train, minibatch_of(batch, index, coefs), axis_name)

        def turn(train: TrainState, index: chex.Array):
            train, learned = train_step(*minibatch(train, index))
            return train, {name: learned[name] for name in TURN_METRICS}

        train, learned = jax.lax.scan(turn, state.train, order)
        # Measured at the end, on one minibatch: in each turn they would cost a fifth of the update's time.
        ended = parts.loss(train.params, minibatch(train, order[-1])[1])[1]
        metrics = metrics | over_turns(learned) | ended
        if coefs is not None:
            measured, samples = ended["kl/k3"], jnp.float32(batch.returns.size)  # of all parts
            if axis_name is not None:
                measured, samples = all_reduce(measured, axis_name), jax.lax.psum(samples, axis_name)
            moved = algorithm.kl_control.update(coefs, measured.value(), samples)
            train = train._replace(trackers=train.trackers | {"kl": moved})
            metrics["kl/coef"] = Mean(coefs.coef, jnp.float32(1.0))
        return state._replace(train=train), metrics

    return parts.init, update, parts.policy_of


def unraveler(agent) -> Callable:
    """The function that turns the flat vector of params into the agent's {"actor", "critic"}."""
    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    return ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))[1]


def shuffled(key: chex.PRNGKey, epochs: int, size: int) -> chex.Array:
    """A random order of 0 .. size - 1 for each epoch: int32 [epochs, size].

    The index is in the low bits of the random number that is sorted: sorting one array is three times as fast as
    sorting it with a second one attached. Up to 4,096 entries at least 20 random bits remain; larger sizes use
    jax.random.permutation.
    """
    if size > 4096:
        keys = jax.random.split(key, epochs)
        return jax.vmap(lambda key: jax.random.permutation(key, size))(keys)
    low = jnp.uint32((1 << max(size - 1, 1).bit_length()) - 1)
    index = jnp.broadcast_to(jnp.arange(size, dtype=jnp.uint32), (epochs, size))
    return (jnp.sort((jax.random.bits(key, (epochs, size)) & ~low) | index, axis=1) & low).astype(jnp.int32)


def own_key(key: chex.PRNGKey, axis_name) -> chex.PRNGKey:
    """A separate key for each part, whose environments differ from those of the others."""
    return key if axis_name is None else jax.random.fold_in(key, jax.lax.axis_index(axis_name))


def _trackers(env, algorithm: Algorithm, axis_name) -> dict[str, Tracker]:
    """The estimators in use, by their names in TrainState.trackers."""
    result = {}
    if algorithm.normalize_observations:
        result["observations"] = feature_moments(shape=env.observation_space.shape, axis_name=axis_name)
    if algorithm.normalize_rewards:
        result["rewards"] = reward_scale(env.num_envs, discount=algorithm.discount, axis_name=axis_name)
    if algorithm.relabel is not None:
        result["relabel"] = algorithm.relabel
    if algorithm.kl_control is not None:
        result["kl"] = algorithm.kl_control
    return result


def normalizer(states: dict[str, Any]) -> Callable:
    """observations [..., *shape] -> the same in standard deviations; the identity if no moments are tracked."""
    if "observations" not in states:
        return lambda x: x
    moments = states["observations"]
    mean, std = moments.mean, moments.std()

    def normalize(x: chex.Array) -> chex.Array:
        mean_, std_ = (jnp.broadcast_to(m, x.shape) for m in (mean, std))
        return jnp.clip((x - mean_) / std_, -OBSERVATION_CLIP, OBSERVATION_CLIP)

    return normalize


def _observe(
    trackers: dict[str, Tracker], states: dict[str, Any], rows: Transitions
) -> tuple[dict[str, Any], Transitions]:
    """The tracker states after these rows (the policy acted with those before), and the rows with scaled rewards."""
    states = dict(states)
    if "relabel" in trackers:
        states["relabel"], rows = trackers["relabel"].apply(states["relabel"], rows)
    if "observations" in trackers:
        states["observations"] = trackers["observations"].update(states["observations"], rows.observations)
    if "rewards" in trackers:
        done = rows.terminated | rows.truncated
        states["rewards"] = trackers["rewards"].update(states["rewards"], rows.rewards, done)
        scaled = rows.rewards / states["rewards"].moments.std()
        rows = rows._replace(rewards=jnp.clip(scaled, -OBSERVATION_CLIP, OBSERVATION_CLIP))
    return states, rows


def over_turns(learned: dict[str, chex.Array]) -> dict[str, Mean | Max]:
    """Metrics of an update from those of its turns, [turns] each."""
    result = {}
    for name, x in learned.items():
        if name == "nonfinite/skipped":  # a count so far
            result[name] = Max(x[-1])
        else:
            result[name] = Mean(jnp.sum(x), jnp.float32(len(x)))
    return result
