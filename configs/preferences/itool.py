"""iTool, iterative reinforced fine-tuning for tool use: arXiv 2501.09766. The stages of its loop, on small questions.

    warm: SFT from easy to hard  ->  ( hardest prompts -> play: tree search -> dpo: SimPO on its pairs ), 3 times there

    python -m experiments.tools.itool --workdir=runs/itool

warm   demonstrations of no call, then one, then two (`calls`), a third of the steps each
play   tree search (own_judgement.by_judgement) on the 30 % of the prompts, of those with and those without calls, whose
       known answers have the largest perplexity; the policy's own grade of an episode is its value; temperature 1.5
dpo    after each history the turn of the largest value against that of the smallest (gap .1, the better one at least
       .1), SimPO with beta 2.5 and gamma .5; the next iteration begins with its weights

All numbers are those of its code (zeng-yirong/iTool: mcts/run_mcts_dpo.sh, mcts/utils.py), but for the learning rates
and sizes, which are a small model's, data.least, .1 here and -.3 there (runs below), and dpo_iters, 3 by default and 1
in its script. Read: the abstracts and the code.
Not read: the text of the method, so that the warm-up's subsets are from memory; its code has no warm-up. Departs from
the code: a step is a turn, not a part of one (rl_jax.envs.text.graded stands for its calls), and the judgement is read
from the probabilities of the four grades, not from what was sampled. Arguments: `warm`, `play` or `dpo`, the config of
one stage; `smoke`.

No settings are known with which the solved share clearly rises. Three runs of a middle size (one warm-up, one seed):
solved of held-out questions before and after each iteration, with a standard error of .03 (.05 in the first).

    least=-.3, 60 steps of DPO   .328, .328, .172   the better turn of a pair has the smaller mean reward in .18, .21;
                                                    own grades rise (-.12, then .01) faster than what is solved
    least=.1, 20 steps           .269, .275, .270, .285   the default of data.least
    one iteration, from .269     .295 again with least=.1 and 20 steps, .284 at a third of the rate, .280 with 60 steps,
                                 .259 with gap=least=.3, .266 with least=-.3 and 60 steps
"""

from configs import agents_rows, common
from configs.preferences import episodes

STAGES = ("warm", "play", "dpo")
RATIO = 0.3  # of the prompts that are chosen


def get_config(arg: str | None = None):
    words = common.parse(arg, (*STAGES, "smoke"))
    if len(words & set(STAGES)) > 1:
        raise ValueError(f"choose one stage, not {len(words & set(STAGES))}: {', '.join(sorted(words & set(STAGES)))}")
    smoke = ",".join({"smoke"} & words)
    config = agents_rows.get_config(f"itool,{smoke}")
    if "warm" in words:
        config.program = "sft"
    if "dpo" in words:
        played, config = config, episodes.get_config(f"graded,judged,{smoke}")
        config.task = played.task
        config.data.update(gap=0.1, least=0.1)
        if smoke:  # a model that has hardly begun says nothing that it finds good
            config.data.update(gap=1e-6, least=-9.0, test_share=0.3)
        config.algorithm.update(length_power=1.0, beta=2.5)
        config.algorithm.reference = {}
        config.algorithm.offset = dict(fn="target_margin", margin=0.5)
    config.name = "_".join(["itool", *sorted(words)])
    return config
