"""The methods that learn from replay: DQN and its kin, DDPG and TD3, SAC for numbers and for choices, REDQ, EXPO, SRL.

Each takes ReplayParts and gives an off_policy.OffPolicy. Rainbow's parts are choices elsewhere: double here, dueling of
the network, n steps and priorities of the replay, distributions of the head. With K critics:

    dqn:          y = r + d Q'(s', argmax_a Q(s', a))                     double; Q' chooses itself without it
    td3:          y = r + d min_k Q'_k(s', mu'(s') + clipped noise),      actor: -Q_1(s, mu(s))
    sac:          y = r + d (min_k Q'_k(s', a') - alpha log pi(a'|s')),   actor: alpha log pi(a|s) - min_k Q_k(s, a)
    discrete_sac: y = r + d sum_a pi(a|s') (min_k Q'_k(s', a) - alpha log pi(a|s'))
    task_sac:     sac whose alpha is that of the task, which the last features of s name
    REDQ:         sac with min over `subset` random members of K, actor against their mean, many steps per update
    expo:         y = r + d Q'(s', a*), a* the best of N actions of a cloned policy and their edits      on_the_fly.py
    sequence_sac: sac whose actor gives J actions per decision, trained in states of a learned model      sequences.py
    sequoia:      y = r + d Q'(s', a*), a* the best of all feasible binary actions, by a search          combined.py
    value_decomposition: dqn whose Q(s, a) is a mixture of the values of several agents                   mixed.py
    muzero:       z = n rewards and the value of a search in a learned model, which also chooses a         planned.py
"""

from rl_jax.control.replay_methods.basic import discrete_sac, dqn, sac, task_sac, td3
from rl_jax.control.replay_methods.combined import sequoia
from rl_jax.control.replay_methods.mixed import value_decomposition
from rl_jax.control.replay_methods.on_the_fly import expo
from rl_jax.control.replay_methods.parts import READINGS, ReplayParts, least, read
from rl_jax.control.replay_methods.planned import muzero
from rl_jax.control.replay_methods.sequences import sequence_sac

__all__ = [
    "READINGS",
    "ReplayParts",
    "discrete_sac",
    "dqn",
    "expo",
    "least",
    "muzero",
    "read",
    "sac",
    "sequence_sac",
    "sequoia",
    "task_sac",
    "td3",
    "value_decomposition",
]
