"""Off-policy methods with a replay, on classic control and probes; the whole training is one compiled program.

    python -m experiments.control.replay --config=configs/control/replay.py:cartpole
    python -m experiments.control.replay --config=configs/control/replay.py:pendulum,sac --config.num_seeds=4
    python -m experiments.control.replay --config=configs/control/replay.py:cartpole,rainbow

Arguments: an environment, `cartpole`, `pendulum`, `breakout` (MinAtar); or a probe, `matching`, `corridor`, `aim`,
`laser` (a pulse to shorten), `restless` (coupled arms), `restless_vectors` (the same, actions as vectors), `docking`,
`hover` (a quadrotor), `mapping` (tensors to a fast memory). A method, of choices: `dqn` (with a double target, the
default), `dueling`, `n_step`, `prioritized`, `c51`, `qr_dqn`, `rainbow` (all of these with c51), `discrete_sac`,
`muzero` (a search in a learned model); of numbers: `ddpg`, `td3`, `sac` (the default), `redq`, `srl` (four actions per
decision), `held_sac` (its comparison), and in `docking` `residual` (corrects a cloned policy), `residual_fixed` (a
controller), `hil_serl` (somebody intervenes), `expo` (edits of a cloned diffusion policy), `liayn` (imitation); in
`hover` `learn_to_fly` (TD3, the reward's weights by a curriculum), in `restless_vectors` `sequoia` (DQN, the best
combination by an integer program). `smoke` (seconds, for CI).
"""

import math

from configs import common, sweeps
from configs.control import control_common, hover_common, muzero_common, replay_common, sequoia_common

_ADAM = dict(learning_rate=1e-3, eps=1e-8)
ENVIRONMENTS = {
    # RL Baselines3 Zoo's numbers. Its slow copy follows once per update, here every 128 gradient steps: with a copy
    # every 10 of them values grow without bound, in PyTorch as here.
    "cartpole": dict(
        num_seeds=4,
        sample=dict(num_envs=8, num_steps=32),
        replay=dict(capacity=102_400, warmup=1024, batch_size=64),
        network=dict(hidden=(256, 256)),
        algorithm=dict(target_every=128, exploration=dict(initial=1.0, final=0.04, fraction=0.16)),
        train=dict(total_steps=50_000, gradient_steps=128, optimizer=dict(learning_rate=2.3e-3)),
        log_every=14,
        checkpoint=dict(every=98),
        eval=dict(num_episodes=32),
    ),
    "breakout": dict(
        env=dict(name="gymnax/Breakout-MinAtar"),
        network=dict(channels=16, hidden=(128,)),
        replay=dict(capacity=100_000, warmup=5_000, batch_size=32),
        algorithm=dict(target_every=1000, exploration=dict(initial=1.0, final=0.05, fraction=0.1)),
        train=dict(total_steps=1_000_000, optimizer=dict(learning_rate=3e-4)),
        log_every=12_500,
        checkpoint=dict(every=25_000),
        eval=dict(num_episodes=16, max_steps=1000),
    ),
    "pendulum": dict(
        env=dict(name="gymnax/Pendulum-v1"),
        num_seeds=4,
        sample=dict(num_envs=1, num_steps=1),
        replay=dict(capacity=20_000, warmup=1_000, batch_size=128),
        train=dict(total_steps=20_000),
        log_every=1000,
        eval=dict(num_episodes=32, max_steps=200),
    ),
}
for _probe in ("matching", "corridor", "aim"):
    ENVIRONMENTS[_probe] = dict(
        env=dict(name=f"probes/{_probe}"),
        num_seeds=3,
        sample=dict(num_envs=8, num_steps=4),
        replay=dict(capacity=4096, warmup=256, batch_size=64),
        network=dict(hidden=(32, 32)),
        train=dict(total_steps=60_000, gradient_steps=4),
        log_every=100,
        eval=dict(max_steps=64),
    )
