"""Actor-critic methods on classic control and probes, the whole training one compiled program.

    python -m experiments.control_ppo --config=configs/control.py:cartpole
    python -m experiments.control_ppo --config=configs/control.py:pendulum --config.num_seeds=1
    python -m experiments.control_ppo --config=configs/control.py:matching,vtrace

CartPole: 10 seeds, each at a mean return of 475 or more, in well under a minute on two cores after compilation.
Arguments: an environment, `cartpole`, `pendulum`, `acrobot`, `mountain_car`, `breakout`, or a probe, `matching`,
`corridor`, `aim`; a method, `ppo` (the clip, if none is named), `reinforce`, `a2c`, `ppo_kl`, `mdpo`, `vtrace`,
`hl_gauss`; `smoke` (seconds, for CI).
"""

from configs import common, control_common, sweeps

# What differs from configs.control_common, whose settings are purejaxrl's default.
ENVIRONMENTS = {
    "cartpole": dict(
        num_seeds=10,
        num_envs=8,
        total_steps=400_000,
        control=dict(optimizer=dict(learning_rate=1e-3), entropy_coef=0.0),
    ),
    "pendulum": dict(
        env=dict(name="gymnax/Pendulum-v1"),
        num_seeds=10,
        num_envs=16,
        total_steps=1_000_000,
        control=dict(
            advantage=dict(discount=0.9),
            epochs=10,
            minibatches=16,
            entropy_coef=0.0,
            normalize_rewards=True,
            normalize_observations=True,
            optimizer=dict(learning_rate=1e-3),
        ),
        eval=dict(max_steps=200),
    ),
    "acrobot": dict(
        env=dict(name="gymnax/Acrobot-v1"),
        num_seeds=10,
        num_envs=16,
        total_steps=500_000,
        control=dict(normalize_observations=True, optimizer=dict(learning_rate=1e-3)),
    ),
    "mountain_car": dict(
        env=dict(name="gymnax/MountainCar-v0"),
        num_seeds=10,
        num_envs=16,
        num_steps=256,
        total_steps=3_000_000,
        control=dict(
            normalize_observations=True,
            normalize_rewards=True,
            optimizer=dict(learning_rate=1e-3),
        ),
        eval=dict(max_steps=200),
    ),
    "breakout": dict(
        env=dict(name="gymnax/Breakout-MinAtar"),
        num_envs=64,
        total_steps=10_000_000,
        network=dict(hidden=(128,), activation="relu"),
        control=dict(minibatches=8, optimizer=dict(learning_rate=1e-3)),
        eval=dict(max_steps=1000),
    ),
}
for _probe in ("matching", "corridor", "aim"):
    ENVIRONMENTS[_probe] = dict(
        env=dict(name=f"probes/{_probe}"),
        num_seeds=4,
        num_envs=16,
        num_steps=64,
        total_steps=200_000 if _probe == "corridor" else 60_000,
        control=dict(optimizer=dict(learning_rate=3e-3)),
        eval=dict(max_steps=64),
    )

