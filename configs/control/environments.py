"""Actor-critic methods on classic control and probes; the whole training is one compiled program.

    python -m experiments.control.ppo --config=configs/control/environments.py:cartpole
    python -m experiments.control.ppo --config=configs/control/environments.py:pendulum --config.num_seeds=1
    python -m experiments.control.ppo --config=configs/control/environments.py:matching,vtrace

CartPole: 10 seeds, each at a mean return of 475 or more, in well under a minute on two cores after compilation.
Arguments: an environment, `cartpole`, `pendulum`, `acrobot`, `mountain_car`, `breakout`; or a probe, `matching`,
`corridor`, `aim`, `privileged`, `drive`, `inventory`, `hdpo` (the same store by pathwise gradients), `recovering`,
`bidding`, `salesman`, `mapping`, `passage`; or one that needs a memory, `recall`, `cartpole_positions`; or one of
another library (each an extra of its own), `ant`, `cartpole_balance`, `snake`, `empty_room`, `craftax`,
`craftax_classic`. A method, `ppo` (the clip, the default), `reinforce`, `a2c`, `ppo_kl`, `trpo`, `mdpo`, `vtrace`,
`hl_gauss`, `two_hot`. A memory, `gru`, `transformer`, `stacked` (the last four observations). `smoke` (seconds, for
CI).
"""

from configs import common, sweeps
from configs.control import control_common, probes

# Differences from configs.control.control_common, which has purejaxrl's defaults.
ENVIRONMENTS = {
    "cartpole": dict(
        num_seeds=10,
        sample=dict(num_envs=8),
        # Unscaled rewards give values near 100, where the critic's clip of 0.2 is far too slow: one seed in ten fails.
        algorithm=dict(entropy_coef=0.0, normalize_rewards=True),
        train=dict(total_steps=300_000, optimizer=dict(learning_rate=1e-3)),
        log_every=25,
        eval=dict(num_episodes=100),
    ),
    "pendulum": dict(
        env=dict(name="gymnax/Pendulum-v1"),
        num_seeds=10,
        sample=dict(num_envs=16),
        # With little entropy some seeds learn to swing to one side only and stay at -450.
        algorithm=dict(
            advantage=dict(discount=0.95), entropy_coef=0.05, normalize_rewards=True, normalize_observations=True
        ),
        train=dict(total_steps=400_000, epochs=10, minibatches=16, optimizer=dict(learning_rate=1e-3)),
        log_every=10,
        eval=dict(num_episodes=100, max_steps=200, greedy=True),
    ),
    "acrobot": dict(
        env=dict(name="gymnax/Acrobot-v1"),
        num_seeds=10,
        sample=dict(num_envs=16),
        algorithm=dict(normalize_observations=True),
        train=dict(total_steps=400_000, optimizer=dict(learning_rate=1e-3)),
        log_every=10,
        eval=dict(num_episodes=100),
    ),
    "mountain_car": dict(
        env=dict(name="gymnax/MountainCar-v0"),
        num_seeds=10,
        sample=dict(num_envs=16, num_steps=32),
        # The bonus keeps it exploring to the end, and the mode is what it found: without the bonus, seeds end at -111.
        algorithm=dict(
            advantage=dict(discount=0.998, lam=0.98),
            entropy_coef=0.02,
            normalize_observations=True,
            normalize_rewards=True,
        ),
        train=dict(total_steps=1_600_000, optimizer=dict(learning_rate=1e-3)),
        log_every=125,
        eval=dict(num_episodes=100, max_steps=200, greedy=True),
    ),
    "breakout": dict(
        env=dict(name="gymnax/Breakout-MinAtar"),
        num_seeds=10,
        sample=dict(num_envs=64),
        network=dict(activation="relu", channels=0),  # purejaxrl's: no convolution, which is 5 times as slow on a CPU
        # A small learning rate or short rollouts lead to a loop that hits no bricks and never loses the ball.
        train=dict(total_steps=2_000_000, minibatches=8, optimizer=dict(learning_rate=5e-3)),
        log_every=20,
        checkpoint=dict(every=100),
        eval=dict(num_episodes=32, max_steps=1000),
    ),
}
ENVIRONMENTS |= probes.ENVIRONMENTS

