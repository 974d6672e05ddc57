"""RandomCalculation and the noise arms of its reward: arXiv 2507.10532 ("Reasoning or Memorization?").

    python -m experiments.grpo --config=configs/tasks/random_calculation.py
    python -m experiments.grpo --config=configs/tasks/random_calculation.py:inverted

Expressions are drawn, so no answer can have leaked. The reward is 1 - min(|a - b|, 1) / 2 - min(|a - b| / |b|, 1) / 2.
The operands are single digits and the steps 1 and 2, which a small model can learn. Arguments, the arms: `random` (1
with probability .5; the paper's is not known to us), `inverted` (1 - r), `majority_wrong` (1 for the group's most
frequent wrong answer). `paper` has its problems: 5 and 10 steps, integers to 100, their fractions, squares and cubes,
for a pretrained model. `smoke`: seconds.
"""

from configs import common

ARMS = ("random", "inverted", "majority_wrong")


def get_config(arg: str | None = None):
    words = common.parse(arg, (*ARMS, "paper", "smoke"))
    arms = sorted(words & set(ARMS))
    if len(arms) > 1:
        raise ValueError(f"choose one arm, not {len(arms)}: {', '.join(arms)}")
    config = common.base("random_calculation")
    config.task = dict(
        name="random_calculation",
        steps=(1, 2),
        largest=9,
        operands=("integer",),
        num_problems=8_000,
        seed=0,
        data_dir=common.DATA_DIR,
    )
    config.model = common.transformer(
        embed_dim=96, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=24, mlp_dim=288, tied_head=False
    )
    config.rollout.update(completion_length=16, prompt_buckets=(24,))
    config.sft.update(steps=400, batch_size=64, eval_every=200)
    config.sft.optimizer = common.optimizer(learning_rate=2e-3, warmup_steps=20, decay_steps=380, final_fraction=0.05)
    config.train.update(steps=100)
    config.sample.update(prompts_per_step=32, group_size=8)
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=10, decay_steps=90, final_fraction=0.1)
    config.eval.update(every=25, num_prompts=500, batch_size=250)
    config.checkpoint.every = 25
    if arms:
        graded = dict(fn="exact.graded_number", weight=0.0)
        noise = {
            "random": dict(fn="noise.bernoulli", weight=1.0, prob=0.5),
            "inverted": dict(fn="noise.inverted", weight=1.0, of="graded"),
            "majority_wrong": dict(fn="noise.majority_wrong", weight=1.0, of="graded", threshold=1.0),
        }
        config.reward.terms = dict(graded=graded, noise=noise[arms[0]])
    if "paper" in words:
        config.task.update(steps=(5, 10), largest=100, operands=("integer", "fraction", "square", "cube"))
        config.rollout.update(completion_length=512, prompt_buckets=(256,))
        config.train.optimizer.learning_rate = 1e-6
    return common.smoke(config) if "smoke" in words else config
