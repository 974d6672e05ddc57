"""experiments.online_dpo: three steps of two updates, from recorded samples to params, against online_dpo_step.py."""

import jax
import numpy as np
import pytest

from experiments import online_dpo
from rl_jax import tasks
from rl_jax.runs.logging import read_jsonl
from tests.experiments.small import kept_signals  # noqa: F401
from tests.experiments.test_online_dpo import config as online_config
from tests.step_checks import dpo_step, forward, online_dpo_step, record_calls
from tests.step_checks.online_dpo_step import Prompt

pytestmark = [pytest.mark.usefixtures("kept_signals"), pytest.mark.slow]

OPTIMIZER = dict(b1=0.8, b2=0.9, eps=1e-3, decay=0.1, max_norm=1.0)
RATE = dict(peak=0.02, warmup=2, decay=5, final=0.1)
LOSS = dpo_step.Settings(
    OPTIMIZER, RATE, dict(head_dim=8), robust=False, kappa=1.0, alpha=1.0, nu=0.0, cost=0.0, likelihood=0.2
)
SETTINGS = online_dpo_step.Settings(LOSS)
TEMPERATURE, TOLERANCE = 0.6, 1e-4


def config(folder):
    found = online_config(folder, reward__function="tests.step_checks.online_dpo_step:reward").unlock()
    record_calls.quiet(found)
    found.rollout.update(temperature=TEMPERATURE, completion_length=SETTINGS.limit)
    found.sample.update(prompts_per_step=8, prompts_per_batch=4, group_size=3, missing_eos_penalty=SETTINGS.penalty)
    found.algorithm.update(
        beta=LOSS.beta, link=dict(fn="logistic", label_smoothing=LOSS.noise),
        regularizer=dict(fn="chosen_nll", reduce="mean"), regularizer_coef=LOSS.likelihood,
        pair_selection=dict(fn="best_worst"), reference_schedule=dict(fn="moving_average", rate=SETTINGS.rate),
    )  # fmt: skip
    found.train.update(steps=3, batch_size=4, micro_batches=2)
    record_calls.set_update(found.train, OPTIMIZER, RATE)
    return found


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """(calls of the train step, samples of each step, rollouts, alphabet, rows of metrics)."""
    folder, steps, samples, rollouts = tmp_path_factory.mktemp("online_dpo"), [], [], []
    build, source, keys = online_dpo.build, online_dpo.Source, []

    class Source(source):
        def __call__(self, *args):
            keys.append(jax.random.key_data(args[2]).tobytes())
            candidates, judged = super().__call__(*args)
            samples.append(candidates)
            rollouts.append(judged.rollout)
            return candidates, judged

    def recorded(setup, params):
        programs, state = build(setup, params)
        steps.append(record_calls.Recorded(programs.train_step))
        return programs._replace(train_step=steps[0]), state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online_dpo, "Source", Source)
        patch.setattr(online_dpo, "build", recorded)
        patch.setattr(online_dpo, "compile_ahead", lambda *args: None)
        patch.setattr(online_dpo, "make_evaluate", lambda *args: lambda params: ({}, []))
        online_dpo.run(config(folder), folder / "run")
    assert len(set(keys)) == len(keys) == 3, "each step draws with a key of its own"
    alphabet = tasks.load("arithmetic", data_dir=str(folder / "data"), num_train=100, num_test=20).tokenizer.alphabet
    return steps[0].calls, samples, rollouts, alphabet, read_jsonl(folder / "run" / "metrics.jsonl")[1:]


def prompts_of(candidates) -> list[Prompt]:
    """The prompts of a step with their samples, as ids."""
    length = candidates.completion_mask.shape[2]
    tokens, real = np.asarray(candidates.batch.tokens), np.asarray(candidates.batch.segment_ids)[:, 0, :-length] > 0
    return [
        Prompt(
            tuple(rows[0, :-length][seen].tolist()),
            [tuple(row[-length:][mask].tolist()) for row, mask in zip(rows, masks, strict=True)],
        )
        for rows, seen, masks in zip(tokens, real, np.asarray(candidates.completion_mask), strict=True)
    ]


