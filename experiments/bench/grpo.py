"""A whole GRPO step, rollout to update, compared with other libraries on the same work in one run: one JSON line.

    python -m experiments.bench.grpo                                                   # ours, the three shapes
    python -m experiments.bench.grpo --peer tunix=PYTHON --peer trl=PYTHON --rounds=2  # PYTHON: one that has the peer
    python -m experiments.bench.grpo --shapes=ragged_prompts --steps=200               # does anything recompile?

Shapes: uniform (64 + 64 tokens), ragged (64 + 64, four of five completions end by a quarter of it), long_prompt (512 +
64), and ragged_prompts (16 to 64, + 64, ragged); 4 prompts x 8 completions. Each side gets the same work, decodes at
temperature 1, scores with the reference (beta .04) and makes one float32 AdamW update.

`step_s` is a side's median over the timed steps of all rounds, in which the sides take turns. `ratio` is a peer's
step_s over ours. `compile_count` is the number of our compilations after the warm-up. `mfu` is the update's necessary
FLOPs (prompts once, the head on completion tokens, no attention) as a fraction of the matrix-multiply rate measured in
the same run.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

from configs import common as defaults
from experiments import grpo
from experiments.parts import policy, processes
from experiments.parts.judging import Judged
from experiments.parts.packers import RolloutPacker
from experiments.parts.sample_groups import Collected
from experiments.parts.setup import Setup, assemble
from experiments.parts.training import to_mesh
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rewards.pool import RewardResult
from rl_jax.training import sharding

MODELS = {
    "tiny": dict(layers=4, d=256, ff=768, heads=4, kv=2, head_dim=64, vocab=4096),
    "small": dict(layers=6, d=512, ff=1536, heads=8, kv=4, head_dim=64, vocab=32768),
}
SHAPES = {"uniform": (64, 64), "ragged": (64, 64), "long_prompt": (512, 64), "ragged_prompts": (64, 64)}
PEERS = {name: pathlib.Path(__file__).parent / "peers" / f"{name}_grpo.py" for name in ("tunix", "trl")}


def make_lengths(shape: str, rows: int, longest: int, rng: np.random.Generator) -> list[int]:
    """Completion lengths of one step.

    Ragged ones are longest * u^6 for evenly spaced u, at least a sixteenth: four of five end by a quarter, one runs to
    the end.

    Args:
      shape: a key of SHAPES.
      rows: number of completions.
      longest: the longest completion.
      rng: for their order.
    """
    if not shape.startswith("ragged"):
        return [longest] * rows
    spread = (np.arange(rows) + 0.5) / rows
    result = np.ceil(longest * np.maximum(1 / 16, spread**6)).astype(int)
    result[-1] = longest
    return rng.permutation(result).tolist()


def make_work(shape: str, sizes: dict, *, prompts: int, group_size: int, steps: int, beta: float) -> dict:
    """The work of every side.

    Args:
      shape: a key of SHAPES.
      sizes: of the model.
      prompts: per step, P.
      group_size: completions per prompt, G.
      steps: number of steps.
      beta: coefficient of the KL.

    Returns:
      sizes, beta, group_size, prompt_length, prompts ([steps][P] of ids) and lengths ([steps][P x G]).
    """
    rng = np.random.default_rng(0)
    prompt_length, longest = SHAPES[shape]
    shortest = 16 if shape == "ragged_prompts" else prompt_length

    def prompt():
        return rng.integers(2, sizes["vocab"] - 2, rng.integers(shortest, prompt_length + 1)).tolist()

    return {
        "sizes": sizes,
        "beta": beta,
        "group_size": group_size,
        "prompt_length": prompt_length,
        "prompts": [[prompt() for _ in range(prompts)] for _ in range(steps)],
        "lengths": [make_lengths(shape, prompts * group_size, longest, rng) for _ in range(steps)],
    }


class _Tokenizer:
    """What policy.build needs of a tokenizer; nothing ends a row before its length."""

    eos_ids, pad_id, decode = (), 0, staticmethod(str)


class _Task:
    tokenizer = _Tokenizer()


def make_setup(work: dict) -> Setup:
    """The run's fixed parts for this work, on one device."""
    sizes = work["sizes"]
    config = defaults.base("bench")
    longest = max(map(max, work["lengths"]))
    config.rollout.update(completion_length=longest, prompt_buckets=(work["prompt_length"],))
    config.rollout.engine.update(name="continuous", slots=len(work["lengths"][0]))
    config.packing.update(mode="shared_prefix", min_rows=3)  # so that ragged steps have one shape
    config.sample.update(prompts_per_step=len(work["prompts"][0]), group_size=work["group_size"])
    config.algorithm.update(kl_coef=work["beta"])
    config.train.update(max_grad_norm=1e9)
    config.train.optimizer.learning_rate = 1e-5
    return assemble_small(config, sizes)


