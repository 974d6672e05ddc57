"""GRPO (arXiv 2402.03300) on generated arithmetic with a model from a Hugging Face folder, its tokenizer included.

    python -m experiments.grpo --config=configs/tasks/hf.py --config.model.path=FOLDER --workdir=runs/hf

FOLDER: config.json, *.safetensors, tokenizer.json of a family in docs/pages/models.md. The run ends with WORKDIR/hf, a
folder of the same kind that `transformers` opens. Rollouts use continuous batching, and the forward reads each prompt
once per group. Arguments: `smoke` (seconds, for CI).
"""

from configs import common
from configs.tasks import arithmetic


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = arithmetic.get_config()
    config.name = "hf"
    config.model = common.transformer(path="FOLDER")
    config.task.update(num_operands=(2, 3), digits=2, num_train=20_000, unfinished_share=0.0)
    config.rollout.update(completion_length=16, prompt_buckets=(16,))
    config.rollout.engine.name = "continuous"
    config.packing.mode = "shared_prefix"
    config.sft.update(steps=0)
    config.train.optimizer = common.optimizer(learning_rate=1e-5, warmup_steps=10, decay_steps=190, final_fraction=0.1)
    return common.smoke(config) if "smoke" in words else config
