"""From a control config to the parts of its program: algorithm, network, environment, and the runs."""

import functools
import inspect
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts.budgets import samples_per_step
from experiments.parts.control_agents import with_agents
from experiments.parts.control_objectives import with_objectives
from rl_jax import control, envs, ppo
from rl_jax.advantages import steps as step_advantages
from rl_jax.core import trackers
from rl_jax.core.binding import bind, needs
from rl_jax.envs import guidance, snapshots, speakers
from rl_jax.grpo import Objective as PolicyObjective
from rl_jax.losses import aggregate, kl, policy, value
from rl_jax.models.agents import actor_critic, denoiser, distributions, windows
from rl_jax.models.agents.memory import make_gru_agent, make_transformer_agent

# config.network.kind -> (maker of the agent, keywords of the updater).
NETWORKS = {
    "mlp": (actor_critic.make_agent, {}),
    "denoiser": (denoiser.make_denoiser, {}),
    "windows": (windows.make_window_agent, {}),
    "gru": (make_gru_agent, {"learner": control.by_rows}),
    "transformer": (make_transformer_agent, {"learner": control.by_rows}),
}


def settings_of(config) -> dict[str, Any]:
    """The groups of a config whose numbers may be swept inside one program: algorithm and train, as plain dicts."""
    return {name: config[name].to_dict() for name in ("algorithm", "train")}


def make_algorithm(groups: dict[str, Any], *, updates: int = 1) -> control.Algorithm:
    """The algorithm of a config.

    Args:
      groups: as from `settings_of`; numbers may be traced.
      updates: of the whole run, for a KL weight that is annealed over them.
    """
    settings = groups["algorithm"] | groups["train"]
    value_loss = bind(settings["value_loss"], value)
    controlled = settings["kl_control"]["fn"]
    objective = ppo.Objective(
        policy=PolicyObjective(
            surrogate=bind(settings["surrogate"], policy),
            kl=bind(settings["kl"], kl),
            kl_coef=0.0,
            aggregate=aggregate.token_mean,
        ),
        value_loss=value_loss,
        support=value.Support(**settings["support"]) if "support" in needs(value_loss) else None,
        value_coef=settings["value_coef"],
    )
    plain = ("entropy_coef", "kl_coef", "whiten", "epochs", "minibatches", "max_grad_norm", "actor_lag")
    return control.Algorithm(
        advantage=bind(settings["advantage"], step_advantages),
        objective=objective,
        kl_control=bind(settings["kl_control"], trackers, updates=updates)() if controlled else None,
        normalize_observations=settings["normalize_observations"],
        normalize_rewards=settings["normalize_rewards"],
        discount=discount_of(settings["advantage"]),
        **{name: settings[name] for name in plain},
    )


def discount_of(spec: dict[str, Any]) -> Any:
    """gamma of config.algorithm.advantage: the field `discount`, or the default of the function that it names.

    Raises:
      ValueError: if there is neither.
    """
    if "discount" in spec:
        return spec["discount"]
    known = inspect.signature(bind(spec, step_advantages)).parameters.get("discount")
    if known is None or known.default is known.empty:
        raise ValueError(
            f"algorithm.advantage.fn={spec['fn']!r} has no discount, which scaled and other rewards read, too: give it "
            "a keyword `discount`, and set algorithm.advantage.discount"
        )
    return known.default


def make_network(config, env: envs.Vector, num_values: int):
    """The agent of config.network that fits the environment's spaces.

    Args:
      config: of the program.
      env: for its spaces.
      num_values: outputs of the value head, for each objective.

    Raises:
      ValueError: if the kind is unknown, has a memory beside several objectives or reads plain observations and these
        are normalised, or actor_features meets stacked frames or weights at the end of the observations.
    """
    space, fields = env.action_space, config.network.to_dict()
    bounded = bind(fields.pop("distribution"), distributions)
    if isinstance(space, envs.Discrete):
        distribution = distributions.categorical(space.n)
    else:
        distribution = bounded(space.low, space.high)
    if config.network.kind not in NETWORKS:
        raise ValueError(f"network.kind={config.network.kind!r} is none of {', '.join(NETWORKS)}")
    if env.objectives and "learner" in NETWORKS[config.network.kind][1]:
        raise ValueError(f"network.kind={config.network.kind!r} has a memory: several objectives need network.kind=mlp")
    refuse_hidden_features(config)
    kind = config.network.kind
    if kind in ("denoiser", "windows") and config.algorithm.get("normalize_observations"):
        # For windows a frame of zeros is not there; less the mean it would be.
        raise ValueError(f"network.kind={kind!r} reads plain observations: set algorithm.normalize_observations=False")
    # Each kind reads the fields it has.
    make_agent = bind(NETWORKS[fields.pop("kind")][0], actor_critic, **fields)
    return make_agent(env.observation_space.shape, distribution, num_values=num_values * max(env.objectives, 1))


def refuse_hidden_features(config) -> None:
    """Raises ValueError if network.actor_features meets stacked frames or weights at the end of the observations."""
    first = config.network.get("actor_features", 0)
    if first and config.env.get("preferences"):
        raise ValueError(
            f"network.actor_features={first} keeps the first features and hides the weights, which env.preferences "
            "puts last: set it to 0"
        )
    if first and config.env.frame_stack > 1:
        raise ValueError("network.actor_features counts from the oldest frame: it does not go with env.frame_stack")