ENVIRONMENTS["corridor"]["env"]["length"] = 8
# arXiv 2304.12187 (TempoRL). Doing nothing has 11.0 of 20, the straight way to the shortest pulse 19.3. With networks
# of 32 units and a first temperature of .1 two seeds had 18.9 and 19.0 after 8,000 steps (2,000 gradient steps).
ENVIRONMENTS["laser"] = dict(
    env=dict(name="probes/laser"),
    num_seeds=3,
    sample=dict(num_envs=8, num_steps=4),
    replay=dict(capacity=20_480, warmup=512, batch_size=128),
    train=dict(total_steps=16_000, gradient_steps=8),
    algorithm=dict(discount=0.95),
    log_every=50,
    checkpoint=dict(every=250),
    eval=dict(num_episodes=32, max_steps=20),
)
# arXiv 2503.01919 (SEQUOIA): Q(s, a) of combined actions, its largest value by enumeration.
ENVIRONMENTS["restless"] = dict(
    env=dict(name="probes/restless"),
    num_seeds=3,
    sample=dict(num_envs=8, num_steps=4),
    replay=dict(capacity=20_480, warmup=512, batch_size=64),
    network=dict(hidden=(64, 32), enumerated=True),
    algorithm=dict(discount=0.9, tau=0.05, target_every=1),
    train=dict(total_steps=32_000, gradient_steps=4),
    log_every=100,
    checkpoint=dict(every=500),
    eval=dict(num_episodes=64, max_steps=40),
)
ENVIRONMENTS["restless_vectors"] = sequoia_common.vectors(ENVIRONMENTS["restless"])
ENVIRONMENTS["docking"] = dict(
    env=dict(name="probes/docking"),
    num_seeds=3,
    sample=dict(num_envs=4, num_steps=4),
    replay=dict(capacity=16_384, warmup=512, batch_size=128),
    train=dict(total_steps=8_000, gradient_steps=8),
    algorithm=dict(discount=0.95),
    log_every=50,
    checkpoint=dict(every=250),
    eval=dict(num_episodes=32, max_steps=40),
)
ENVIRONMENTS["hover"] = hover_common.HOVER
ENVIRONMENTS["mapping"] = muzero_common.MAPPING
CONTINUOUS = ("pendulum", "aim", "laser", "restless_vectors", "docking", "hover")

