"""Self-PRM (arXiv 2505.11227): a model names the first wrong step of its own solutions and keeps the rest."""

import re
from collections.abc import Sequence

import numpy as np

from experiments.parts.judges.base import Judge, Rows, Verdict, judge_prompts
from experiments.parts.judges.generative import Cached, make_ask
from experiments.parts.setup import Setup
from rl_jax.experience.prompt import info_of
from rl_jax.preferences.judge_task import fill
from rl_jax.rewards import benchmarks
from rl_jax.tasks.self_judged import MARK, first_error

NAMED = "named"  # a component: the first wrong step that is named, -1 for none, UNREAD for an answer that says neither
UNREAD = -2.0


def first_wrong_step(
    setup: Setup,
    *,
    path: str,
    template: str = "{prompt}{completion}" + MARK,
    pattern: str = r"-?\d+",
    separator: str = "=",
    max_tokens: int = 4,
    batch_size: int = 32,
) -> Judge:
    """1 for a solution in which the model names no wrong step (-1), else 0.

    With `path` the policy's own run this is Self-PRM: the model that solves is the one that judges. The paper asks a
    reasoning model for a verdict in words; its prompt could not be read, and ours is ProcessBench's answer alone.

    Args:
      setup: of the run.
      path: the judge: workdir of a run or a Hugging Face folder.
      template: the question, with {prompt} and {completion}.
      pattern: regular expression of the step, counted from 0; -1 is none.
      separator: between steps, to compare with info["steps"] where a record has them.
      max_tokens: longest answer.
      batch_size: questions per call of the sampler.
    """
    ask = Cached(make_ask(setup, path, "first_wrong_step.path", max_tokens, batch_size))
    matcher = re.compile(pattern)

    def judge(judged: Rows) -> Verdict:
        questions = [
            fill(template, prompt=prompt, completion=text)
            for prompt, text in zip(judge_prompts(judged.records), judged.completions, strict=True)
        ]
        found = [matcher.search(text) for text in ask(questions)]
        numbers = np.array([UNREAD if x is None else float(x[0]) for x in found], np.float32)
        named = np.where(numbers < -1.0, np.float32(UNREAD), numbers)  # "-5" names no step, nor says that none is wrong
        components = {NAMED: named, "unparsed": (named == UNREAD).astype(np.float32)}
        steps = [info_of(record).get("steps") for record in judged.records]
        if all(steps):
            true = [first_error(text, own, separator) for text, own in zip(judged.completions, steps, strict=True)]
            components["first_error"] = np.array(true, np.float32)
        return Verdict((named == -1.0).astype(np.float32), components=components)

    return judge


def report(components: Sequence[dict[str, np.ndarray]], gold: np.ndarray) -> dict[str, dict[str, float]]:
    """What the verdicts of each such judge are worth.

    Args:
      components: of each batch of rows, name -> float [rows].
      gold: the verifier's rewards, float [rows]; right above 0.5.

    Returns:
      By the judge's name: kept, the share of solutions it finds no error in; precision, the share of right ones among
      them; recall, the share of the right ones that are kept; process_bench/..., of first_error_f1. {} without one.
    """
    result, right = {}, np.asarray(gold).ravel() > 0.5
    for key in components[0] if components else ():
        name, _, part = key.rpartition("/")
        if part != NAMED:
            continue
        columns = {
            x: np.concatenate([rows[f"{name}/{x}"] for rows in components])
            for x in (NAMED, "first_error")
            if f"{name}/{x}" in components[0]
        }
        kept = columns[NAMED] == -1.0
        found = {"kept": float(kept.mean())}
        if kept.any():
            found["precision"] = float(right[kept].mean())
        if right.any():
            found["recall"] = float(kept[right].mean())
        if "first_error" in columns:
            named = np.where(columns[NAMED] == UNREAD, np.inf, columns[NAMED])  # an answer without a step agrees never
            f1 = benchmarks.first_error_f1(named, columns["first_error"])
            found |= {f"process_bench/{side}": number for side, number in f1.items()}
        result[name] = found
    return result
