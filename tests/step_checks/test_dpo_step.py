"""experiments.dpo: three whole updates, from a file of pairs to params and metrics, against dpo_step.py."""

import functools
import json

import numpy as np
import pytest

from configs.preferences import given
from experiments import dpo
from tests.experiments.small import kept_signals  # noqa: F401
from tests.step_checks import dpo_step, forward, record_calls

pytestmark = [pytest.mark.usefixtures("kept_signals"), pytest.mark.slow]

ALPHABET, LIMIT = "abcxyz", 5
OPTIMIZER = dict(b1=0.8, b2=0.9, eps=1e-3, decay=0.1, max_norm=2.3)
RATE = dict(peak=0.02, warmup=2, decay=3, final=0.1)
SIZES = dict(head_dim=8)
CASES = {
    "padded": dpo_step.Settings(OPTIMIZER, RATE, SIZES),
    "lora-packed": dpo_step.Settings(OPTIMIZER | dict(max_norm=1.2), RATE, SIZES, robust=False, lora=2.0),
}
TERMS = [("padded", term) for term in dpo_step.TERMS] + [("lora-packed", term) for term in dpo_step.OF_ADAPTERS]
TOLERANCE = 1e-4


def pairs(number: int = 20) -> list[dict]:
    """Prompts of a, b, c, each of them once; responses of 1 to 7 letters, of which those over 4 are cut."""
    rng = np.random.default_rng(0)
    prompts = sorted({"".join(rng.choice(list("abc"), rng.integers(1, 6))) for _ in range(200)})[:number]

    def text(letters):
        return "".join(rng.choice(list(letters), rng.integers(1, 8)))

    return [dict(prompt=p, chosen="x" + text("xy"), rejected="z" + text("yz")) for p in prompts]


def config(tmp_path, settings: dpo_step.Settings):
    found = record_calls.quiet(given.get_config("smoke"))
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs()))
    found.data.update(path=str(path), kind="pairs", name="jsonl", data_dir=str(tmp_path / "tfds"), test_share=0.3)
    found.task.alphabet = ALPHABET
    found.rollout.update(completion_length=LIMIT, prompt_buckets=(6,))
    found.score.chunk = 2
    link = dict(fn="logistic", label_smoothing=settings.noise)
    found.train.update(steps=3, batch_size=8, micro_batches=2)
    record_calls.set_update(found.train, settings.optimizer, settings.rate)
    found.algorithm.update(
        beta=settings.beta, length_power=settings.nu, reference=dict(ref=settings.kappa),
        token_weight=dict(fn="common_length", alpha=settings.alpha), offset=dict(fn="length", alpha=settings.cost),
        link=dict(fn="robust", flip_rate=settings.noise) if settings.robust else link,
        regularizer=dict(fn="chosen_nll", reduce="mean"), regularizer_coef=settings.likelihood,
    )  # fmt: skip
    if settings.lora:
        found.model.lora.update(rank=2, alpha=2 * settings.lora)
        found.packing.mode = "shared_prefix"
    return found


def run(name: str, folder) -> tuple:
    """(calls of the train step, rows of each update) of a run."""
    settings, batches, steps = CASES[name], [], []
    build, packer = dpo.build, dpo.PreferencePacker

    class Packer(packer):
        def __call__(self, batch, micro_batches=1):
            batches.append(batch)
            return super().__call__(batch, micro_batches)

    def recorded(setup, params):
        programs, state = build(setup, params)
        steps.append(record_calls.Recorded(programs.train_step))
        return programs._replace(train_step=steps[0]), state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpo, "PreferencePacker", Packer)
        patch.setattr(dpo, "build", recorded)
        patch.setattr(dpo, "compile_ahead", lambda *args: None)
        patch.setattr(dpo, "make_evaluate", lambda *args: lambda state: {})
        dpo.run(config(folder, settings), folder / "run")
    prompts = functools.partial(record_calls.prompts_of, alphabet=ALPHABET, limit=LIMIT)
    responses = {pair["prompt"]: (pair["chosen"], pair["rejected"]) for pair in pairs()}
    return steps[0].calls, [[rows_of(prompt, responses) for prompt in prompts(batch)] for batch in batches]


def rows_of(prompt: str, responses: dict) -> tuple:
    won, lost = (forward.encode(ALPHABET, prompt, text, LIMIT) for text in responses[prompt])
    return won[0], won[1], lost[1]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """name -> (settings, calls, rows of each update)."""
    return functools.cache(lambda name: (CASES[name], *run(name, tmp_path_factory.mktemp("dpo"))))


def error(case, without: str = "") -> float:
    settings, calls, batches = case
    params, _ = dpo_step.replay(calls[0].before, batches, settings, without)
    return forward.update_error(calls[0].before, params, calls[-1].after)


@pytest.mark.parametrize("name", CASES)
def test_three_updates_are_those_of_the_equations(case, name):
    settings, calls, batches = case(name)
    assert len(calls) == len(batches) == 3 and [len(rows) for rows in batches] == [8] * 3
    lengths = [len(ids) for rows in batches for _, *responses in rows for ids in responses]
    assert lengths.count(LIMIT) > 3 and min(lengths) < LIMIT, "some responses are cut off"
    params, metrics = dpo_step.replay(calls[0].before, batches, settings)
    assert forward.update_error(calls[0].before, params, calls[-1].after) < TOLERANCE
    wrong = forward.metric_errors(metrics, [call.metrics for call in calls])
    assert max(wrong.values()) < TOLERANCE, wrong
    norms = [row["grad_norm"] for row in metrics]
    assert min(norms) < settings.optimizer["max_norm"] < max(norms), "one update is clipped and one is not"
    if settings.lora:
        before, after = (forward.flatten(params["base"]) for params in (calls[0].before, calls[-1].after))
        assert all(np.array_equal(x, after[path]) for path, x in before.items())


@pytest.mark.parametrize(("name", "term"), TERMS, ids=lambda x: x.replace(" ", "_"))
def test_every_term_moves_the_result(case, name, term):
    assert error(case(name), term) > 5 * TOLERANCE
