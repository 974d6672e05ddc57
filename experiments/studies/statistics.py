"""What happens to a number between the runs and a paper's table: which statistic, which seeds, which run."""

import gzip
import json
import pathlib
from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.base import Outcome, per_seed, seed_keys
from rl_jax import stats
from rl_jax.advantages import leave_one_out
from rl_jax.core.binding import bind
from rl_jax.losses.policy import clipped_surrogate


def score_table(path: str, other: str, baselines: Mapping[str, Sequence[float]], share: float) -> np.ndarray:
    """Final scores of real runs, (score - low) / (high - low).

    A run's score is the mean of its last `share` of the steps, counted from the last step of these runs and of those in
    `other`; a run without scores there gets its task's mean. With share 1 / 50 this gives the tables of arXiv
    2301.04104.

    Args:
      path: JSON list of {task, seed, xs, ys}, as published by danijar/dreamerv3.
      other: path of the runs compared with.
      baselines: task (without its suite's name) -> low, high; 0 and 1000 for a missing task.
      share: fraction of the steps.

    Returns:
      float [runs, tasks].
    """
    rows, others = (json.loads(gzip.open(name).read()) for name in (path, other))
    tasks, seeds = (sorted({row[field] for row in rows}) for field in ("task", "seed"))
    end = {task: max(max(row["xs"]) for row in rows + others if row["task"] == task) for task in tasks}
    table = np.full((len(seeds), len(tasks)), np.nan)
    for row in rows:
        within = np.array(row["xs"]) >= (1.0 - share) * end[row["task"]]
        low, high = baselines.get(row["task"].split("_", 1)[1], (0.0, 1000.0))
        if within.any():
            score = np.array(row["ys"], np.float64)[within].mean()
            table[seeds.index(row["seed"]), tasks.index(row["task"])] = (score - low) / (high - low)
    return np.where(np.isnan(table), np.nanmean(table, axis=0)[None], table)


def made_up_tables(rng: np.random.Generator, runs: int = 10, tasks: int = 26) -> tuple[np.ndarray, np.ndarray]:
    """Scores of two synthetic agents, for use without real runs.

    They are exp(m + s), with m normal over the tasks, and s a third of Student's t with 3 degrees of freedom over the
    runs. The first agent's m is larger by 0.1. A few tasks are far above all others.
    """
    level = rng.normal(-0.5, 1.5, size=(1, tasks))
    noise = rng.standard_t(3, size=(2, runs, tasks)) / 3.0
    return np.exp(level + noise[0] + 0.1), np.exp(level + noise[1])


