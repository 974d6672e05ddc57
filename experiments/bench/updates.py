"""A step of DPO or of SFT, compared with other libraries on the same work in one run: one JSON line.

    python -m experiments.bench.updates --method=dpo
    python -m experiments.bench.updates --method=dpo --peer tunix=PYTHON --peer trl=PYTHON --rounds=2
    python -m experiments.bench.updates --method=sft --peer tunix=PYTHON --peer trl=PYTHON --rounds=2

PYTHON: one that has the peer. The models and shapes are those of experiments.bench.grpo: uniform (64 + 64 tokens),
ragged (64 + 64, four of five completions end by a quarter of it), long_prompt (512 + 64). DPO: 4 pairs a step, the
reference's forward in each; SFT: 8 rows a step, the loss on completions. Each side makes one float32 AdamW update of
the same tokens in each step, and pads or packs as its own trainer does.

`step_s` is a side's median over the timed steps of all rounds, in which the sides take turns. `ratio` is a peer's
step_s over ours. `compile_count` is the number of our compilations after the warm-up (of DPO with packing.min_rows set,
so that ragged steps have one shape; Tunix is given one width for the same reason). `mfu` is the step's necessary FLOPs
(each token once, a pair's prompt once, the head on completion tokens, no attention) as a fraction of the
matrix-multiply rate measured in the same run.
"""

import argparse
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np

from configs.preferences import given
from experiments.bench import grpo
from experiments.parts import preference_steps, processes, warm_start
from experiments.parts.packers import DemonstrationPacker
from experiments.parts.preference_data import PreferencePacker, flat, take_rows
from experiments.parts.setup import Setup
from experiments.parts.training import make_trainer, to_mesh
from rl_jax.core.types import TokenBatch
from rl_jax.preferences.encode import layout

METHODS = {"dpo": 2, "sft": 1}  # completions of a prompt
SHAPES = ("uniform", "ragged", "long_prompt")
PEERS = {name: pathlib.Path(__file__).parent / "peers" / f"{name}_updates.py" for name in ("tunix", "trl")}


def make_work(method: str, shape: str, sizes: dict, *, prompts: int, steps: int) -> dict:
    """The work of every side.

    Args:
      method: a key of METHODS.
      shape: one of SHAPES.
      sizes: of the model.
      prompts: per step, P.
      steps: number of steps.

    Returns:
      method, sizes, prompt_length, completion_length, and records: [steps][P] of [prompt, completion, ...] ids; of a
      pair the chosen completion is the first.
    """
    rng, responses = np.random.default_rng(0), METHODS[method]
    prompt_length, longest = grpo.SHAPES[shape]

    def ids(count):
        return rng.integers(2, sizes["vocab"] - 2, count).tolist()

    records = []
    for _ in range(steps):
        lengths = np.reshape(grpo.make_lengths(shape, prompts * responses, longest, rng), (prompts, responses))
        records.append([[ids(prompt_length), *map(ids, row)] for row in lengths.tolist()])
    result = {"method": method, "sizes": sizes, "prompt_length": prompt_length, "completion_length": longest}
    return result | {"records": records}


