"""OTR, one-token rollouts for fine-tuning: arXiv 2509.26313. At each token of a demonstration the policy draws its own.

    a_k ~ softmax(logits / 1.3), k = 1..256;   R_k = 1 if a_k is the demonstration's token, else -.1
    l = -1/256 sum_k R_k log pi(a_k)

Departs from GRPO: it is the warm start that changes, GRPO itself comes after it and stays as it is (no KL). The three
numbers are recalled: neither the paper's text nor code could be read.

    python -m experiments.sft --config=configs/experience/otr.py --workdir=runs/otr/sft
    python -m experiments.grpo --config=configs/experience/otr.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("otr", arg)
    config.sft.loss = dict(fn="one_token_rollout", samples=256, temperature=1.3, wrong=-0.1)
    return config