def assemble_small(config, sizes: dict) -> Setup:
    """The setup of a config with a random model of these sizes, on one device."""
    model = make_transformer(
        TransformerConfig(
            vocab_size=sizes["vocab"], embed_dim=sizes["d"], num_layers=sizes["layers"], num_heads=sizes["heads"],
            num_kv_heads=sizes["kv"], head_dim=sizes["head_dim"], mlp_dim=sizes["ff"], qk_norm=True,
        )
    )  # fmt: skip
    config.log.progress = False
    mesh = sharding.make_mesh(sharding.parse_mesh(""))
    return assemble(config, mesh, _Task(), model, lambda: model.init(jax.random.key(0)))


def judged(rollout, group_size: int) -> Judged:
    """The peers' rewards: the fraction of even tokens."""
    rollout = jax.tree.map(np.asarray, rollout)
    mask = rollout.completion_mask
    even = (rollout.batch.tokens[:, -mask.shape[1] :] % 2 == 0) & mask
    rewards = (even.sum(axis=1) / np.maximum(mask.sum(axis=1), 1)).astype(np.float32)
    return Judged(rollout, [], [], RewardResult(rewards, {}, 0, 0, None))


def run_ours(work: dict) -> dict:
    """Seconds per step, and of its rollout and update, with the functions of experiments.grpo."""
    setup = make_setup(work)
    config, packer, no_trackers = setup.config, RolloutPacker(setup), {}
    params = setup.init_params()
    reference_params = jax.tree.map(jnp.copy, params)
    programs, state = policy.build(setup, params)
    result = {"name": "ours", "step_s": [], "rollout_s": [], "update_s": [], "compile_count": []}
    for step, (prompts, lengths) in enumerate(zip(work["prompts"], work["lengths"], strict=True)):
        start = time.perf_counter()
        mask = np.arange(work["prompt_length"])[::-1][None] < np.array([[len(prompt)] for prompt in prompts])
        tokens = np.zeros(mask.shape, np.int32)
        tokens[mask] = np.concatenate(prompts)
        key = jax.random.fold_in(state.rng, step)
        rollout = programs.generate(state.params, tokens, mask, key, np.asarray(lengths))
        rolled = time.perf_counter()
        collected = Collected(judged(rollout, work["group_size"]), None, {})
        rows = packer.to_score(collected.judged.rollout)
        reference = programs.score(reference_params, rows).log_probs if work["beta"] else None
        batch, _ = grpo.make_policy_batch(programs.assign, collected, None, reference, key, no_trackers)
        begin_update = time.perf_counter()
        for part in policy.minibatches(config, batch, key):
            state, metrics = programs.train_step(state, to_mesh(setup, packer.to_train(part)))
            jax.device_get(metrics)
        end = time.perf_counter()
        for name, seconds in (("step_s", end - start), ("rollout_s", rolled - start), ("update_s", end - begin_update)):
            result[name].append(seconds)
        result["compile_count"].append(programs.compile_count())
    return result


def update_flops(work: dict) -> float:
    """FLOPs of a mean step's forward and backward: 3 x 2 x (body weights x tokens + head weights x completion tokens).

    Prompts count once per group; attention is left out.
    """
    body, head = weights(work["sizes"])
    completions = np.mean([sum(row) for row in work["lengths"]])
    prompts = np.mean([sum(map(len, batch)) for batch in work["prompts"]])
    return float(6 * (body * (prompts + completions) + head * completions))


def weights(sizes: dict) -> tuple[int, int]:
    """Weights that multiply each token: (of the layers, of the head)."""
    heads = 2 * sizes["heads"] + 2 * sizes["kv"]
    body = sizes["layers"] * (sizes["d"] * heads * sizes["head_dim"] + 3 * sizes["d"] * sizes["ff"])
    return body, sizes["vocab"] * sizes["d"]


