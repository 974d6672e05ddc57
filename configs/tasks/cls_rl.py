"""CLS-RL, classification with a rule-based reward, on text instead of images: arXiv 2503.16188.

    python -m experiments.grpo --config=configs/tasks/cls_rl.py
    python -m experiments.grpo --config=configs/tasks/cls_rl.py:no_think

<think>...</think><answer>LABEL</answer> earns 1 for the label and 1 for the form. Arguments: `no_think` is
No-Thinking-RL, whose answer is the bare label and whose reward is whether it is right. `real` takes SST-2 (`python -m
experiments.tools.fetch_data sentiment`) instead of generated sentences. `smoke`: seconds.
"""

from configs import common
from configs.tasks import gsm8k


def get_config(arg: str | None = None):
    words = common.parse(arg, ("no_think", "real", "smoke"))
    config = gsm8k.get_config()
    config.name = "cls_rl"
    config.task = dict(
        name="labelled_text",
        path="",  # "": generated
        think="no_think" not in words,
        num_texts=4_000,
        seed=0,
        max_prompt_bytes=111,
        skip_bad_records=False,
        data_dir=common.DATA_DIR,
    )
    config.rollout.completion_length = 16 if "no_think" in words else 56
    config.sft.steps = 150
    config.sft.optimizer.decay_steps = 130
    if "real" in words:
        config.task.update(path=common.real("sentiment"), max_prompt_bytes=319)
        config.rollout.prompt_buckets = (160, 320)
    return common.smoke(config) if "smoke" in words else config
