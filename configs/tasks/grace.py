"""GRACE, a contrastive loss as a reward: rationales that embed a text near what means the same: arXiv 2510.04506.

    h = mean hidden state of text and rationale, of the policy itself, without gradient;   c = cosine
    r = [c(q, m) - c(q, n) + .2 mean_j c(m, m_j) - .2 mean_groups max_j c(q, m_j)] / .1;   A = r - mean of the group

    python -m experiments.sft --config=configs/tasks/grace.py --workdir=runs/grace_start
    python -m experiments.grpo --config=configs/tasks/grace.py --config.init_from=runs/grace_start

The policy writes the running totals of a sum, its rationale. The positive m of a query q is the sum in another order,
its hard negative n another sum. Only the positives' rows are trained, as in the paper's code (GasolSun36/GRACE), whose
constants these are; there texts are of retrieval, 7B models write the rationales. `ranked` is how often a query is
nearer to its positive: on this small model it did not rise, .34 before, .41 after 20 steps and .34 after 40 (one seed,
after 500 steps of SFT), while right sums fell from .53 to .19. Arguments: `unsupervised` (no negatives), `smoke`.
"""

from configs import common
from configs.tasks import arithmetic


def get_config(arg: str | None = None):
    words = common.parse(arg, ("unsupervised", "smoke"))
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name = "grace"
    sums = dict(config.task.to_dict(), unfinished_share=0.0)
    config.task = dict(name="rl_jax.tasks.text_triples:load", of=sums)
    config.judge = dict(near=dict(fn="contrastive", negatives="unsupervised" not in words))
    config.algorithm.update(kl_coef=0.0)
    config.algorithm.advantage = dict(fn="group_centered")
    config.sample.prompts = dict(fn="ordered")
    config.sample.update(prompts_per_step=6 if "smoke" in words else 48)
    config.eval.update(num_prompts=12 if "smoke" in words else 300, batch_size=12 if "smoke" in words else 150)
    return config
