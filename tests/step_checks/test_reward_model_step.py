"""experiments.reward_model: three whole updates, from files to params and metrics, against reward_model_step.py."""

import json

import numpy as np
import pytest

from configs.preferences import reward_models
from experiments import reward_model
from experiments.parts import run as runs
from tests.experiments.small import kept_signals  # noqa: F401
from tests.step_checks import forward, record_calls, reward_model_step

pytestmark = [pytest.mark.usefixtures("kept_signals"), pytest.mark.slow]

ALPHABET, LIMIT = "abcxyz", 5
OPTIMIZER = dict(b1=0.8, b2=0.9, eps=1e-3, decay=0.1, max_norm=5.0)
RATE = dict(peak=0.02, warmup=2, decay=3, final=0.1)
SIZES = dict(head_dim=8)
CASES = {
    "pairs": reward_model_step.Settings(OPTIMIZER, RATE, SIZES, members=2),
    "rankings": reward_model_step.Settings(OPTIMIZER, RATE, SIZES, ranked=True),
}
TERMS = [("pairs", term) for term in (*reward_model_step.SHARED, *reward_model_step.OF_PAIRS)]
TERMS += [("rankings", term) for term in (*reward_model_step.SHARED, *reward_model_step.OF_RANKINGS)]
TOLERANCE = 1e-4


def records(kind: str, number: int = 20) -> list[dict]:
    """Prompts of a, b, c, each of them once; responses of 1 to 7 letters, of which those over 4 are cut."""
    rng = np.random.default_rng(0)
    prompts = sorted({"".join(rng.choice(list("abc"), rng.integers(1, 6))) for _ in range(200)})[:number]

    def text(first):
        return first + "".join(rng.choice(list("xyz"), rng.integers(0, 6)))

    if kind == "pairs":
        return [dict(prompt=p, chosen=text("x"), rejected=text("z"), margin=float(rng.integers(1, 4))) for p in prompts]
    grades = ([2, 1, 0], [2, 2, 1], [3, 1, 1], [1, 0])
    return [
        dict(prompt=p, responses=[text(first) for first in "xyz"[: len(grades[k % 4])]], rewards=grades[k % 4])
        for k, p in enumerate(prompts)
    ]


def config(folder, kind: str, settings: reward_model_step.Settings):
    found = record_calls.quiet(reward_models.get_config("smoke,scratch"))
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records(kind)))
    found.data = dict(name="jsonl", kind=kind, path=str(path), data_dir=str(folder / "tfds"), test_share=0.3)
    found.benchmarks.names = ()
    found.task.alphabet = ALPHABET
    found.rollout.update(completion_length=LIMIT, prompt_buckets=(6,))
    found.train.update(steps=3, batch_size=8, micro_batches=2)
    record_calls.set_update(found.train, settings.optimizer, settings.rate)
    found.algorithm.update(members=settings.members, regularizer_coef=settings.centering)
    if settings.ranked:
        found.algorithm.update(responses=3, loss=dict(fn="k_wise"))
    else:
        found.algorithm.loss = dict(fn="bradley_terry_margin", label_smoothing=settings.noise)
        found.packing.mode = "packed"
    return found


def run(kind: str, folder) -> tuple:
    """(calls of the train step, rows of each update) of a run."""
    batches, steps = [], []
    make_reader, make_trainer = reward_model.make_reader, reward_model.make_trainer

    def reader(*args):
        made = make_reader(*args)

        def batch(arrays, rows, size):
            batches.append(made.batch(arrays, rows, size))
            return batches[-1]

        return made._replace(batch=batch)

    def trainer(*args):
        step, state = make_trainer(*args)
        steps.append(record_calls.Recorded(step))
        return steps[0], state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reward_model, "make_reader", reader)
        patch.setattr(reward_model, "make_trainer", trainer)
        patch.setattr(reward_model, "make_evaluate", lambda *args: lambda state: {})
        patch.setattr(reward_model, "finish", lambda *args: {})
        patch.setattr(runs.Run, "ahead", record_calls.not_ahead)
        reward_model.run(config(folder, kind, CASES[kind]), folder / "run")
    batches = batches[1:]  # the first is a look at the next one
    known = {record["prompt"]: record for record in records(kind)}
    return steps[0].calls, [
        [row_of(known[prompt]) for prompt in record_calls.prompts_of(batch, ALPHABET, LIMIT)] for batch in batches
    ]


def row_of(record: dict) -> reward_model_step.Row:
    texts = record.get("responses") or [record["chosen"], record["rejected"]]
    encoded = [forward.encode(ALPHABET, record["prompt"], text, LIMIT) for text in texts]
    grades = record.get("rewards", [1.0, 0.0])
    return reward_model_step.Row(encoded[0][0], [ids for _, ids in encoded], grades, record.get("margin", 0.0))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """name -> (settings, calls, rows of each update)."""
    made = {}

    def of(kind):
        if kind not in made:
            made[kind] = CASES[kind], *run(kind, tmp_path_factory.mktemp("reward_model"))
        return made[kind]

    return of


@pytest.mark.parametrize("kind", CASES)
def test_three_updates_are_those_of_the_equations(case, kind):
    settings, calls, batches = case(kind)
    assert len(calls) == len(batches) == 3 and [len(rows) for rows in batches] == [8] * 3
    params, metrics = reward_model_step.replay(calls[0].before, batches, settings)
    assert forward.update_error(calls[0].before, params, calls[-1].after) < TOLERANCE
    wrong = forward.metric_errors(metrics, [call.metrics for call in calls])
    assert max(wrong.values()) < TOLERANCE, wrong
    norms = [row["grad_norm"] for row in metrics]
    assert min(norms) < settings.optimizer["max_norm"] < max(norms), "one update is clipped and one is not"


@pytest.mark.parametrize(("kind", "term"), TERMS, ids=lambda x: x.replace(" ", "_"))
def test_every_term_moves_the_result(case, kind, term):
    settings, calls, batches = case(kind)
    params, _ = reward_model_step.replay(calls[0].before, batches, settings, term)
    assert forward.update_error(calls[0].before, params, calls[-1].after) > 5 * TOLERANCE
