"""A masked-diffusion language model that learns to add, by BGPO (arXiv 2510.11683).

    python -m experiments.masked_diffusion --config=configs/masked_diffusion.py --workdir=runs/masked

A bidirectional transformer with a mask token is fine-tuned on sums by denoising (LLaDA, arXiv 2502.09992) until it is
right about half of the time, then trained by group-relative rewards. Arguments: `bgpo_clipped` for BGPO with the clips
of yjyddq/DARE, `elbo` for the objective that BGPO's is a bound of, `diffu_grpo` for d1's one-step estimate (arXiv
2504.12216), `igpo` for hints to groups that are all wrong (arXiv 2509.10396; goes with any of them), `smoke` (seconds).
"""

from ml_collections import ConfigDict

from configs import common

OBJECTIVES = ("bgpo_clipped", "elbo", "diffu_grpo")


def base(name: str) -> ConfigDict:
    """A run of experiments.masked_diffusion, with the fields that it reads. name: the default workdir's name."""
    config = common.base(name)
    config.program = "masked_diffusion"
    config.model.causal = False
    for group in ("score", "packing", "foreign", "schedules"):
        del config[group]
    for field in ("dynamic_sampling", "references"):
        del config.sample[field]
    for field in ("window", "engine", "weights", "cache"):
        del config.rollout[field]
    config.algorithm = dict(
        objective="bgpo",
        masking="count",
        samples=4,
        per_token=True,
        clip_low=0.2,  # not for bgpo; DARE has .2 (bgpo_clipped)
        clip_high=0.2,
        prompt_masking=0.0,
        advantage=dict(fn="group_relative"),
    )
    config.denoise = dict(steps=32, block_length=32, order="confidence")
    config.hints = dict(on=False, low=0.2, high=0.6, min_chunk=5, max_chunk=10, replaced=4, entropy_share=0.2)
    return config


def get_config(arg: str | None = None) -> ConfigDict:
    words = common.parse(arg, (*OBJECTIVES, "igpo", "smoke"))
    if len(named := sorted(words & set(OBJECTIVES))) > 1:
        raise ValueError(f"choose one objective, not {len(named)}: {', '.join(named)}")
    config = base("_".join(["masked_diffusion", *sorted(words - {"smoke"})]))
    config.task = dict(
        name="arithmetic",
        num_operands=(2, 2),
        digits=2,
        operators="+",
        num_train=6_000,
        num_test=500,
        data_dir=common.DATA_DIR,
    )
    config.model.update(embed_dim=64, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=256)
    config.model.tied_head = False
    config.rollout.update(completion_length=4, prompt_buckets=(7,))
    config.denoise.update(steps=4, block_length=4)
    config.sft.update(steps=1_000, batch_size=128, eval_every=50, stop_at=0.3)
    config.sft.optimizer = common.optimizer(learning_rate=2e-3, warmup_steps=20)
    config.train.update(steps=150, epochs=1, minibatches=2, micro_batches=4)  # of bgpo: one draw of masks at a time
    # 1e-3 forgets how to add: BGPO has no clip. The schedule counts updates, two per step.
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=10, decay_steps=290, final_fraction=0.1)
    config.sample.update(prompts_per_step=32, group_size=8)
    config.eval.update(every=25, num_prompts=500, batch_size=500)
    if named:
        config.algorithm.objective = named[0]
    if "diffu_grpo" in words:
        config.algorithm.samples = 1
    if "igpo" in words:
        config.hints.update(on=True, low=0.3, high=0.7, min_chunk=1, max_chunk=2)
    return _smoke(config) if "smoke" in words else config


def _smoke(config: ConfigDict) -> ConfigDict:
    config.model.update(embed_dim=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64)
    config.task.update(digits=1, num_train=60, num_test=20)
    config.hints.replaced = 2  # of groups of 4
    return common.smoke(config)
