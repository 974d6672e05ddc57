"""Length bias: the implicit reward of DPO follows the length of a response more than those of SimPO and LN-DPO.

    python -m experiments.ablation length_bias

SimPO (arXiv 2405.14734) and length-normalised DPO (Tulu 3, arXiv 2411.15124) average over the tokens where DPO sums.
Real pairs (HH harmless, arXiv 2204.05862) and a real pretrained model, if a small one. Undecided: in these pairs the
chosen response is the shorter one more often than not, DPO learns just that (-0.19), and SimPO, which has no reference,
keeps the model's own correlation (0.20); 30 steps leave all three near 57 % held-out accuracy.
"""

from ml_collections import ConfigDict

PAIRS = "../shared/data/prefs/hh_harmless_test.jsonl.gz"
MODEL = "../shared/data/models/stories260K.bin"
TOKENIZER = "../shared/data/models/tok512.bin"


def get_ablation() -> ConfigDict:
    """size: of Spearman's correlation between margin and length difference, on held-out pairs."""
    return ConfigDict(
        dict(
            paper="arXiv 2405.14734",
            claim="DPO's margins correlate more with the difference in length than SimPO's and LN-DPO's",
            scaled_down="stories260K on HH harmless, responses up to 63 tokens, 480 pairs; the paper has Llama-3-8B",
            study="length_bias",
            settings=dict(
                arms={
                    "dpo": dict(beta=0.1),
                    "ln_dpo": dict(beta=5.0, length_power=1.0),
                    "simpo": dict(
                        beta=2.0, length_power=1.0, reference={}, offset=dict(fn="target_margin", margin=0.5)
                    ),
                },
                data=dict(
                    name="hh",
                    path=PAIRS,
                    skip_bad_records=True,
                    data_dir="~/.cache/rl_jax/tfds",
                ),
                checkpoint=MODEL,
                tokenizer_path=TOKENIZER,
                prompt_length=32,
                completion_length=64,
                held_out=256,
                batch_size=16,
                steps=30,
                learning_rate=3e-4,
            ),
            seeds=(0, 1, 2, 3, 4),
            tried=2,  # 60 steps at 96 tokens took too long
            needs=(PAIRS, MODEL, TOKENIZER),
            metric="size",
            expected=(
                dict(metric="size", increasing=("ln_dpo", "dpo"), by=0.0),
                dict(metric="size", increasing=("simpo", "dpo"), by=0.0),
            ),
            smoke=dict(seeds=(0, 1), settings=dict(steps=2, held_out=32)),
        )
    )
