"""MR-RLVR, stage 1: fill what is masked in worked answers and put their steps in order: arXiv 2511.17473.

    python -m experiments.grpo --config=configs/tasks/mr_rlvr.py --workdir=runs/mr_rlvr
    python -m experiments.grpo --config=configs/tasks/gsm8k.py --config.init_from=runs/mr_rlvr      # stage 2: RLVR

The reward is the share of the masked numbers that are filled in rightly, or of the steps that are in their place (the
identity earns 1, three steps reversed 1/3). The paper's weights are not known to us: both kinds count the same here,
and stage 2 alone is the base method. Texts are generated worked answers; the model is that of configs/tasks/gsm8k.py.
Arguments: `real` takes the steps of GSM8K's solutions (`python -m experiments.tools.fetch_data math`), for a pretrained
model. `smoke`: seconds.
"""

from configs import common
from configs.tasks import gsm8k


def task(*kinds: str, **changes) -> dict:
    """config.task: the keywords of rl_jax.tasks.restored_text.load."""
    return dict(
        name="restored_text",
        kinds=kinds,
        path="",  # "": generated
        column="answer",
        share=0.6,
        num_texts=4_000,
        num_steps=2,
        seed=0,
        tagged=False,
        max_prompt_bytes=111,
        max_completion_bytes=31,
        skip_bad_records=False,
        data_dir=common.DATA_DIR,
    ) | changes


def get_config(arg: str | None = None):
    words = common.parse(arg, ("real", "smoke"))
    config = gsm8k.get_config()
    config.name, config.task = "mr_rlvr", task("masked", "order")
    if "real" in words:
        config.task.update(path=common.real("math/gsm8k_train.jsonl.gz"), max_prompt_bytes=1023)
        config.task.max_completion_bytes = 63
        config.rollout.update(completion_length=64, prompt_buckets=(256, 512, 1024))
        config.train.optimizer.learning_rate = 1e-6
    return common.smoke(config) if "smoke" in words else config
