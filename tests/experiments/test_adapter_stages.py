"""experiments/tools/adapter_stages.py: who speaks in which stage, and what the adapter is tuned on."""

import json

import jax
import pytest

from configs.control import guides as configs
from experiments.parts import check_config, control_setup
from experiments.parts.text_models import by_server
from experiments.tools import adapter_stages
from rl_jax.envs import speakers

PROMPT = "Player sees: <a tent>. Player status: <{}>."


def test_an_analysis_is_scored_by_what_its_world_did_next():
    rows = [dict(world=world, score=score, number=n) for n, (world, score) in enumerate([(0, 0.9), (1, 0.1)] * 3)]
    rows[2]["score"] = 0.2
    assert [row["number"] for row in adapter_stages.learned_from(rows, 0.5)] == [2]
    assert adapter_stages.learned_from(rows, 0.0) == rows, "as the paper's code"


def test_the_script_is_wrong_in_a_share_of_its_answers():
    texts = [PROMPT.format(rare) + f" {n}" for n in range(200) for rare in ("parched", "famished")]
    right = [speakers.camp().adapter(text) for text in texts]
    for share in (0.0, 0.4):
        said = adapter_stages.scripted(share)(texts)
        wrong = [a != b for a, b in zip(said, right, strict=True)]
        assert abs(sum(wrong) / len(wrong) - share) < 0.08 and all(" means " in text for text in said)
    assert adapter_stages.scripted(1.0)([PROMPT.format("tired")]) == ["the player is tired"], "a plain word"


def test_the_stages(tmp_path):
    """Two stages and a last one: each goes on from the one before, and speaks with the newest adapter."""
    heard, tuned, closed = [], [], []
    config = configs.get_config("staged,smoke")
    check_config.check(config)

    def train(config, folder):
        folder.mkdir(exist_ok=True)
        heard.append((config.train.total_steps, by_server(url=config.env.guide.adapter.url)(["x"])))
        with open(config.env.guide.record, "a") as file:
            file.write(json.dumps(dict(prompt="x", completion="y", world=0, score=len(heard) / 10)) + "\n")
        (folder / "metrics.jsonl").write_text(json.dumps(dict(env_steps=config.train.total_steps, step=1)) + "\n")

    def tune(data, folder, before):
        rows = [json.loads(line)["score"] for line in data.read_text().splitlines()]
        tuned.append((rows, folder.name, before and before.name))
        return True

    def serve(folder):
        return lambda texts: [folder.name for _ in texts], lambda: closed.append(folder.name)

    numbers = dict(stages=2, steps=100, least=0.0, train=train, tune=tune, serve=serve)
    with adapter_stages.Front(0) as front:
        front.ask = lambda texts: ["the script"] * len(texts)
        config.env.guide.adapter.url = front.url
        found = adapter_stages.run_stages(config, tmp_path, front, **numbers)
        assert heard == [(100, ["the script"]), (200, ["adapter_1"]), (300, ["adapter_2"])]
        assert tuned == [([0.1], "adapter_1", None), ([0.2], "adapter_2", "adapter_1")]
        assert closed == ["adapter_1", "adapter_2"] and [row["env_steps"] for row in found] == [100, 200, 300]
        stopped = adapter_stages.run_stages(config, tmp_path, front, **numbers | dict(tune=lambda *_: False))
        assert len(stopped) == 1
        for file in tmp_path.glob("said_*"):
            file.unlink()
        with pytest.raises(ValueError, match="stage 0: no analysis was followed with a score of 0.99"):
            adapter_stages.run_stages(config, tmp_path, front, **numbers | dict(least=0.99))


def test_the_world_of_the_stages_asks_the_front_each_time():
    config = configs.get_config("staged,smoke")
    with adapter_stages.Front(0) as front:
        texts = []
        front.ask = lambda asked: [texts.append(text) or speakers.camp().adapter(text) for text in asked]
        config.env.guide.adapter.url = front.url
        env = control_setup.load_env(config, 4)
        env.reset(jax.random.key(0))
        assert len(texts) == 4 and all(text.startswith("Player sees: <a tent>.") for text in texts)
    with pytest.raises(ValueError, match="choose one of unadapted, served and staged"):
        configs.get_config("staged,served")


def test_the_fine_tuning_s_config(tmp_path):
    small = adapter_stages.sft_config(tmp_path / "a.jsonl", "", tmp_path / "before", 7)
    assert small.sft.steps == 7 and small.init_from == str(tmp_path / "before") and not small.model.path
    large = adapter_stages.sft_config(tmp_path / "a.jsonl", "FOLDER", None, 7)
    assert large.model.path == "FOLDER" and large.model.lora.rank > 0 and large.init_from == ""
