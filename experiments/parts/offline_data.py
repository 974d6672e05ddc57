"""The dataset of experiments.control.offline, from a config: scripted behaviours of mixed quality, or a file."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts import control_setup, offline_labels
from rl_jax import envs
from rl_jax.control.offline import data as datasets
from rl_jax.control.transitions import Transitions
from rl_jax.data import episode_files, rlds
from rl_jax.data import transitions as files
from rl_jax.envs.worlds import scripted
from rl_jax.models.agents.distributions import categorical
from rl_jax.models.agents.offline_networks import OfflineNetworks, make_networks
from rl_jax.rollout.envs.steps import collect, evaluate, memoryless, start


class Loaded(NamedTuple):
    """What a run learns from, and how its result is measured.

    Attributes:
      data: OfflineData.
      moments: of the observations, 0 and 1 if they are not normalised.
      references: float32 [2], the returns that count as 0 and 100.
      behaviour_return: float32 [], the mean return of the data's episodes.
      measured: metrics of what was filled in (offline_labels), float32 [] by name.
    """

    data: datasets.OfflineData
    moments: datasets.Moments
    references: jax.Array
    behaviour_return: jax.Array
    measured: dict[str, jax.Array]


def make_offline_networks(config, env: envs.Vector) -> OfflineNetworks:
    """The networks of config.network that fit the environment's spaces."""
    return make_networks(env.observation_space.shape, **action_kind(env), **config.network.to_dict())


def action_kind(env: envs.Vector) -> dict[str, Any]:
    """The keywords of make_networks for an environment's actions."""
    space = env.action_space
    return dict(num_actions=space.n) if isinstance(space, envs.Discrete) else dict(low=space.low, high=space.high)


def rows_of(behaviours: tuple[str, ...], shares: tuple[float, ...], count: int) -> tuple[int, ...]:
    """The behaviour of each of `count` environments, as an index; shares are rounded, each is at least one.

    Raises:
      ValueError: if the numbers of names and shares differ, a share is not positive, or there are too few rows.
    """
    if len(behaviours) != len(shares) or not behaviours or min(shares) <= 0:
        raise ValueError(
            f"dataset.behaviours={behaviours} and dataset.shares={shares}: give one share above 0 for each behaviour"
        )
    if count < len(behaviours):
        raise ValueError(f"dataset.num_envs={count} is less than one for each of {len(behaviours)} behaviours")
    edges = np.cumsum(np.asarray(shares) / sum(shares) * (count - len(shares)))
    counts = np.diff(np.concatenate([[0], np.round(edges)])).astype(int) + 1
    return tuple(int(i) for i in np.repeat(np.arange(len(shares)), counts))


def scripted_distribution(config, space, mixture: scripted.Behaviour):
    """A Distribution for config.env whose outputs are observations and whose noise is a key, for `collect`."""
    options = config.env.to_dict()
    act = scripted.actor(options.pop("name"), space, mixture, **options)
    return categorical(1)._replace(
        noise=lambda key, shape: jax.random.split(key, shape[0]) if len(shape) == 2 else key,
        sample=act,
        to_env=lambda actions: actions,
    )


def collected(config) -> Callable:
    """Makes key -> (Transitions [N], behaviour int32 [N]) of the config's scripted behaviours; episodes in a row."""
    settings = config.dataset
    env = control_setup.load_env(config, settings.num_envs, learning=True)
    rows = rows_of(settings.behaviours, settings.shares, settings.num_envs)
    mixture = scripted.behaviour(tuple(settings.behaviours[i] for i in rows))
    distribution = scripted_distribution(config, env.action_space, mixture)

    def gather(key: jax.Array):
        env_key, act_key = jax.random.split(key)
        policy = memoryless(lambda observations: observations)
        steps = collect(policy, distribution, env, start(env, env_key), act_key, num_steps=settings.num_steps)[1]
        cut = steps.truncated.at[:, -1].set(~steps.terminated[:, -1])  # recording stops there
        flat = Transitions(
            steps.observations, steps.actions, steps.rewards, steps.next_observations, steps.terminated, cut
        )
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), flat)
        return flat, jnp.repeat(jnp.asarray(rows, jnp.int32), settings.num_steps)

    return gather


def imagined(config) -> Callable:
    """Makes key -> the steps of `collected`, and behind them those of config.imagined, as if a model had made them.

    An imagined step is one of the expert's, or another behaviour's, in a world that is a little different: the field
    imagined.field of env has another value. The third result is the source, 0 for real steps and 1 for imagined ones.
    """
    fields, other = config.imagined, config.copy_and_resolve_references()
    with other.unlocked():
        other.env[fields.field] = fields.value
        other.dataset.update(behaviours=fields.behaviours, shares=fields.shares, num_envs=fields.num_envs)
    real, dreamt, known = collected(config), collected(other), len(config.dataset.behaviours)

    def gather(key: jax.Array):
        real_key, dream_key = jax.random.split(key)
        (steps, behaviour), (more, theirs) = real(real_key), dreamt(dream_key)
        both = jax.tree.map(lambda *x: jnp.concatenate(x), steps, more)
        source = jnp.concatenate([jnp.zeros_like(behaviour), jnp.ones_like(theirs)])
        return both, jnp.concatenate([behaviour, theirs + known]), source

    return gather


