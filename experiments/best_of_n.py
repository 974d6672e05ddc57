"""Best-of-n: samples of a policy, picked by a reward model (or the verifier), and how the verifier scores the picks.

    python -m experiments.best_of_n --config=configs/preferences/best_of_n.py \
        --config.best_of_n.proxies=runs/reward_model

Who picks is best_of_n.proxies, the judges of config.judge (then best_of_n.proxies is empty), or else the verifier.
Writes WORKDIR/best_of_n.json (gold and proxy score as functions of n and its KL), best_of_n.md (the table), scores.npz
(the scores of every sample) and rankings.jsonl (the samples, ranked by the verifier: data for
experiments.reward_model). The policy is that of config.init_from, or the config's own model, after its SFT in
WORKDIR/sft if the config has one.
"""

import json
import pathlib

import jax
import numpy as np

from experiments.parts import flags, stops
from experiments.parts.encoding import encode_prompts
from experiments.parts.judges import self_judging
from experiments.parts.judges.base import row_prompts
from experiments.parts.judges.trained import RewardModel, load_reward_model
from experiments.parts.judging import Judged, judge, need_reward
from experiments.parts.prompt_limits import prompt_of, say_skipped
from experiments.parts.rewards import TASK, make_rewards
from experiments.parts.run import claim, record_run
from experiments.parts.setup import Setup, check_rows, fix_date, load_params, make_setup, sampling_of
from experiments.parts.training import jit_generate
from experiments.parts.warm_start import warm_start
from rl_jax.core.binding import bind
from rl_jax.credit import ensembles
from rl_jax.data import pipeline
from rl_jax.data.writing import write_arrays
from rl_jax.rewards import benchmarks
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.runs.logging import write_atomically
from rl_jax.stats import bootstrap_mean
from rl_jax.tasks import Task
from rl_jax.training import checkpoint


def sample(setup: Setup, params, rewards, stop: checkpoint.StopSignal | None = None) -> list[Judged]:
    """Samples `samples` completions per prompt and scores them with the task's verifier, batch by batch.

    Args:
      setup: of the run.
      params: of the policy.
      rewards: Rows -> RewardResult (make_rewards).
      stop: asked before each batch. None: a signal ends the process.

    Returns:
      One Judged per batch of prompts, without the rows that fill up the last batch; [] if a signal came before.
    """
    config, settings = setup.config, setup.config.best_of_n
    generate = jit_generate(
        make_generate(
            setup.model,
            completion_length=config.rollout.completion_length,
            group_size=settings.samples,
            sampling=sampling_of(config.rollout),
            eos_ids=setup.task.tokenizer.eos_ids,
            pad_id=setup.task.tokenizer.pad_id,
        ),
        setup,
    )
    source, key, result = setup.task.data_source(settings.split), jax.random.key(config.seed + 2), []
    say_skipped(config, source)
    for index, records in enumerate(pipeline.eval_batches(source, settings.batch_size, settings.num_prompts)):
        if stop and stop.received:
            return []
        full = records + records[:1] * (settings.batch_size - len(records))  # one shape, one compilation
        rollout = generate(params, *encode_prompts(setup, full), jax.random.fold_in(key, index))
        kept = len(records) * settings.samples
        result.append(judge(setup, rewards, jax.tree.map(lambda x, n=kept: np.asarray(x)[:n], rollout), records))
    return result


def need_gold(setup: Setup) -> None:
    """Raises ValueError if there are judges, but what they pick is not graded by the task's own reward."""
    config = setup.config
    if config.judge and TASK not in config.reward.terms and (config.reward.terms or setup.task.reward_fn is None):
        raise ValueError(
            "best_of_n needs the task's own reward, to grade what the judges pick: "
            + (
                f"task.name={config.task.name!r} has none, name one: --config.reward.function=my_rewards:score"
                if setup.task.reward_fn is None
                else "leave reward.terms empty, or add {'task': {'fn': 'task', 'weight': 0.0}}"
            )
        )


