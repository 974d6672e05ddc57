"""experiments.best_of_n: what it writes, who chooses, and the samples as data for a reward model."""

import json
import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from configs.preferences import best_of_n as configs
from experiments import best_of_n
from experiments.parts import origin, stops
from experiments.parts.judging import Judged
from rl_jax import preferences
from rl_jax.rewards.pool import RewardResult
from rl_jax.tokenizers import PlainPrompts
from rl_jax.training import checkpoint
from tests.experiments.small import StopAfter, kept_signals, reward, sevens  # noqa: F401  a fixture
from tests.experiments.small import config as small_config

pytestmark = pytest.mark.usefixtures("kept_signals")


def run(tmp_path, to="run", **fields):
    """(rows, workdir, config) of a run on random params, whose completions are random digits."""
    config = small_config(tmp_path, reward__function=reward(sevens)).copy_and_resolve_references().unlock()
    config.best_of_n = configs.best_of_n(num_prompts=12, samples=6, sizes=(1, 2, 6), batch_size=8, **fields)
    return best_of_n.run(config, tmp_path / to), tmp_path / to


class LastDigit:
    """A proxy of two members that score texts by themselves, in the place of a RewardModel."""

    tokenizer = PlainPrompts(None)

    def _replace(self, combine):
        return self

    def score_texts(self, prompts, responses):
        first = np.array([float(response.count("7")) for response in responses], np.float32)
        return np.stack([first, -first], axis=1)


@pytest.mark.slow
def test_the_verifier_as_its_own_proxy(tmp_path, monkeypatch):
    rows, workdir = run(tmp_path)
    found = json.loads((workdir / "best_of_n.json").read_text())
    assert found == {"rows": rows, "proxies": []}
    assert [row["n"] for row in rows] == [1, 2, 6]
    assert all(row["gold"] == pytest.approx(row["proxy"]) for row in rows)
    assert rows[0]["gold"] < rows[1]["gold"] < rows[2]["gold"]
    assert all(row["gold_low"] <= row["gold"] <= row["gold_high"] for row in rows)
    with np.load(workdir / "scores.npz") as scores:
        assert scores["gold"].shape == (12, 6) and scores["members"].shape == (12, 6, 1)
        assert rows[0]["gold"] == pytest.approx(scores["gold"].mean())
        assert rows[2]["gold"] == pytest.approx(scores["gold"].max(axis=1).mean())
    assert (workdir / "best_of_n.md").read_text().count("\n") == 5
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": row["n"], "eval/task": row["gold"], "eval/proxy": row["proxy"]} for row in rows]
    # The samples are rankings that the preferences package reads.
    data = preferences.load(
        "jsonl", path=str(workdir / "rankings.jsonl"), kind="rankings", test_share=0.0, data_dir=str(tmp_path / "d")
    ).data_source("train")
    assert len(data) > 3 and data[0]["rewards"] == sorted(data[0]["rewards"], reverse=True)

    # A proxy of two members that disagree about everything: the worst case is the one that likes no sevens.
    monkeypatch.setattr(best_of_n, "load_reward_model", lambda folders: LastDigit())
    with pytest.raises(origin.ChangedError, match="best_of_n.proxies: "):
        run(tmp_path, proxies="a,b")
    worst = run(tmp_path, "worst", proxies="a,b", combine=dict(fn="worst_case"))[0]
    assert worst[2]["gold"] < worst[0]["gold"] == pytest.approx(rows[0]["gold"])
    level = run(tmp_path, "level", proxies="a,b", combine=dict(fn="mean"))[0]
    # All tie, so that the choice is at random among the completions that are not empty.
    assert level[2]["gold"] == pytest.approx(level[0]["gold"], abs=0.05)


