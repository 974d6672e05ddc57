"""Several samplers of experiments.grpo_async: every group has one, and they are one to the bit, also if one dies."""

import contextlib
import threading

import pytest

from configs import grpo_async as async_config
from experiments import grpo_async
from experiments.parts.async_shares import Share, check_several, share_of, shares_clock
from rl_jax.flow import Folder
from rl_jax.runs.logging import read_jsonl
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.experiments.test_grpo_async import Died, Mortal, of, train_to_the_end

DELAY = dict(eta=1, age=8, order="oldest", in_flight="drain", samplers=2)


def delayed(**flow):
    """The smoke config of a delay line of two samplers."""
    config = async_config.get_config("delay1,smoke")
    config.flow.update(DELAY | flow)
    return config


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_group_has_one_sampler_and_keeps_its_record(count):
    batch, shares = 6, [Share(index, count) for index in range(count)]
    owned = [[share.number(own, batch) for own in range(4 * batch // count)] for share in shares]
    assert sorted(sum(owned, [])) == list(range(4 * batch)) and all(own == sorted(own) for own in owned)
    for share, numbers in zip(shares, owned, strict=True):
        records = [record for n in range(4) for record in share.of_batch(list(range(n * batch, (n + 1) * batch)))]
        assert records == numbers


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        (dict(schedule="free"), "flow.schedule='free': their clock is their decode calls, 'counted'"),
        (dict(samplers=5), "sample.prompts_per_step=.*, no multiple of 5"),
    ],
)
def test_what_cannot_be_one_to_the_bit_is_refused(flow, words):
    with pytest.raises(ValueError, match=f"flow.samplers=.: {words}"):
        check_several(delayed(**flow))
    check_several(delayed(**flow | dict(samplers=1)))


@pytest.mark.parametrize("flow", [dict(order="ready"), dict(in_flight="interrupt"), dict(max_running=3)])
def test_all_but_a_delay_line_share_a_clock(flow):
    assert shares_clock(delayed(**flow)) and not shares_clock(delayed(**flow | dict(samplers=1)))
    assert not shares_clock(delayed())


def test_there_is_no_sampler_above_the_last():
    assert share_of(delayed(), 1) == Share(1, 2)
    with pytest.raises(ValueError, match="--sampler=2: flow.samplers=2, so it is one of 0 to 1"):
        share_of(delayed(), 2)


def sample(config, workdir, index, deaths, units=lambda: None):
    """One sampler, started again whenever it dies."""
    while True:
        with contextlib.suppress(Died):
            link = Mortal(Folder(workdir / "link", role="sampler"), deaths.pop(0) if deaths else 10_000)
            return grpo_async.run_sampler(config, workdir, link, index=index, units=units())


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_two_samplers_of_which_one_dies_are_one_process(tmp_path):
    config, deaths = of(tmp_path, DELAY, train__steps=4), [[], [3]]
    grpo_async.run(config, tmp_path / "one")
    sides = [threading.Thread(target=sample, args=(config, tmp_path / "two", i, deaths[i])) for i in range(2)]
    for side in sides:
        side.start()
    try:
        train_to_the_end(config, tmp_path / "two", [])
    finally:
        for side in sides:
            side.join(600)
    assert deaths == [[], []] and not any(side.is_alive() for side in sides)
    for name in ("samples.jsonl", "final.json", "group_view.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    one, two = (read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    # A sampler counts its own decode calls only.
    assert [{k: v for k, v in row.items() if not k.startswith("flow/")} for row in one] == two
    for index in range(2):
        rows = read_jsonl(tmp_path / "two" / f"sampler_{index}" / "schedule.jsonl")
        assert [row["groups"] for row in rows] == [[2 * step + index] for step in range(4)]
