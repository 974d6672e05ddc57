"""GRPO on satisfiability, three levels of difficulty: which digits make every clause true? An exact verifier.

    python -m experiments.grpo --config=configs/tasks/sat.py

"aBc bCd:" -> "0110". A warm start on solutions of all levels teaches the format and a first guess; rewards do the rest.
The formulas are generated (rl_jax.tasks.sat): SATURN's (n, k, l) of arXiv 2505.16368, evaluated on the hardest level.
Arguments: `hard` trains on formulas of the hardest level only, after the same warm start; `few` has 400 formulas per
level, and `half` draws those of success one half most often. `smoke`.
"""

from configs import common

LEVELS = ((3, 5, 5), (3, 5, 10), (3, 5, 20))


def get_config(arg: str | None = None):
    words = common.parse(arg, ("hard", "few", "half", "smoke"))
    config = common.base("sat")
    config.task = dict(
        name="sat",
        levels=LEVELS,
        test_levels=(2,),
        num_train=400 if "few" in words else 4_000,
        num_test=500,
        data_dir=common.DATA_DIR,
    )
    if "hard" in words:
        config.sample.prompts = dict(fn="mixture", column="level", weights={"2": 1.0})
    if "half" in words:
        config.sample.prompts = dict(fn="by_success", floor=0.05, decay=0.9)
    config.model = common.transformer(
        embed_dim=64, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=192, tied_head=False
    )
    config.rollout.update(completion_length=6, prompt_buckets=(81,))
    config.sft.update(steps=200, batch_size=64, eval_every=100)
    config.sft.optimizer = common.optimizer(learning_rate=2e-3, warmup_steps=20, decay_steps=180, final_fraction=0.1)
    config.train.update(steps=200)
    config.sample.update(prompts_per_step=16, group_size=8)
    config.train.optimizer = common.optimizer(learning_rate=5e-4, warmup_steps=10)
    config.eval.update(every=50, num_prompts=500, batch_size=250)
    config.checkpoint.every = 50
    if "smoke" in words:
        config.task.update(num_train=200, num_test=40)
    return common.smoke(config) if "smoke" in words else config
