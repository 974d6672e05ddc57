"""To backtrack or not: search in one long completion against several direct ones, on Countdown: arXiv 2504.07052.

    python -m experiments.grpo --config=configs/tasks/backtrack_countdown_sudoku.py:search
    python -m experiments.grpo --config=configs/tasks/backtrack_countdown_sudoku.py:direct

Both start from an SFT, on depth-first searches or on bare answers, and both go on with GRPO. They are evaluated at
equal tokens: `direct`, the default, draws so many samples per prompt as fit into the length of one search, and
eval/pass@k is best-of-n with the verifier; `search` draws one. The paper: direct wins on Countdown, search on Sudoku,
and GRPO helps search more. Here 3 numbers and grids of 4x4. Arguments: `direct`, `search`, `sudoku` (`sudoku,search`),
`smoke`.
"""

from configs import common

LENGTHS = {"countdown": (12, 192), "sudoku": (20, 100)}  # direct, search: tokens of a completion


def get_config(arg: str | None = None):
    words = common.parse(arg, ("direct", "search", "sudoku", "smoke"))
    if {"direct", "search"} <= words:
        raise ValueError("choose direct or search, not both")
    name, trace = "sudoku" if "sudoku" in words else "countdown", "search" in words
    direct, search = LENGTHS[name]
    length = search if trace else direct
    own = dict(blanks=(4, 9)) if name == "sudoku" else dict(count=3, largest=9, targets=(10, 100))
    config = common.base("_".join(["backtrack", name, "search" if trace else "direct"]))
    config.task = dict(
        name=name,
        **own,
        trace=trace,
        max_completion=length - 1,
        num_problems=4_000,
        seed=0,
        data_dir=common.DATA_DIR,
    )
    config.model = common.transformer(
        embed_dim=96, num_layers=4, num_heads=4, num_kv_heads=4, head_dim=24, mlp_dim=288, tied_head=False
    )
    config.rollout.update(completion_length=length, prompt_buckets=(24,))
    config.sft.update(steps=600, batch_size=64, eval_every=300)
    config.sft.optimizer = common.optimizer(learning_rate=2e-3, warmup_steps=20, decay_steps=580, final_fraction=0.05)
    config.train.update(steps=100)
    config.sample.update(prompts_per_step=16, group_size=8)
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=10, decay_steps=90, final_fraction=0.1)
    config.eval.update(every=25, num_prompts=200, batch_size=200, temperature=0.7)
    config.eval.samples_per_prompt = 1 if trace else search // direct
    config.checkpoint.every = 25
    return common.smoke(config) if "smoke" in words else config
