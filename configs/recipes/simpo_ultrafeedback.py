"""SimPO (arXiv 2405.14734) on UltraFeedback's binarised pairs, from its SFT model of Llama 3 8B.

    python -m experiments.dpo --config=configs/recipes/simpo_ultrafeedback.py --workdir=runs/simpo --distributed=auto

    u    = mean_t logp_t;   loss = -log sigma(2 (u_w - u_l) - 1)

Needs pip install -e '.[hub]'. Batches of 128, 6e-7 by a cosine after a warm-up of a tenth, one pass. Arguments: `smoke`
(a laptop, after `python -m experiments.tools.tiny_model llama`).
"""

from configs import common
from configs.recipes import _start

RECIPE = dict(
    model="princeton-nlp/Llama-3-Base-8B-SFT",
    data="`hf://datasets/HuggingFaceH4/ultrafeedback_binarized` (train_prefs), 61k pairs",
    hardware="TPU v5p-16 (8 chips, 2 hosts); theirs: 8 H100",
    published="AlpacaEval 2 LC 6.2 (SFT) -> 22.0, win rate 4.6 -> 20.3; Arena-Hard 3.3 -> 23.4",
    source="https://github.com/princeton-nlp/SimPO (README, v0.1, Llama3 Base 8B SimPO)",
    plan="`simpo_ultrafeedback.json`: train 21.5, score 10.0 of 95 GiB",
    departs="prompts over 1,024 tokens are left out and responses cut at 1,024 (there 2,048 together)",
)


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    data = _start.pairs("hf://datasets/HuggingFaceH4/ultrafeedback_binarized@main/data/train_prefs-*.parquet")
    config = _start.preferences("simpo", "hf://princeton-nlp/Llama-3-Base-8B-SFT", data, mesh="fsdp:8")
    config.rollout.update(completion_length=1024, prompt_buckets=(256, 512, 1024))
    config.algorithm.reference = {}  # no reference at all
    config.algorithm.update(length_power=1.0, beta=2.0, offset=dict(fn="target_margin", margin=1.0))
    config.train.update(batch_size=128, micro_batches=16)
    config.train.optimizer = common.optimizer(learning_rate=6e-7, warmup_steps=48, decay_steps=429, final_fraction=0.0)
    config.eval.update(every=100, num_prompts=512, batch_size=64)
    config.checkpoint.every = 100
    return _start.smoke(config, "llama") if "smoke" in words else config
