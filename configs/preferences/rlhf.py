"""RLHF on stories: InstructGPT (arXiv 2203.02155), in the setting of over-optimisation (2310.02743).

    make rlhf       # all of it, or one stage after the other:
    python -m experiments.best_of_n --config=configs/preferences/rlhf.py:candidates
    python -m experiments.reward_model --config=configs/preferences/rlhf.py:reward_model
    python -m experiments.ppo --config=configs/preferences/rlhf.py

Samples of a fine-tuned policy are ranked by the gold reward (a lexicon's), a quarter of them the wrong way round. A
reward model is trained on them, and PPO on the reward model: its critic starts from it, the KL to the fine-tuned
policy is in the reward, and the SFT loss on stories is added (ptx). The gold reward is only logged, as `task`.
Arguments, stages: `candidates`, `reward_model`, `best_of_n` (of 128 samples, the one that the reward model chooses),
`dpo` (on the same rankings, for rto), `ppo` (without a word, too), `grpo`. Of the policies, methods: `ensemble` (the
worst of five reward models, standardised, trained with --config.seed and --workdir; of `best_of_n`, too), `par`
(2502.18770, the reward against ten samples of the reference), `rto` (2404.18922, token rewards of the DPO run),
`ppo_max` (2307.04964), `pf` (2409.06957, only the best and the worst of a group are trained on), `brme` (2409.15360,
five reward models). `short` (a fraction of the samples and steps, nothing that holds the policy near its start: no KL,
no ptx; for the claim configs/papers/rlhf_ensemble.py), `smoke` (seconds, for CI).
"""

from configs import common, ppo_common
from configs.preferences import best_of_n, given, reward_models
from configs.tasks import stories_sentiment

STAGES = ("candidates", "reward_model", "best_of_n", "dpo", "ppo", "grpo")
METHODS = ("ensemble", "par", "rto", "ppo_max", "pf", "brme")
TAKES = {"ppo": METHODS, "grpo": METHODS, "best_of_n": ("ensemble",)}  # stage -> methods
MEMBERS = 5


def get_config(arg: str | None = None):
    words = common.parse(arg, (*STAGES, *METHODS, "short", "smoke"))
    stages, smoke = sorted(words & set(STAGES)) or ["ppo"], "smoke" in words
    if len(stages) > 1:
        raise ValueError(f"choose one stage, not {len(stages)}: {', '.join(stages)}")
    if words & set(METHODS) - set(TAKES.get(stages[0], ())):
        raise ValueError(f"{', '.join(sorted(words & set(METHODS)))}: methods are of the stages ppo and grpo")
    if words & {"par", "rto"} and words & {"ensemble", "brme"}:
        raise ValueError("par and rto take raw rewards, ensemble and brme standardised ones: choose one of them")
    runs = "runs/smoke_rlhf" if smoke else "runs/rlhf"
    makers = {"candidates": candidates, "reward_model": reward_model, "best_of_n": chosen, "dpo": dpo}
    config = makers.get(stages[0], policy)(runs, words)
    config.name = "_".join([runs.removeprefix("runs/"), stages[0], *sorted(words & set(METHODS))])
    if config.program == "reward_model":
        config.name += "_0"
    return config


def candidates(runs: str, words: set[str]):
    """Samples of the fine-tuned policy, ranked by the gold reward: the data of the reward model."""
    config = best_of_n.get_config("smoke" if "smoke" in words else None)
    config.best_of_n.update(split="train", label_noise=0.25, num_prompts=24)
    if "smoke" not in words:
        config.best_of_n.update(num_prompts=384, batch_size=32, samples=8, sizes=(1, 2, 4, 8))
    if "short" in words:
        config.best_of_n.num_prompts = min(config.best_of_n.num_prompts, 128)
    return config


def members(runs: str) -> list[str]:
    """The folders of the reward models."""
    return [f"{runs}_reward_model_{seed}" for seed in range(MEMBERS)]


def chosen(runs: str, words: set[str]):
    """Of n samples of held-out prompts, the one that a reward model rates highest, or the worst of five."""
    smoke, models = "smoke" in words, members(runs)
    config = best_of_n.get_config("smoke" if smoke else None)
    config.init_from = f"{runs}_candidates/sft"
    config.best_of_n.proxies = models[0]
    if not smoke:
        config.best_of_n.update(num_prompts=64, batch_size=8, samples=128, sizes=(1, 2, 4, 8, 16, 32, 64, 128))
    if "ensemble" in words:
        config.best_of_n.update(proxies=",".join(models), combine=dict(fn="worst_case"))
    return config


def reward_model(runs: str, words: set[str]):
    """A reward model on these rankings, from the policy that was sampled.

    Bradley-Terry does not say what 0 is: eight of them had means from -2.6 to 4.6 where a deviation is 2, and of five
    the one with the lowest mean was the worst on 9 of 10 texts. Hence their standardised rewards.
    """
    config = _on_rankings(reward_models.base("reward_model"), runs, words)
    config.algorithm.standardize = True
    return config