def need_two_prompts(setup: Setup) -> None:
    """Raises ValueError if there are fewer than two prompts, over which the table has an interval."""
    settings = setup.config.best_of_n
    found = len(setup.task.data_source(settings.split))
    if min(settings.num_prompts, found) < 2:
        raise ValueError(
            f"best_of_n.num_prompts={settings.num_prompts}, and the split {settings.split!r} has {found}: "
            "the interval over prompts needs 2 or more of both"
        )


def gold_scores(judged: list[Judged], config) -> np.ndarray:
    """The verifier's rewards, float [rows]: the task's own if there are judges."""
    if not config.judge:
        return np.concatenate([part.result.rewards for part in judged])
    return np.concatenate([part.result.components[TASK] for part in judged])


def proxy_scores(judged: list[Judged], model: RewardModel | None) -> np.ndarray:
    """Each member's score of each sample, float [rows, M].

    Args:
      judged: the samples, batch by batch.
      model: a reward model of M members. None takes the rewards, of the judges or the verifier, M = 1.

    Returns:
      float [rows, M]. An empty completion gets the member's lowest score.
    """
    if model is None:
        return np.concatenate([part.result.rewards for part in judged])[:, None]
    texts = [
        (prompt, text)
        for part in judged
        for prompt, text in zip(row_prompts(part.records, model.tokenizer), part.completions, strict=True)
    ]
    # An empty completion has no token to read a reward at: it gets the lowest score.
    kept = [place for place, (_, text) in enumerate(texts) if text.strip()]
    members = model._replace(combine=lambda rewards: rewards)
    scores = members.score_texts([texts[i][0] for i in kept], [texts[i][1] for i in kept])
    result = np.full((len(texts), scores.shape[1]), scores.min(axis=0))
    result[kept] = scores
    return result


def combined(members: np.ndarray, config) -> np.ndarray:
    """Combines the members' scores by config.best_of_n.combine: float [rows, M] -> float [rows]."""
    return np.asarray(bind(config.best_of_n.combine.to_dict(), ensembles)(jax.numpy.asarray(members, np.float32)))


def curve(gold: np.ndarray, proxy: np.ndarray, sizes) -> list[dict[str, float]]:
    """One row per n: exact means over all subsets of size n, and gold's 95 % bootstrap interval over prompts.

    Args:
      gold: float [prompts, samples]. The verifier's rewards.
      proxy: float [prompts, samples]. The scores that pick.
      sizes: the values of n.

    Returns:
      One dict per n: the fields of benchmarks.best_of_n, and gold_low and gold_high.
    """
    rows = []
    for n, result in zip(sizes, benchmarks.best_of_n(proxy, gold, sizes), strict=True):
        by_prompt = np.array(
            [benchmarks.best_of_n(p[None], g[None], (n,))[0].gold for p, g in zip(proxy, gold, strict=True)]
        )
        interval = bootstrap_mean(by_prompt, within=(0.0, 1.0) if np.isin(gold, (0.0, 1.0)).all() else None)
        rows.append(result._asdict() | {"gold_low": interval.low, "gold_high": interval.high})
    return rows


def table(rows: list[dict[str, float]]) -> str:
    """The rows as a Markdown table."""
    head = "| n | KL bound (nats) | gold | 95 % of prompts | proxy |\n|---|---|---|---|---|\n"
    line = "| {n} | {kl:.3f} | {gold:.4f} | {gold_low:.4f} to {gold_high:.4f} | {proxy:.4f} |\n"
    return head + "".join(line.format(**row) for row in rows)