def few_seeds(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, str],
    suites: Mapping[str, Sequence[str]],
    baselines: Mapping[str, Sequence[float]],
    share: float,
    runs: Sequence[int],
    draws: int,
    resamples: int,
) -> Outcome:
    """How well a statistic of n runs per task estimates that of all runs, and which of two agents is better.

    A seed samples n of each task's runs `draws` times, with replacement, the same ones for every arm. Metrics, means
    over suites and draws: width_n of the 95 % stratified bootstrap interval, relative to the true value; covered_n, the
    fraction of intervals that contain it; wrong_n, the fraction of draws that order the two agents unlike all runs do;
    shift_n, the relative change of the statistic if one run of one task scores ten times the best score of all. Source:
    arXiv 2108.13264.

    Args:
      seeds: of the draws.
      arms: name -> a function of rl_jax.stats.
      suites: name -> the files of two agents, all of whose runs are taken as the truth; `made_up_tables` if one is
        missing.
      baselines: as in score_table.
      share: as in score_table.
      runs: the values of n.
      draws: per seed.
      resamples: of the bootstrap.
    """
    real = all(pathlib.Path(path).exists() for paths in suites.values() for path in paths)
    if real:
        tables = [[score_table(*pair, baselines, share) for pair in (paths, paths[::-1])] for paths in suites.values()]
    else:
        tables = [made_up_tables(np.random.default_rng(place)) for place in range(len(suites))]
    statistics = {arm: bind(choice, stats) for arm, choice in arms.items()}
    result = {arm: {} for arm in arms}
    for n in runs:
        rows = {arm: [] for arm in arms}
        for seed in seeds:
            for place, pair in enumerate(tables):
                rng = np.random.default_rng([seed, n, place])
                drawn = [_draw(rng, table, (draws, n)) for table in pair]
                again = [_draw(rng, table, (resamples, n)) for table in drawn[0]]
                freak = drawn[0].copy()
                freak[np.arange(draws), 0, rng.integers(freak.shape[2], size=draws)] = 10.0 * pair[0].max()
                for arm, statistic in statistics.items():
                    true, other = (float(statistic(table)) for table in pair)
                    low, high = np.quantile([statistic(table) for table in again], [0.025, 0.975], axis=1)
                    value = statistic(drawn[0])
                    measured = [
                        (high - low) / abs(true),
                        (low <= true) & (true <= high),
                        (value > statistic(drawn[1])) != (true > other),
                        np.abs(statistic(freak) - value) / abs(true),
                    ]
                    rows[arm].append(np.mean(measured, axis=1))
        for arm in arms:
            means = np.reshape(rows[arm], (len(seeds), len(tables), 4)).mean(axis=1)
            result[arm] |= {f"{name}_{n}": means[:, i] for i, name in enumerate(("width", "covered", "wrong", "shift"))}
    note = "" if real else f"{next(iter(suites.values()))[0]} is not here: the scores were made up (made_up_tables)"
    return Outcome(result, note=note)


def _draw(rng: np.random.Generator, table: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """`shape` = (count, n): n of each task's runs with replacement, count times. float [N, M] -> [count, n, M]."""
    tasks = np.arange(table.shape[1])
    return table[rng.integers(len(table), size=(*shape, len(tasks))), tasks[None, None, :]]


# --- Real learning runs, thousands of them in one program ------------------------------------------------------------


def learn(
    key: chex.PRNGKey, means: chex.Array, learning_rate: chex.Array, *, noise: float, group_size: int, steps: int
) -> chex.Array:
    """The expected reward of a policy after it learned a bandit by policy gradients; a run is a key.

    A step samples group_size arms, takes their leave-one-out advantages and descends the clipped surrogate once. A far
    too large step size converges to an arbitrary arm.

    Args:
      key: of the run.
      means: mean rewards of the bandit's arms, float [A]; a reward is N(mean, noise^2).
      learning_rate: step size, float [].
      noise: standard deviation of a reward.
      group_size: samples per step.
      steps: of the training.
    """

    def step(logits, key):
        key_arm, key_noise = jax.random.split(key)
        arms = jax.random.categorical(key_arm, logits, shape=(group_size,))
        rewards = means[arms] + noise * jax.random.normal(key_noise, (group_size,))
        advantages = leave_one_out(rewards, group_size=group_size)[:, None]

        def loss(logits):
            log_probs = jax.nn.log_softmax(logits)[arms][:, None]
            old, mask = jax.lax.stop_gradient(log_probs), jnp.ones(log_probs.shape, bool)
            return jnp.mean(clipped_surrogate(log_probs, old, advantages, mask).loss)

        return logits - learning_rate * jax.grad(loss)(logits), None

    logits = jax.lax.scan(step, jnp.zeros(means.shape), jax.random.split(key, steps))[0]
    return jax.nn.softmax(logits) @ means


def _bandit(key: chex.PRNGKey, arms: int) -> chex.Array:
    """Mean rewards of `arms` arms: the best one 1, the mean of all 0."""
    means = jax.random.normal(key, (arms,))
    return (means - jnp.mean(means)) / (jnp.max(means) - jnp.mean(means))


def _one_by_one(study, seeds: Sequence[int]) -> Mapping:
    """study(key) for each seed, in one program: one study is wide enough, and vmap doubles the time to compile."""
    return jax.jit(lambda keys: jax.lax.map(study, keys))(seed_keys(seeds))


def tuning_seeds(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, str],
    settings: int,
    learning_rates: Sequence[float],
    tuning: int,
    test: int,
    further: int,
    bandit: Mapping[str, float],
    learner: Mapping[str, float],
) -> Outcome:
    """What is reported for the best of `settings` settings, each tuned on `tuning` seeds.

    A seed is a whole study: a bandit, step sizes sampled log-uniformly from learning_rates, and the setting with the
    best mean over the tuning seeds. Metrics: score, the mean reported; bias, its excess over the mean of `further`
    unused seeds. Source: arXiv 2306.01324.

    Args:
      seeds: of the studies.
      arms: name -> which seeds of that setting are reported, "tuning" (those it was chosen on) or "test" (others).
      settings: number of settings.
      learning_rates: range of the step sizes.
      tuning: number of tuning seeds.
      test: number of test seeds.
      further: number of unused seeds.
      bandit: keywords of _bandit.
      learner: keywords of `learn`.
    """

    def study(key):
        key_bandit, key_rate, key_runs = jax.random.split(key, 3)
        means = _bandit(key_bandit, **bandit)
        low, high = jnp.log(jnp.asarray(learning_rates))
        rates = jnp.exp(jax.random.uniform(key_rate, (settings,), minval=low, maxval=high))

        def runs(rate, keys):
            return jax.vmap(lambda key: learn(key, means, rate, **learner))(keys)

        keys = jax.random.split(key_runs, tuning + test + further)
        tuned = jax.vmap(lambda rate: jnp.mean(runs(rate, keys[:tuning])))(rates)
        best = jnp.argmax(tuned)
        others = runs(rates[best], keys[tuning:])
        reported = {"tuning": tuned[best], "test": jnp.mean(others[:test])}
        truth = jnp.mean(others[test:])
        return {arm: {"score": reported[which], "bias": reported[which] - truth} for arm, which in arms.items()}

    result = _one_by_one(study, seeds)
    return Outcome({arm: per_seed(metrics) for arm, metrics in result.items()})


