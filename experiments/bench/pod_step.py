"""Our train step of plain cross-entropy beside MaxText's, both compiled for one described slice: one JSON line.

    .venv-tpu/bin/python -m experiments.plan --config=configs/plans.py:8b --config.mesh=fsdp:64 --topology=v5e:8x8 \\
        --config.rollout.prompt_buckets='(1,)' --config.rollout.completion_length=4095 --config.sft.batch_size=256 \\
        --programs=sft --save=ours.json
    python -m experiments.bench.pod_step --plan=ours.json --peer=PYTHON --settings=num_vocab_tiling=8 --to=tiles_8
    python -m experiments.bench.pod_step --plan=ours.json tiles_1 tiles_8     # what was compiled before, side by side

PYTHON is MaxText's. Its source e591f30 needs Python 3.12, unchanged, and no TPU:

    git clone https://github.com/AI-Hypercomputer/maxtext && git -C maxtext checkout e591f30
    python3.12 -m venv maxtext_venv && maxtext_venv/bin/pip install jax==0.10.2 libtpu==0.0.42.1 flax==0.12.8 optax \\
        orbax-checkpoint aqtp qwix drjax grain tokamax transformers sentencepiece tiktoken pathwaysutils omegaconf \\
        ml-goodput-measurement cloud-accelerator-diagnostics cloud-tpu-diagnostics google-cloud-storage jsonlines \\
        google-cloud-mldiagnostics tensorboardX tensorflow tensorflow-datasets pydantic ml-collections jaxtyping \\
        jinja2 pillow datasets sympy
    echo $PWD/maxtext/src > maxtext_venv/lib/python3.12/site-packages/maxtext.pth

Both steps have float32 weights and moments, AdamW, bfloat16 activations, splash attention, full rematerialisation, and
the same rows, tokens and micro-batches; --settings are those of MaxText's base.yml. Of each side: the peak of a chip,
and what a chip sends, in all and synchronously, while it does nothing else, both read from the compiler's text by
experiments.plan.hlo. `ratio` is ours over the least of MaxText's folders, each figure by itself.
"""

import argparse
import json
import math
import pathlib
import subprocess
from typing import Any

from experiments.plan import hlo
from experiments.plan.stored import GIB, slice_name

PEER = pathlib.Path(__file__).parent / "peers" / "maxtext_step.py"
MODELS = {8030261248: "llama3.1-8b"}  # parameters -> MaxText's name of the model


