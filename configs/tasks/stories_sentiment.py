"""GRPO on the real stories260K: happier TinyStories, judged by a sentiment model trained here on SST-2.

    python -m experiments.grpo --config=configs/tasks/stories_sentiment.py

No warm start: the pretrained model is the policy and, kept as it is, the reference of the KL term (k3, arXiv
2402.03300), which is what keeps the samples stories. The files are read from ../shared/data; point elsewhere with
--config.task.path, .tokenizer_path, .sentiment_path and --config.model.checkpoint. Argument: `smoke`.
"""

from configs import common

DATA = "../shared/data"


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = common.base("stories_sentiment")
    config.task = dict(
        name="stories",
        path=f"{DATA}/text/tinystories_2MiB.txt.gz",
        tokenizer_path=f"{DATA}/models/tok512.bin",
        sentiment_path=f"{DATA}/sentiment",
        max_prompt_tokens=32,
        skip_bad_records=False,
        data_dir=common.DATA_DIR,
    )
    config.model = common.transformer(checkpoint=f"{DATA}/models/stories260K.bin")
    config.rollout.update(completion_length=64, prompt_buckets=(32,))
    config.score.chunk = 16
    # kl_coef 0.02 and 0.1 reach 0.998 and 0.85 with text that falls apart, 0.3 stays at 0.63: experiments/LOG.md.
    config.train.update(steps=60)
    config.sample.update(prompts_per_step=16, group_size=8)
    config.algorithm.update(kl_coef=0.17)
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=5, decay_steps=55, final_fraction=0.1)
    config.eval.update(every=15, num_prompts=128, batch_size=128)
    config.checkpoint.every = 15
    return common.smoke(config) if "smoke" in words else config
