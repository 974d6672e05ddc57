"""The frontier: held-out reward against KL(pi || ref) of offline and online methods, as a table and a picture.

    python -m experiments.frontier [--config=configs/preferences/frontier.py:smoke] [--workdir=runs/frontier]

All of config.arms share one process and one reference. The offline arms train on the same pairs, which are cached in
WORKDIR/candidates-KEY.npz under a hash of their settings. The online arms are runs of experiments.grpo and
experiments.ppo in WORKDIR/arms. A finished arm is stored in WORKDIR/frontier.json and is not run again, unless its
config has changed. The results are frontier.md and frontier.svg.
"""

import functools
import hashlib
import json
import math
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments import grpo, online_dpo, ppo
from experiments.frontier import curves
from experiments.parts import flags, preference_steps, stops
from experiments.parts.clock import Clock
from experiments.parts.encoding import encode_prompts
from experiments.parts.judging import judge
from experiments.parts.preference_data import PreferencePacker
from experiments.parts.prompts import make_prompts
from experiments.parts.rewards import Rewards, make_rewards
from experiments.parts.sample_candidates import Candidates, Source, make_judge
from experiments.parts.setup import Setup, make_setup
from experiments.parts.training import jit_generate, jit_score, to_mesh
from experiments.parts.warm_start import warm_start
from rl_jax.core.types import Params, PreferenceBatch, TokenBatch
from rl_jax.data import pipeline
from rl_jax.data.writing import write_arrays
from rl_jax.rewards.benchmarks import best_of_n
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.runs import disk
from rl_jax.runs.logging import write_atomically
from rl_jax.runs.run_record import is_complete
from rl_jax.training import checkpoint
from rl_jax.training.scoring import make_score

CONFIG = pathlib.Path(__file__).parents[2] / "configs" / "preferences" / "frontier.py"
ONLINE = {"grpo": grpo.run, "ppo": ppo.run}


def arm_config(config, name: str):
    """The config of one arm: config with the arm's fields, and without the fields that its program does not have.

    Raises:
      ValueError: if the arm, or a field of it, does not exist.
    """
    if name not in config.arms:
        raise ValueError(f"frontier.arms: {name!r} is none of {', '.join(config.arms)}")
    arm = config.arms[name].to_dict()
    result = ConfigDict(config.to_dict())  # unlocked, unlike the one from the command line
    online = arm["program"] != "dpo"
    if online:
        for group, fields in config.programs[arm["program"]].items():
            result[group] = ConfigDict(fields.to_dict())  # replaces the offline arms'
    result.program = arm["program"]
    for group in ("arms", "frontier", "programs"):
        del result[group]
    for group, fields in arm["fields"].items():
        for field, value in fields.items():
            if field not in result[group]:
                raise ValueError(f"arms.{name}: config.{group} has no field {field!r}")
            result[group][field] = value
    result.name = name
    if online:
        # No evaluation of its own: the frontier measures its checkpoints.
        result.eval.update(every=result.train.steps + 1, num_prompts=8, samples_per_prompt=1, batch_size=8)
        kept = measured_steps(result.train.steps, config.frontier.points)
        result.checkpoint.update(every=max([1, *kept[:1]]), keep=len(kept) + 1)
    return result.lock()


