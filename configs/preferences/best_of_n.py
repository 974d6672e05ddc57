"""Best-of-n (arXiv 2009.01325, 2210.10760) of stories: samples, chosen by a proxy, graded by the verifier.

    python -m experiments.best_of_n --config=configs/preferences/best_of_n.py \
        --config.best_of_n.proxies=runs/reward_model

Without a proxy the verifier itself chooses, which is the ceiling. Several proxies, with commas between them, are an
ensemble. The samples are written as WORKDIR/rankings.jsonl, graded by the verifier: data for experiments.reward_model.
The policy is a small model from scratch, fine-tuned on generated stories first (configs/tasks/stories_sentiment.py).
Arguments: `stories260k` takes the real stories260K, graded by a sentiment model; `smoke` (seconds, for CI).
"""

from ml_collections import ConfigDict

from configs import common
from configs.tasks import stories_sentiment


def best_of_n(**changes) -> ConfigDict:
    """config.best_of_n: what is sampled and who chooses."""
    fields = dict(
        split="test",
        num_prompts=128,
        samples=16,  # per prompt
        sizes=(1, 2, 4, 8, 16),  # the n of best-of-n; the mean is over all subsets of the samples, exactly
        batch_size=16,  # prompts per batch
        proxies="",  # workdirs of experiments.reward_model; "" is the verifier
        combine=dict(fn="mean"),  # rl_jax.credit.ensembles, of several members
        label_noise=0.0,  # fraction of prompts in rankings.jsonl with reversed grades (25 % in 2310.02743)
    )
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise ValueError(f"unknown fields {unknown}; the fields are {', '.join(fields)}")
    return ConfigDict(fields | changes)


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke", "stories260k"))
    config = stories_sentiment.get_config(",".join(sorted(words)))
    config.program, config.name = "best_of_n", "best_of_n"
    config.best_of_n = best_of_n()
    if "smoke" in words:
        config.best_of_n.update(num_prompts=8, samples=4, sizes=(1, 2, 4), batch_size=4)
    return config
