"""A run of experiments.control.replay, from its config to pure functions; and the recorder of its episodes."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.parts import residual_bases
from experiments.parts.adversaries import make_payer
from experiments.parts.control_agents import build_team
from experiments.parts.control_planning import build_planner
from experiments.parts.control_runs import check_host, judge
from experiments.parts.control_setup import load_env, num_updates, refuse_hidden_features, settings_of, with_values
from experiments.parts.episodes import episode_row
from experiments.parts.processes import to_host
from rl_jax import envs
from rl_jax.control import replay_methods
from rl_jax.control.off_policy import make_acting, make_replay_update
from rl_jax.control.replay import Priority
from rl_jax.control.replay_methods import ReplayParts
from rl_jax.control.replay_types import ReplaySettings, ReplayState, first_memory, opener, unravelers
from rl_jax.core.binding import bind
from rl_jax.core.masked import all_reduce, empty_like, merge
from rl_jax.core.tracing import traced_once
from rl_jax.envs import subtasks
from rl_jax.envs.worlds import docking, restless
from rl_jax.losses import value_heads
from rl_jax.models.agents import diffusion, exploration, plans, relu_programs, value_networks
from rl_jax.models.agents.distributions import categorical
from rl_jax.rollout.envs.episode import record_episode

CHOICES = ("dqn", "discrete_sac")  # methods of whole-number actions; the others take real ones
OWN_BUILDERS = {"muzero": build_planner}  # methods whose parts are no critics
WHOLE_STATE = ("expo", "sequence_sac", "sequoia")  # methods of real actions that act on all of the observation
BEFORE_SQUASH = ("sac", "task_sac", "sequence_sac")  # methods whose actions are stored before the squash


class Built(NamedTuple):
    """A method and how it acts.

    Attributes:
      method: off_policy.OffPolicy.
      distribution: of the actions, with the probability of a uniform one as its last output, before those of an
        intervention.
      intervention: as at off_policy.make_replay_update, or None.
    """

    method: Any
    distribution: Any
    intervention: Callable | None = None


def build(config, algorithm: dict[str, Any], env: envs.Vector) -> Built:
    """The method of a config with the networks that fit the environment's spaces.

    Args:
      config: of the program.
      algorithm: config.algorithm as a dict; numbers may be traced.
      env: for its spaces.

    Raises:
      ValueError: if the method does not take the environment's actions, their bounds are infinite, or the network has
        fields of other actions or hides features that the method acts on.
    """
    space, shape, name = env.action_space, env.observation_space.shape, algorithm["method"]["fn"]
    first = _actor_features(config, name, space)
    if isinstance(space, envs.Joint):
        return Built(*build_team(config, algorithm, env))
    if name in OWN_BUILDERS:
        return Built(*OWN_BUILDERS[name](config, algorithm, env))
    layers = config.network.to_dict()
    dueling, members, kind = layers.pop("dueling"), layers.pop("members"), layers.pop("kind")
    enumerated, denoising = layers.pop("enumerated"), layers.pop("denoising_steps", 0)
    layers.pop("actor_features", None)
    if kind != "mlp":
        raise ValueError(f"network.kind={kind!r}: replay draws single steps, which an mlp reads; set it to 'mlp'")
    head = bind(algorithm["head"], value_heads)()
    whole = isinstance(space, envs.Discrete)
    if whole != (name in CHOICES):
        kinds = ("whole numbers", "dqn or discrete_sac") if whole else ("real numbers", "td3 or sac")
        raise ValueError(
            f"algorithm.method.fn={name!r}: the actions of {config.env.name} are {kinds[0]}: use {kinds[1]}"
        )
    if not whole and (dueling or enumerated):
        raise ValueError(
            f"network.dueling={dueling} and network.enumerated={enumerated} are of critics of whole-number actions; "
            f"those of {config.env.name} are real numbers: set both False"
        )
    parts, bounds = ReplayParts(None, None, head), (None, None)
    if whole:
        critic = _choices(config, env, head.num_outputs, dueling, enumerated, members=members, **layers)
        law = exploration.greedy(space.n) if name == "dqn" else categorical(space.n)
        actor = None if name == "dqn" else value_networks.make_actor(shape, law, **layers)
        parts = parts._replace(critic=critic, actor=actor)
        around = None
    else:
        bounds = (space.low, space.high)
        critic = value_networks.make_q_function(shape, *bounds, head.num_outputs, members=members, **layers)
        more = {"expo": _edited, "sequence_sac": _planned}.get(name)
        if name == "sequoia":
            law, parts = _searched(parts._replace(critic=critic), config, env)
            around = None
        elif more is None:
            sees = (first,) if first else shape
            law, actor, smoothing, around = _actor_of_numbers(algorithm, sees, bounds, layers)
            actor = value_networks.reading(actor, first) if first else actor
            parts = parts._replace(critic=critic, actor=actor, smoothing=smoothing)
        else:
            law, parts = more(parts._replace(critic=critic), shape, bounds, layers, denoising)
            around = None
    method = bind(algorithm["method"], replay_methods, tasks=_shown_tasks(env))(parts)
    uniform = exploration.uniform_actions(law, *bounds, stored_before_squash=name in BEFORE_SQUASH)
    law = exploration.exploring(law, uniform, around=around)
    watching = algorithm.get("intervention", {"fn": ""})
    if not watching["fn"]:
        return Built(method, law)
    if whole or config.env.name != "probes/docking":
        raise ValueError(f"algorithm.intervention: {watching['fn']} watches probes/docking, not {config.env.name}")
    watch = bind(watching, docking)
    stored = exploration.to_stored(*bounds, before_squash=name in BEFORE_SQUASH)

    def intervention(observations: jax.Array):
        actions, flags = watch(observations)
        return stored(actions), flags

    return Built(method, exploration.intervened(law, len(space.low)), intervention)


def _actor_features(config, name: str, space) -> int:
    """network.actor_features, 0 without it; ValueError if the method would act on what the field hides."""
    first = config.network.get("actor_features", 0)
    if not first:
        return 0
    refuse_hidden_features(config)
    if isinstance(space, envs.Discrete | envs.Joint) or name in (*OWN_BUILDERS, *WHOLE_STATE):
        raise ValueError(
            f"network.actor_features={first}: {name} acts on the whole observation in {config.env.name}; set it to 0, "
            "or use td3 or sac, whose actors of real numbers read the first features"
        )
    return first


def _shown_tasks(env: envs.Vector) -> int:
    """K of an environment whose observations end with the id of one of K tasks; 0 of others."""
    count, (low, high) = len(env.tasks), env.observation_space
    return count if count > 1 and np.all(low[..., -count:] == 0.0) and np.all(high[..., -count:] == 1.0) else 0


# Environments whose actions one network reads: combinations of parts, or subtasks; the vectors of them.
COMBINED = {"probes/restless": restless.action_vectors, "host/subtasks": subtasks.action_vectors}


def _choices(config, env: envs.Vector, outputs: int, dueling: bool, enumerated: bool, **layers):
    """The critic of all of an environment's choices."""
    shape = env.observation_space.shape
    if not enumerated:
        return value_networks.make_action_values(shape, env.action_space.n, outputs, dueling=dueling, **layers)
    if config.env.name not in COMBINED or dueling:
        raise ValueError(
            f"network.enumerated=True needs actions that are combinations ({', '.join(COMBINED)}) and "
            f"network.dueling=False, not {config.env.name}"
        )
    return value_networks.make_enumerated_values(shape, COMBINED[config.env.name](), outputs, **layers)


