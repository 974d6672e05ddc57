"""Language models as judges: what they say becomes the reward of GRPO or PPO on generated sums.

    python -m experiments.sft --config=configs/preferences/judged.py:letter --workdir=runs/judge_letter
    python -m experiments.ppo --config=configs/preferences/judged.py:pairwise_rl

Stages, a judge of characters trained on generated preferences: `letter` (which of two is better), `spans` (good and
poor steps), `follow_up` (what a user says next), `rewrite` (the better answer), each by experiments.sft; `scores` (a
grade of each of two, then experiments.grpo rewards right orders with +1 and wrong ones with -1: SPCT's rule,
2504.02495), `reasoned` (R1-Reward, 2505.02835: grades, then a choice, by experiments.grpo: StableReinforce on .5 format
+ right (1 + .5 consistent), consistent = +-1 as the choice follows from the grades). Methods: `spct` (GRPO on the mean
of 8 sampled grades, in both orders), `pairwise_rl` (2504.04950, PPO on the probability of being better than the
record's answer, both orders averaged), `writing_zero` (2506.00103, BRPO: GRPO on wins against a random row of the
group), `text2grad` (2505.22338, PPO on +1 and -1 on the tokens that the judge quotes; k1 where its code has the KL over
the vocabulary), `seq2seq_rm` (2409.00162, PPO on +1 for each token that the rewriting judge keeps up to its first
change and -1 for each that it changes), `flr` (2409.13948, GRPO on how likely a satisfied user's words are), `autorule`
(2506.15651, GRPO on a reward model, the run runs/judge_reward_model of configs/preferences/reward_models.py, plus the
share of config.judge.rules.rules that are kept), `conciseness` (2511.09158, GRPO on the verifier times
1 + .2 c (1 + exp(share right)), c = sigma of a reward model of conciseness, the run runs/judge_reward_model on pairs
whose better answer is the shorter one; .2 and the constant 1, which the paper anneals, are ours), `hybrid` (Beyond
Monolithic Rewards: GRPO on a learned reward, a rule's, whether the instruction was followed, and a length penalty, each
with a weight; its weights are not public, these are ours). But for `conciseness` and `hybrid` the verifier's reward is
only logged, as `task`. `smoke`: seconds.
"""

from configs import common, ppo_common
from configs.methods import stable_reinforce
from configs.tasks import arithmetic

STAGES = ("letter", "scores", "reasoned", "spans", "follow_up", "rewrite")
METHODS = ("pairwise_rl", "writing_zero", "text2grad", "flr", "autorule", "conciseness", "spct", "seq2seq_rm", "hybrid")
RULES = ("The answer has more than one total.", "The last total is the result of the sum.")


def get_config(arg: str | None = None):
    words = common.parse(arg, (*STAGES, *METHODS, "smoke"))
    if len(named := sorted(words & {*STAGES, *METHODS})) > 1:
        raise ValueError(f"choose one stage or method, not {len(named)}: {', '.join(named)}")
    word, smoke = (named or ["pairwise_rl"])[0], "smoke" in words
    runs = "runs/smoke_judge" if smoke else "runs/judge"
    config = judge(word, smoke) if word in STAGES else policy(word, runs, smoke)
    config.name = f"{runs.removeprefix('runs/')}_{word}"
    return config


def judge(word: str, smoke: bool):
    """A small model of characters that learns to judge."""
    config = arithmetic.get_config("smoke" if smoke else None)
    data = dict(name="generated", kind="steps" if word == "spans" else "pairs", data_dir=common.DATA_DIR)
    if word == "spans":
        data["equations"] = False  # totals, as the policy writes them
    config.task = dict(name="rl_jax.preferences.judge_task:load", data=data, form=word)
    if word == "spans":
        config.task.separator = "="
    if word == "rewrite":
        config.task.alphabet = "0123456789+-="  # the policy's, whose tokens it rewards
    if word == "reasoned":
        config.algorithm = stable_reinforce.get_config().algorithm
        common.set_updates(config, minibatches=2)  # as its script's: with one update a batch every ratio is 1
    lengths = dict(letter=4, scores=6, reasoned=40, spans=64, follow_up=28, rewrite=24)
    config.rollout.update(completion_length=lengths[word], prompt_buckets=(48 if word == "rewrite" else 192,))
    return config


def policy(word: str, runs: str, smoke: bool):
    """GRPO or PPO on the judge."""
    config = arithmetic.get_config("smoke" if smoke else None)
    paths = {stage: f"{runs}_{stage}" for stage in STAGES}
    if word == "pairwise_rl":
        config.judge = dict(wins=dict(fn="win_probability", path=paths["letter"], against="record"))
    if word == "writing_zero":
        config.judge = dict(wins=dict(fn="pairwise", path=paths["letter"], against="bootstrap"))
        config.algorithm.advantage = dict(fn="rl_jax.advantages.paired:brpo")
    if word == "spct":
        config.judge = dict(grades=dict(fn="graded_votes", path=paths["scores"], votes=8))
    if word == "text2grad":
        config.judge = dict(spans=dict(fn="spans", path=paths["spans"], max_tokens=64))
    if word == "seq2seq_rm":
        config.judge = dict(rewrites=dict(fn="rewrites", path=paths["rewrite"]))
    if word == "flr":
        said = dict(positive=("That is right, thank you.",), negative=("That is not right.",))
        config.judge = dict(user=dict(fn="follow_up", path=paths["follow_up"], **said))
    if word == "autorule":
        model = dict(fn="reward_model", path=f"{runs}_reward_model")
        config.judge = dict(rm=model, rules=dict(fn="rules", path=paths["letter"], rules=RULES))
    if word == "conciseness":
        config.judge = dict(brief=dict(fn="reward_model", path=f"{runs}_reward_model", weight=0.0))
        config.reward.terms = dict(right=dict(fn="task"), ease=dict(fn="brevity.ease", correct="right", weight=0.0))
        named = dict(by="right", score="brief", ease="ease")
        config.reward.compose = dict(fn="rl_jax.rewards.brevity:concise_reward", **named, alpha=0.2, anneal=1.0)
    if word == "hybrid":
        config.judge = dict(model=dict(fn="reward_model", path=f"{runs}_reward_model", weight=0.25))
        config.reward.terms = dict(
            rule=dict(fn="task", weight=1.0),
            instruction=dict(fn="form.pattern", regex=r"\d+([+-]\d+)*(=\d+([+-]\d+)*)*", weight=0.25),
            brief=dict(fn="form.overlong", limit=12, buffer=6, unit="characters", weight=0.25),
        )
    if word in ("pairwise_rl", "text2grad", "seq2seq_rm"):
        config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.2 if word == "text2grad" else 0.05)
        if word == "text2grad":  # its code's controller: .2 at first, towards a KL of .1
            config.algorithm.trackers.reward_kl = dict(fn="adaptive_kl", initial=0.2, target=0.1)
        ppo_common.with_critic(config, optimizer=common.optimizer(learning_rate=1e-3, warmup_steps=10))
    return config
