"""Best-of-n: samples of a policy, chosen by a reward model (or a verifier), and what the verifier says of the choice.

    python -m experiments.best_of_n --config=configs/preferences/best_of_n.py \
        --config.best_of_n.proxies=runs/reward_model

Writes WORKDIR/best_of_n.json (gold and proxy score against n and its KL), best_of_n.md (the table), scores.npz (every
sample's scores) and rankings.jsonl (the samples, graded by the verifier: data for experiments.reward_model). The
policy is config.init_from's, or the config's own model, after its SFT in WORKDIR/sft where the config has one.
"""

import json
import pathlib

import jax
import numpy as np

from experiments.parts import flags
from experiments.parts.encoding import encode_prompts
from experiments.parts.judges import RewardModel, load_reward_model
from experiments.parts.judging import Judged, judge, make_pool
from experiments.parts.run import record_run
from experiments.parts.setup import Setup, check_rows, make_setup, sampling_of
from experiments.parts.training import jit_generate
from experiments.parts.warm_start import warm_start
from rl_jax.core.binding import bind
from rl_jax.credit import ensembles
from rl_jax.data import pipeline
from rl_jax.rewards import benchmarks
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.runs.logging import write_atomically
from rl_jax.stats import bootstrap_mean
from rl_jax.tasks import Task


def sample(setup: Setup, params, pool) -> list[Judged]:
    """`samples` completions of each prompt, judged by the task's verifier, batch by batch."""
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
    source, key, found = setup.task.data_source(settings.split), jax.random.key(config.seed + 2), []
    for index, records in enumerate(pipeline.eval_batches(source, settings.batch_size, settings.num_prompts)):
        full = records + records[:1] * (settings.batch_size - len(records))  # one shape, one compilation
        rollout = generate(params, *encode_prompts(setup, full), jax.random.fold_in(key, index))
        kept = len(records) * settings.samples
        found.append(judge(setup, pool, jax.tree.map(lambda x, n=kept: np.asarray(x)[:n], rollout), records))
    return found


def proxy_scores(judged: list[Judged], model: RewardModel | None) -> np.ndarray:
    """float [rows, M]: each member's score of each sample; the verifier's own where there is no model."""
    if model is None:
        return np.concatenate([part.result.rewards for part in judged])[:, None]
    texts = [
        (record["prompt"], text) for part in judged for record, text in zip(part.records, part.completions, strict=True)
    ]
    # An empty completion has no token to read a reward at: the worst there is.
    kept = [place for place, (_, text) in enumerate(texts) if text.strip()]
    members = model._replace(score=model.members)
    scores = members.score_texts([texts[i][0] for i in kept], [texts[i][1] for i in kept])
    found = np.full((len(texts), scores.shape[1]), scores.min(axis=0))
    found[kept] = scores
    return found


def combined(members: np.ndarray, config) -> np.ndarray:
    """float [rows]: the members as one, by config.best_of_n.combine."""
    return np.asarray(bind(config.best_of_n.combine.to_dict(), ensembles)(jax.numpy.asarray(members, np.float32)))


def curve(gold: np.ndarray, proxy: np.ndarray, sizes) -> list[dict[str, float]]:
    """One row for each n: exact means over all subsets, and the 95 % bootstrap interval over prompts of gold's.

    gold, proxy: float [prompts, samples].
    """
    rows = []
    for n, found in zip(sizes, benchmarks.best_of_n(proxy, gold, sizes), strict=True):
        by_prompt = np.array(
            [benchmarks.best_of_n(p[None], g[None], (n,))[0].gold for p, g in zip(proxy, gold, strict=True)]
        )
        interval = bootstrap_mean(by_prompt)
        rows.append(found._asdict() | {"gold_low": interval.low, "gold_high": interval.high})
    return rows


def table(rows: list[dict[str, float]]) -> str:
    """The rows as a Markdown table."""
    head = "| n | KL bound (nats) | gold | 95 % of prompts | proxy |\n|---|---|---|---|---|\n"
    line = "| {n} | {kl:.3f} | {gold:.4f} | {gold_low:.4f} to {gold_high:.4f} | {proxy:.4f} |\n"
    return head + "".join(line.format(**row) for row in rows)


def rankings(judged: list[Judged], samples: int, noise: float, seed: int) -> bytes:
    """The samples as lines of preferences.jsonl's kind "rankings", the best of each prompt first.

    noise: the share of prompts whose order is turned round. Equal texts are kept once; a prompt needs two that differ.
    """
    rng, lines = np.random.default_rng(seed), []
    for part in judged:
        for start in range(0, len(part.completions), samples):
            grades = {}
            for i in range(start, start + samples):
                if part.completions[i].strip():
                    grades.setdefault(part.completions[i], float(part.result.rewards[i]))
            turned = rng.random() < noise
            order = sorted(grades, key=lambda text: (grades[text], text), reverse=not turned)
            rewards = sorted(grades.values(), reverse=True)
            if len(order) > 1 and rewards[0] > rewards[-1]:
                record = {"prompt": part.records[start]["prompt"], "responses": order, "rewards": rewards}
                lines.append(json.dumps(record) + "\n")
    return "".join(lines).encode()


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> list[dict[str, float]]:
    """Samples, chooses, writes; the rows of the table, none if a signal ended the SFT. task: in place of
    config.task's."""
    settings = config.best_of_n
    setup = make_setup(config, task)
    check_rows(setup, **{"best_of_n.batch_size": settings.batch_size})
    record_run(config, workdir, "best_of_n", setup.mesh.devices.flat)
    params = warm_start(setup, workdir, None)
    if params is None:
        return []
    folders = [name for name in settings.proxies.split(",") if name]
    model = load_reward_model(folders) if folders else None
    with make_pool(setup) as pool:
        judged = sample(setup, params, pool)
    members = proxy_scores(judged, model)
    gold = np.concatenate([part.result.rewards for part in judged]).reshape(-1, settings.samples)
    proxy = combined(members, config).reshape(gold.shape)
    rows = curve(gold, proxy, settings.sizes)
    write_atomically(
        workdir / "best_of_n.json", (json.dumps({"rows": rows, "proxies": folders}, indent=2) + "\n").encode()
    )
    write_atomically(workdir / "best_of_n.md", table(rows).encode())
    noisy = rankings(judged, settings.samples, settings.label_noise, config.seed)
    write_atomically(workdir / "rankings.jsonl", noisy)
    np.savez(workdir / "scores.npz", gold=gold, members=members.reshape(*gold.shape, -1))
    write_atomically(workdir / "final.json", (json.dumps({"step": 0}) + "\n").encode())  # it is complete
    if config.log.progress:
        print(table(rows), end="")
    return rows


if __name__ == "__main__":
    flags.main(run)