def _actor_of_numbers(algorithm: dict[str, Any], shape: tuple[int, ...], bounds, layers: dict[str, Any]):
    """(how it acts, the actor, the actions of td3's target, where random actions lie)."""
    noise, base = algorithm["noise"], algorithm.get("base", {"fn": ""})
    target = dict(std=noise["target"], clip=noise["target_clip"])
    if not base["fn"]:
        if algorithm["method"]["fn"] in BEFORE_SQUASH:
            law = exploration.squashed(*bounds)
        else:
            law = exploration.noisy(*bounds, std=noise["acting"])
        actor = value_networks.make_actor(shape, law, **layers)
        return law, actor, exploration.noisy(*bounds, **target), None
    if algorithm["method"]["fn"] != "td3":
        raise ValueError(f"algorithm.base corrects a policy by td3, not by {algorithm['method']['fn']}")
    scale = base["scale"]
    law = exploration.residual(*bounds, scale=scale, std=noise["acting"])
    known = dict(observation_shape=shape, low=bounds[0], high=bounds[1])
    corrected = bind({name: value for name, value in base.items() if name != "scale"}, residual_bases, **known)()
    actor = value_networks.make_residual_actor(shape, law, corrected, **layers)

    def around(outputs: jax.Array, random: jax.Array) -> jax.Array:
        return jnp.clip(outputs[..., : random.shape[-1]] + scale * random, -1.0, 1.0)

    return law, actor, exploration.residual(*bounds, scale=scale, **target), around