def rankings(judged: list[Judged], gold: np.ndarray, samples: int, noise: float, seed: int) -> bytes:
    """The samples as lines of preferences.jsonl's kind "rankings", the best of each prompt first.

    Equal texts are kept once. A prompt needs two samples with different rewards.

    Args:
      judged: the samples, batch by batch.
      gold: float [rows]. The verifier's rewards.
      samples: samples per prompt.
      noise: fraction of prompts whose order is reversed.
      seed: of the noise.

    Returns:
      JSON lines.
    """
    rng, lines, first = np.random.default_rng(seed), [], 0
    for part in judged:
        for start in range(0, len(part.completions), samples):
            grades = {}
            for i in range(start, start + samples):
                if part.completions[i].strip():
                    grades.setdefault(part.completions[i], float(gold[first + i]))
            turned = rng.random() < noise
            order = sorted(grades, key=lambda text: (grades[text], text), reverse=not turned)
            rewards = sorted(grades.values(), reverse=True)
            if len(order) > 1 and rewards[0] > rewards[-1]:
                record = {"prompt": prompt_of(part.records[start]), "responses": order, "rewards": rewards}
                lines.append(json.dumps(record) + "\n")
        first += len(part.completions)
    return "".join(lines).encode()


def _proxies(config) -> list[str]:
    return [name for name in config.best_of_n.proxies.split(",") if name]


def write(config, workdir: pathlib.Path, judged: list[Judged], gold: np.ndarray, members: np.ndarray, rows) -> None:
    """Writes the files of a complete run.

    Args:
      config: of the run.
      workdir: its folder.
      judged: the samples, batch by batch.
      gold: float [prompts, samples]. The verifier's rewards.
      members: float [rows, M]. Each member's scores.
      rows: of the table.
    """
    verdicts = self_judging.report([part.result.components for part in judged], gold)
    result = {"rows": rows, "proxies": _proxies(config)} | ({"verdicts": verdicts} if verdicts else {})
    write_atomically(workdir / "best_of_n.json", (json.dumps(result, indent=2) + "\n").encode())
    write_atomically(workdir / "best_of_n.md", table(rows).encode())
    lines = [{"step": row["n"], "eval/task": row["gold"], "eval/proxy": row["proxy"]} for row in rows]
    write_atomically(workdir / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    noisy = rankings(judged, gold.ravel(), gold.shape[1], config.best_of_n.label_noise, config.seed)
    write_atomically(workdir / "rankings.jsonl", noisy)
    write_arrays(workdir / "scores.npz", {"gold": gold, "members": members.reshape(*gold.shape, -1)})
    write_atomically(workdir / "final.json", (json.dumps({"step": 0}) + "\n").encode())  # marks the run as complete


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> list[dict[str, float]]:
    """Samples, picks, writes. Returns the table's rows, none if a signal came before. task: replaces config.task."""
    claim(config, workdir, "best_of_n")
    settings, setup = config.best_of_n, make_setup(config, task)
    need_reward(setup)
    need_gold(setup)
    need_two_prompts(setup)
    check_rows(setup, **{"best_of_n.batch_size": settings.batch_size})
    record_run(config, workdir, "best_of_n", setup.mesh.devices.flat)
    fix_date(setup, workdir)
    model = load_reward_model(folders) if (folders := _proxies(config)) else None
    stop = stops.shared() or checkpoint.StopSignal()
    # It samples anew at every start, so of the newest checkpoint, not of that of its first start.
    params = load_params(setup, config.init_from) if config.init_from else warm_start(setup, workdir, stop)
    if params is None:
        return []
    with make_rewards(setup) as rewards:
        judged = sample(setup, params, rewards, stop)
    if not judged:  # nothing of the samples is kept
        stops.note()
        return []
    members = proxy_scores(judged, model)
    gold = gold_scores(judged, config).reshape(-1, settings.samples)
    proxy = combined(members, config).reshape(gold.shape)
    rows = curve(gold, proxy, settings.sizes)
    write(config, workdir, judged, gold, members, rows)
    if config.log.progress:
        print(table(rows), end="")
    return rows


if __name__ == "__main__":
    flags.main(run)
