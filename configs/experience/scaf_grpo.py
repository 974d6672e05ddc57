"""Scaf-GRPO, scaffolded: arXiv 2510.19807. Where all G answers are wrong, one is replaced by an answer with a hint.

    for h in (1/4, 2/4, 3/4, 1):  y ~ pi(. | x, h);   the first h with R(y) > 0 gives the row (x, y);   A as in GRPO

Departs from GRPO: the hints come after a warm-up, weak to strong, and the row is trained on as an answer to the prompt
without them, with old log-probs of the policy itself. The paper's hints are texts of three kinds (knowledge, plan,
solution) in four steps; records with a list of texts in their info have them by
--config.foreign.hints.texts=FIELD. These tasks have solutions only: their prefixes begin the answer (our reading).

    python -m experiments.grpo --config=configs/experience/scaf_grpo.py

Arguments: a task, `smoke`; `weak` (a short warm start, after which most groups fail), `unhinted` (the control).
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    words = {word for word in (arg or "").split(",") if word in ("weak", "unhinted")}
    arg = ",".join(word for word in (arg or "").split(",") if word not in words)
    config = _start.grpo("scaf_grpo", arg, longer=_start.length(arg))
    config.name = "_".join([config.name, *sorted(words)])
    if "weak" in words:
        config.sft.steps = min(config.sft.steps, 100)
        config.sft.optimizer.decay_steps = 80
    if "unhinted" in words:
        return config
    config.foreign.hints = dict(
        fn="hints",
        at_most=0,
        warmup_steps=0 if "smoke" in config.name else config.train.steps // 10,
        count=1,
        replace="worst",
        only_right=True,
        levels=(0.25, 0.5, 0.75, 1.0),
        texts="",
        train_on="original",
        behavior="own",
    )
    return config
