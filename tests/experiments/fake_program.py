"""A program that trains nothing: it counts, logs and resumes as the real ones do, in a second and without jax.

config.fake.fail names what goes wrong: "" nothing, "always" or "once" (an error), "stop" (a run that ends too soon).
config.fake.gate: a file that runs of seeds above 0 wait for after their first step; "" is none.
"""

import argparse
import json
import pathlib
import signal
import sys
import time

from experiments.sweep.points import load_config, set_fields
from rl_jax.runs.logging import RunLogger, read_jsonl, write_atomically
from rl_jax.runs.run_record import write_run_record


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    options, rest = parser.parse_known_args()
    config = load_config(options.config)
    fields = dict(text.removeprefix("--config.").split("=", 1) for text in rest)
    gate = fields.pop("fake.gate", "")
    overrides = {name: float(value) if "." in value else int(value) for name, value in fields.items()}
    config = set_fields(config, overrides | {"fake.gate": gate})
    workdir, stopped = options.workdir, []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.append(True))
    write_run_record(workdir, config=config.to_dict(), command=sys.argv, task="count", algorithm="fake")
    again = (workdir / "metrics.jsonl").exists()
    step = len(read_jsonl(workdir / "metrics.jsonl")) if again else 0
    if config.fake.fail == "always" or (config.fake.fail == "once" and not again):
        with RunLogger(workdir, total_steps=1, progress=False, tensorboard=False) as log:
            log.log(0, {"loss": 1.0})
        raise FloatingPointError(f"seed {config.seed} was told to fail")
    with RunLogger(
        workdir, total_steps=config.fake.steps, progress=False, tensorboard=False, resume_step=step or None
    ) as log:
        while step < config.fake.steps and not stopped:
            step += 1
            log.log(step, {"eval/return": step * config.fake.lr + config.seed}, {"step_s": 0.5})
            give_up = time.monotonic() + 900.0  # of a test that has died
            while gate and config.seed and not pathlib.Path(gate).exists() and not stopped:
                if time.monotonic() > give_up:
                    raise TimeoutError(f"{gate} has not come")
                time.sleep(0.02)
    if step == config.fake.steps and config.fake.fail != "stop":
        write_atomically(workdir / "final.json", json.dumps({"step": step}).encode())


if __name__ == "__main__":
    main()
