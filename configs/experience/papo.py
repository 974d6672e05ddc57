"""PAPO, perception-aware policy optimization: arXiv 2507.06448. Answers are to depend on what their prompt shows.

    L = L_GRPO - .01 min(exp(-d) + d - 1, 10) + .03 H + .03 H',   d = logp(y | x) - sg(logp(y | corrupted x))
    H, H': the policy's entropies after the prompt and after the corrupted one

Departs from GRPO: three more terms, no KL to the reference. Text stands in for the image: .6 of the prompt's tokens are
hidden in place of .6 of the patches. Signs, coefficients, .6 and the form of the KL: MikeWangWZHL/PAPO, the run without
a reference KL (7b_grpo_papo_no_kl_ref.sh; with one of .01 they are .02, .05, .05); entropies are exact, there the mean
of -logp, and H' has a gradient here, there only as an option.

    python -m experiments.grpo --config=configs/experience/papo.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("papo", arg)
    config.algorithm.perception.update(kl_coef=0.01, share=0.6, entropy_coef=0.03, corrupted_entropy_coef=0.03)
    return config
