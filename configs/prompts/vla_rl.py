"""VLA-RL's choice of tasks: arXiv 2505.18719. Tasks below success .5 come more often.

    p(task) ~ exp((.5 - success of the task) / temperature)

The paper's tasks are a robot's; here they are the levels of difficulty of SAT, or the lengths of sums. The rest of
VLA-RL (episodes of actions, a learned process reward, a critic) is configs/agents_papers.py:vla_rl; the temperature is
ours.

    python -m experiments.grpo --config=configs/prompts/vla_rl.py

Arguments: `smoke`.
"""

from configs.prompts import _start


def get_config(arg: str | None = None):
    config = _start.grpo("vla_rl", arg, "sat", "arithmetic")
    column = "level" if config.task.name == "sat" else "num_operands"
    config.sample.prompts = dict(fn="softmax", column=column, temperature=0.2, target=0.5)
    return config
