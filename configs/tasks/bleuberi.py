"""BLEUBERI, BLEU with reference answers as the reward: arXiv 2505.11080.

    pip install 'sacrebleu>=2.6,<3' 'rouge-score>=0.1.2,<0.2'
    python -m experiments.grpo --config=configs/tasks/bleuberi.py

BLEU-4 with 1 added to every count, against the shortest reference, as in the authors' code; the task is to say a
generated sentence again. With prompts of your own the references are a column `references`. Arguments: `rouge` and
`both` are the code's other two: ROUGE-L, and the harmonic mean with BLEU. `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("rouge", "both", "smoke"))
    fn = "overlap.bleu_rouge" if "both" in words else "overlap.rouge" if "rouge" in words else "overlap.bleu"
    config = _toys.run("bleuberi", ("echoes",), dict(overlap=dict(fn=fn, weight=1.0)), prompt=36, completion=40)
    return common.smoke(config) if "smoke" in words else config