def scripted_returns(config, names: tuple[str, ...]) -> Callable:
    """Makes key -> the mean returns of scripted behaviours in the evaluation's environments, float32 [names]."""
    count = max(config.eval.num_episodes, 1)
    env = control_setup.load_env(config, count * len(names))
    rows = tuple(name for name in names for _ in range(count))
    distribution = scripted_distribution(config, env.action_space, scripted.behaviour(rows))
    policy = memoryless(lambda observations: observations)

    def returns(key: jax.Array) -> jax.Array:
        each = evaluate(policy, distribution, env, key, max_steps=config.eval.max_steps).returns
        return jnp.mean(each.reshape(len(names), count), axis=1)

    return returns


def read_file(config, networks: OfflineNetworks, shape: tuple[int, ...]) -> files.Recorded:
    """The transitions of dataset.path, in the layout dataset.layout.

    Raises:
      ValueError: if they do not fit the environment's spaces.
    """
    path, layout = config.dataset.path, config.dataset.layout
    readers = {
        "auto": functools.partial(files.read, episode_length=config.dataset.get("episode_length", 0)),
        "rlds": functools.partial(rlds.read, last_reward=config.dataset.get("last_reward", "refuse")),
        "episodes": functools.partial(
            episode_files.read,
            observation=config.dataset.get("observation"),  # older configs have not all fields
            terms=tuple(config.dataset.get("terms", ())),
        ),
    }
    recorded = readers[layout](path)
    if recorded.observations.shape[1:] != shape:
        raise ValueError(
            f"{path}, field 'observations': shape {recorded.observations.shape[1:]} per step, but {config.env.name} "
            f"has {shape}"
        )
    actions = recorded.actions
    if networks.num_actions:
        if actions.ndim != 1 or actions.min() < 0 or actions.max() >= networks.num_actions:
            raise ValueError(
                f"{path}, field 'actions': {actions.dtype} {actions.shape}, from {actions.min()} to {actions.max()}, "
                f"but {config.env.name} has actions 0 to {networks.num_actions - 1}"
            )
    elif actions.shape[1:] != (networks.size,):
        raise ValueError(
            f"{path}, field 'actions': shape {actions.shape[1:]} per step, but {config.env.name} has ({networks.size},)"
        )
    return recorded


def check_mixing(mixing: tuple[float, ...], sources: int) -> None:
    """Raises ValueError if dataset.mixing is neither () nor a share of 0 or more for each source, some above 0."""
    if mixing and (len(mixing) != sources or min(mixing) < 0.0 or max(mixing) <= 0.0):
        raise ValueError(
            f"dataset.mixing={tuple(mixing)}: the data have {sources} sources; give a share of 0 or more for each"
        )


def make_loader(config, networks: OfflineNetworks, discount: float) -> Callable:
    """Makes key -> Loaded. Files are read and environments loaded here, outside of what is traced.

    Raises:
      ValueError: as `read_file`, `rows_of`, `check_mixing`; or if no returns are given that count as 0 and 100, and
        none are scripted.
    """
    settings, spaces = config.dataset, control_setup.load_env(config, 1)
    label = offline_labels.make_labels(config, networks, spaces, collected)
    known = config.env.name in scripted.CONTROLLERS
    if settings.path and "imagined" in config:
        raise ValueError("imagined: its steps join scripted ones; in a folder of files each file is a source already")
    if settings.path:
        shape = control_setup.load_env(config, 1).observation_space.shape
        recorded = read_file(config, networks, shape)
        gather = None
    elif "imagined" in config:
        gather = imagined(config)
    else:
        own = collected(config)

        def gather(key):
            steps, behaviour = own(key)
            return steps, behaviour, behaviour

    sources = 2 if "imagined" in config else len(settings.behaviours)
    check_mixing(settings.mixing, sources if gather else int(recorded.source.max()) + 1)
    if settings.returns and len(settings.returns) != 2:
        raise ValueError(f"dataset.returns={settings.returns} must be two returns, those that count as 0 and 100")
    judges = scripted_returns(config, ("random", "expert")) if known and not settings.returns else None

    def load(key: jax.Array) -> Loaded:
        data_key, judge_key, label_key = jax.random.split(key, 3)
        if gather is None:
            steps = Transitions(*(jnp.asarray(x) for x in recorded[:6]))
            source, behaviour = jnp.asarray(recorded.source), jnp.asarray(recorded.behaviour)
        else:
            steps, behaviour, source = gather(data_key)
        steps = steps._replace(actions=networks.stored(steps.actions))
        steps, by = datasets.in_own_units(steps, normalize=settings.normalize_observations)
        data = datasets.make_data(steps, discount=discount, source=source, behaviour=behaviour)
        earned = datasets.mean_episode_return(data)
        if judges is not None:
            references = judges(judge_key)
        elif settings.returns:
            references = jnp.asarray(settings.returns, jnp.float32)
        else:  # the worst and the best episode of the data
            first = data.time == 0
            returns = jnp.where(first, data.to_go, data.to_go[0])
            references = jnp.stack([jnp.min(returns), jnp.max(returns)])
        data, measured = label(data, label_key)
        return Loaded(data, by, references, earned, measured)

    return load


def normalized(returned: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """100 (R - low) / (high - low), as D4RL; where both are equal, 100 (R - low)."""
    return 100.0 * (returned - low) / jnp.where(high == low, 1.0, high - low)


def scores(returned: jax.Array, loaded: Loaded) -> dict[str, jax.Array]:
    """eval/normalized: `normalized`; eval/improvement: R - the behaviours' mean (NeoRL-2)."""
    return {
        "eval/normalized": normalized(returned, *loaded.references),
        "eval/improvement": returned - loaded.behaviour_return,
        "data/return": loaded.behaviour_return,
    } | loaded.measured