def _edited(parts: ReplayParts, shape: tuple[int, ...], bounds, layers: dict[str, Any], denoising: int):
    """(how expo acts, its parts): an actor of edits, and the base policy."""
    size = len(bounds[0])
    ones = np.ones(size, np.float32)
    editor = value_networks.make_actor((math.prod(shape) + size,), exploration.squashed(-ones, ones), **layers)
    base = diffusion.make_diffusion(shape, *bounds, steps=denoising or 10, **layers)
    return exploration.drawn(size, lambda actions: actions), parts._replace(actor=editor, base=base)


def _planned(parts: ReplayParts, shape: tuple[int, ...], bounds, layers: dict[str, Any], denoising: int):
    """(how sequence_sac acts, its parts): an actor of sequences, and the model of the next state."""
    if len(shape) != 1:
        raise ValueError(f"algorithm.method.fn='sequence_sac' learns the next state of vectors, not of images {shape}")
    law = exploration.squashed(*bounds)
    planner = plans.make_planner(shape, law, **layers)
    model = plans.make_state_model(*shape, *bounds, **layers)
    return exploration.drawn(len(bounds[0]), law.to_env), parts._replace(actor=planner, model=model)


# Environments of vectors whose arms are pulled up to a budget.
BUDGETED = ("probes/restless_vectors",)
LISTED = 100_000  # actions that are enumerated at most


def _searched(parts: ReplayParts, config, env: envs.Vector):
    """(how sequoia acts, its parts): the searches for the best feasible action."""
    size, network = len(env.action_space.low), config.network
    if config.env.name not in BUDGETED:
        raise ValueError(f"sequoia needs binary actions of a budget ({', '.join(BUDGETED)}), not {config.env.name}")
    if network.activation != "relu" or network.layer_norm or parts.head.num_outputs != 1:
        raise ValueError(
            f"sequoia writes its network as an integer program: network.activation={network.activation!r} must be "
            f"'relu', network.layer_norm={network.layer_norm} False, and algorithm.head scalar"
        )
    budget = config.env.get("budget", restless.BUDGET)
    law = exploration.drawn(size, lambda actions: restless.pulled_by(actions, budget))
    searches = {"program": relu_programs.make_search(relu_programs.exactly(size, budget))}
    if math.comb(size, budget) <= LISTED:
        vectors = restless.action_vectors(size, budget)
        searches["enumeration"] = relu_programs.make_enumeration(parts.critic.apply, vectors)
    return law, parts._replace(searches=searches)


def make_settings(config, groups: dict[str, Any], parts: int) -> ReplaySettings:
    """The numbers of an update, per device of a run.

    Args:
      config: of the program.
      groups: as from control_setup.settings_of; numbers may be traced.
      parts: devices that the run's environments are spread over.

    Raises:
      ValueError: if the replay or the batch does not divide over the environments or devices.
    """
    replay, algorithm, train = config.replay, groups["algorithm"], groups["train"]
    worlds = config.sample.num_envs
    for name in ("capacity", "warmup", "kept"):
        if replay[name] % worlds:
            raise ValueError(f"replay.{name}={replay[name]} must be a multiple of sample.num_envs={worlds}")
    if replay.batch_size % parts:
        raise ValueError(f"replay.batch_size={replay.batch_size} does not divide over {parts} devices")
    explore, total = algorithm["exploration"], num_updates(config)
    unlimited = isinstance(train["max_grad_norm"], float) and train["max_grad_norm"] == math.inf  # not a swept one

    def share(updates: jax.Array) -> jax.Array:
        done = jnp.minimum(updates / jnp.maximum(explore["fraction"] * total, 1.0), 1.0)
        return explore["initial"] + done * (explore["final"] - explore["initial"])

    return ReplaySettings(
        slots=replay.capacity // worlds,
        warmup=replay.warmup // worlds,
        batch_size=replay.batch_size // parts,
        kept=replay.kept // worlds,
        steps=algorithm["n_step"],
        discount=algorithm["discount"],
        tau=algorithm["tau"],
        target_every=algorithm["target_every"],
        gradient_steps=train["gradient_steps"],
        actor_every=train["actor_every"],
        max_grad_norm=None if unlimited else train["max_grad_norm"],
        priority=Priority(**algorithm["priority"]),
        random_share=share,
    )


