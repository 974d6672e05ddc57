"""Tulu 3's DPO on Llama 3.1 8B (arXiv 2411.15124): length-normalised, beta 5, one pass over its preference mixture.

    python -m experiments.dpo --config=configs/recipes/tulu3_dpo.py --workdir=runs/tulu3_dpo --distributed=auto

    u_y  = mean_t (logp_t - ref_logp_t);   loss = -log sigma(5 (u_w - u_l))

Needs pip install -e '.[hub]'. Batches of 128 pairs, 5e-7 with a warm-up of a tenth, then linear to 0. Arguments:
`smoke` (a laptop, after `python -m experiments.tools.tiny_model llama`).
"""

from configs import common
from configs.recipes import _start

MIXTURE = "allenai/llama-3.1-tulu-3-8b-preference-mixture"
RECIPE = dict(
    model="Llama-3.1-Tulu-3-8B-SFT",
    data=f"`hf://datasets/{MIXTURE}`, 271k pairs",
    hardware="TPU v5p-16 (8 chips, 2 hosts); theirs: 8 H100",
    published="average of 12 evaluations 60.4 (SFT) -> 64.4; GSM8K 76.2 -> 84.3; IFEval 72.8 -> 81.1",
    source="https://huggingface.co/allenai/Llama-3.1-Tulu-3-8B-DPO; open-instruct docs/tulu3.md (command)",
    plan="`tulu3_dpo.json`: train 21.5, score 10.0 of 95 GiB",
    departs="prompts over 1,024 tokens are left out and responses cut at 1,024 (there 2,048 together)",
)


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    data = _start.pairs(f"hf://datasets/{MIXTURE}@main/data/*.parquet")
    config = _start.preferences("tulu3_dpo", "hf://allenai/Llama-3.1-Tulu-3-8B-SFT", data, mesh="fsdp:8")
    config.rollout.update(completion_length=1024, prompt_buckets=(256, 512, 1024))
    config.algorithm.update(beta=5.0, length_power=1.0)
    config.train.update(batch_size=128, micro_batches=16)
    config.train.optimizer = common.optimizer(
        learning_rate=5e-7, warmup_steps=212, decay="linear", decay_steps=1906, final_fraction=0.0
    )
    config.eval.update(every=200, num_prompts=512, batch_size=64)
    config.checkpoint.every = 200
    return _start.smoke(config, "llama") if "smoke" in words else config