def num_updates(config) -> int:
    """Updates for train.total_steps, rounded up to whole calls.

    Raises:
      ValueError: if checkpoint.every is no multiple of log_every.
    """
    if config.checkpoint.every % config.log_every:
        raise ValueError(f"checkpoint.every={config.checkpoint.every} is no multiple of log_every={config.log_every}")
    return math.ceil(config.train.total_steps / (samples_per_step(config) * config.log_every)) * config.log_every


def runs_of(config) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The runs: every seed with every combination of swept values, or config.runs.

    Returns:
      (keys [L], {dotted name: float32 [L]}).

    Raises:
      ValueError: if the entries of config.runs do not all set the same fields.
    """
    if config.runs:
        values = [dict(fields) for _, fields in config.runs]
        names = list(values[0])
        if any(set(fields) != set(names) for fields in values):
            raise ValueError("config.runs: each run must set the same fields")
        # The key that a program with only this seed has.
        keys = jnp.stack([jax.random.split(jax.random.key(seed), 1)[0] for seed, _ in config.runs])
        return keys, {name: jnp.asarray([fields[name] for fields in values], jnp.float32) for name in names}
    swept = {name: tuple(values) for name, values in config.sweep}
    points = list(itertools.product(range(config.num_seeds), *swept.values()))
    keys = jax.random.split(jax.random.key(config.seed), config.num_seeds)
    values = {name: jnp.asarray([point[i + 1] for point in points], jnp.float32) for i, name in enumerate(swept)}
    return keys[np.asarray([point[0] for point in points])], values


def with_values(settings: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A copy of a nested dict with other values at dotted names; algorithm.NAME or train.NAME.

    Raises:
      ValueError: if a name is no float field.
    """
    result = jax.tree.map(lambda x: x, settings, is_leaf=lambda x: not isinstance(x, dict))
    for name, number in values.items():
        *groups, last = name.split(".")
        place = functools.reduce(lambda found, group: found.get(group, {}), groups, result)
        if not isinstance(place.get(last), float):
            raise ValueError(f"sweep: config.{name} is no float field, so it cannot be swept inside one program")
        place[last] = number
    return result


def load_env(config, count: int, *, learning: bool = False, **more) -> envs.Vector:
    """`count` envs of config.env, wrapped. learning: with env.snapshots as starts, without env.judged.
    more: overrides of its fields, and of those of env.judged. env.also is of control_runs.make_run."""
    fields = config.env.to_dict()
    judged, _ = fields.pop("judged", {}), fields.pop("also", {})
    fields |= ({} if learning else judged) | more
    features, frames, at_reset = (fields.pop(name) for name in ("features", "frame_stack", "at_reset"))
    taught, view = fields.pop("snapshots", None), fields.pop("agents", None)
    guide = dict(fields.pop("guide", None) or {})
    several = {name: fields.pop(name, None) for name in ("weights", "preferences")}
    if taught and learning:
        env = _from_snapshots(fields.pop("name"), count, taught, fields)
    else:
        env = envs.load_vector(fields.pop("name"), count, **fields)
    env = with_agents(config, env, view)
    env = _with_guide(env, guide, learning) if guide else env
    env = envs.select_features(env, features)
    env = envs.frame_stack(env, frames, at_reset=at_reset)
    return with_objectives(config, env, learning=learning, **several)


def _with_guide(env: envs.Vector, guide: dict[str, Any], learning: bool) -> envs.Vector:
    """`env` with goals in words (envs.guidance). Raises ValueError if the guide has no `interval` or `record`."""
    if lacking := sorted({"interval", "record"} - set(guide)):
        raise ValueError(f"env.guide lacks {', '.join(lacking)}: add 'interval': 100, 'record': '' or your own")
    interval, record = guide.pop("interval"), guide.pop("record")
    return guidance.guided(env, bind(guide, speakers)(), interval=interval, record=record if learning else "")


def _from_snapshots(name: str, count: int, taught: dict[str, Any], fields: dict[str, Any]) -> envs.Vector:
    """`count` envs that begin where a teacher has been (envs.snapshots): the finished run `run`, or a scripted one.

    Raises:
      ValueError: if the envs live on the host, or the run is not to be used (trained_teacher.restored).
    """
    if envs.on_host(name) or "fresh_starts" in fields:
        raise ValueError(f"env.snapshots: {name} lives on the host or keeps its starts: leave them out")
    env, spec = envs.load(name, **fields), dict(taught)
    until, limit = spec.pop("until") // count, spec.pop("limit")
    run, teacher, value = spec.pop("run", ""), bind(spec.pop("teacher"), snapshots), None  # older configs have no run
    if run:
        from experiments.parts import trained_teacher  # which imports this module

        teacher, value = trained_teacher.restored(run, env)
    made = snapshots.collected(env, teacher, jax.random.key(spec.pop("seed", 0)), value=value, **spec)
    return snapshots.vectorize_from(env, count, made, until=until, limit=limit)
