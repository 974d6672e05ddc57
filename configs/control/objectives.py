"""Several objectives: a critic for each, one policy for all preferences, fronts (docs/pages/control_objectives.md).

    python -m experiments.control.ppo --config=configs/control/objectives.py:treasure,conditioned
    python -m experiments.control.ppo --config=configs/control/objectives.py:two_aims,c_morl --config.num_seeds=10
    python -m experiments.control.ppo --config=configs/control/objectives.py:arms,maxmin

Arguments: a world, `treasure` (deep sea treasure, the convex map), `concave` (Vamplew's), `two_aims` (a bandit whose
front is not concave; the default), `arms` (groups of people as objectives). A method: `linear` (one policy, fixed
weights), `chebyshev`, `maxmin` (arXiv 2402.08925), `conditioned` (one policy, the weights in its observation),
`directional` (the same with directions, arXiv 2402.18571), `stage1` (many policies, fixed weights), `c_morl` (arXiv
2410.02236: stage 1, then constrained extension; the default). `smoke` (seconds, for CI).
rl_jax.control.objectives and pareto_search have the equations.
"""

from configs import common, sweeps
from configs.control import control_common

_BANDIT = dict(
    sample=dict(num_envs=64, num_steps=1),
    network=dict(hidden=(16,)),
    train=dict(total_steps=300 * 64, optimizer=dict(learning_rate=1e-2, final_fraction=0.1)),
    eval=dict(max_steps=1),
)
WORLDS = {
    "treasure": dict(
        env=dict(name="objectives/treasure", sea="convex", columns=10),
        sample=dict(num_envs=16, num_steps=64),
        algorithm=dict(advantage=dict(discount=1.0, lam=0.95), entropy_coef=0.02),
        train=dict(total_steps=400_000, optimizer=dict(learning_rate=2e-3, final_fraction=0.1)),
        eval=dict(max_steps=100, reference=(0.0, -25.0)),
    ),
    "two_aims": _BANDIT
    | dict(env=dict(name="objectives/two_aims", size=2, span=1.0), algorithm=dict(entropy_coef=0.0)),
    "arms": _BANDIT
    | dict(
        env=dict(name="objectives/arms", rewards=((1.0, 0.0), (0.6, 0.55), (0.0, 1.0))),
        algorithm=dict(entropy_coef=0.0),
    ),
}
WORLDS["concave"] = WORLDS["treasure"] | dict(env=dict(name="objectives/treasure", sea="concave", columns=10))
SCALES = {"treasure": (25.0, 20.0), "concave": (124.0, 20.0)}

_ONE = dict(fn="make_objectives_update", weights=(), scales=())
_MANY = dict(fn="make_front_update", parts=5, first=100, length=20, share=0.9, size=24, max_steps=1, scales=())
METHODS = {
    "linear": _ONE | dict(utility="linear"),
    "chebyshev": _ONE | dict(utility="chebyshev", ideal=()),
    "maxmin": _ONE | dict(utility="maxmin"),
    "conditioned": _ONE | dict(utility="conditioned"),
    "directional": _ONE | dict(utility="conditioned"),
    "stage1": _MANY | dict(extend=False),
    "c_morl": _MANY | dict(extend=True),
}
DEFAULTS = {"world": "two_aims", "method": "c_morl"}
PREFERENCES = {"conditioned": dict(kind="weights", parts=10), "directional": dict(kind="directions", parts=10)}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*WORLDS, *METHODS, "smoke"))
    world, method = (_chosen(words, known, what) for known, what in ((WORLDS, "world"), (METHODS, "method")))
    config = control_common.base(f"control_objectives_{world}_{method}")
    config.update(num_seeds=4, log_every=25)
    config.train.update(epochs=4, minibatches=4)
    config.algorithm.value_loss = dict(fn="mse")
    config.algorithm.updater = METHODS[method] | dict(scales=SCALES.get(world, ()))
    with config.unlocked():
        config.eval.update(reference=(0.0, 0.0), parts=10, num_episodes=88, greedy=True)
        config.update(WORLDS[world])
        if method in PREFERENCES:
            config.env.preferences = PREFERENCES[method]
    if method in ("stage1", "c_morl"):
        config.algorithm.updater.max_steps = config.eval.max_steps
        config.eval.num_episodes = 96
    config.checkpoint.every = 100
    if "smoke" in words:
        config.update(num_seeds=2, log_every=2)
        config.sample.num_envs = 8
        config.train.total_steps = 4 * 8 * config.sample.num_steps
        config.network.hidden = (8,)
        if method in ("stage1", "c_morl"):
            config.algorithm.updater.update(parts=1, first=2, length=1, size=4)
            config.eval.num_episodes = 4
        config.checkpoint.every = 2
        config.log.update(progress=False, tensorboard=False)
    return config


def _chosen(words: set[str], known: dict, what: str) -> str:
    found = sorted(words & set(known))
    if len(found) > 1:
        raise ValueError(f"choose at most one {what}, not {', '.join(found)}")
    return found[0] if found else DEFAULTS[what]


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, regardless of config.num_seeds."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))


def sweep_method(arg: str | None = None):
    """The methods that give a front, on the bandit of two aims."""
    return sweeps.grid("argument", sweeps.words(arg, ("two_aims,stage1", "two_aims,c_morl", "two_aims,conditioned")))


def space_lr():
    """The range of learning rates for experiments.sweep.tune --metric=eval/hypervolume (arXiv 2310.16487)."""
    return {"train.optimizer.learning_rate": ("log_uniform", 1e-3, 3e-2)}


def space_extension():
    """The constrained extension of c_morl: its bound, and the updates of a round."""
    return {"algorithm.updater.share": ("uniform", 0.5, 0.98), "algorithm.updater.length": ("int", 5, 40)}