def matmul_rate(size: int = 2048, repeats: int = 10) -> float:
    """FLOP/s of the best of `repeats` float32 products [size, size] x [size, size]."""
    x = jnp.ones((size, size))
    product = jax.jit(jnp.matmul)
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(product(x, x))
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds[1:])


def run_apart(side: str, command: list[str], work: dict) -> dict:
    """Runs a side in a process of its own.

    Args:
      side: its name.
      command: the path of the work's file is appended to it.
      work: of make_work.

    Returns:
      The JSON that the command prints.

    Raises:
      RuntimeError: if it fails; the message has the end of its stderr.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(work, file)
        file.flush()
        done = subprocess.run([*command, file.name], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"name"')]
    if done.returncode or not lines:
        raise RuntimeError(f"{side} ({command[0]}) ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(lines[-1])


def medians(
    module: str, scripts: dict[str, pathlib.Path], work: dict, peers: dict[str, str], *, rounds: int, warmup: int
) -> dict[str, dict[str, float]]:
    """Each side's medians over the steps after `warmup` of all rounds, in which the sides take turns.

    Args:
      module: ours, run with --work.
      scripts: of the peers by name.
      work: of make_work.
      peers: name -> Python.
      rounds: how often each side runs.
      warmup: first steps of a run that do not count.

    Returns:
      side -> its figures in seconds (names in _s), and compile_count where a side counts: after the warm-up.
    """
    commands = {"ours": [sys.executable, "-m", module, "--work"]}
    commands |= {name: [python, str(scripts[name])] for name, python in peers.items()}
    sides: dict[str, dict[str, list]] = {name: {} for name in commands}
    for _ in range(rounds):
        for side, command in commands.items():
            run = run_apart(side, command, work)
            for key in (key for key in run if key.endswith("_s")):
                sides[side].setdefault(key, []).extend(run[key][warmup:])
            if "compile_count" in run:
                sides[side]["compile_count"] = [run["compile_count"][-1] - run["compile_count"][warmup - 1]]
    return {name: {key: round(statistics.median(v), 5) for key, v in side.items()} for name, side in sides.items()}


def measure(work: dict, peers: dict[str, str], *, rounds: int, warmup: int) -> dict:
    """Each side's medians over the rounds' steps after `warmup`, and the peers' step over ours."""
    sides = medians("experiments.bench.grpo", PEERS, work, peers, rounds=rounds, warmup=warmup)
    ours, others = sides["ours"], [name for name in sides if name != "ours"]
    ratios = {key: {n: round(sides[n][key] / ours[key], 2) for n in others} for key in ("step_s", "rollout_s")}
    mfu = update_flops(work) / ours["update_s"] / matmul_rate()
    return {"sides": sides, "ratio": ratios["step_s"], "rollout_ratio": ratios["rollout_s"], "mfu": round(mfu, 3)}


def named_peers(parser: argparse.ArgumentParser, given: list[str], known: dict[str, pathlib.Path]) -> dict[str, str]:
    """name -> Python of each --peer NAME=PYTHON; an unknown name ends the program with a message."""
    peers = dict(peer.split("=", 1) for peer in given)
    if set(peers) - set(known):
        parser.error(f"--peer {sorted(set(peers) - set(known))} is none of {', '.join(known)}")
    return peers


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--shapes", default="uniform,ragged,long_prompt")
    parser.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, NAME one of tunix, trl")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--beta", type=float, default=0.04)
    parser.add_argument("--work", help=argparse.SUPPRESS)  # run this work and print ours
    options = parser.parse_args(arguments)
    if options.work:
        processes.keep_memory()  # as the programs do
        print(json.dumps(run_ours(json.loads(pathlib.Path(options.work).read_text()))))
        return
    if options.warmup < 1:
        parser.error(f"--warmup={options.warmup} must be at least 1: the first step compiles")
    peers = named_peers(parser, options.peer, PEERS)
    result = {"bench": "grpo_step", "model": options.model, "steps": options.steps, "rounds": options.rounds}
    for shape in options.shapes.split(","):
        work = make_work(
            shape, MODELS[options.model], prompts=options.prompts, group_size=options.group_size,
            steps=options.warmup + options.steps, beta=options.beta,
        )  # fmt: skip
        result[shape] = measure(work, peers, rounds=options.rounds, warmup=options.warmup)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