def best_of_seeds(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    learning_rates: Mapping[str, float],
    further: int,
    bandit: Mapping[str, float],
    learner: Mapping[str, float],
) -> Outcome:
    """What is reported of two learners, and whether the better one is reported as better.

    A seed is a whole study: a bandit, and runs of both learners. Metrics: bias, the careful learner's report minus the
    mean of `further` other seeds; bold_bias, that of the bold one; wrong, 1 if the report orders the two unlike those
    means do. Source: arXiv 1709.06560.

    Args:
      seeds: of the studies.
      arms: name -> report, "mean" or "max" of the first `runs` seeds.
      learning_rates: of the two learners, "careful" and "bold".
      further: number of other seeds.
      bandit: keywords of _bandit.
      learner: keywords of `learn`.
    """
    most = max(arm["runs"] for arm in arms.values())

    def study(key):
        key_bandit, key_runs = jax.random.split(key)
        means = _bandit(key_bandit, **bandit)
        keys = jax.random.split(key_runs, (2, most + further))
        rates = jnp.asarray([learning_rates["careful"], learning_rates["bold"]])
        scores = jax.vmap(lambda rate, row: jax.vmap(lambda key: learn(key, means, rate, **learner))(row))(rates, keys)
        truth = jnp.mean(scores[:, most:], axis=1)
        result = {}
        for arm, choice in arms.items():
            reported = {"mean": jnp.mean, "max": jnp.max}[choice["report"]](scores[:, : choice["runs"]], axis=1)
            bias = reported - truth
            wrong = (reported[0] > reported[1]) != (truth[0] > truth[1])
            result[arm] = {"bias": bias[0], "bold_bias": bias[1], "wrong": wrong.astype(jnp.float32)}
        return result

    result = _one_by_one(study, seeds)
    return Outcome({arm: per_seed(metrics) for arm, metrics in result.items()})