_REAL = dict(
    algorithm=dict(
        head=dict(fn="scalar", delta=math.inf),
        tau=0.005,
        target_every=1,
        exploration=dict(initial=0.0, final=0.0, fraction=1.0),
    ),
    train=dict(max_grad_norm=math.inf),
)
# Differences from DQN, or for numbers from _REAL.
METHODS = {
    "dqn": {},
    # arXiv 1511.06581.
    "dueling": dict(network=dict(dueling=True)),
    "n_step": dict(algorithm=dict(n_step=3)),
    # arXiv 1511.05952; the correction stays, the paper raises it to 1.
    "prioritized": dict(algorithm=dict(priority=dict(exponent=0.6, correction=0.4))),
    # arXiv 1707.06887, 1710.10044; the ends are those of the environment's returns, below.
    "c51": dict(algorithm=dict(head=dict(fn="categorical", num_atoms=51))),
    "qr_dqn": dict(algorithm=dict(head=dict(fn="quantile", num_quantiles=32, kappa=1.0))),
    # arXiv 1710.02298, less the noise in its layers (epsilon explores) and the rise of the correction.
    "rainbow": dict(
        network=dict(dueling=True),
        algorithm=dict(
            head=dict(fn="categorical", num_atoms=51), n_step=3, priority=dict(exponent=0.5, correction=0.4)
        ),
    ),
    # arXiv 1910.07207, with half of log A as the target entropy.
    "discrete_sac": dict(
        network=dict(members=2),
        algorithm=dict(
            method=dict(fn="discrete_sac", entropy_share=0.5, temperature=0.1),
            tau=0.01,
            target_every=1,
            exploration=dict(initial=0.0, final=0.0, fraction=1.0),
        ),
    ),
    # arXiv 1509.02971, with Gaussian noise.
    "ddpg": dict(algorithm=dict(method=dict(fn="td3"), noise=dict(target=0.0))),
    # arXiv 1802.09477.
    "td3": dict(
        network=dict(members=2), algorithm=dict(method=dict(fn="td3"), target_every=2), train=dict(actor_every=2)
    ),
    # arXiv 1812.05905.
    "sac": dict(network=dict(members=2), algorithm=dict(method=dict(fn="sac", temperature=1.0))),
    # arXiv 2410.08979 (SRL): a plan of 4 actions per decision.
    "srl": dict(
        network=dict(members=2),
        algorithm=dict(method=dict(fn="sequence_sac", temperature=1.0, length=4, decide_every=0)),
    ),
    # Its comparison: SAC whose actions are held for 4 steps when it acts.
    "held_sac": dict(
        network=dict(members=2),
        algorithm=dict(method=dict(fn="sequence_sac", temperature=1.0, length=1, decide_every=4)),
    ),
    # arXiv 2101.05982: 10 critics, the least of 2 of them, 20 gradient steps per step.
    "redq": dict(
        network=dict(members=10),
        algorithm=dict(method=dict(fn="sac", temperature=1.0, subset=2, reads="mean")),
        train=dict(gradient_steps=20, actor_every=20),
    ),
}
# arXiv 2509.19301 (ResFiT): a correction of a frozen policy that was cloned from demonstrations, from 10 critics with
# LayerNorm, n = 3; at random around the base at first. Here the demonstrator is a controller with an error. The scale
# is larger than the paper's .1 to .2: the controller's error needs .6. The controller alone has -7.9,
# without its bias -1.5. With the controller as base, networks of 32 units and 4 critics, two seeds had -17 and -14
# after 1,600 steps, -2.8 and -2.5 after 4,000.
METHODS["residual"] = dict(
    replay=dict(kept=1024),  # of the base alone, as the demonstrations: half of each batch
    network=dict(members=10, layer_norm=True),
    algorithm=dict(
        method=dict(fn="td3", subset=2, reads="mean"),
        # demos: episodes.jsonl of a run, its last `last` episodes; "": so many of the controller's, made here.
        base=dict(fn="cloned", demos="", last=1, episodes=16, bias=0.3, scale=0.8),
        n_step=3,
        noise=dict(acting=0.05, target=0.05, target_clip=0.1),
    ),
    train=dict(actor_every=4),
)
# Its comparison: the controller itself in the base's place.
METHODS["residual_fixed"] = METHODS["residual"] | dict(
    algorithm=METHODS["residual"]["algorithm"] | dict(base=dict(fn="biased_pd", bias=0.3, scale=0.8)),
)
# arXiv 2410.21845 (HIL-SERL): somebody takes over, and their steps are drawn like the demonstrations; RLPD's SAC. A
# gripper's own critic and the classifier of images, which pays 1 at the goal, are not here: the environment pays.
METHODS["hil_serl"] = dict(
    env=dict(radius=0.15),
    replay=dict(kept=128),  # the expert's, as demonstrations
    network=dict(members=10, layer_norm=True),
    algorithm=dict(
        method=dict(fn="sac", temperature=0.01, subset=2, reads="mean"),
        intervention=dict(fn="guide", margin=0.0),
    ),
    train=dict(actor_every=4),
)
# arXiv 2507.07986 (EXPO): a cloned diffusion policy, edits of its actions, the best of both by Q. The demonstrations
# aim beside the goal; the edits are larger than the .2 of public configs.
METHODS["expo"] = dict(
    replay=dict(kept=1024),  # of the demonstrator: half of each batch
    network=dict(members=10, layer_norm=True, denoising_steps=10),
    algorithm=dict(
        method=dict(fn="expo", samples=8, beta=0.3, temperature=0.1, subset=2),
        intervention=dict(fn="demonstrator", bias=0.3),
    ),
    train=dict(actor_every=4),
    eval=dict(greedy=False),  # the policy is its samples
)
# arXiv 2006.16785 (LIAYN): TD3 whose rewards are a discriminator's, of the newest one at each draw; n = 10. The
# demonstrator is docking's controller without its error, and the environment's rewards are for the reports only.
METHODS["liayn"] = dict(
    network=dict(members=2, layer_norm=True),
    algorithm=dict(
        method=dict(fn="td3"),
        # demos: episodes.jsonl of a run, its last `last` episodes; "": so many of the controller's, made here.
        imitation=dict(fn="discriminator", demos="", last=1, episodes=16, penalty_coef=10.0, steps=8),
        n_step=10,
    ),
    train=dict(actor_every=2),
)
METHODS["sequoia"] = sequoia_common.SEQUOIA
METHODS["muzero"] = muzero_common.MUZERO
METHODS["learn_to_fly"] = hover_common.LEARN_TO_FLY
# method -> (the only environment that has what it needs, what it does with it).
WRITTEN_FOR = {
    name: ("docking", f"{does} the controller of docking; there is none")
    for name, does in {
        "residual": "corrects",
        "residual_fixed": "corrects",
        "hil_serl": "is helped by",
        "expo": "is shown",
        "liayn": "imitates",
    }.items()
}
WRITTEN_FOR["sequoia"] = ("restless_vectors", "chooses combinations of restless_vectors' arms; there are none")
WRITTEN_FOR["learn_to_fly"] = ("hover", "weighs the terms of hover's reward; there are none")
OF_NUMBERS = (*WRITTEN_FOR, "ddpg", "td3", "sac", "srl", "held_sac", "redq")
# The range of discounted returns, for c51 and rainbow.
RANGES = {"cartpole": (0.0, 100.0), "breakout": (0.0, 30.0), "matching": (-1.0, 1.0), "corridor": (0.0, 1.0)}
RANGES["restless"] = RANGES["mapping"] = (0.0, 10.0)


