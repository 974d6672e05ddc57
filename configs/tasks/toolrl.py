"""ToolRL, a reward for tool calls: arXiv 2504.13958. Format, names, parameters and values are scored apart.

    python -m experiments.grpo --config=configs/tasks/toolrl.py

The reward is 1 for the format plus -3 to 3 for the call (rl_jax.rewards.tools.fine); its numbers are those of the
authors' code (rlla.py). The tools are a generated toy; your own calls go into a column `calls`, as {"name",
"parameters"} or as in the files of the Berkeley leaderboard. Arguments: `coarse` and `intermediate` are the paper's
ablation of the grain. `real` takes the leaderboard's questions with short functions, for a model that speaks already
(--config.model.path=FOLDER --config.sft.steps=0). `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("coarse", "intermediate", "real", "smoke"))
    grain = next(iter(sorted(words & {"coarse", "intermediate"})), "fine")
    terms = dict(
        call=dict(fn=f"tools.{grain}", weight=1.0, low=-3.0, high=3.0),
        exact=dict(fn="tools.exact", weight=0.0),  # shown, not paid
    )
    config = _toys.run("toolrl", ("calls",), terms, prompt=14, completion=120)
    if "real" in words:
        names = ("simple_python", "multiple", "parallel", "parallel_multiple")
        config.task = dict(
            name="bfcl", path=common.real("tools"), names=names, max_characters=600, data_dir=common.DATA_DIR
        )
        config.rollout.update(completion_length=256, prompt_buckets=(320, 640))
        config.train.update(micro_batches=4)
        config.eval.update(num_prompts=32, batch_size=32)
    return common.smoke(config) if "smoke" in words else config
