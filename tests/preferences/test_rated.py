"""preferences/rated.py: UltraFeedback's layout, its means, its binarised pairs."""

import json

import pytest

from rl_jax import preferences
from rl_jax.data import readers


def completion(text, *ratings):
    aspects = ("instruction_following", "truthfulness", "honesty", "helpfulness")
    annotations = {a: {"Rating": str(r), "Rationale": "x"} for a, r in zip(aspects, ratings, strict=True)}
    return {"response": text, "annotations": annotations, "model": "m", "overall_score": 1.0}


ROWS = [
    {
        "instruction": f"Q{i}",
        "source": "s",
        "completions": [
            completion("worst", 1, 1, 2, 1),
            completion("best", 5, 4, "N/A", 5),
            completion("best ", 1, 1, 1, 1),  # the same text up to spaces: the first one counts
            completion("middle", 3, 3, 3, 4),
            completion("unrated", "N/A", "N/A", "N/A", "N/A"),
        ],
    }
    for i in range(6)
] + [{"instruction": "tie", "completions": [completion("a", 3, 3, 3, 3), completion("b", 4, 2, 4, 2)]}]


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "uf.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def made(**settings):
        options = dict(path=str(path), test_share=0.0, data_dir=str(tmp_path / "data"))
        source = preferences.load("ultrafeedback", **options | settings).data_source("train")
        return [source[i] for i in range(len(source))], source.report

    return made


def test_the_best_against_the_worst_and_against_a_random_one(load):
    worst, report = load(strategy="best_worst")
    assert len(worst) == 6 and report["num_ties"] == 1 and report["num_unrated"] == 6
    for record in worst:
        assert record["responses"] == [" best", " worst"] and record["rewards"] == pytest.approx([14 / 3, 1.25])
        assert record["margin"] == pytest.approx(14 / 3 - 1.25)
        assert record["info"]["attribute_targets"] == [[5, 4, None, 5], [1, 1, 2, 1]]
    drawn, _ = load()
    others = [record["responses"][1] for record in drawn]
    assert set(others) == {" worst", " middle"} and [r["responses"][0] for r in drawn] == [" best"] * 6
    assert others == [r["responses"][1] for r in load()[0]] != [r["responses"][1] for r in load(seed=1)[0]]


def test_rankings_and_the_aspects_of_the_mean(load):
    rankings, _ = load(kind="rankings")
    assert rankings[0]["responses"] == [" best", " middle", " worst"]
    assert rankings[0]["rewards"] == pytest.approx([14 / 3, 13 / 4, 5 / 4])
    honest, _ = load(kind="rankings", aspects=("honesty",))  # the best one's was not rated; the last row is no tie now
    assert honest[0]["responses"] == [" middle", " worst", " best "] and len(honest) == 7
    chats, _ = load(chat=True)
    assert chats[0]["prompt"] == [{"role": "user", "content": chats[0]["prompt"][0]["content"]}]
    assert chats[0]["responses"][0] == "best"


def test_what_is_no_ultrafeedback_is_refused(load, tmp_path):
    with pytest.raises(ValueError, match="strategy='best' best_random or best_worst"):
        load(strategy="best")
    with pytest.raises(ValueError, match="aspects=.'style',. must be some of instruction_following"):
        load(aspects=("style",))
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"instruction": "Q", "completions": [{"response": "x", "annotations": []}]}) + "\n")
    with pytest.raises(readers.DataError, match=r"line 1, field 'completions\[0\].annotations': expected an object"):
        load(path=str(path))