# From other libraries, each an extra of its own. Large or expensive resets are sampled once per step, not per env.
_PHYSICS = dict(
    sample=dict(num_envs=64, num_steps=64),
    network=dict(hidden=(64, 64)),
    algorithm=dict(
        advantage=dict(discount=0.97), entropy_coef=0.0, normalize_observations=True, normalize_rewards=True
    ),
    log_every=20,
    checkpoint=dict(every=200),
    eval=dict(max_steps=1000),
)
_PHYSICS_TRAIN = dict(minibatches=8, optimizer=dict(learning_rate=1e-3))
_GRIDS = dict(sample=dict(num_envs=64), network=dict(activation="relu"), log_every=20)
ENVIRONMENTS |= {
    "ant": _PHYSICS
    | dict(
        env=dict(name="brax/ant", backend="spring", fresh_starts=1), train=_PHYSICS_TRAIN | dict(total_steps=4_000_000)
    ),
    "cartpole_balance": _PHYSICS
    | dict(
        env=dict(name="playground/CartpoleBalance", fresh_starts=1),
        train=_PHYSICS_TRAIN | dict(total_steps=1_000_000),
    ),
    "snake": _GRIDS
    | dict(
        env=dict(name="jumanji/Snake-v1", observation="grid", num_rows=6, num_cols=6),
        train=dict(total_steps=2_000_000, minibatches=8),
    ),
    "empty_room": _GRIDS
    | dict(
        env=dict(name="navix/Navix-Empty-5x5-v0"),
        train=dict(total_steps=200_000, minibatches=8),
        eval=dict(max_steps=100),
    ),
    "craftax": _GRIDS
    | dict(
        env=dict(name="craftax/Craftax-Symbolic-v1", fresh_starts=1),
        train=dict(total_steps=5_000_000, minibatches=8),
        network=dict(hidden=(256, 256)),
        eval=dict(max_steps=2000),
    ),
}
ENVIRONMENTS["craftax_classic"] = ENVIRONMENTS["craftax"] | dict(
    env=dict(name="craftax/Craftax-Classic-Symbolic-v1", fresh_starts=1)
)

# A cue that is shown at the start and needed at the end; CartPole without velocities.
ENVIRONMENTS["recall"] = ENVIRONMENTS["matching"] | dict(
    env=dict(name="probes/recall", delay=3), sample=dict(num_envs=16, num_steps=32)
)
ENVIRONMENTS["cartpole_positions"] = ENVIRONMENTS["cartpole"] | dict(
    env=dict(features=(0, 2)),
    sample=dict(num_envs=16, num_steps=64),
    train=dict(total_steps=400_000, optimizer=dict(learning_rate=1e-3)),
)
MEMORIES = {
    "gru": dict(network=dict(kind="gru", hidden=(64,))),
    "transformer": dict(network=dict(kind="transformer", hidden=(64,))),
    "stacked": dict(env=dict(frame_stack=4)),
}