def make_optimizers(train: dict[str, Any], steps: int) -> dict[str, optax.GradientTransformation]:
    """group of params -> Adam of train.optimizer (critic) or train.actor_optimizer, decayed over so many steps."""

    def adam(fields: dict[str, Any], count: int) -> optax.GradientTransformation:
        fields = dict(fields)
        rate, final = fields.pop("learning_rate"), fields.pop("final_fraction")
        return optax.adam(optax.linear_schedule(rate, rate * final, count), **fields)

    later = max(steps // train["actor_every"], 1)
    return {"critic": adam(train["optimizer"], steps), "actor": adam(train["actor_optimizer"], later)}


def make_replay_run(config, *, parts: int = 1, axis_name: str | None = None) -> tuple[Callable, ...]:
    """Makes the pure functions of a single run, in the form of control_runs.make_run.

    Args:
      config: of the program.
      parts: number of devices that the run's envs are spread over.
      axis_name: mapped axis of these devices.

    Returns:
      (init, advance, params), see control_runs.make_run.

    Raises:
      ValueError: if numbers do not divide, or the envs live on the host and there are several runs or devices.
    """
    if config.sample.num_envs % parts:
        raise ValueError(f"sample.num_envs={config.sample.num_envs} do not divide over {parts} devices")
    env = load_env(config, config.sample.num_envs // parts, learning=True)
    check_host(config, env)
    judged = load_env(config, config.eval.num_episodes, fresh_starts=0) if config.eval.num_episodes else None
    settings = settings_of(config)
    steps = num_updates(config) * config.train.gradient_steps
    unravel = unravelers(build(config, settings["algorithm"], env).method)

    def parts_of(values: dict[str, jax.Array]):
        groups = with_values(settings, values)
        built = build(config, groups["algorithm"], env)
        functions = make_replay_update(
            built.method,
            built.distribution,
            env,
            make_settings(config, groups, parts),
            make_optimizers(groups["train"], steps),
            num_steps=config.sample.num_steps,
            axis_name=axis_name,
            intervention=built.intervention,
            adversary=make_payer(config, groups["algorithm"], env, axis_name),
        )
        return built, *functions

    parts_of({})  # what is wrong with the numbers is said here, outside of a trace

    def init(key: jax.Array, values: dict[str, jax.Array]) -> ReplayState:
        return parts_of(values)[1](key)

    def advance(state: ReplayState, values: dict[str, jax.Array], count: int):
        built, _, update, policy_of = parts_of(values)
        update = traced_once(update)

        def step(carry, _):
            state, metrics = update(carry[0])
            return (state, merge(carry[1], metrics)), None

        empty = empty_like(jax.eval_shape(update, state)[1])
        (state, metrics), _ = jax.lax.scan(step, (state, empty), None, count)
        if axis_name is not None:
            metrics = all_reduce(metrics, axis_name)
        metrics = {name: mean.value() for name, mean in metrics.items()}
        if judged is not None:
            key = jax.random.fold_in(jax.random.fold_in(state.train.rng, 2**31 - 3), state.train.step)
            memory = first_memory(built.method, key, judged.num_envs)
            metrics |= judge(config, policy_of(state), built.distribution, judged, state.train, memory)
        return state, metrics

    def params(state: ReplayState):
        return {name: unravel[name](x) for name, x in state.train.params.items()}

    return init, advance, params


def make_replay_recorder(config) -> Callable:
    """Makes a function that records an episode of the first run's current policy, as control_loop.make_recorder."""
    if not config.eval.num_episodes:
        return lambda state, step: []
    env = load_env(config, 1, fresh_starts=0)
    built = build(config, settings_of(config)["algorithm"], env)
    opened, acting = opener(built.method), make_acting(built.method)

    def record(train) -> Any:
        own = acting(opened(train.params), opened(train.trackers["slow"]), jnp.float32(0.0))

        def policy(worlds):
            outputs, memory = own(worlds)
            unused = built.distribution.num_outputs - outputs.shape[1]  # no interventions
            return jnp.concatenate([outputs, jnp.zeros((len(outputs), unused))], axis=1), memory

        key = jax.random.fold_in(jax.random.fold_in(train.rng, 2**31 - 2), train.step)
        memory = first_memory(built.method, jax.random.fold_in(key, 2**31 - 3), 1)  # record_episode has 0 and 1
        options = dict(max_steps=config.eval.max_steps, greedy=config.eval.greedy, memory=memory)
        return record_episode(policy, built.distribution, env, key, **options)

    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None  # compiles faster
    compiled = jax.jit(record, compiler_options=options)
    first = (0, 0) if config.spread == "pmap" else 0

    def recorded(state: ReplayState, step: int) -> list[dict[str, Any]]:
        episode = compiled(to_host(jax.tree.map(lambda x: x[first], state.train)))
        return [episode_row(jax.device_get(episode), step=step, env=config.env.name)]

    return recorded
