"""Themis, a reward model that calls a tool before it grades: arXiv 2310.01045. Generated products and a calculator.

    loss = mean( -log sigma(r_w - r_l) + 2 L_lm ),   L_lm = -log p of the trace's tokens, their mean over a pair

A response is an answer and the trace that checks it: thought, action, its input, the calculator's observation, a
rationale (rl_jax.preferences.traced); the reward is read at the trace's last token. The paper's code has
L_lm + 0.5 L_bt, which is this loss halved, and trains on the whole trace, with the observation, and on the chosen
answer; so does this config. When it is used, the model writes its own trace and the calculator answers its call:

    python -m experiments.reward_model --config=configs/preferences/themis.py --workdir=runs/themis
    python -m experiments.tools.tool_traces runs/themis

The records' traces hold the verdict, "same" or "other", so accuracy on them is 1 with or without the term and says
little; what counts are traces of the model's own. Figures, beside those of `plain` and `unwritten`, are in
docs/pages/reward_models.md.

Departs from the paper: a small model from scratch, one tool, and traces made by rule, where GPT-4 wrote them.
Arguments: `plain` (Bradley-Terry on the answers alone, the paper's baseline), `unwritten` (traces without the
language-model term), `unobserved` (no term on the observation), `smoke`.
"""

from configs import common
from configs.preferences import reward_models


def get_config(arg: str | None = None):
    words = common.parse(arg, ("plain", "unwritten", "unobserved", "smoke"))
    config = reward_models.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["themis", *sorted(words - {"smoke"})])
    config.data = dict(name="traced", traces="plain" not in words, data_dir=common.DATA_DIR)
    config.algorithm.traces.update(coef=0.0 if words & {"plain", "unwritten"} else 2.0)
    if "unobserved" in words:
        config.algorithm.traces.observed = "O"
    config.rollout.update(completion_length=8 if "plain" in words else 72, prompt_buckets=(8,))
    if "smoke" not in words:
        config.train.update(steps=800, batch_size=16)
        config.train.optimizer = common.optimizer(
            learning_rate=3e-3, warmup_steps=20, decay_steps=780, final_fraction=0.05
        )
        config.eval.every = 200
    return config