# One pass over the whole batch: the differentiated policy is the one that acted.
ONCE = ("reinforce", "a2c", "vtrace")
METHODS = {
    # Williams, 1992: the return, whitened over the batch; the critic only bootstraps truncated episodes.
    "reinforce": dict(advantage=dict(fn="reward_to_go"), surrogate=dict(fn="reinforce")),
    # arXiv 1602.01783, synchronous, its advantages whitened as in all of these.
    "a2c": dict(advantage=dict(fn="gae", lam=1.0), surrogate=dict(fn="reinforce"), value_loss=dict(fn="mse")),
    # arXiv 1707.06347 section 4: no clip, a KL whose coefficient is adapted to keep it at its target.
    "ppo_kl": dict(
        surrogate=dict(fn="importance_sampling"),
        kl_control=dict(fn="adaptive_kl", initial=1.0, target=0.01, horizon=2048.0),
    ),
    # arXiv 1502.05477: the longest natural-gradient step within a KL bound; epochs and minibatches are the critic's.
    "trpo": dict(
        updater=dict(fn="make_trust_region_update", max_kl=0.01, damping=0.1, cg_iterations=10, backtracks=10),
        surrogate=dict(fn="importance_sampling"),
        value_loss=dict(fn="mse"),
    ),
    # arXiv 2005.09814, on-policy: no clip, several steps from old, KL(pi || old) with the weight K / (K - k + 1) in
    # update k of K. The KL is its unbiased estimate from the actions taken; the paper's is a sum over all actions.
    "mdpo": dict(surrogate=dict(fn="importance_sampling"), kl_control=dict(fn="annealed_kl")),
    # arXiv 1802.01561: actors that are updated every fourth update.
    "vtrace": dict(
        advantage=dict(fn="vtrace"), surrogate=dict(fn="reinforce"), value_loss=dict(fn="mse"), actor_lag=4
    ),
    # arXiv 2403.03950: the critic classifies, by HL-Gauss or by two-hot targets (arXiv 1911.08265 appendix F).
    "hl_gauss": dict(value_loss=dict(fn="hl_gauss")),
    "two_hot": dict(value_loss=dict(fn="two_hot")),
}
# The range of returns of a categorical critic: discounted, and in standard deviations if rewards are scaled.
RANGES = {
    "cartpole": (0.0, 8.0),
    "pendulum": (-6.0, 1.0),
    "acrobot": (-100.0, 0.0),
    "mountain_car": (-6.0, 1.0),
    "breakout": (0.0, 20.0),
    "matching": (-1.0, 1.0),
    "corridor": (0.0, 1.0),
    "aim": (-6.25, 0.0),
    "privileged": (-2.0, 2.0),
    "drive": (-10.0, 10.0),
    "inventory": (-20.0, 0.0),
    "hdpo": (-20.0, 0.0),
    "ant": (-5.0, 15.0),
    "cartpole_balance": (0.0, 15.0),
    "snake": (0.0, 20.0),
    "empty_room": (0.0, 1.0),
    "craftax": (-2.0, 20.0),
    "craftax_classic": (-2.0, 20.0),
    "recall": (-1.0, 1.0),
    "recovering": (0.0, 40.0),
    "bidding": (0.0, 6.0),
    "salesman": (-8.0, 0.0),
    "mapping": (0.0, 10.0),
    "passage": (-3.0, 12.0),
    "cartpole_positions": (0.0, 8.0),
}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*ENVIRONMENTS, "ppo", *METHODS, *MEMORIES, "smoke"))
    places, methods = sorted(words & set(ENVIRONMENTS)), sorted(words & {"ppo", *METHODS})
    memories = sorted(words & set(MEMORIES))
    if max(len(places), len(methods), len(memories)) > 1:
        named = ", ".join(places + methods + memories)
        raise ValueError(f"choose at most one environment, one method and one memory, not {named}")
    place = places[0] if places else "cartpole"
    methods = [method for method in methods if method != "ppo"]
    if place == "hdpo" and methods + memories:
        raise ValueError(f"hdpo is a method of its own: use {(methods + memories)[0]} with inventory, the same store")
    if "trpo" in methods and set(memories) - {"stacked"}:
        raise ValueError(f"trpo takes single steps, {memories[0]} needs whole rows: choose another method")
    config = control_common.base("_".join(["control", place, *methods, *memories]))
    config.update(ENVIRONMENTS[place])
    for memory in memories:
        config.update(MEMORIES[memory])
    low, high = RANGES[place]
    config.algorithm.support.update(low=low, high=high)
    for method in methods:
        for name, value in METHODS[method].items():
            fresh = isinstance(value, dict) and value["fn"] != config.algorithm[name].get("fn")
            if fresh:  # another function: drop the keywords of the previous one
                kept = {"discount": config.algorithm.advantage.discount} if name == "advantage" else {}
                config.algorithm[name] = kept | value
            elif isinstance(value, dict):
                config.algorithm[name].update(value)
            else:
                config.algorithm[name] = value
        if method in ONCE:
            config.train.update(epochs=1, minibatches=1)
            # One update per batch instead of sixteen: short rollouts make up for it.
            config.sample.num_steps = max(config.sample.num_steps // 8, 8)
    if "smoke" in words:
        control_common.smoke(config)
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, regardless of config.num_seeds."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))


def sweep_lr(arg: str | None = None):
    """The learning rate at the start of the schedule."""
    return sweeps.grid("train.optimizer.learning_rate", sweeps.numbers(arg, (3e-4, 1e-3, 3e-3)))


def sweep_clip(arg: str | None = None):
    """The bounds of the ratio, equal on both sides."""
    for clip in sweeps.numbers(arg, (0.1, 0.2, 0.3)):
        yield {"algorithm.surrogate.clip_low": clip, "algorithm.surrogate.clip_high": clip}


def sweep_entropy(arg: str | None = None):
    """The coefficient of the entropy bonus."""
    return sweeps.grid("algorithm.entropy_coef", sweeps.numbers(arg, (0.0, 0.01, 0.03)))


def sweep_kl(arg: str | None = None):
    """The coefficient of the KL to the policy at the start of an update."""
    return sweeps.grid("algorithm.kl_coef", sweeps.numbers(arg, (0.0, 0.3, 1.0)))


def sweep_method(arg: str | None = None):
    """The methods, in the environment that the config names."""
    return sweeps.grid("argument", sweeps.words(arg, ("ppo", *METHODS)))


def space_lr():
    """The range of learning rates for experiments.sweep.tune."""
    return {"train.optimizer.learning_rate": ("log_uniform", 1e-4, 1e-2)}


def space_entropy():
    """The range of the entropy bonus's coefficient."""
    return {"algorithm.entropy_coef": ("uniform", 0.0, 0.05)}