def test_a_signal_ends_it_between_two_batches(tmp_path, monkeypatch):
    """Of the warm start's handlers nobody asked any more: it went on to its end."""
    asked = []
    monkeypatch.setattr(checkpoint, "StopSignal", StopAfter())
    monkeypatch.setattr(stops, "_stopped", False)
    monkeypatch.setattr(best_of_n, "jit_generate", lambda *_: lambda *_: {})
    monkeypatch.setattr(best_of_n, "judge", lambda *rest: asked.append(rest))
    assert run(tmp_path) == ([], tmp_path / "run")
    assert (len(asked), stops.status()) == (1, stops.STOPPED)
    assert not any((tmp_path / "run" / name).exists() for name in ("best_of_n.json", "final.json"))


def judged(completions, rewards):
    records = [{"prompt": f"p{i // 3}", "info": "{}"} for i in range(len(completions))]
    return Judged(None, records, completions, RewardResult(np.array(rewards, np.float32), {}, 0, 0, None))


def test_rankings_of_samples():
    part = judged(["a", "b", "c", "d", "d", " ", "e", "f", "g"], [1, 3, 2, 5, 5, 9, 4, 4, 4])
    gold = part.result.rewards
    lines = [json.loads(line) for line in best_of_n.rankings([part], gold, 3, 0.0, 0).decode().splitlines()]
    # One text twice and an empty one leave nothing to rank; nor do three of one grade.
    assert lines == [{"prompt": "p0", "responses": ["b", "c", "a"], "rewards": [3.0, 2.0, 1.0]}]
    again = best_of_n.rankings([part, part], np.concatenate([gold, -gold]), 3, 0.0, 0).decode().splitlines()
    assert json.loads(again[1])["responses"] == ["a", "c", "b"] and len(again) == 2, "of the second batch its own"
    turned = [json.loads(line) for line in best_of_n.rankings([part], gold, 3, 1.0, 0).decode().splitlines()]
    assert turned == [{"prompt": "p0", "responses": ["a", "c", "b"], "rewards": [3.0, 2.0, 1.0]}]


def test_chats_are_read_and_written_as_chats(monkeypatch):
    """Red before: the text of a chat, without its system message, or the dialogue as one user's message."""
    chat, asked = [{"role": "system", "content": "Brief."}, {"role": "user", "content": "p0"}], []
    part = judged(["7", "77", "1"], [0, 1, 2])
    part.records[:] = [record | {"messages": chat} for record in part.records]
    (line,) = best_of_n.rankings([part], part.result.rewards, 3, 0.0, 0).decode().splitlines()
    assert json.loads(line)["prompt"] == chat
    scored = LastDigit.score_texts
    monkeypatch.setattr(LastDigit, "score_texts", lambda self, p, r: asked.extend(p) or scored(self, p, r))
    best_of_n.proxy_scores([part], LastDigit())
    assert asked == [chat] * 3
    monkeypatch.setattr(LastDigit, "tokenizer", object())
    best_of_n.proxy_scores([part], LastDigit())
    assert asked[3:] == ["p0"] * 3, "a tokenizer without chats"


def test_an_empty_completion_has_the_worst_score():
    part = judged(["7", "", "77"], [0, 0, 0])
    found = best_of_n.proxy_scores([part], LastDigit())
    np.testing.assert_array_equal(found, [[1, -1], [1, -2], [2, -2]])


def test_fields_of_the_group():
    with pytest.raises(ValueError, match="sample'.*samples"):
        configs.best_of_n(sample=1)


@pytest.mark.parametrize(("asked", "there", "enough"), [(1, 9, False), (9, 1, False), (2, 2, True)])
def test_one_prompt_is_refused_before_anything_is_sampled(asked, there, enough):
    setup = types.SimpleNamespace(
        config=ConfigDict({"best_of_n": {"num_prompts": asked, "split": "test"}}),
        task=types.SimpleNamespace(data_source={"test": range(there)}.get),
    )
    if enough:
        return best_of_n.need_two_prompts(setup)
    with pytest.raises(ValueError, match=f"best_of_n.num_prompts={asked}, and the split 'test' has {there}: the inter"):
        best_of_n.need_two_prompts(setup)
