"""GDC, generation with distributional control: arXiv 2012.11635. A share of right answers, as an example of a feature.

    p = ref exp(lambda phi) / Z with E_p[phi] = .5;   A = p / pi - 1,   l = -A logp

Departs from GRPO: no reward is maximised: the feature phi, any term of config.reward, is to have a given mean, and the
policy stays as near the reference as that allows. lambda and Z come from 8 samples of the reference per prompt in each
step, where the paper fits lambda once before training; the policy samples for itself, where the paper's proposal is
moved when it is nearer p. The baseline of 1 is arXiv 2206.00761's. No std, sums over tokens, one update per batch.

    python -m experiments.grpo --config=configs/experience/gdc.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("gdc", arg, minibatches=1)
    config.reward.terms = dict(feature=dict(fn="task"))
    config.sample.references = 8
    config.algorithm.measure_kl = True  # the reference's log-probs
    config.algorithm.advantage = dict(fn="rl_jax.advantages.divergences:gdc", moment=0.5)
    config.algorithm.surrogate = dict(fn="reinforce")
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    return config
