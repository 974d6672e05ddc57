"""Grades answers with a reward model that writes its own trace, whose call a tool answers: Themis, arXiv 2310.01045.

    python -m experiments.reward_model --config=configs/preferences/themis.py --workdir=runs/themis
    python -m experiments.tools.tool_traces runs/themis

Of each pair of the run's test split only the prompt and the two answers are read. The model goes on from them greedily
up to its observation, the calculator answers the call, the model writes its rationale, and the reward is that of the
whole. Printed beside the accuracy with the records' own traces, which a user does not have and which hold the verdict.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable, Sequence

from experiments.parts.hub import local_fields
from experiments.parts.judges.generative import make_ask
from experiments.parts.judges.trained import load_reward_model
from rl_jax import preferences
from rl_jax.preferences import traced
from rl_jax.rewards.benchmarks import pair_accuracy

Ask = Callable[[Sequence[str]], list[str]]


def own_traces(prompts: Sequence[str], answers: Sequence[str], ask: Ask) -> list[str]:
    """Each answer with the trace that a model writes and a tool completes.

    Args:
      prompts: B texts.
      answers: B texts, without a trace.
      ask: texts -> how the model goes on.

    Returns:
      B texts, as rl_jax.preferences.traced.with_trace writes them.
    """
    begun = [f"{answer}\n" for answer in answers]
    written = ask([f"{prompt}{text}" for prompt, text in zip(prompts, begun, strict=True)])
    begun = [text + more.split(f"\n{traced.OBSERVED}:")[0] + "\n" for text, more in zip(begun, written, strict=True)]
    begun = [f"{text}{traced.observe(text)}\n" for text in begun]
    written = ask([f"{prompt}{text}" for prompt, text in zip(prompts, begun, strict=True)])
    return [text + more.split("\n")[0] for text, more in zip(begun, written, strict=True)]


def measure(run: str | pathlib.Path, limit: int) -> dict[str, float]:
    """Of a finished run: accuracies on held-out pairs with its own and the records' traces, and the share of calls.

    Args:
      run: workdir of experiments.reward_model.
      limit: most pairs.

    Raises:
      ValueError: if the run's pairs name no expression that a tool would be asked.
    """
    model = load_reward_model(run)
    source = preferences.load(**local_fields(model.config.data.to_dict())).data_source("test")
    records = [source[place] for place in range(min(limit, len(source)))]
    if any("expression" not in record["info"] for record in records):
        raise ValueError(f"{run}: its pairs have no tool calls: give a run of configs/preferences/themis.py")
    prompts = [record["prompt"] for record in records]
    given = [[record["responses"][side] for record in records] for side in (0, 1)]
    ask = make_ask(model.setup, str(run), "tool_traces", model.config.rollout.completion_length, 64)
    own = [own_traces(prompts, [traced.answer_of(text) for text in texts], ask) for texts in given]
    calls = [f"\nI: {record['info']['expression']}\n" for record in records]
    asked = [call in text for texts in own for call, text in zip(calls, texts, strict=True)]
    # Both sides in one call, as an ensemble may couple rows.
    scores = [model.score_texts(prompts * 2, sides[0] + sides[1]).reshape(2, -1) for sides in (own, given)]
    return {
        "pairs": float(len(records)),
        "accuracy, own traces": float(pair_accuracy(*scores[0])),
        "accuracy, given traces": float(pair_accuracy(*scores[1])),
        "calls with the question": sum(asked) / len(asked),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="workdir of experiments.reward_model")
    parser.add_argument("--limit", type=int, default=256, help="most pairs")
    options = parser.parse_args(arguments)
    try:
        found = measure(options.run, options.limit)
    except (ValueError, OSError) as error:
        print(f"experiments.tools.tool_traces: {error}", file=sys.stderr)
        return 2
    print("\n".join(f"{name}: {value:.3f}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
