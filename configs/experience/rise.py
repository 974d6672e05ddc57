"""RISE, self-verification beside solving: arXiv 2505.13445. Some groups judge an answer that the policy just gave.

    x' = (x, y, "right?"),  y ~ pi(. | x) of this step;   R(x', v) = 1 if v = 1[R(x, y) > 0] else 0
    one PPO update on both kinds of rows

Departs from GRPO: PPO, and an eighth of the groups become verifications of another group's answer (128 verification
prompts beside 1,024 problems in the paper, which adds them). Rewards are the task's scale, 1 and 0, for both; the paper
has 1, -.5, and -1 for no answer. Its README confirms that the right verdict is the verifier's own score; the code that
mixes both could not be read.

    python -m experiments.ppo --config=configs/experience/rise.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.ppo("rise", arg, longer=_start.length(arg) + 1)
    config.foreign.verification = dict(
        fn="experiments.parts.foreign_own:self_verification",
        at_most=config.sample.group_size,
        share=0.125,
        replace="group",
        template="{prompt}{answer}=",  # the tasks' alphabets have few characters
    )
    return config
