"""WebRL, a curriculum that makes its own tasks: arXiv 2411.02337. New tasks from failed ones, an outcome model's word.

    l = (beta log(pi / pi_before) - A)^2,   A = r - mean of the group,   r = 1 if the outcome model finds no wrong step
    a new task x' is written by the policy, which reads two failed ones; asked in the place of a solved one, and kept if
    .05 <= p(x') <= .75
    an own success of before is replayed if .5 <= exp(mean logp) <= .95

Departs from GRPO: a square in place of the clip, whose reference is the policy at the last multiple of ten steps, the
phase before; no verifier (its reward is only logged, as `task`). Departs from the paper: sums in place of web pages,
one turn, so the group's mean and sampled successes stand for the critic; the policy writes the tasks, in the paper
GPT-4o, which reads ten failed ones. One model solves, judges and writes, as in configs/preferences/self_prm.py. Bounds:
THUDM/WebRL. Several turns on pages, with its critic and tasks of pages: configs/agents_papers.py:webrl.

    python -m experiments.sft --config=configs/experience/webrl.py --workdir=runs/webrl_start
    python -m experiments.grpo --config=configs/experience/webrl.py

Arguments: `smoke`; `rules` (a rule makes the tasks, of ten failed ones); `game24`, `stories_sentiment` and `task` with
their own reward, replayed only.
"""

from configs.experience import _start

START = "runs/webrl_start"


def get_config(arg: str | None = None):
    words = set(filter(None, (arg or "").split(",")))
    config = _start.grpo("webrl", ",".join(sorted(words - {"rules"})))
    size, parts = config.sample.group_size, "experiments.parts.foreign_evolved"
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.regression:toward_advantage", beta=1.0)
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    config.algorithm.reference_schedule = dict(fn="per_iteration", every=10)
    config.foreign.replay = dict(fn=f"{parts}:familiar_replay", at_most=0, count=1, replace="worst", size=8)
    if config.task.name == "arithmetic":
        sums = dict(config.task.to_dict(), digits=2, unfinished_share=0.0)
        sums["num_train"] = min(sums["num_train"], 2_000)  # few, so that each is seen again
        config.task = dict(name="rl_jax.tasks.self_judged:load", of=sums, made="rules" not in words)
        config.rollout.update(completion_length=16, prompt_buckets=(32,))
        config.init_from = START
        config.judge = dict(orm=dict(fn="first_wrong_step", path=START))
        kind = "evolved" if "rules" in words else "written"
        config.foreign.evolved = dict(fn=f"{parts}:{kind}", at_most=size, replace="group", low=0.05, high=0.75)
    return config
