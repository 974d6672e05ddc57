"""RLPT, reinforcement learning on raw text: predict the next sentence, or the one in the middle: arXiv 2509.19249.

    python -m experiments.grpo --config=configs/tasks/rlpt.py

On-policy GRPO without a KL term. A prediction is right if it is the segment or its beginning. In the paper a model
judges whether they mean the same; here words must be equal, which is our reading, and the share of the two kinds is
even. Texts are generated stories. Arguments: `real` takes TinyStories (`python -m experiments.tools.fetch_data
stories260k`), for a pretrained model. `exact` wants the whole segment. `smoke`: seconds.
"""

from configs import common
from configs.tasks import gsm8k, mr_rlvr


def get_config(arg: str | None = None):
    words = common.parse(arg, ("exact", "real", "smoke"))
    config = gsm8k.get_config()
    config.name = "rlpt"
    config.task = mr_rlvr.task("next", "middle", max_prompt_bytes=159, max_completion_bytes=39)
    config.rollout.update(completion_length=40, prompt_buckets=(160,))
    mode = "exact" if "exact" in words else "prefix"
    config.reward.terms = dict(segment=dict(fn="order.next_segment", weight=1.0, mode=mode, least_words=3))
    if "real" in words:
        config.task.update(path=common.real("text/tinystories_2MiB.txt.gz"), max_prompt_bytes=1023)
        config.task.max_completion_bytes = 127
        config.rollout.update(completion_length=128, prompt_buckets=(256, 512, 1024))
        config.train.optimizer.learning_rate = 1e-6
    return common.smoke(config) if "smoke" in words else config
