"""Preferences instead of a reward: a reward or a policy learned from pairs of segments, or self-play without either.

    python -m experiments.control.preferences --config=configs/control/preferences.py:reward
    python -m experiments.control.preferences --config=configs/control/preferences.py:spo,matching
    python -m experiments.control.preferences --config=configs/control/preferences.py:regret --config.segments.beta=5.0

Arguments: a method, `reward` (a network by Bradley-Terry, then PPO on it; the default), `regret` (the reward of a
finite MDP by the regret model, then its best policy), `cpl` (the policy itself), `spo` (PPO on the fraction of episodes
that an episode is preferred to); an environment, `cartpole`, `matching`, `corridor`, `aim`, `gridworld`, `cycle` (three
behaviours with cyclic preferences; for spo); `smoke` (seconds, for CI).
"""

from configs import common, sweeps
from configs.control import control_common

ENVIRONMENTS = {
    "cartpole": dict(
        env=dict(name="gymnax/CartPole-v1"),
        sample=dict(num_envs=8),
        algorithm=dict(entropy_coef=0.0),
        train=dict(total_steps=300_000, optimizer=dict(learning_rate=1e-3)),
    ),
    "gridworld": dict(env=dict(name="probes/gridworld"), eval=dict(num_episodes=64, max_steps=50)),
    "cycle": dict(env=dict(name="probes/behaviours"), eval=dict(max_steps=1)),
}
for _probe in ("matching", "corridor", "aim"):
    ENVIRONMENTS[_probe] = dict(env=dict(name=f"probes/{_probe}"), eval=dict(max_steps=64))
for _place in ("gridworld", "cycle", "matching", "corridor", "aim"):
    ENVIRONMENTS[_place].update(
        sample=dict(num_envs=16, num_steps=64), train=dict(total_steps=60_000, optimizer=dict(learning_rate=3e-3))
    )
METHODS = ("reward", "regret", "cpl", "spo")
# Preferences among the behaviours of `cycle`: 0 beats 1, 1 beats 2, 2 beats 0, with different odds.
CYCLE = ((0.5, 0.9, 0.4), (0.1, 0.5, 0.7), (0.6, 0.3, 0.5))


def get_config(arg: str | None = None):
    words = common.parse(arg, (*METHODS, *ENVIRONMENTS, "smoke"))
    methods, places = sorted(words & set(METHODS)), sorted(words & set(ENVIRONMENTS))
    if len(places) > 1 or len(methods) > 1:
        raise ValueError(f"choose at most one method and one environment, not {', '.join(methods + places)}")
    method = methods[0] if methods else "reward"
    place = places[0] if places else {"regret": "gridworld"}.get(method, "cartpole")
    config = control_common.base("_".join(["control", method, place]))
    config.program = "control.preferences"
    config.preferences = dict(method=method)
    config.num_seeds = 3
    config.update(ENVIRONMENTS[place])
    GROUPS[method](config, place)
    if "smoke" in words:
        control_common.smoke(config)
        if method != "spo":
            config.segments.update(num_pairs=64, held_out=16, teacher_steps=0)
            config.fit.updates = 4
        if method in ("cpl", "regret"):
            config.train.total_steps = 8 * 2 * config.fit.batch_size * config.segments.length
    return config


def _segments(config, place: str) -> None:
    """The fields for the source of segments and their labels, and for fitting a function to the preferences."""
    several = place not in ("matching", "aim")  # more than one step per episode
    config.segments = dict(
        # Env i of num_envs mixes a share i / (num_envs - 1) of an untrained policy's outputs with a teacher's. The
        # teacher is PPO on the true reward for so many steps; its critic also gives the regret. 0: untrained.
        teacher_steps=60_000 if place == "cartpole" else 0,
        num_envs=32,
        num_steps=512,
        length=16 if place == "cartpole" else 8 if several else 1,
        num_pairs=2000,
        held_out=500,  # further pairs, to measure the accuracy of the learned reward
        label=dict(fn="partial_return", discount=1.0),  # or "regret"
        beta=10.0,  # the annotator's rationality, per unit of the score
        flip_rate=0.0,
    )
    config.fit = dict(
        updates=500,  # before PPO begins; methods that learn a policy directly use train.total_steps
        batch_size=64,  # pairs
        optimizer=dict(learning_rate=3e-3, b1=0.9, b2=0.999, eps=1e-8),
        max_grad_norm=1.0,
        discount=1.0,  # in the sums over a segment
    )


def _reward(config, place: str) -> None:
    _segments(config, place)
    config.reward = dict(
        members=3,
        hidden=(64, 64),
        activation="tanh",
        center=place != "cartpole",  # if an episode may end early, a constant matters (control.reward_learning)
        loss=dict(fn="bradley_terry"),
        regularizer=dict(fn="squared"),
        regularizer_coef=0.01,
    )


def _regret(config, place: str) -> None:
    _segments(config, place)
    config.segments.update(length=3, num_pairs=1000, beta=50.0)  # one extra step costs about 0.05
    config.segments.label.update(fn="regret", discount=0.95)
    config.fit.update(discount=0.95)
    config.fit.optimizer.learning_rate = 0.05
    # The learner's model of the labels, "regret" or "partial_return", and the values of the learned reward.
    config.tabular = dict(model="regret", discount=0.95, temperature=0.05, iterations=60)
    config.eval.greedy = True
    config.train.total_steps = 400 * 2 * config.fit.batch_size * config.segments.length


def _cpl(config, place: str) -> None:
    _segments(config, place)
    config.segments.update(num_pairs=4000)
    if place in ("matching", "aim"):  # one step: the reward is the regret, up to the state's value
        config.segments.label.update(fn="partial_return")
    else:
        config.segments.label.update(fn="regret", discount=0.99)
        config.segments.teacher_steps = 60_000
    config.cpl = dict(
        cloning_updates=200,
        # Published for segments of equal length and their sums: 0.1 and 0. If segments end with their episode, a sum
        # of log-probs falls with the segment's length, which favours early failures: 1 takes means.
        alpha=1.6 if place == "cartpole" else 0.1,
        length_power=1.0 if place == "cartpole" else 0.0,
        bias=0.5,  # lambda
        discount=1.0,
        cloning_coef=0.0,
    )
    config.train.total_steps = 1000 * 2 * config.fit.batch_size * config.segments.length


def _spo(config, place: str) -> None:
    # Every episode has a reward at its end: with a discount, sooner is better.
    config.algorithm.advantage.update(discount=1.0, lam=0.99)
    config.spo = dict(
        preference=dict(fn="table", probs=CYCLE) if place == "cycle" else dict(fn="greater"),
        queue_size=64,  # episodes
        horizon=0.0,  # the steps over which an episode's reward is spread; 0: all at the end
    )


GROUPS = {"reward": _reward, "regret": _regret, "cpl": _cpl, "spo": _spo}


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, regardless of config.num_seeds."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))


def sweep_method(arg: str | None = None):
    """The methods, in the environment that the config names."""
    return sweeps.grid("argument", sweeps.words(arg, METHODS))