def measured_steps(total: int, points: int) -> list[int]:
    """The steps at which an arm is measured: at most `points`, evenly spaced up to the last one, the arm's end.

    Args:
      total: steps or updates of the arm; there is none to measure if it has none.
      points: config.frontier.points.
    """
    every = max(-(-total // points), 1)
    return [*range(every, total, every), *[total] * (total > 0)]


def digest(value) -> str:
    """A short hash of a JSON-able value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def shared_settings(config, reference: Params) -> list:
    """What all samples of a frontier and their rewards depend on."""
    groups = (config.task, config.rollout, config.reward, config.judge)
    return [checkpoint.checksum(reference), config.seed, *(group.to_dict() for group in groups)]


def make_measure(setup: Setup, scorer: Rewards, reference: Params) -> Callable:
    """Makes measure(params) -> {"reward", "reward_se", "kl", "kl_se", "kl_per_token", "length"}.

    It samples eval.samples_per_prompt completions for each of the first eval.num_prompts held-out prompts: the same
    prompts and random numbers at every call.

    Args:
      setup: of the run.
      scorer: Rows -> RewardResult.
      reference: params of the reference policy.
    """
    settings, length = setup.config.eval, setup.config.rollout.completion_length
    generate = lockstep_sampler(setup, settings.samples_per_prompt)
    score = jit_score(make_score(setup.model, completion_length=length, chunk=setup.config.score.chunk), setup)
    source = setup.task.data_source("test")
    key = jax.random.key(setup.config.seed + 1)

    def measure(params: Params) -> dict[str, float]:
        rewards, ratios, masks = [], [], []
        for index, records in enumerate(pipeline.eval_batches(source, settings.batch_size, settings.num_prompts)):
            full = records + records[:1] * (settings.batch_size - len(records))
            rollout = generate(params, *encode_prompts(setup, full), jax.random.fold_in(key, index))
            # Temperature 1 without truncation: the sampling distribution is the policy itself.
            ratio = rollout.raw_log_probs - score(reference, rollout.batch).log_probs
            kept = len(records) * settings.samples_per_prompt
            rollout, ratio = jax.tree.map(lambda x, n=kept: np.asarray(x)[:n], (rollout, ratio))
            judged = judge(setup, scorer, rollout, records)
            rewards.append(judged.result.rewards)
            ratios.append(ratio)
            masks.append(judged.rollout.completion_mask)  # ends at stop strings, as the text that was scored
        rewards, mask = np.concatenate(rewards), np.concatenate(masks)
        samples = settings.samples_per_prompt
        return {
            "reward": float(rewards.mean(dtype=np.float64)),
            "reward_se": curves.standard_error(rewards, samples),
            **curves.sequence_kl(np.concatenate(ratios), mask, samples),
            "length": float(mask.sum(axis=1).mean()),
        }

    return measure


def lockstep_sampler(setup: Setup, group_size: int) -> Callable:
    """generate(params, tokens, prompt_mask, key) -> Rollout at temperature 1, for measurements."""
    tokenizer = setup.task.tokenizer
    options = dict(eos_ids=tokenizer.eos_ids, pad_id=tokenizer.pad_id)
    length = setup.config.rollout.completion_length
    return jit_generate(make_generate(setup.model, completion_length=length, group_size=group_size, **options), setup)


def best_of_points(setup: Setup, scorer: Rewards, params: Params) -> list[dict]:
    """The reference's best of n held-out samples by the gold reward itself, at KL = log n - (n - 1) / n."""
    settings, sizes = setup.config.eval, tuple(setup.config.frontier.best_of)
    generate = lockstep_sampler(setup, max(sizes))
    source = setup.task.data_source("test")
    size = max(settings.batch_size * settings.samples_per_prompt // max(sizes), 1)
    rewards = []
    for index, records in enumerate(pipeline.eval_batches(source, size, settings.num_prompts)):
        full = records + records[:1] * (size - len(records))
        rollout = generate(params, *encode_prompts(setup, full), jax.random.fold_in(jax.random.key(1), index))
        rewards.append(judge(setup, scorer, rollout, full).result.rewards.reshape(size, -1)[: len(records)])
    rewards = np.concatenate(rewards)
    points = []
    for point in best_of_n(rewards, rewards, sizes):
        # Only prompts are independent.
        by_prompt = [best_of_n(row[None], row[None], [point.n])[0].gold for row in rewards]
        points.append(
            {
                "method": "best of n",
                "setting": f"n {point.n}",
                "step": 0,
                "reward": point.gold,
                "reward_se": curves.standard_error(by_prompt),
                "kl": point.kl,
                "kl_se": 0.0,
                "kl_per_token": point.kl / setup.config.rollout.completion_length,
            }
        )
    return points


def make_candidates(setup: Setup, scorer: Rewards, params: Params, workdir: pathlib.Path):
    """The reference's samples from which the offline arms choose their pairs; read from disk if cached."""
    config = setup.config
    key = digest([*shared_settings(config, params), config.sample.to_dict()])
    path = workdir / f"candidates-{key}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as stored:
            batch = TokenBatch(stored["tokens"], stored["positions"], stored["segment_ids"])
            rest = {name: stored[name] for name in Candidates._fields if name != "batch"}
        return Candidates(batch=batch, **rest)
    prompts = make_prompts(setup, setup.task.data_source("train"), batch_size=config.sample.prompts_per_batch)
    draw = Source(setup, make_judge(setup, scorer), prompts)
    candidates, _ = draw(params, params, jax.random.key(config.seed), Clock())
    arrays = candidates._asdict()
    arrays |= {name: x for name, x in arrays.pop("batch")._asdict().items() if x is not None}
    write_arrays(path, arrays)
    return candidates


def train_offline(
    setup: Setup,
    candidates: Callable,
    reference: Params,
    measure: Callable,
    points: int,
    stop: checkpoint.StopSignal,
) -> list[dict]:
    """Trains an offline arm: the method of setup.config.algorithm on pairs of candidates().

    Args:
      setup: of the arm.
      candidates: () -> the reference's samples.
      reference: params of the reference policy.
      measure: as made by make_measure.
      points: how many checkpoints to measure.
      stop: whether a signal came.

    Returns:
      One dict per point; empty if a signal stopped it.
    """
    config = setup.config
    objective = preference_steps.make_objective(config)
    select_key, order_key = jax.random.split(jax.random.key(config.seed))
    programs, state = preference_steps.build(setup, jax.tree.map(jnp.copy, reference))
    batch = online_dpo.choose(config, candidates(), select_key, objective.needs())
    batch = in_parts(
        config,
        batch,
        lambda part: online_dpo.with_references(setup, programs, part, objective.reference, reference, reference),
    )
    packer = PreferencePacker(setup)
    updates = config.train.epochs * (len(batch.present) // config.train.batch_size)
    measured, result = measured_steps(updates, points), []
    for step, part in enumerate(online_dpo.minibatches(config, batch, order_key), start=1):
        if stop.received:
            return []
        state, part = preference_steps.add_batch_statistics(setup, programs, state, part, reference)
        part = to_mesh(setup, packer(part, config.train.micro_batches))
        state, metrics = programs.train_step(state, part, reference)
        if step in measured:
            result.append({"step": step} | measure(state.params) | {"loss": float(metrics["loss"])})
    return result


def in_parts(config, batch: PreferenceBatch, fn: Callable) -> PreferenceBatch:
    """fn(batch) -> batch, train.batch_size rows at a time: no forward is larger than a train step's."""
    count = batch.present.shape[0] // config.train.batch_size
    split = [jax.tree.map(lambda x, i=i: np.array_split(x, count)[i], batch) for i in range(count)]
    return jax.tree.map(lambda *xs: np.concatenate(xs), *(jax.device_get(fn(part)) for part in split))


def train_online(
    setup: Setup, program: str, workdir: pathlib.Path, measure: Callable, points: int, stop: checkpoint.StopSignal
) -> list[dict]:
    """Trains an online arm: a run of its program, then measures its checkpoints.

    Args:
      setup: of the arm.
      program: "grpo" or "ppo".
      workdir: the arm's folder.
      measure: as made by make_measure.
      points: how many checkpoints to measure.
      stop: unused; the program has it from stops.shared.

    Returns:
      One dict per point; empty if a signal stopped it.
    """
    config = setup.config
    if config.sft.steps and not config.init_from:  # the reference, in a folder next to the arms'
        config = ConfigDict(config.to_dict() | {"init_from": str(workdir.parents[1] / "sft")}).lock()
    ONLINE[program](config, workdir)
    if not is_complete(workdir):
        return []
    like = jax.tree.map(
        lambda s, placed: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=placed),
        setup.param_shapes,
        setup.param_shardings,
    )
    checkpoints = checkpoint.Checkpointer(workdir / "checkpoints", every=1, keep=None)
    result = []
    with checkpoints:
        for step in measured_steps(config.train.steps, points):
            params = checkpoints.restore({"params": like}, step)[0]["params"]
            result.append({"step": step} | measure(params))
    return result


class Results:
    """WORKDIR/frontier.json: name -> {"key", "seconds", "points"} of finished arms.

    Those that were finished with other settings are neither taken nor in the table; they stay until they are replaced.
    """

    def __init__(self, config, workdir: pathlib.Path, keys: Mapping[str, str]):
        """keys: name -> the hash of its settings, now."""
        self._config, self._workdir, self._keys = config, workdir, keys
        path = workdir / "frontier.json"
        self.found = json.loads(path.read_text()) if path.exists() else {}

    def has(self, name: str) -> bool:
        """Whether `name` was finished with the settings of now."""
        return name in self._keys and self.found.get(name, {}).get("key") == self._keys[name]

    def add(self, name: str, points: list[dict], seconds: float) -> None:
        """Adds one and rewrites all files."""
        self.found[name] = {"key": self._keys[name], "seconds": round(seconds, 1), "points": points}
        write_atomically(self._workdir / "frontier.json", (json.dumps(self.found, indent=1) + "\n").encode())
        self.write()
        last = points[-1]
        print(f"{name:16} {seconds:6.1f} s  reward {last['reward']:.3f}  KL {last['kl']:8.3f} nats", flush=True)

    def write(self) -> None:
        """Writes frontier.md and frontier.svg of the config's arms, once one is finished."""
        names = [name for name in ("best_of_n", *self._config.frontier.arms) if self.has(name)]
        points = [point for name in names for point in self.found[name]["points"]]
        if not points:
            return
        base = self.found["reference"]["points"][0]
        minutes = sum(self.found[name]["seconds"] for name in ("reference", *names)) / 60
        settings = self._config.eval
        text = (
            f"Held-out reward within a KL budget (nats per sequence): {settings.num_prompts} prompts x "
            f"{settings.samples_per_prompt} samples. The reference: {base['reward']:.3f} ± {base['reward_se']:.3f}. "
            f"Measured in {minutes:.1f} minutes.\n\n{curves.table(points, self._config.frontier.budgets)}"
        )
        if lost := [f"{p['method']} ({p['setting']}, step {p['step']})" for p in points if not curves.is_finite(p)]:
            text += f"\nLeft out, as their reward or KL is not finite: {', '.join(lost)}.\n"
        write_atomically(self._workdir / "frontier.md", text.encode())
        baseline = base["reward"] if math.isfinite(base["reward"]) else None
        picture = curves.picture(points, title=self._config.frontier.title, baseline=baseline)
        write_atomically(self._workdir / "frontier.svg", picture.encode())


def run(config, workdir: pathlib.Path) -> None:
    """Runs everything that is missing, arm by arm."""
    disk.lock(workdir)
    # Arms share most of their compiled programs. The folder is removed with the process, damaged entries included.
    with tempfile.TemporaryDirectory(prefix="frontier-xla-") as compiled:
        jax.config.update("jax_compilation_cache_dir", compiled)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
        setup = make_setup(config)
        with make_rewards(setup) as scorer, stops.sharing(checkpoint.StopSignal()) as stop:
            reference = warm_start(setup, workdir, None)  # a run of its own, with the date of its start
            if reference is not None:
                run_arms(setup, scorer, reference, workdir, stop)


def run_arms(
    setup: Setup, scorer: Rewards, reference: Params, workdir: pathlib.Path, stop: checkpoint.StopSignal
) -> None:
    """Measures the reference, its best of n, and every arm; skips what was finished with the same settings.

    stop: asked before each; the runs of online arms have it from stops.shared.
    """
    config = setup.config
    measure = make_measure(setup, scorer, reference)
    candidates = functools.cache(lambda: make_candidates(setup, scorer, reference, workdir))
    shared = [*shared_settings(config, reference), config.eval.to_dict()]
    base = {"method": "reference", "setting": "", "step": 0}
    work = {
        "reference": (shared, lambda stop: [base | measure(reference)]),
        "best_of_n": ([*shared, list(config.frontier.best_of)], lambda stop: best_of_points(setup, scorer, reference)),
    }
    for name in config.frontier.arms:
        arm, settings = config.arms[name], arm_config(config, name)
        of_arm = setup._replace(config=settings)
        if arm.program in ONLINE:
            # A run that started from another reference is another run.
            folder = workdir / "arms" / f"{name}-{digest([shared[0], settings.to_dict()])}"
            made_of = functools.partial(train_online, of_arm, arm.program, folder, measure, config.frontier.points)
        else:
            made_of = functools.partial(train_offline, of_arm, candidates, reference, measure, config.frontier.points)
        labels = {"method": arm.method, "setting": arm.setting}
        work[name] = ([*shared, config.frontier.points, settings.to_dict()], labelled(labels, made_of))
    results = Results(config, workdir, {name: digest(made_from) for name, (made_from, _) in work.items()})
    for name, (_, points_of) in work.items():
        if results.has(name):
            continue
        start = time.perf_counter()
        points = [] if stop.received else points_of(stop)
        if not points:  # a signal came: finished arms are stored, and the same command resumes
            return stops.note()
        results.add(name, points, time.perf_counter() - start)
    results.write()
    print((workdir / "frontier.md").read_text())


def labelled(labels: dict, points_of: Callable) -> Callable:
    """points_of with `labels` on each point."""
    return lambda stop: [labels | point for point in points_of(stop)]


def main() -> None:
    """The command."""
    if not any(argument.lstrip("-").split("=")[0] == "config" for argument in sys.argv[1:]):
        sys.argv.insert(1, f"--config={CONFIG}")  # before the flags that override its fields
    flags.main(run)
