"""Critique-GRPO: arXiv 2506.03106. One row of each group is a second answer, given after a critique of the first one.

    y' ~ pi(. | x, y, critique);   A = R - mean_g over the G rows;   l = -A r on sampled rows, -A p / (p + .1) on y'

Departs from GRPO: y' is trained on as an answer to x alone, with weights that favour its unlikely tokens; no std, no
clip, Dr. GRPO's normalisation. The critique is a rule here (rl_jax.selection.critiques): with the right answer where a
record has one, else the verdict; GPT-4o in the paper. Each of the G answers has a critique and one refinement, of which
the first right one is taken, else the best (zhangxy-2019/critique-GRPO).

    python -m experiments.grpo --config=configs/experience/critique_grpo.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("critique_grpo", arg, longer=2 * _start.length(arg), minibatches=1)
    config.algorithm.advantage = dict(fn="group_centered")
    config.algorithm.surrogate = dict(
        fn="rl_jax.losses.policy.mixed:mixed_rows",
        own="importance_sampling",
        other=dict(fn="rl_jax.losses.policy.mixed:probability_shaped", gamma=0.1),
    )
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum_norm")
    says = dict(fn="verdict", if_right="1", if_wrong="0")  # the tasks' alphabets have digits and few other characters
    if config.task.name == "arithmetic":
        says = dict(fn="right_answer", text="{answer}")
    config.foreign.refined = dict(
        fn="refinements",
        at_most=config.sample.group_size,
        count=1,
        critique=says,
        template="{prompt}{answer}={critique}=",
    )
    return config