def make_work(plan: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """What MaxText compiles: the slice, model, rows and tokens of a plan of `sft`.

    Args:
      plan: of experiments.plan, with the program `sft`.
      settings: MaxText's own, by name.

    Raises:
      ValueError: if the plan has no such program, MaxText no such model, or the rows do not divide over the chips.
    """
    if "rows" not in plan["programs"].get("sft", {}):
        raise ValueError(f"the plan of {plan['config']} has no train step of plain cross-entropy: add --programs=sft")
    if plan["parameters"] not in MODELS:
        raise ValueError(f"a model of {plan['parameters']} parameters is not in experiments.bench.pod_step MODELS")
    one, chips = plan["programs"]["sft"], num_chips(plan["topology"])
    if one["rows"] % (chips * one["micro_batches"]):
        raise ValueError(f"{one['rows']} rows in {one['micro_batches']} micro-batches do not divide over {chips} chips")
    return {
        "topology": slice_name(plan["topology"]),
        "model": MODELS[plan["parameters"]],
        "length": sum(plan["tokens"]),
        "rows": one["rows"] // chips // one["micro_batches"],
        "micro_batches": one["micro_batches"],
        "settings": settings,
    }


def num_chips(topology: str) -> int:
    """ "v5e:8x8" -> 64."""
    return math.prod(int(n) for n in topology.partition(":")[2].split("x"))


def ours(plan: dict[str, Any]) -> dict[str, Any]:
    """The figures of the plan's `sft`."""
    one = plan["programs"]["sft"]
    if "refused" in one:
        return {"refused": one["refused"]}
    return figures(one["peak_bytes"], one["sent_bytes"], one["synchronous_bytes"])


def theirs(folder: pathlib.Path, plan: dict[str, Any]) -> dict[str, Any]:
    """The figures of a folder that peers/maxtext_step.py wrote.

    Raises:
      ValueError: if its step is not that of the plan, or has no peak.
    """
    step = json.loads((folder / "step.json").read_text())
    settings = step["work"]["settings"]
    if step["work"] != (expected := make_work(plan, settings)):
        raise ValueError(f"{folder}/step.json is of {step['work']}, the plan is of {expected}: compile one again")
    if "refused" in step:
        return {"settings": settings, "refused": step["refused"][:300]}
    if "peak_bytes" not in step:
        raise ValueError(f"{folder}/step.json has no peak_bytes: an older rl_jax wrote it; compile one again")
    if (weights := step["state"]["float32"] // 3) != plan["parameters"]:  # and two moments; counters are not floats
        raise ValueError(f"{folder}/step.json has {weights} float32 parameters, the plan {plan['parameters']}")
    sent = hlo.collectives((folder / "compiled.txt").read_text(), step["mesh"])
    waits = hlo.by_axes([one for one in sent if one.synchronous])
    return {"settings": settings} | figures(step["peak_bytes"], hlo.by_axes(sent), waits)


def figures(peak: float, sent: dict[str, float], synchronous: dict[str, float]) -> dict[str, Any]:
    """peak_gib, sent_gb, synchronous_gb, and the kinds of both. Arguments are bytes."""
    return {
        "peak_gib": round(peak / GIB, 2),
        "sent_gb": round(sum(sent.values()) / 1e9, 3),
        "synchronous_gb": round(sum(synchronous.values()) / 1e9, 3),
        "kinds_gb": {name: round(size / 1e9, 3) for name, size in sent.items()},
        "synchronous_kinds_gb": {name: round(size / 1e9, 3) for name, size in synchronous.items()},
    }


def compare(plan: dict[str, Any], folders: list[pathlib.Path]) -> dict[str, Any]:
    """Both sides, and ours over the least of theirs, each figure by itself."""
    own, peers = ours(plan), {folder.name: theirs(folder, plan) for folder in folders}
    fitting = [one for one in peers.values() if "refused" not in one]
    ratio = {
        name: round(own[name] / least, 3)
        for name in ("peak_gib", "sent_gb", "synchronous_gb")
        if "refused" not in own and fitting and (least := min(one[name] for one in fitting))
    }
    return {"bench": "pod_step", "slice": plan["topology"], "ours": own, "maxtext": peers, "ratio": ratio}


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", required=True, type=pathlib.Path, help="of ours, with the program sft")
    parser.add_argument("--peer", metavar="PYTHON", help="MaxText's; compiles its step into --to first")
    parser.add_argument("--to", type=pathlib.Path, help="a folder for what --peer compiles")
    parser.add_argument("--settings", default="", help="MaxText's own: NAME=VALUE,NAME=VALUE")
    parser.add_argument("folders", nargs="*", type=pathlib.Path, help="of steps that were compiled before")
    options = parser.parse_args(arguments)
    if bool(options.peer) != bool(options.to):
        parser.error("--peer=PYTHON and --to=FOLDER go together: the folder gets what MaxText's Python compiles")
    if not (options.peer or options.folders):
        parser.error("nothing to compare: give --peer=PYTHON --to=FOLDER, or folders of steps compiled before")
    plan = json.loads(options.plan.read_text())
    folders = [*options.folders, *([options.to] if options.to else [])]
    if options.peer:
        pairs = [pair.partition("=") for pair in options.settings.split(",") if pair]
        options.to.mkdir(parents=True, exist_ok=True)
        work = options.to / "work.json"
        work.write_text(json.dumps(make_work(plan, {name: value for name, _, value in pairs})))
        subprocess.run([options.peer, str(PEER), str(work), str(options.to)], check=True)
    print(json.dumps(compare(plan, folders)))


if __name__ == "__main__":
    main()
