"""Rewards written as text, for a search over texts. One word is an environment and the text that a person wrote.

    python -m experiments.tools.reward_code --config=configs/control/reward_code.py:car --workdir=runs/texts \
        --proposals=texts.jsonl
    python -m experiments.control.ppo --config=configs/control/reward_code.py:car \
        --config.algorithm.relabel.programs="('reward = abs(next_velocity)',)"

algorithm.relabel.programs are the texts that rl_jax.control.reward_code reads, algorithm.relabel.choice is the index of
the one that pays, algorithm.relabel.names are those of the observation's entries. Source: arXiv 2310.12931.
Arguments: `car` (the mountain car; the default), `pendulum`, `corridor` (one-hot places, for rewards of two signs as in
arXiv 2312.09238), `smoke` (seconds, for CI).
"""

from configs import common
from configs.control import rewards

_CAR = """gain = next_position - position
slow = -0.5 * (next_velocity - 0.07) ** 2
reward = 10.0 * gain + slow"""  # the terms and weights of configs/control/rewards.py:terms
_PENDULUM = """upright = next_cosine
still = -0.1 * next_speed ** 2
effort = -0.001 * action[0] ** 2
reward = 5.0 * upright + still + effort"""
_CORRIDOR = """sparse = task_reward
dense = place - place_before
reward = sign(sparse) + 0.1 * sign(dense)"""

# The text, the names of the observation's entries, further terms.
TEXTS = {
    "car": (_CAR, ("position", "velocity"), {}),
    "pendulum": (_PENDULUM, ("cosine", "sine", "speed"), {}),
    "corridor": (_CORRIDOR, (), dict(place=dict(fn="place"), place_before=dict(fn="place_before"))),
}
_FIELDS_OF = dict(car="terms", pendulum="residuals", corridor="signs")  # words of configs/control/rewards.py


def get_config(arg: str | None = None):
    words = common.parse(arg, (*TEXTS, "smoke"))
    names = sorted(words & set(TEXTS))
    if len(names) > 1:
        raise ValueError(f"choose at most one environment, not {', '.join(names)}")
    name = names[0] if names else "car"
    text, entries, terms = TEXTS[name]
    config = rewards.get_config(_FIELDS_OF[name] + (",smoke" if "smoke" in words else ""))
    config.name = f"reward_code_{name}"
    config.algorithm.relabel = dict(fn="by_code", programs=(text,), choice=0.0, names=entries, terms_of=terms)
    return config
