"""An asynchronous step of GRPO compared with Tunix's agentic learner on the same work: one JSON line.

    python -m experiments.bench.asynchronous_peers --peer tunix=PYTHON --rounds=2      # PYTHON: one that has the peer

Ours is experiments.grpo_async with the schedule `free` as two processes; Tunix's learner has a simulated device for its
trainer and one for its sampler. Both: sampling up to --eta versions ahead, 4 prompts x 8 completions of one turn,
prompts of 64 tokens, every fourth completion of 64 and the others of 16, temperature 1, the policy's own log-probs
before a float32 AdamW update, and weights from the sampler to it.

`step_s` is the median time from update to update, after --warmup steps and before those whose samples were all there,
over the rounds, in which the sides take turns, `cpu_s` the processor seconds, of all processes; `ratio` the peer's over
ours. `lost`: rows that were thrown away (of the
peer: sampled and not trained on at the run's end); `age`: the oldest row trained on, in versions.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any

import jax
import numpy as np

from configs import grpo_async as async_config
from experiments.bench import asynchronous
from experiments.bench.grpo import MODELS, named_peers, run_apart
from experiments.parts import processes
from experiments.parts.async_flow import LOG
from rl_jax import tasks
from rl_jax.runs.logging import read_jsonl
from rl_jax.training import compilation

PROMPT, SHORT, LONG = 64, 16, 64
SCRIPTS = {"tunix": pathlib.Path(__file__).parent / "peers" / "tunix_agentic.py"}


class Numbers:
    """Ids as text, "7 12 9"; nothing ends a row before its length."""

    pad_id, bos_id, eos_id, eos_ids = 0, 1, 2, ()

    def __init__(self, vocab_size: int):
        self.vocab_size = vocab_size

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """The ids of the words."""
        return [self.bos_id] * bos + [int(word) for word in text.split()] + [self.eos_id] * eos

    def decode(self, ids) -> str:
        """The words of the ids."""
        return " ".join(str(int(token)) for token in ids)

    def token_text(self, token: int) -> str:
        """The word of an id."""
        return str(int(token))


def reward(prompt: str, completion: str, info: dict) -> dict:
    """The fraction of even tokens: cheap, and different between completions."""
    return {"reward": float(np.mean([int(word) % 2 == 0 for word in completion.split()] or [0.0]))}


def make_work(sizes: dict, *, eta: int, steps: int, prompts: int = 4, group_size: int = 8) -> dict[str, Any]:
    """The work of every side: sizes, prompts ([groups] of ids, BOS first) and lengths ([groups][rows])."""
    rng, groups = np.random.default_rng(0), prompts * steps
    row = [LONG if sample % 4 == 0 else SHORT for sample in range(group_size)]
    drawn = rng.integers(3, sizes["vocab"], (groups, PROMPT))
    drawn[:, 0] = Numbers.bos_id
    lengths = rng.permuted(np.tile(row, (groups, 1)), axis=1)
    return {
        "sizes": sizes, "eta": eta, "steps": steps, "prompts_per_step": prompts, "group_size": group_size,
        "prompt_length": PROMPT, "prompts": drawn.tolist(), "lengths": lengths.tolist(),
    }  # fmt: skip


def config_of(work: dict[str, Any]):
    """The config of our side."""
    config, sizes = async_config.get_config("smoke,free"), work["sizes"]
    config.model.update(
        embed_dim=sizes["d"], num_layers=sizes["layers"], num_heads=sizes["heads"], num_kv_heads=sizes["kv"],
        head_dim=sizes["head_dim"], mlp_dim=sizes["ff"], tied_head=True,
    )  # fmt: skip
    config.sample.update(prompts_per_step=work["prompts_per_step"], group_size=work["group_size"])
    config.rollout.update(completion_length=LONG, prompt_buckets=(PROMPT,), temperature=1.0, top_k=0, top_p=1.0)
    config.rollout.engine.slots = work["prompts_per_step"] * work["group_size"]
    config.packing.update(mode="shared_prefix", min_rows=4)  # so that ragged steps have one shape
    config.flow.update(eta=work["eta"], age=8, decode_steps=SHORT)
    config.train.update(steps=work["steps"], epochs=1, minibatches=1, micro_batches=1)
    config.train.optimizer.update(learning_rate=1e-5, warmup_steps=0, decay_steps=0)
    config.algorithm.update(mask_truncated=False, kl_coef=0.0)
    config.sft.steps = 0
    config.eval.update(every=0, num_prompts=4, batch_size=4)
    config.checkpoint.every = work["steps"]
    config.reward.num_workers = 0
    config.log.update(progress=False, tensorboard=False)
    return config.lock()


def run_ours(work: dict[str, Any]) -> dict[str, Any]:
    """Seconds from update to update of our side, and what it counted."""
    config = config_of(work)
    texts = [" ".join(map(str, prompt[1:])) for prompt in work["prompts"]]
    records = [{"prompt": text.encode(), "completion": b"", "info": b"{}"} for text in texts]
    sources = {
        split: tasks.RecordSource(records, name="numbers", split=split, report={}) for split in ("train", "test")
    }
    task = tasks.Task("numbers", Numbers(work["sizes"]["vocab"]), sources.__getitem__, reward)
    roles, lengths = asynchronous.roles_of(work["eta"]), np.asarray(work["lengths"])
    with tempfile.TemporaryDirectory(prefix="rl_jax-asynchronous-") as name:
        workdir = pathlib.Path(name) / "run"
        asynchronous.together(roles, workdir, lambda role: asynchronous.run_role(config, task, role, workdir, lengths))
        paces = asynchronous.paces_of(workdir, roles)
        rows = [row for row in read_jsonl(workdir / "metrics.jsonl") if "completion_length" in row]
        dropped = read_jsonl(workdir / "sampler" / LOG)[-1]["dropped"]
    train, decode = paces["train"], paces["decode"]
    cpu_s = np.array(train["cpu_s"]) + np.interp(train["ends"], decode["ends"], decode["cpu_s"])
    size = work["prompts_per_step"] * work["group_size"]
    return {
        "name": "ours",
        "step_s": np.diff(train["ends"]).tolist(),
        "cpu_s": np.diff(cpu_s).tolist(),
        "age": max(row["lag/row_max"] for row in rows),
        "lost": dropped * work["group_size"],
        "tokens_trained": round(sum(row["completion_length"] for row in rows) * size),
    }


def measure(work: dict[str, Any], peers: dict[str, str], *, rounds: int, warmup: int) -> dict[str, Any]:
    """Each side's median step and counts, and the peers' step over ours."""
    commands = {"ours": [sys.executable, "-m", "experiments.bench.asynchronous_peers", "--work"]}
    commands |= {name: [python, str(SCRIPTS[name])] for name, python in peers.items()}
    seconds: dict[str, dict[str, list]] = {name: {"step_s": [], "cpu_s": []} for name in commands}
    counts: dict[str, dict] = {}
    for _ in range(rounds):
        for side, command in commands.items():
            run = run_apart(side, command, work)
            for name, found in seconds[side].items():
                found += run[name][warmup : len(run[name]) - work["eta"]]
            counts[side] = {name: run[name] for name in ("age", "lost", "tokens_trained")}
    sides = {
        side: {name: round(statistics.median(found), 4) for name, found in of.items()} | counts[side]
        for side, of in seconds.items()
    }
    ratio = {
        side: {name: round(of[name] / sides["ours"][name], 2) for name in ("step_s", "cpu_s")}
        for side, of in sides.items()
        if side != "ours"
    }
    return {"sides": sides, "ratio": ratio}


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, NAME is tunix")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--eta", type=int, default=2)
    parser.add_argument("--work", help=argparse.SUPPRESS)  # run this work and print ours
    options = parser.parse_args(arguments)
    if options.work:
        if not jax.config.jax_compilation_cache_dir:
            compilation.use_cache("~/.cache/rl_jax/xla")
        processes.keep_memory()  # as the programs do
        print(json.dumps(run_ours(json.loads(pathlib.Path(options.work).read_text()))))
        return
    if options.steps < options.warmup + options.eta + 2:  # n steps have n - 1 differences
        parser.error(
            f"--steps={options.steps} leaves none between --warmup={options.warmup} and the last {options.eta}"
        )
    peers = named_peers(parser, options.peer, SCRIPTS)
    work = make_work(MODELS[options.model], eta=options.eta, steps=options.steps)
    found = measure(work, peers, rounds=options.rounds, warmup=options.warmup)
    print(json.dumps({"bench": "asynchronous_peers", "options": vars(options), **found}))


if __name__ == "__main__":
    main()
