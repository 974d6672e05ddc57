"""experiments.sft: three whole updates on a file's best responses, with holes in the masks, against sft_step.py."""

import json

import numpy as np
import pytest

from configs.preferences import given
from experiments import sft
from experiments.parts import run as runs
from experiments.parts import warm_start
from tests.experiments.small import kept_signals  # noqa: F401
from tests.step_checks import forward, record_calls, sft_step

pytestmark = [pytest.mark.usefixtures("kept_signals"), pytest.mark.slow]

ALPHABET, LIMIT = "abcxyz", 6
OPTIMIZER = dict(b1=0.8, b2=0.9, eps=1e-3, decay=0.1, max_norm=2.0)
RATE = dict(peak=0.02, warmup=2, decay=3, final=0.1)
SIZES = dict(head_dim=8)
TOLERANCE = 1e-4


def pairs(number: int = 30) -> list[dict]:
    rng = np.random.default_rng(0)

    def text(letters, most):
        return "".join(rng.choice(list(letters), rng.integers(1, most)))

    return [dict(prompt=text("abc", 6), chosen="x" + text("xyz", 8), rejected="z") for _ in range(number)]


def hole(place: int, row: int) -> bool:
    """Whether a completion's token is left out, as a tool's answer in a dialogue is."""
    return place % 3 == 1 + row % 2


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """(calls of the train step, rows of each update)."""
    folder = tmp_path_factory.mktemp("sft")
    config = record_calls.quiet(given.get_config("smoke"))
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs()))
    config.data.update(path=str(path), kind="pairs", name="jsonl", data_dir=str(folder / "tfds"), test_share=0.1)
    config.task.alphabet = ALPHABET
    config.rollout.update(completion_length=LIMIT, prompt_buckets=(6,))
    config.sft.update(steps=3, batch_size=8, micro_batches=2)
    record_calls.set_update(config.sft, OPTIMIZER, RATE)
    batches, steps = [], []
    encode, make_trainer = warm_start.encode_sft, warm_start.make_trainer

    def encode_with_holes(setup, records):
        tokens, mask = encode(setup, records)
        rows, places = np.indices(mask.shape)
        batches.append(records)
        return tokens, mask & ~np.vectorize(hole)(places, rows)

    def trainer(*args):
        step, state = make_trainer(*args)
        steps.append(record_calls.Recorded(step))
        return steps[0], state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_start, "encode_sft", encode_with_holes)
        patch.setattr(warm_start, "make_trainer", trainer)
        patch.setattr(warm_start, "make_evaluate", lambda *args: lambda params: ({}, []))
        patch.setattr(runs.Run, "ahead", record_calls.not_ahead)
        sft.run(config, folder / "run")
    rows = []
    for records in batches[1:]:  # the first is a look at the next one
        encoded = [forward.encode(ALPHABET, one["prompt"], one["completion"], LIMIT) for one in records]
        rows.append([(*ids, [not hole(t, row) for t in range(len(ids[1]))]) for row, ids in enumerate(encoded)])
    return steps[0].calls, rows


def test_three_updates_are_those_of_the_equations(case):
    calls, batches = case
    assert len(calls) == len(batches) == 3 and [len(rows) for rows in batches] == [8] * 3
    assert len({str(rows) for rows in batches}) == 3, "each update has other records"
    assert all(completion[0] == 3 + ALPHABET.index("x") for rows in batches for _, completion, *_ in rows), "the best"
    params, metrics = sft_step.replay(calls[0].before, batches, OPTIMIZER, RATE, SIZES)
    assert forward.update_error(calls[0].before, params, calls[-1].after) < TOLERANCE
    wrong = forward.metric_errors(metrics, [call.metrics for call in calls])
    assert max(wrong.values()) < TOLERANCE, wrong
    norms = [row["grad_norm"] for row in metrics]
    assert min(norms) < OPTIMIZER["max_norm"] < max(norms), "one update is clipped and one is not"


@pytest.mark.parametrize("term", sft_step.TERMS, ids=lambda x: x.replace(" ", "_"))
def test_every_term_moves_the_result(case, term):
    calls, batches = case
    params, _ = sft_step.replay(calls[0].before, batches, OPTIMIZER, RATE, SIZES, term)
    assert forward.update_error(calls[0].before, params, calls[-1].after) > 5 * TOLERANCE
