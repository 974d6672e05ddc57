"""PAPO, perception-aware policy optimization: arXiv 2507.06448. Answers are to depend on what their prompt shows.

    L = L_GRPO - .02 min(exp(-d) + d - 1, 10) + .05 H + .05 H',   d = logp(y | x) - sg(logp(y | corrupted x))
    H, H': the policy's entropies after the prompt and after the corrupted one

Departs from GRPO: three more terms, no KL to the reference. Text stands in for the image: .6 of the prompt's tokens are
hidden in place of .6 of the patches. Signs, coefficients, .6 and the form of the KL: MikeWangWZHL/PAPO (its 7B run);
entropies are exact, there the mean of -logp, and H' has a gradient here, there only as an option.

    python -m experiments.grpo --config=configs/experience/papo.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("papo", arg)
    config.algorithm.perception.update(kl_coef=0.02, share=0.6, entropy_coef=0.05, corrupted_entropy_coef=0.05)
    return config
