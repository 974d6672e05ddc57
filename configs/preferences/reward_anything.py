"""RewardAnything, a judge that grades a list of answers by a principle: arXiv 2506.03637. Generated lists.

    (s_1, .., s_K) = judge(principle, q, y_1, .., y_K),   R(q, y_k) = (s_k - 1) / 4;   the judge's own reward: tau(s, g)

Stages: `judge` (SFT on grades from 1 to 5 of four answers, by experiments.sft), `judge_rl` (GRPO: the rank correlation
of the grades with the label, -1 without a grade for each), and without a word GRPO on lists, with one question per
group (4 samples, as many as the judge has learned to grade at once: grades of two questions are not comparable) and
the principle config.task.principle, which another run may change without a new judge. Kendall's tau is ours. With
`assessed` the judge writes reasons, grades and a ranking, and `judge_rl` has the paper's reward as far as it is known
(preferences.assessments). Arguments: `judge`, `judge_rl`, `short` (the opposite principle), each with `assessed` or
not, and `smoke`.

    python -m experiments.sft --config=configs/preferences/reward_anything.py:judge
    python -m experiments.grpo --config=configs/preferences/reward_anything.py
"""

from configs import common
from configs.tasks import arithmetic

PRINCIPLES = ("Lists should be long.", "Lists should be short.")


def get_config(arg: str | None = None):
    words = common.parse(arg, ("judge", "judge_rl", "short", "assessed", "smoke"))
    if len(stage := words & {"judge", "judge_rl", "short"}) > 1:
        raise ValueError(f"choose one of judge, judge_rl, short, not {', '.join(sorted(stage))}")
    smoke = "smoke" in words
    config, run = arithmetic.get_config("smoke" if smoke else None), "smoke_principled" if smoke else "principled"
    data = dict(world="length", num_prompts=2_000, data_dir=common.DATA_DIR)
    form, said = "list", 10
    if "assessed" in words:
        run, form, said = f"{run}_assessed", "assessed", 72
    config.name = "_".join([run, *sorted(stage)])
    if words & {"judge", "judge_rl"}:
        judged = dict(name="principles", kind="rankings", **data)
        config.task = dict(name="rl_jax.preferences.judge_task:load", data=judged, form=form)
        config.rollout.update(completion_length=said, prompt_buckets=(160 if form == "list" else 256,))
        if "judge_rl" in words:
            config.init_from = f"runs/{run}_judge"
        return config
    asked = dict(name="generated", kind="rankings", **data)
    config.task = dict(name="rl_jax.preferences.prompt_task:load", data=asked, principle=PRINCIPLES["short" in words])
    config.rollout.update(completion_length=16, prompt_buckets=(24,))
    config.sample.group_size = 4  # at most what `most` answers hold
    config.judge = dict(listed=dict(fn="listwise", path=f"runs/{run}_judge", most=4, max_tokens=said))
    if form == "assessed":
        config.judge.listed.template = form
    return config
