"""More papers on agents: a compressed history, a frozen actor, a price of calls. docs/pages/agents_papers.md says more.

    python -m experiments.agents --config=configs/agents_papers.py:webagent_r1 --workdir=runs/webagent

Models, warm starts and sizes are those of configs/agents_worlds.py; small worlds of text stand for web sites and for
large models. Arguments: the paper, and words of it.

    `webagent_r1` (the default)  A_i = (R_i - mean) / (std + 1e-4) on all that the model said, R of 0 or 1 at the end;
                           older pages of the history become a mark when a new one arrives, the model's own words stay
                           (arXiv 2505.16421). beta .001 for the KL, as there. The warm start is its behavior cloning;
                           `zero` has none (WebAgent-R1-Zero). `whole`: the history is kept
    `smoke`                seconds, for CI
"""

from configs import common, sweeps
from configs.agents_rows import world

ONE_OF = {  # words that exclude each other, of one paper
    "webagent_r1": (("whole",), ("zero",)),
}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*ONE_OF, *(word for key in ONE_OF for word in words_of(key)), "smoke"))
    named = [word for word in ONE_OF if word in words] or list(ONE_OF)[:1]
    if len(named) > 1:
        raise ValueError(f"{', '.join(named)}: one paper at a time")
    paper = named[0]
    if left := words - {paper, "smoke", *words_of(paper)}:
        raise ValueError(f"{sorted(left)} is no word of {paper}, which has {words_of(paper)}")
    config = PAPERS[paper](words)
    config.name = paper
    return config


def words_of(paper: str) -> list[str]:
    """The words that a paper has."""
    return [word for part in ONE_OF[paper] for word in part]


def _webagent_r1(words: set[str]):
    config = world(words, "site", "trajectory", simplify="whole" not in words)
    config.algorithm.kl_coef = 0.001
    if "zero" in words:
        config.sft.steps = 0
    return config


PAPERS = {
    "webagent_r1": _webagent_r1,
}


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)
