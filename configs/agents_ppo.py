"""Agents with a critic: PPO on episodes of several turns.

    python -m experiments.ppo --config=configs/agents_ppo.py:maze,turn_ppo --workdir=runs/turn_ppo

The worlds, models and warm starts of configs/agents_worlds.py, a prompt once per step, and a critic of states in place
of groups. Arguments: a world (`maze` is the default), `smoke` (seconds, for CI), and one method, as `archer_replay`:

    turn_ppo (the default)   A_j = delta_j + gamma lambda A_{j+1},  delta_j = r_j + gamma V_{j+1} - V_j, V_j read before
                             turn j; clipped by the ratio of turns (arXiv 2512.17008; gamma .99, lambda .9)
    bilevel                  the same with V_j at the turn's last token, then GAE over the tokens of each turn towards
                             A_j + V_j (VAGEN, arXiv 2510.16907; gamma_turn .95, all else 1)
    archer                   A_j = min_k Q_k(s_j, a_j) - min_k V_k(s_j), REINFORCE on the turn's tokens; Q_k to
                             r_j + gamma V'_k(s_j+1), V_k to Q'_k(s_j, a_j), k = 1, 2, V', Q' of a slow copy
                             (arXiv 2402.19446; gamma .95). Own rows only: no replay buffer, so 8 epochs, not 50
    archer_replay            archer whose critics learn from turns of the last 50 steps, too: V_k(s) to Q'_k(s, a') of
                             an a' that the policy says there now, as in the paper, whose buffer has 100,000 turns

Departures: the critic starts from the policy and learns every token of a turn; small models and worlds.
"""

from configs import agents_worlds, common, ppo_common, sweeps

_ARCHER = "archer", "archer_replay"
CRITICS = "rl_jax.advantages.turn_critics"
METHODS = {
    "turn_ppo": dict(advantage=dict(fn=f"{CRITICS}:turn_gae", discount=0.99, lam=0.9)),
    "bilevel": dict(advantage=dict(fn=f"{CRITICS}:bilevel_gae", turn_discount=0.95)),
    "archer": dict(
        advantage=dict(fn=f"{CRITICS}:archer_td", discount=0.95),
        loss=dict(fn="rl_jax.losses.turn_critics:squared_errors"),
        whiten=False,
        epochs=8,
        target_rate=1.0,  # the code's .1 after each of 50 epochs per iteration
    ),
}
METHODS["archer_replay"] = METHODS["archer"] | dict(epochs=1)


def get_config(arg: str | None = None):
    words = common.parse(arg, (*agents_worlds.WORLDS, *METHODS, "smoke"))
    chosen = [word for word in METHODS if word in words] or ["turn_ppo"]
    if len(chosen) > 1:
        raise ValueError(f"{', '.join(chosen)}: one method at a time")
    config = agents_worlds.get_config(",".join(sorted(words - set(METHODS))) or None)
    config.name = f"agents_{chosen[0]}"
    rows = config.sample.prompts_per_step * config.sample.group_size
    config.sample.update(prompts_per_step=rows, group_size=1)
    config.train.update(epochs=1, minibatches=2)
    rate = common.optimizer(learning_rate=1e-3, warmup_steps=10)  # faster than the policy's
    warmup = 1 if "smoke" in words else 20 if chosen[0] in _ARCHER else 5
    ppo_common.with_critic(config, warmup_steps=warmup, optimizer=rate, **METHODS[chosen[0]])
    if chosen[0] == "turn_ppo":
        config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.turns:turn_clip", clip_low=0.2, clip_high=0.2)
    if chosen[0] in _ARCHER:
        config.algorithm.surrogate = dict(fn="reinforce")
    if chosen[0] == "archer_replay":
        config.agent.record = True
        config.critic.replay.batches = 2 if "smoke" in words else 16
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)
