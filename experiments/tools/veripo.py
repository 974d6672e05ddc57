"""VerIPO's loop: GRPO, a verifier that makes pairs of its rollouts, DPO on them, and again (arXiv 2505.19000).

    python -m experiments.tools.veripo --workdir=runs/veripo --loops=2
    python -m experiments.tools.veripo --workdir=runs/veripo --smoke        # seconds a stage

The stages are configs/preferences/veripo.py:grpo, sample and dpo; each starts from the one before it. WORKDIR has a
folder per stage, grpo_1, pairs_1.jsonl, dpo_1, grpo_2, ..., and veripo.json, what the verifier found in each loop. The
same command goes on where it stopped.
"""

import argparse
import json
import pathlib
import sys
from collections import Counter
from collections.abc import Sequence

from configs.preferences import veripo
from experiments import best_of_n, dpo, grpo
from experiments.parts import origin, stops
from experiments.parts.rewards import make_rewards
from experiments.parts.setup import load_params, make_setup
from rl_jax.preferences import verified
from rl_jax.runs.logging import write_atomically
from rl_jax.runs.run_record import is_complete
from rl_jax.training.checkpoint import StopSignal

WORDS = {True: "smoke,", False: ""}


def pairs_of(rows: Sequence[tuple[str, str]]) -> tuple[list[dict], dict[str, float]]:
    """(the pairs of all prompts, what the verifier found) of (prompt, completion) of each rollout."""
    prompts: dict[str, list[str]] = {}
    for prompt, completion in rows:
        prompts.setdefault(prompt, []).append(completion)
    kinds = Counter(verified.verify(*row).kind for row in rows)
    pairs = [pair for prompt, texts in prompts.items() for pair in verified.contrast(prompt, texts)]
    found = {kind: kinds[kind] / len(rows) for kind in ("good", "inconsistent", "wrong")}
    return pairs, found | {"pairs": len(pairs)}


def sampled(run: pathlib.Path, smoke: bool) -> list[tuple[str, str]]:
    """(prompt, completion) of the rollouts of a finished run; [] if a signal came before their end."""
    config = veripo.get_config(WORDS[smoke] + "sample")
    setup = make_setup(config)
    with make_rewards(setup) as rewards:
        judged = best_of_n.sample(setup, load_params(setup, run), rewards, stops.shared())
    return rows_of(judged)


def rows_of(judged) -> list[tuple[str, str]]:
    """(prompt, completion) of each row of the batches: their records are those of the rows."""
    return [
        (record["prompt"], text) for part in judged for record, text in zip(part.records, part.completions, strict=True)
    ]


def stage(name: str, run, folder: pathlib.Path, start: pathlib.Path | None, smoke: bool, **data) -> bool:
    """Runs a program on its stage's config, unless it is complete or a signal has come.

    Returns whether it is complete now.

    Raises:
      ChangedError: if it is complete with other settings; names the fields.
    """
    config = veripo.get_config(WORDS[smoke] + name)
    config.init_from = str(start or "")
    for field, value in data.items():
        config.data[field] = value
    if is_complete(folder):
        origin.check_result(config, folder, name)
    elif not stops.shared().received:
        run(config, folder)
    return is_complete(folder)


def loop(workdir: pathlib.Path, loops: int, smoke: bool) -> tuple[list[dict[str, float]], bool]:
    """All stages of `loops` loops. Returns (what the verifier found in each, whether no signal ended them).

    Raises:
      ValueError: if the rollouts give no pairs.
    """
    report, start = [], None
    for number in range(1, loops + 1):
        trained, file, aligned = (workdir / f"{name}_{number}" for name in ("grpo", "pairs", "dpo"))
        file = file.with_suffix(".jsonl")
        if not stage("grpo", grpo.run, trained, start, smoke) or stops.shared().received:
            return report, False
        rows = sampled(trained, smoke)
        if not rows:
            return report, False
        pairs, found = pairs_of(rows)
        if not pairs:
            raise ValueError(f"{trained}: all rollouts of a prompt are equally good, so there are no pairs for DPO")
        report.append(found)
        write_atomically(file, "".join(json.dumps(pair) + "\n" for pair in pairs).encode())
        write_atomically(workdir / "veripo.json", (json.dumps(report, indent=2) + "\n").encode())
        data = dict(path=str(file), data_dir=str(workdir / "data"))
        if not stage("dpo", dpo.run, aligned, trained, smoke, **data):
            return report, False
        start = aligned
    return report, True


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=pathlib.Path, required=True, help="folder of all stages")
    parser.add_argument("--loops", type=int, default=2, help="how often GRPO and DPO follow each other")
    parser.add_argument("--smoke", action="store_true", help="the smallest sizes")
    options = parser.parse_args(arguments)
    try:
        if options.loops < 1:
            raise ValueError(f"--loops={options.loops} must be 1 or more")
        with stops.sharing(StopSignal()):
            report, complete = loop(options.workdir, options.loops, options.smoke)
    except (ValueError, OSError) as error:
        print(f"experiments.tools.veripo: {error}", file=sys.stderr)
        return 2
    for number, found in enumerate(report, 1):
        print(f"loop {number}: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items()))
    return 0 if complete else stops.STOPPED


if __name__ == "__main__":
    sys.exit(main())