def dpo(runs: str, words: set[str]):
    """DPO on these rankings: its log-ratios are the token rewards of RTO."""
    return _on_rankings(given.base("dpo"), runs, words)


def _on_rankings(config, runs: str, words: set[str]):
    """The config on the rankings of `candidates`, from the policy that was sampled."""
    stories = stories_sentiment.get_config()
    config.task, config.model = stories.task, stories.model
    config.rollout.update(completion_length=64, prompt_buckets=(48,))
    config.encode.update(truncate="left", identical="drop")
    config.init_from = f"{runs}_candidates/sft"
    config.data.update(name="jsonl", kind="rankings", path=f"{runs}_candidates/rankings.jsonl")
    config.train.update(steps=60, batch_size=32)
    config.train.optimizer = common.optimizer(learning_rate=1e-3, warmup_steps=5)
    config.eval.update(every=30, num_prompts=64, batch_size=32)
    config.checkpoint.every = 30
    if "short" in words:
        config.train.update(steps=30, batch_size=16)
    if "smoke" in words:
        config.data.test_share = 0.4  # of few prompts
        config.train.update(steps=2, batch_size=2)
        config.eval.update(every=2, num_prompts=2, batch_size=2)
    return config


def policy(runs: str, words: set[str]):
    """PPO or GRPO on the reward model."""
    smoke, models = "smoke" in words, members(runs)
    config = stories_sentiment.get_config("smoke" if smoke else None)
    config.init_from = f"{runs}_candidates/sft"
    config.algorithm.update(kl_coef=0.0)
    config.judge = dict(proxy=dict(fn="reward_model", path=models[0]))
    config.train.update(steps=4 if smoke else 120)
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=5)
    config.eval.update(every=2 if smoke else 20)
    config.checkpoint.every = 4 if smoke else 60
    if "grpo" in words:
        config.algorithm.update(kl_coef=0.02)
    else:
        config.train.update(epochs=2)
        config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.01)  # of rewards of deviation 1
        config.algorithm.ptx.coef = 0.1
        ppo_common.with_critic(config, init_from=models[0], optimizer=common.optimizer(learning_rate=1e-3))
    for word in sorted(words & set(METHODS)):
        CHANGES[word](config, runs, models)
    return unheld(config, smoke=smoke) if "short" in words else config


def unheld(config, *, smoke: bool):
    """Few samples, large steps, and nothing that holds the policy near its start, so that it over-optimises soon."""
    config.algorithm.update(kl_coef=0.0, reward_kl_coef=0.0)
    config.algorithm.ptx.coef = 0.0
    config.train.optimizer.update(learning_rate=1e-3)
    if not smoke:
        config.train.update(steps=40)
        config.sample.update(prompts_per_step=8, group_size=4)
        config.eval.update(every=4, num_prompts=64, batch_size=64)
        config.checkpoint.every = 40
    return config


def ensemble(config, runs: str, models: list[str]) -> None:
    """Worst-case optimisation over five reward models (arXiv 2310.02743)."""
    config.judge.proxy = dict(fn="reward_model", path=tuple(models), combine=dict(fn="worst_case"))


def par(config, runs: str, models: list[str]) -> None:
    """sigma(R - r_m), the mean over ten samples of the reference (arXiv 2502.18770)."""
    config.judge.proxy.standardize = False  # the sigmoid of Bradley-Terry's own rewards is a probability
    config.algorithm.update(reward_kl_coef=0.02)  # of rewards in [0, 1]
    config.sample.references = 10
    config.algorithm.shaping = dict(fn="against_references", slope=1.0)


def rto(config, runs: str, models: list[str]) -> None:
    """clip(.05 log(dpo / ref), +-.05) on every token, beside the reward model at the end (arXiv 2404.18922)."""
    config.judge.proxy.standardize = False  # beside rewards of tokens in their own unit
    config.judge.tokens = dict(fn="log_ratio", path=f"{runs}_dpo", reference=config.init_from, beta=0.05, clip=0.05)
    config.algorithm.update(reward_kl_coef=0.01)


def ppo_max(config, runs: str, models: list[str]) -> None:
    """Rewards divided by their running deviation and clipped, a critic trained alone first (arXiv 2307.04964)."""
    config.algorithm.shaping = dict(fn="scaled")
    config.algorithm.trackers.reward_scale = dict(fn="running_moments")
    config.algorithm.update(reward_kl_coef=0.02)
    if "critic" in config:
        config.critic.warmup_steps = 10


def pf(config, runs: str, models: list[str]) -> None:
    """Each group's rows are drawn again from its best and worst (arXiv 2409.06957)."""
    config.algorithm.row_selection = dict(fn="best_worst")


def brme(config, runs: str, models: list[str]) -> None:
    """lambda r_nominal + (1 - lambda) min_k r_k (arXiv 2409.15360)."""
    config.judge.proxy = dict(fn="reward_model", path=tuple(models), combine=dict(fn="robust", weight=0.3))


CHANGES = dict(ensemble=ensemble, par=par, rto=rto, ppo_max=ppo_max, pf=pf, brme=brme)
