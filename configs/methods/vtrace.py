"""V-trace, IMPALA: arXiv 1802.01561.

    w_t  = exp(old_logp - behavior_logp),   rho_t = min(w_t, 1),   c_t = min(w_t, 1)
    vs_t = V_t + e_t,   e_t = rho_t (r_t + V_{t+1} - V_t) + c_t e_{t+1};   A_t = rho_t (r_t + vs_{t+1} - V_t)
    l    = -A logp,   l_V = (V - vs)^2 / 2

Departs from GRPO: a critic whose targets are corrected for the policy that sampled, token by token, with weights of at
most 1; REINFORCE on its advantages; one update a batch; no KL.

The sampler of experiments.ppo has the newest weights: w_t is 1 up to numerics unless an engine without sync samples.

    python -m experiments.ppo --config=configs/methods/vtrace.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    config = _start.ppo("vtrace", arg, epochs=1)
    config.algorithm.reward_kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="reinforce")
    config.critic.advantage = dict(fn="vtrace")
    config.critic.loss = dict(fn="mse")
    config.critic.whiten = False
    return config
