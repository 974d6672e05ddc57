"""Reasoning-SQL, partial rewards for SQL: arXiv 2503.23157. Execution, syntax, schema, n-grams and format, added.

    python -m experiments.grpo --config=configs/tasks/reasoning_sql.py

Each score is a term (rl_jax.rewards.sql), so that configs/methods/gdpo.py's advantage can normalise it by itself. The
weights are those of the authors' training script, whose judge of wrong queries is left out; the toy's answers have no
tags, so the format has weight 0. KL .04, groups of 6 and a gradient norm of .2 are the script's, too. Queries run in
sqlite, read-only and bounded. Arguments: `execution` pays for the rows alone. `real` takes GeoQuery, its questions and
its database, with a model of bytes from scratch. `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("execution", "real", "smoke"))
    weights = dict(execution=3.0, syntax=1.0, schema=1.0, ngram=1.0, format=0.0)
    if "execution" in words:
        weights = {name: weight if name == "execution" else 0.0 for name, weight in weights.items()}
    terms = {name: dict(fn="sql.partial", of=name, weight=weight) for name, weight in weights.items()}
    config = _toys.run("reasoning_sql", ("queries",), terms, prompt=20, completion=64)
    config.sample.group_size = 6
    config.train.max_grad_norm = 0.2
    config.algorithm.kl_coef = 0.04
    if "real" in words:
        config.task = dict(name="geoquery", path=common.real("sql"), max_characters=160, data_dir=common.DATA_DIR)
        config.model.update(embed_dim=128, head_dim=32, mlp_dim=384)
        config.rollout.update(completion_length=160, prompt_buckets=(96,))
        config.sft.steps = 2_000
        config.sft.optimizer.decay_steps = 1_980
        config.eval.update(num_prompts=100, batch_size=100)
        config.reward.time_limit_s = 5.0
    return common.smoke(config) if "smoke" in words else config
