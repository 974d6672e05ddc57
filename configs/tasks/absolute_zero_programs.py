"""Absolute Zero with programs of Python: arXiv 2505.03335. The policy proposes programs and solves what they do.

    R_propose = 1 - acc for 0 < acc < 1, over G solutions;   R_solve = 1;   -.5 for wrong, -1 for malformed
    A = (R - mean) / std of its task and role (TRR++),  tasks: p, i -> o;  p, o -> i;  pairs (i, o) -> p

Departs from GRPO: no records are read after the warm start, no group baseline, no KL. Deduction, abduction and
induction; programs run in the sandbox, twice, and an induction is checked on the hidden half of its pairs. As in the
code (LeapLabTHU/Absolute-Zero-Reasoner) a proposal that is solved always or never has -.5 (the equation says 0). Small:
one example in a proposer's prompt, 4 inputs of an induction, not 10, one prompt per group of proposals. The warm start
stands for pretraining. Evaluated: held-out solutions; whether it learns has not been measured. Needs a sandbox: `none`
runs without one, on a machine of its own only. `smoke`: seconds, for CI.

    python -m experiments.grpo --config=configs/tasks/absolute_zero_programs.py
"""

from configs import common, sweeps

LONGEST = 48  # characters of a solver's prompt


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke", "none"))
    config = common.base("absolute_zero_programs")
    config.task = dict(
        name="rl_jax.tasks.program_play:load", num_train=4_000, num_test=300, seed=0, data_dir=common.DATA_DIR
    )
    config.model = common.transformer(
        embed_dim=64, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=192, tied_head=False
    )
    config.rollout.update(completion_length=28, prompt_buckets=(LONGEST + 12,))
    config.sft.update(steps=1_000, batch_size=64, eval_every=500)
    config.sft.optimizer = common.optimizer(learning_rate=3e-3, warmup_steps=20, decay_steps=980, final_fraction=0.05)
    config.train.update(steps=100)
    config.sample.update(prompts_per_step=24, group_size=8)
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=5, decay_steps=95, final_fraction=0.1)
    config.eval.update(every=25, num_prompts=300, batch_size=100)
    config.checkpoint.every = 25
    config.reward.time_limit_s = 60.0
    config.algorithm.kl_coef = 0.0
    config.algorithm.advantage = dict(fn="no_baseline")
    if "smoke" in words:
        common.smoke(config)
        config.task.update(num_train=100, num_test=20)
    config.foreign.self_play = dict(
        fn="experiments.parts.foreign_program_play:propose_programs",
        at_most=config.sample.group_size,
        replace="group",
        longest=LONGEST,
        sandbox="none" if "none" in words else "",
    )
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)