def updates_of(calls, prompts: list[Prompt]) -> list[list[Prompt]]:
    """The prompts of each update, by the prompts in its batch; each of the step's is in one of them."""
    left, result = list(prompts), []
    for call in calls:
        tokens, real = (np.asarray(x)[:, 0, : -SETTINGS.limit] for x in (call.batch.batch.tokens, call.batch.batch[2]))
        found = []
        for row, seen in zip(tokens, real, strict=True):
            ids = tuple(row[seen > 0].tolist())
            found.append(next(prompt for prompt in left if prompt.ids == ids))
            left.remove(found[-1])
        result.append(found)
    assert not left
    return result


@pytest.fixture(scope="module")
def steps(case):
    """The prompts of each update of each step."""
    calls, samples, *_ = case
    return [updates_of(calls[2 * k : 2 * k + 2], prompts_of(one)) for k, one in enumerate(samples)]


def test_six_updates_are_those_of_the_equations(case, steps):
    calls, samples, _, alphabet, rows = case
    assert len(calls) == 6 and len(samples) == 3
    params, metrics, _ = online_dpo_step.replay(calls[0].before, steps, alphabet, SETTINGS)
    assert forward.update_error(calls[0].before, params, calls[-1].after) < TOLERANCE
    del metrics[0]["rewards/accuracy"]  # of margins that are all 0, up to rounding
    wrong = forward.metric_errors(metrics[1:], [call.metrics for call in calls[1:]])
    wrong |= forward.metric_errors(metrics[:1], [call.metrics for call in calls[:1]])
    assert max(wrong.values()) < TOLERANCE, wrong
    norms = [row["grad_norm"] for row in metrics]
    assert min(norms) < OPTIMIZER["max_norm"] < max(norms), "one update is clipped and one is not"
    for place, (one, row) in enumerate(zip(samples, rows, strict=True)):
        prompts = prompts_of(one)
        scores = np.array([online_dpo_step.scores_of(prompt, alphabet, SETTINGS) for prompt in prompts])
        np.testing.assert_allclose(one.rewards, scores, rtol=1e-6)
        np.testing.assert_allclose(row["reward/mean"], scores.mean(), rtol=1e-5)
        np.testing.assert_allclose(row["reward/best"], scores.max(axis=1).mean(), rtol=1e-5)
        kept = [online_dpo_step.pair_of(prompt, alphabet, SETTINGS) is not None for prompt in prompts]
        np.testing.assert_allclose(row["selection/kept"], np.mean(kept), rtol=1e-6)
        losses = [one["loss"] for one in metrics[2 * place : 2 * place + 2]]
        np.testing.assert_allclose(row["loss"], np.mean(losses), rtol=1e-4)


@pytest.mark.parametrize("temperature", [TEMPERATURE, 1.0])
def test_samples_are_drawn_at_the_temperature_from_the_newest_policy(case, steps, temperature):
    calls, samples, rollouts, alphabet, _ = case
    *_, before = online_dpo_step.replay(calls[0].before, steps, alphabet, SETTINGS)
    for params, one, rollout in zip(before, samples, rollouts, strict=True):  # of a step's first call of the sampler
        prompts = prompts_of(jax.tree.map(lambda x: x[:4], one))
        expected = online_dpo_step.sampled_log_probs(params, prompts, temperature, LOSS.sizes)
        found = [row[mask] for row, mask in zip(rollout.sampled_log_probs, rollout.completion_mask, strict=True)]
        errors = [np.abs(x.numpy() - y).max() for x, y in zip(expected, found, strict=True)]
        assert (max(errors) < 2e-3) == (temperature == TEMPERATURE)


@pytest.mark.parametrize("term", online_dpo_step.TERMS, ids=lambda x: x.replace(" ", "_"))
def test_every_term_moves_the_result(case, steps, term):
    calls, _, _, alphabet, _ = case
    params, *_ = online_dpo_step.replay(calls[0].before, steps, alphabet, SETTINGS, term)
    assert forward.update_error(calls[0].before, params, calls[-1].after) > 5 * TOLERANCE
