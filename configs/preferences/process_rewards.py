"""Rewards of steps and tokens in GRPO and PPO, on generated sums whose running totals are the steps.

    python -m experiments.reward_model --config=configs/preferences/process_rewards.py:reward_model
    python -m experiments.grpo --config=configs/preferences/process_rewards.py

A process reward model learns which totals are right ("8=6=13", one step each) and rewards each step at its last token,
beside the verifier's reward at the end; advantages are normalised over all steps of a group (2402.03300, 4.1.3).
Arguments, stages: `reward_model` (of steps), `implicit` (of log-ratios, PRIME's); methods: `clip_delta` (2410.15115,
steps clipped from above, then differences), `fine_grained` (2306.01693, PPO with rewards of two densities: the sign of
each step, and of the whole answer), `prime` (2502.01456, token rewards of the implicit model, updated with the outcomes
of each step), `otb` (verl's optimal token baseline, no judge), `tulu3` (2411.15124, RLVR: PPO on 10 for a right
answer and -10 for one without an end; a critic from the reward model, which is of steps here and of preferences there;
no judge). `smoke` (seconds, for CI).
"""

from configs import common, ppo_common
from configs.preferences import reward_models
from configs.tasks import arithmetic

STAGES = ("reward_model", "implicit")
METHODS = ("clip_delta", "fine_grained", "prime", "otb", "tulu3")


def get_config(arg: str | None = None):
    words = common.parse(arg, (*STAGES, *METHODS, "smoke"))
    if len(named := sorted(words & {*STAGES, *METHODS})) > 1:
        raise ValueError(f"choose one stage or method, not {len(named)}: {', '.join(named)}")
    word, smoke = (named or ["process_supervised"])[0], "smoke" in words
    runs = "runs/smoke_process" if smoke else "runs/process"
    config = reward_model(word, smoke) if word in STAGES else policy(word, runs, smoke)
    config.name = f"{runs.removeprefix('runs/')}_{word}"
    return config


def reward_model(word: str, smoke: bool):
    """A model of steps, or an implicit one, with the policy's tokenizer and shape."""
    sums = arithmetic.get_config("smoke" if smoke else None)
    config = reward_models.get_config("steps" if word == "reward_model" else "labels,implicit")
    config.task, config.model = sums.task, sums.model
    config.rollout.update(completion_length=48, prompt_buckets=(24,))
    if word == "reward_model":
        config.encode.separator = "="
        config.data.equations = False  # steps as the policy writes them: totals
    return reward_models.smoke(config) if smoke else config


def policy(word: str, runs: str, smoke: bool):
    """GRPO or PPO on the verifier and the judge of steps."""
    config = arithmetic.get_config("smoke" if smoke else None)
    judge = dict(fn="process_reward_model", path=f"{runs}_reward_model")
    config.judge = dict(steps=judge | dict(weight=0.2))
    if word == "process_supervised":
        config.algorithm.advantage = dict(fn="process_supervised")
    if word == "clip_delta":
        # eta and alpha are not given: half of the probabilities' range, and 0.2. Steps from here on sum to this one's.
        # No baseline: the paper's PPO has a critic, as has `fine_grained`.
        transforms = (dict(fn="clip_steps", threshold=0.5), dict(fn="delta_steps"))
        config.judge.steps.transforms = transforms
        config.algorithm.advantage = dict(fn="reward_to_go")
    if word == "fine_grained":
        steps = judge | dict(weight=0.3, transforms=(dict(fn="signed"),))
        whole = judge | dict(weight=0.5, whole=True, transforms=(dict(fn="signed"),))
        config.judge = dict(steps=steps, whole=whole)
        config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.3)
        ppo_common.with_critic(config, optimizer=common.optimizer(learning_rate=1e-3, warmup_steps=10))
    if word == "prime":
        tokens = dict(fn="log_ratio", path=f"{runs}_implicit", normalize=True, retrain_every=1, learning_rate=1e-4)
        config.judge = dict(tokens=tokens)
        config.algorithm.advantage = dict(fn="prime")
    if word == "tulu3":
        config.judge = dict()
        config.reward.terms = dict(verified=dict(fn="task", weight=10.0))
        config.algorithm.shaping = dict(fn="replace_truncated", reward=-10.0)  # --penalty_reward_value
        config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.05)
        optimizer = common.optimizer(learning_rate=1e-3, warmup_steps=10)
        ppo_common.with_critic(config, init_from=f"{runs}_reward_model", optimizer=optimizer)
    if word == "otb":
        config.judge = dict()
        config.algorithm.advantage = dict(fn="optimal_token_baseline")
    return config