def make_setup(work: dict) -> Setup:
    """The run's fixed parts for this work, on one device."""
    prompts = len(work["records"][0])
    config = given.base("bench")
    config.rollout.update(completion_length=work["completion_length"], prompt_buckets=(work["prompt_length"],))
    config.packing.update(mode="shared_prefix", min_rows=1 + prompts // 2)  # so that ragged steps have one shape
    config.train.update(batch_size=prompts, max_grad_norm=1e9)
    config.train.optimizer.learning_rate = 1e-5
    return grpo.assemble_small(config, work["sizes"])


def arrays_of(work: dict, records: list) -> dict[str, np.ndarray]:
    """One step's records as the programs lay them out: [P, K, ...]."""
    rows = [(prompt, completion) for prompt, *completions in records for completion in completions]
    arrays = layout(rows, 0, (work["prompt_length"],), work["completion_length"])
    count = len(records)
    arrays = {name: x.reshape(count, len(rows) // count, -1) for name, x in arrays.items()}
    shape = arrays["tokens"].shape[:2]
    return arrays | {"present": np.ones(shape, bool), "rewards": np.zeros(shape, np.float32)}


def make_dpo(setup: Setup, first: dict[str, np.ndarray]):
    """step(arrays) -> None, and the number of compiled programs, of experiments.dpo. first: arrays of a step."""
    packer, params = PreferencePacker(setup), setup.init_params()
    packer.fit(first)
    reference = jax.tree.map(jnp.copy, params)
    programs, state = preference_steps.build(setup, params)

    def step(arrays):
        nonlocal state
        batch = take_rows(arrays, np.arange(len(arrays["tokens"])), len(arrays["tokens"]), set())
        placed = to_mesh(setup, packer(batch))
        found = programs.score(reference, flat(placed.batch)).log_probs.reshape(batch.completion_mask.shape)
        state, metrics = programs.train_step(state, placed._replace(ref_log_probs=found), reference)
        jax.device_get(metrics)

    return step, programs.compile_count


def make_sft(setup: Setup, first: dict[str, np.ndarray]):
    """The same of experiments.sft."""
    pack = DemonstrationPacker(setup)
    train_step, state = make_trainer(setup, setup.config.train, warm_start.make_loss(setup), setup.init_params())

    def step(arrays):
        nonlocal state
        tokens = flat(TokenBatch(arrays["tokens"], arrays["positions"], arrays["segment_ids"]))
        state, metrics = train_step(state, to_mesh(setup, pack(tokens, arrays["completion_mask"][:, 0])))
        jax.device_get(metrics)

    return step, train_step._cache_size


def run_ours(work: dict) -> dict:
    """Seconds per step with the functions of the programs."""
    make = {"dpo": make_dpo, "sft": make_sft}[work["method"]]
    step, count = make(make_setup(work), arrays_of(work, work["records"][0]))
    result = {"name": "ours", "step_s": [], "compile_count": []}
    for records in work["records"]:
        start = time.perf_counter()
        step(arrays_of(work, records))
        result["step_s"].append(time.perf_counter() - start)
        result["compile_count"].append(count())
    return result


def step_flops(work: dict) -> float:
    """FLOPs of a mean step: forward and backward, and of DPO the reference's forward as well."""
    body, head = grpo.weights(work["sizes"])
    prompts = sum(len(prompt) for step in work["records"] for prompt, *_ in step)
    completions = sum(len(row) for step in work["records"] for _, *rows in step for row in rows)
    passes = 4 if work["method"] == "dpo" else 3
    return 2 * passes * (body * (prompts + completions) + head * completions) / len(work["records"])


def measure(work: dict, peers: dict[str, str], *, rounds: int, warmup: int) -> dict:
    """Each side's median over the rounds' steps after `warmup`, and the peers' step over ours."""
    sides = grpo.medians("experiments.bench.updates", PEERS, work, peers, rounds=rounds, warmup=warmup)
    seconds = {name: side["step_s"] for name, side in sides.items()}
    ratio = {name: round(x / seconds["ours"], 2) for name, x in seconds.items() if name != "ours"}
    mfu = step_flops(work) / seconds["ours"] / grpo.matmul_rate()
    return {
        "step_s": seconds, "ratio": ratio, "compile_count": sides["ours"]["compile_count"], "mfu": round(mfu, 3),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=METHODS, default="dpo")
    parser.add_argument("--model", choices=grpo.MODELS, default="tiny")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, NAME one of tunix, trl")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=0, help="a step; 0: 4 of dpo, 8 of sft")
    parser.add_argument("--work", help=argparse.SUPPRESS)  # run this work and print ours
    options = parser.parse_args(arguments)
    if options.work:
        processes.keep_memory()  # as the programs do
        print(json.dumps(run_ours(json.loads(pathlib.Path(options.work).read_text()))))
        return
    peers = grpo.named_peers(parser, options.peer, PEERS)
    if unknown := set(options.shapes.split(",")) - set(SHAPES):
        parser.error(f"--shapes {sorted(unknown)} is none of {', '.join(SHAPES)}")
    if options.warmup < 1:
        parser.error(f"--warmup={options.warmup} must be at least 1: the first step compiles")
    result = {"bench": f"{options.method}_step", "model": options.model, "rounds": options.rounds}
    prompts = options.prompts or 8 // METHODS[options.method]
    for shape in options.shapes.split(","):
        steps = options.warmup + options.steps
        work = make_work(options.method, shape, grpo.MODELS[options.model], prompts=prompts, steps=steps)
        result[shape] = measure(work, peers, rounds=options.rounds, warmup=options.warmup)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
