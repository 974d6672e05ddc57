"""An agent learns to call a calculator that works, not one that lies, and learns worse from what the calculator said.

    python -m experiments.ablation agent_calculator

Search-R1 (arXiv 2503.09516): a model that is rewarded for the answer alone learns when to call a tool, and loses
without the mask on what the tool said. There Qwen2.5 with a search engine; here the run of `make agent`, a small
transformer that is shown calls in three of ten examples, half of them malformed. `broken`: the calculator returns
random numbers. `unmasked`: the environment's tokens are trained on as if the model had sampled them.

Tried before: seeds 0 to 2 of `masked` and seed 0 of the others, with these settings (docs/pages/agents.md). The
statements were written before the seeds below were run.
"""

from ml_collections import ConfigDict

CONFIG = "configs/agents.py:calculator"


def get_ablation() -> ConfigDict:
    """Arms share each seed's warm start. Metrics are of held-out products: the share that is solved, and calls."""
    return ConfigDict(
        dict(
            paper="arXiv 2503.09516",
            claim="an agent learns to call a tool that works, not one that lies, and learns worse without the mask",
            scaled_down="a transformer of 57,000 weights with a calculator instead of Qwen2.5 with a search engine",
            program="agents",
            warm_start=CONFIG,
            arms={"masked": CONFIG, "broken": f"{CONFIG},broken", "unmasked": f"{CONFIG},unmasked"},
            seeds=(3, 4, 5, 6, 7),
            tried=1,
            evaluated="eval/episode/correct",
            also=dict(calls="eval/episode/calls"),
            metric="after",
            expected=(
                dict(metric="after", arm="masked", at_least=0.8, within=(0.0, 1.0)),
                dict(metric="calls", arm="masked", at_least=0.9),
                dict(metric="calls", arm="broken", at_most=0.2, within=(0.0, 3.0)),  # an episode has three turns
                dict(metric="mean", increasing=("unmasked", "masked"), by=0.0),
            ),
            smoke=dict(
                seeds=(0, 1),
                warm_start=f"{CONFIG},smoke",
                arms={
                    "masked": f"{CONFIG},smoke",
                    "broken": f"{CONFIG},broken,smoke",
                    "unmasked": f"{CONFIG},unmasked,smoke",
                },
            ),
        )
    )
