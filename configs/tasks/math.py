"""GRPO on exercises in the form of MATH (arXiv 2103.03874), with the exact verifier: answers in \\boxed{}.

    python -m experiments.grpo --config=configs/tasks/math.py

Fractions, equations, products of polynomials and percentages are generated; the model is that of
configs/tasks/gsm8k.py. --config.task.backend=math_verify asks Math-Verify where the exact comparison says no (pip
install -e '.[math]'). Arguments: `real` takes MATH, evaluated on MATH-500 (MIT; `python -m
experiments.tools.fetch_data math`, or another folder as --config.task.path), which wants a pretrained model:
--config.model.path=FOLDER --config.sft.steps=0. `smoke`.
"""

from configs.tasks import gsm8k


def get_config(arg: str | None = None):
    return gsm8k.get_config(arg, kind="math")