def get_config(arg: str | None = None):
    words = common.parse(arg, (*ENVIRONMENTS, *METHODS, "smoke"))
    places, methods = sorted(words & set(ENVIRONMENTS)), sorted(words & set(METHODS))
    if max(len(places), len(methods)) > 1:
        raise ValueError(f"choose at most one environment and one method, not {', '.join(places + methods)}")
    method = methods[0] if methods else "sac" if set(places) & set(CONTINUOUS) else "dqn"
    usual, why = WRITTEN_FOR.get(method, ("pendulum", ""))
    if why and places not in ([], [usual]):
        raise ValueError(f"{method} {why} for {places[0]}")
    place = places[0] if places else usual if method in OF_NUMBERS else "cartpole"
    if (place in CONTINUOUS) != (method in OF_NUMBERS):
        kind = "numbers: ddpg, td3, sac or redq" if place in CONTINUOUS else "choices: dqn and its kin, discrete_sac"
        raise ValueError(f"{method} does not fit {place}, whose actions are {kind}")
    if place == "restless" and METHODS[method].get("network", {}).get("dueling"):
        raise ValueError(f"{method} has a head per action, and the network of restless reads the actions instead")
    config = replay_common.base(f"control_{method}_{place}")
    for change in (_REAL if method in OF_NUMBERS else {}, ENVIRONMENTS[place], METHODS[method]):
        _change(config, change)
    if config.algorithm.head.fn == "categorical":
        low, high = RANGES[place]
        config.algorithm.head.update(low=low, high=high)
    if "smoke" in words:
        control_common.smoke(config)
        steps = config.sample.num_envs * config.sample.num_steps  # of an update; the replay takes whole ones
        config.replay.update(capacity=max(256, 2 * steps), warmup=max(64, steps), batch_size=16)
        config.network.hidden = (8,)
    return config


def _change(config, changes: dict) -> None:
    """Sets fields; a group that names another function is replaced as a whole."""
    for name, value in changes.items():
        if not isinstance(value, dict):
            config[name] = value
        elif "fn" in value:
            config[name] = value
        elif name in config:
            with config[name].unlocked():
                _change(config[name], value)
        else:
            config[name] = value


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, regardless of config.num_seeds."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))


def sweep_method(arg: str | None = None):
    """The methods, in the environment that the config names."""
    return sweeps.grid("argument", sweeps.words(arg, METHODS))


def sweep_lr(arg: str | None = None):
    """The learning rate of the critics."""
    return sweeps.grid("train.optimizer.learning_rate", sweeps.numbers(arg, (3e-4, 1e-3, 3e-3)))