# One pass over the batch, as a whole: the policy that is differentiated is the one that has acted.
ONCE = dict(epochs=1, minibatches=1)
METHODS = {
    # Williams, 1992: the return, whitened over the batch; the critic only stands in behind an episode that was cut off.
    "reinforce": dict(advantage=dict(fn="reward_to_go"), surrogate=dict(fn="reinforce"), **ONCE),
    # arXiv 1602.01783, synchronous, its advantages whitened as in all of these.
    "a2c": dict(advantage=dict(fn="gae", lam=1.0), surrogate=dict(fn="reinforce"), value_loss=dict(fn="mse"), **ONCE),
    # arXiv 1707.06347 section 4: no clip, a KL whose weight is moved to keep it at its target.
    "ppo_kl": dict(
        surrogate=dict(fn="importance_sampling"),
        kl_control=dict(fn="adaptive_kl", initial=1.0, target=0.01, horizon=2048.0),
    ),
    # arXiv 2005.09814, on-policy: no clip, KL(pi || old), several steps from old.
    "mdpo": dict(surrogate=dict(fn="importance_sampling"), kl_coef=1.0),
    # arXiv 1802.01561: actors that are renewed every fourth update.
    "vtrace": dict(
        advantage=dict(fn="vtrace"), surrogate=dict(fn="reinforce"), value_loss=dict(fn="mse"), actor_lag=4, **ONCE
    ),
    # arXiv 2403.03950: the critic classifies.
    "hl_gauss": dict(value_loss=dict(fn="hl_gauss")),
}
# The returns that a categorical critic has to know.
RANGES = {"cartpole": (0.0, 100.0), "pendulum": (-10.0, 5.0), "acrobot": (-100.0, 0.0), "mountain_car": (-10.0, 2.0)}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*ENVIRONMENTS, "ppo", *METHODS, "smoke"))
    places, methods = sorted(words & set(ENVIRONMENTS)), sorted(words & {"ppo", *METHODS})
    if len(places) > 1 or len(methods) > 1:
        raise ValueError(f"one environment and one method at most, not {', '.join(places + methods)}")
    place = places[0] if places else "cartpole"
    methods = [method for method in methods if method != "ppo"]
    config = control_common.base("_".join(["control", place, *methods]))
    config.update(ENVIRONMENTS[place])
    low, high = RANGES.get(place, (-4.0, 4.0))
    config.control.support.update(low=low, high=high)
    for method in methods:
        for name, value in METHODS[method].items():
            fresh = isinstance(value, dict) and value["fn"] != config.control[name].get("fn")
            if fresh:  # another function: the keywords of the one before are not its own
                kept = {"discount": config.control.advantage.discount} if name == "advantage" else {}
                config.control[name] = kept | value
            elif isinstance(value, dict):
                config.control[name].update(value)
            else:
                config.control[name] = value
        if METHODS[method].get("epochs") == 1:
            # One update a batch instead of sixteen: short rollouts make up for it.
            config.num_steps = max(config.num_steps // 8, 8)
    if "smoke" in words:
        config.update(num_seeds=2, total_steps=8 * config.num_envs * config.num_steps, log_every=4)
        config.eval.update(num_episodes=2, max_steps=20)
        config.checkpoint.every = 4
        config.log.update(progress=False, tensorboard=False)
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, config.num_seeds apart."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))


def sweep_lr(arg: str | None = None):
    """The learning rate that the schedule starts with."""
    return sweeps.grid("control.optimizer.learning_rate", sweeps.numbers(arg, (3e-4, 1e-3, 3e-3)))


def sweep_clip(arg: str | None = None):
    """The bounds of the ratio, the same on both sides."""
    for clip in sweeps.numbers(arg, (0.1, 0.2, 0.3)):
        yield {"control.surrogate.clip_low": clip, "control.surrogate.clip_high": clip}


def sweep_entropy(arg: str | None = None):
    """The weight of the entropy bonus."""
    return sweeps.grid("control.entropy_coef", sweeps.numbers(arg, (0.0, 0.01, 0.03)))


def sweep_kl(arg: str | None = None):
    """The weight of the KL to the policy that an update has started with."""
    return sweeps.grid("control.kl_coef", sweeps.numbers(arg, (0.0, 0.3, 1.0)))


def sweep_method(arg: str | None = None):
    """The methods, in the environment that the config names."""
    return sweeps.grid("argument", sweeps.words(arg, ("ppo", *METHODS)))


def space_lr():
    """Where experiments.tune looks for the learning rate."""
    return {"control.optimizer.learning_rate": ("log_uniform", 1e-4, 1e-2)}


def space_entropy():
    """Where it looks for the weight of the entropy bonus."""
    return {"control.entropy_coef": ("uniform", 0.0, 0.05)}
