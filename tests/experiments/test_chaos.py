"""experiments.tools.chaos: the moments that it draws, and what it compares. A run of it is in test_resume.py."""

import re
import types

import pytest

from experiments.tools import chaos


def moments(**options):
    return chaos.draw_moments(20, 60, **{"in_save": 0.4, "in_start": 0.2, "seed": 3, **options})


def test_moments_are_spread_over_the_run_and_drawn_by_their_seed():
    drawn = moments()
    kinds = [moment.kind for moment in drawn]
    assert [kinds.count(kind) for kind in ("save", "start", "step")] == [8, 4, 8]
    assert kinds != sorted(kinds), "not one kind after the other"
    at = [moment.progress for moment in drawn]
    assert at == sorted(at) and at[0] < 15 and 40 < at[-1] < 54 and all(0 <= moment.share < 1 for moment in drawn)
    assert drawn == moments() != moments(seed=4)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="logs 21 rows is too short for 20 kills: give it more steps"):
        chaos.draw_moments(20, 21, in_save=0.4, in_start=0.2, seed=0)
    with pytest.raises(ValueError, match="in_save=0.9 and in_start=0.2 must be 0 or more and sum to at most 1"):
        moments(in_save=0.9)


def test_a_folder_that_is_there_is_a_message(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos, "FLAGS", types.SimpleNamespace(folder=str(tmp_path)))
    with pytest.raises(SystemExit, match="is there already: name another --folder, or remove it"):
        chaos.main(["chaos", "python"])


def make_run(folder, loss="1.0"):
    (folder / "sft").mkdir(parents=True)
    (folder / "final.json").write_text("{}")
    (folder / "metrics.jsonl").write_text(f'{{"loss": {loss}, "step": 1}}\n')
    (folder / "sft" / "metrics.jsonl").write_text("{}\n{}\n")
    (folder / "timing.jsonl").write_text(str(folder))  # differs in every run
    return folder


def test_a_single_digit_is_a_difference(tmp_path, capsys):
    one, same, other = (make_run(tmp_path / name, loss) for name, loss in
                        (("one", "1.0"), ("same", "1.0"), ("other", "1.1")))  # fmt: skip
    assert chaos.progress_of(one) == 3 and chaos.progress_of(tmp_path / "none") == 0
    assert chaos.compare(one, same) and not chaos.compare(one, other)
    assert re.search(r"^metrics.jsonl +[0-9a-f]{16} DIFFERS: [0-9a-f]{16}$", capsys.readouterr().out, re.MULTILINE)
    (same / "final.json").unlink()
    assert not chaos.compare(one, same)
    (one / "final.json").unlink()
    assert not chaos.compare(one, same), "two runs that never ended"


def test_only_the_newest_complete_checkpoint_is_named(tmp_path):
    assert chaos.newest_checkpoint(tmp_path) == "the beginning"
    for name in ("sft/checkpoints/8", "sft/checkpoints/12.orbax-checkpoint-tmp"):
        (tmp_path / name).mkdir(parents=True)
    assert chaos.newest_checkpoint(tmp_path) == "step 8 of sft"
    before = chaos.unfinished(tmp_path)
    assert [step for step, *_ in before] == ["12"]
    for name in ("9", "10", "12.orbax-checkpoint-tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert chaos.newest_checkpoint(tmp_path) == "step 10"
    assert len(chaos.unfinished(tmp_path) - before) == 1, "the rest of an earlier save passes for a new one"
