"""Writes a made-up run directory through RunLogger, so that the report is tested against what a loop writes.

By hand: python -m tests.experiments.synthetic_run FOLDER, or with --sweep a sweep of three arms and five seeds.
"""

import json
import sys
from pathlib import Path

import numpy as np

from rl_jax.runs.logging import RunLogger
from rl_jax.runs.run_record import write_run_record

HOSTILE = '<script>alert("x")</script>'
PROMPTS = ["12+7-4=", "3*14=", "250-99+1=", f"{HOSTILE}=", "9*9-80="]


def step_metrics(step: int, steps: int, rng: np.random.Generator) -> dict[str, float]:
    """Plausible metrics of one step of GRPO."""
    progress = step / steps
    noise = rng.normal(0, 1, 8)
    reward = 0.3 + 0.55 * (1 - np.exp(-3 * progress)) + 0.03 * noise[0]
    return {
        "loss": -0.01 + 0.004 * noise[1],
        "reward/mean": reward,
        "reward/std": 0.4 - 0.2 * progress,
        "reward/correct": reward - 0.02,
        "reward/timeouts": 0,
        "reward/errors": 0,
        "kl/k1": 0.02 * progress + 0.001 * noise[2],
        "kl/k3": 0.021 * progress + 0.0003 * abs(noise[3]),
        "entropy": 1.1 - 0.7 * progress + 0.02 * noise[4],
        "clip/low": 0.01 + 0.004 * abs(noise[5]),
        "clip/high": 0.02 + 0.004 * abs(noise[5]),
        "ratio/first_max_dev": 2e-6,
        "sampler/gap_max": 3e-5,
        "sampler/ess": 0.999,
        "group/zero_variance": min(0.2 + 0.7 * progress, 0.95),
        "truncated": 0.05 * (1 - progress),
        "finished": 1 - 0.05 * (1 - progress),
        "completion_length": 6.5 + 0.3 * noise[6],
        "mask_occupancy": 0.6,
        "grad_norm": 0.8 + 0.1 * noise[7],
        "lr": 3e-4 * (1 - progress),
        "nonfinite/skipped": 0,
        "data/skipped_records": 0,
    }


def sample_rows(rng: np.random.Generator, solved: float) -> list[dict]:
    """Evaluation completions of the fixed prompts, a share of them correct."""
    rows = []
    for index, prompt in enumerate(PROMPTS):
        correct = rng.random() < solved
        wrong = {1: "", 3: f"{rng.integers(999)}\n{HOSTILE}\x07\ud800"}
        completion = "15" if correct else wrong.get(index, "7")
        rows.append(
            {
                "split": "eval",
                "prompt": prompt,
                "completion": completion,
                "reward": float(correct),
                "finished": index != 2,
                "truncated": index == 2,
            }
        )
    return rows


def group_view(rng: np.random.Generator, scale: float) -> dict:
    """A group of four completions with numbers on every token, the padding masked."""
    rows = []
    for index in range(4):
        tokens = [*"15 \n"[: 2 + index % 3], "<eos>", "<pad>", "<b>"][:6]
        size = len(tokens)
        mask = [token not in ("<pad>", "<b>") for token in tokens]
        rows.append(
            {
                "tokens": tokens,
                "mask": mask,
                "log_prob": -rng.random(size),
                "log_ratio": scale * rng.normal(size=size),
                "advantage": np.where(mask, (1.5, -0.5)[index % 2], 0.0),
                "entropy": rng.random(size),
                "reward": float(index % 2 == 0),
            }
        )
    return {"prompt": PROMPTS[0], "rows": rows}


def write_run(
    workdir: Path, *, steps: int = 120, seed: int = 0, learning_rate: float = 3e-4, **changes: dict[int, float]
) -> Path:
    """Writes a whole run. changes: metric (with "__" for "/") -> {step: value} to plant what a check must find."""
    rng = np.random.default_rng(seed)
    config = {"seed": seed, "optimizer": {"learning_rate": learning_rate}, "note": HOSTILE}
    command = ["python", "-m", "experiments.grpo", "--config=configs/tasks/arithmetic.py"]
    write_run_record(workdir, config=config, command=command, task="arithmetic", algorithm="grpo")
    with RunLogger(workdir, total_steps=steps, progress=False, tensorboard=False) as logger:
        for step in range(steps + 1):
            metrics = step_metrics(step, steps, rng)
            if step % 20 == 0:
                metrics["eval/pass@1"] = 0.3 + 0.5 * step / steps
                metrics["eval/reward"] = 0.35 + 0.5 * step / steps
            metrics |= {name.replace("__", "/"): at[step] for name, at in changes.items() if step in at}
            timings = {"rollout_s": 0.2, "reward_s": 0.05, "score_s": 0.08, "train_s": 0.3}
            timings |= {"step_s": 0.66 if step else 9.0, "tokens_per_s": 5200.0, "compile_count": 4 + (step > 0)}
            logger.log(step, metrics, timings)
            if step in (0, steps):
                logger.samples(step, sample_rows(rng, solved=step / steps))
                logger.group_view(step, group_view(rng, scale=0.001 if step == 0 else 0.2))
    return workdir


RATES = (0.0001, 0.001, 0.01)


def final_score(rate: float, seed: int) -> float:
    """What a seed of the made-up sweep ends at."""
    return 0.4 + 0.15 * RATES.index(rate) + 0.01 * seed**2


def write_sweep(folder: Path, *, seeds: int = 5, steps: int = 40, waiting: int = 0) -> Path:
    """Writes a sweep of three learning rates. waiting: how many of the last points have not been started."""
    points = []
    for rate in RATES:
        for seed in range(seeds):
            name = f"lr={rate},seed={seed}"
            overrides = {"optimizer.learning_rate": rate, "seed": seed}
            place = {"name": name, "workdir": f"points/{name}"}
            points.append({**place, "arm": f"lr={rate}", "seed": seed, "overrides": overrides})
    for point in points[: len(points) - waiting]:
        rate, seed = point["overrides"].values()
        late = {step: 0.01 for step in range(steps // 2, steps + 1)} if rate == RATES[2] else {}
        score = {step: final_score(rate, seed) * (0.2 + 0.8 * step / steps) for step in range(0, steps + 1, 4)}
        changes = {"entropy": late, "eval__pass@1": score, "eval/reward": score}
        write_run(folder / point["workdir"], steps=steps, seed=seed, learning_rate=rate, **changes)
    sweep = {
        "name": "learning_rates",
        "config": "configs/tasks/arithmetic.py",
        "program": "grpo",
        "sweep": ["lr", "seed"],
    }
    command = "python -m experiments.sweep --config=configs/tasks/arithmetic.py --sweep=lr,seed"
    sweep |= {"points": points, "command": command, "created": "2026-11-21T12:00:00+00:00"}
    (folder / "sweep.json").write_text(json.dumps(sweep))
    (folder / "tuning.json").write_text(json.dumps({"lr=0.001": {"trials": 12, "seeds": [100, 101]}}))
    return folder


if __name__ == "__main__":
    print((write_sweep if "--sweep" in sys.argv else write_run)(Path(sys.argv[1])))
