"""experiments/tools/itool.py: who begins where with which prompts; the policy's grades; demonstrations in order."""

import json
import os
import random
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from configs.preferences import itool as config_of
from experiments.parts import check_config, own_judgement, perplexities, players, stops, warm_start
from experiments.tools import itool
from rl_jax.envs.text.graded import GradedTools
from rl_jax.experience.own_judgement import graded_value
from rl_jax.experience.trajectory import Trajectory, Turn, prompt, sampled
from rl_jax.runs.run_record import write_run_record
from rl_jax.tokenizers import CharTokenizer
from rl_jax.training import sharding
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

TOKENIZER = CharTokenizer(GradedTools.ALPHABET)
INFO = {"who": "eli", "plain": False, "number": 4, "times": 7, "calls": 2}
RECORD = {"prompt": "eli*7=\n", "completion": "", "info": json.dumps(INFO)}


@pytest.mark.usefixtures("kept_signals")
def test_the_loop_goes_from_stage_to_stage(tmp_path, monkeypatch, capsys):
    """Each search starts from the last DPO, on the prompts that are hard for it; complete stages are not run again."""
    runs, asked, stopping = [], [], ["warm", "dpo_2"]
    records = [RECORD | {"prompt": f"{n}=\n", "info": json.dumps(INFO | {"calls": n % 2})} for n in range(20)]

    def program(name):
        def run(config, folder, task=None):
            prompts = [] if task is None else [record["prompt"] for record in task.data_source("train")]
            path = config.data.path.rpartition("/")[2] if name == "dpo" else ""
            steps = config.train.steps if name == "agents" else 0
            runs.append((folder.name, config.init_from.rpartition("/")[2], path, prompts, steps))
            folder.mkdir()
            write_run_record(folder, config=config.to_dict(), command="", task="", algorithm=name)
            if folder.name in stopping:
                stopping.remove(folder.name)
                os.kill(os.getpid(), signal.SIGTERM)

        return run

    for name, module in (("sft", itool.sft), ("agents", itool.agents), ("dpo", itool.dpo)):
        monkeypatch.setattr(module, "run", program(name))
    monkeypatch.setattr(itool, "is_complete", lambda folder: folder.exists())
    source = SimpleNamespace(data_source=lambda split: records, _replace=lambda **to: SimpleNamespace(**to))
    monkeypatch.setattr(itool, "make_setup", lambda config: SimpleNamespace(task=source))
    monkeypatch.setattr(itool, "load_task", lambda config: source)
    monkeypatch.setattr(itool, "load_params", lambda setup, run: run.name)

    def measured(setup, params, found, env):
        asked.append((params, len(found)))
        if params in stopping:
            stopping.remove(params)
            os.kill(os.getpid(), signal.SIGTERM)
        return np.arange(20.0) if params == "warm" else np.arange(20.0)[::-1]

    monkeypatch.setattr(itool.perplexities, "of_known_answers", measured)
    monkeypatch.setattr(itool.evaluate, "run", lambda config, folder: {"eval/pass@1": 0.5})
    monkeypatch.setattr(itool, "number_of_pairs", lambda played, smoke: 7)
    again = [f"--workdir={tmp_path}", "--iterations=2", "--smoke"]
    assert itool.main(again) == stops.STOPPED and [name for name, *_ in runs] == ["warm"]  # at its end
    stopping.append("warm")
    assert itool.main(again) == stops.STOPPED and len(runs) == 1  # while its weights choose prompts
    assert itool.main(again) == stops.STOPPED and len(runs) == 5  # after the last stage, before the last evaluation
    assert stopping == [] and itool.main(again) == 0
    hard = [["18=\n", "16=\n", "14=\n", "19=\n", "17=\n", "15=\n"], ["0=\n", "2=\n", "4=\n", "1=\n", "3=\n", "5=\n"]]
    assert runs == [
        ("warm", "", "", [], 0),
        ("play_1", "warm", "", hard[0], 1), ("dpo_1", "play_1", "play_1", [], 0),
        ("play_2", "dpo_1", "", hard[1], 1), ("dpo_2", "play_2", "play_2", [], 0),
    ]  # fmt: skip
    assert asked == [("warm", 20), ("dpo_1", 20)]  # the second iteration asks the weights of the first
    report = json.loads((tmp_path / "itool.json").read_text())
    assert [row["hard_perplexity"] for row in report[:2]] == [16.5, 16.5] and report[2] == {"solved": 0.5}
    assert itool.main([f"--workdir={tmp_path}", "--iterations=2", "--smoke"]) == 0 and len(runs) == 5
    assert itool.main([f"--workdir={tmp_path}", "--iterations=0"]) == 2
    capsys.readouterr()
    assert itool.main([f"--workdir={tmp_path}", "--iterations=2"]) == 2 and len(runs) == 5  # the sizes of no --smoke
    said = capsys.readouterr().err
    assert f"{tmp_path / 'warm'} has a run of other settings" in said and "  sft.steps: 20 -> 600\n" in said
    monkeypatch.setattr(itool.itool, "RATIO", 0.5)
    assert itool.main([f"--workdir={tmp_path}", "--iterations=2", "--smoke"]) == 2 and len(runs) == 5
    said = capsys.readouterr().err
    assert f"{tmp_path / 'hard_1.json'}: made with other settings" in said and "  ratio: 0.3 -> 0.5\n" in said


@pytest.mark.parametrize("arg", [None, "warm", "play,smoke", "dpo", "dpo,smoke"])
def test_its_configs_can_run(arg):
    config = config_of.get_config(arg)
    check_config.check(config)
    assert config.program == {"w": "sft", "d": "dpo"}.get((arg or "p")[0], "agents")
    if config.program != "dpo":
        players.check(config)
        assert config.sft.prompts.steps * 3 >= config.sft.steps
    with pytest.raises(ValueError, match="choose one stage, not 2: dpo, warm"):
        config_of.get_config("dpo,warm")


def setup_of(config):
    mesh = sharding.make_mesh(sharding.parse_mesh(config.mesh))
    return SimpleNamespace(config=config, mesh=mesh, task=SimpleNamespace(tokenizer=TOKENIZER), model=None)


def episode(sample, said, status="done"):
    spans = [prompt(TOKENIZER.encode(RECORD["prompt"], bos=True))]
    for text in said:
        ids = [*TOKENIZER.encode_continuation(text), TOKENIZER.eos_id]
        spans.append(sampled(ids, np.zeros(len(ids))))
    return Trajectory("p", 0, sample, (tuple(spans),), tuple(Turn() for _ in said), status)


def test_the_policys_grades_are_read_after_the_judging_prompt(monkeypatch):
    """A model whose probability of a grade depends on what it reads, in place of one that is compiled."""
    config, rows = config_of.get_config("play,smoke"), []
    probability = dict(zip("ABCD", (0.4, 0.3, 0.2, 0.1), strict=True))

    def score(params, batch):
        tokens, real = np.asarray(batch.tokens), np.asarray(batch.segment_ids) > 0
        texts = [TOKENIZER.decode(row[here].tolist()) for row, here in zip(tokens, real, strict=True)]
        rows.extend(texts)
        return SimpleNamespace(log_probs=np.log([[probability[text[-1]] / (1 + ("=27" in text))] for text in texts]))

    monkeypatch.setattr(own_judgement, "make_score", lambda *_, **__: None)
    monkeypatch.setattr(own_judgement, "jit_score", lambda *_: score)
    opened, closed = [], []

    def make():
        opened.append(players.environment_of(config)())
        opened[-1].close = lambda env=opened[-1]: closed.append(env)
        return opened[-1]

    read = own_judgement.reader(setup_of(config), make)
    found = [episode(0, ["c4*7", "=28"]), episode(1, ["=27"]), episode(2, ["x"], "error")]
    judged = read(None, [RECORD], found)
    wanted = graded_value(np.array([0.4, 0.3, 0.2, 0.1]))
    assert judged[0].turns[-1].numbers["own_value"] == pytest.approx(wanted)
    assert judged[1].turns[-1].numbers["own_value"] == pytest.approx(wanted / 2)
    assert judged[0].turns[0].numbers == {} and judged[2] is found[2]
    assert rows[:4] == [f"?s eli,c4*7,=28|c4*7,=28\n{grade}" for grade in "ABCD"]
    assert opened and closed == opened
    config.agent.own_judgement = False
    assert own_judgement.reader(setup_of(config), players.environment_of(config)) is None
    config.agent.update(own_judgement=True, env=dict(fn="calculator"))
    with pytest.raises(ValueError, match="agent.env='calculator' has no grading"):
        players.check(config)


def test_the_perplexity_is_of_the_experts_turns(monkeypatch):
    """Each turn of the known answer and its end; not what the tools said."""
    config, masks = config_of.get_config("play,smoke"), []

    def score(params, batch):
        length = config.rollout.completion_length
        tokens = np.asarray(batch.tokens)[:, -length:]
        masks.append(tokens)
        return SimpleNamespace(log_probs=np.where(tokens == TOKENIZER.eos_id, np.log(0.5), np.log(0.9)))

    monkeypatch.setattr(perplexities, "make_score", lambda *_, **__: None)
    monkeypatch.setattr(perplexities, "jit_score", lambda *_: score)
    env = players.environment_of(config)()
    simple = INFO | {"plain": True, "number": 28, "times": 1, "calls": 0}
    records = [RECORD, RECORD | {"prompt": "28=\n", "info": json.dumps(simple)}]
    found = perplexities.of_known_answers(setup_of(config), None, records, env)
    letters = [len("s eli" + "c4*7" + "=28"), len("=28")]
    sums = [n * np.log(0.9) + ends * np.log(0.5) for n, ends in zip(letters, (3, 1), strict=True)]
    wanted = np.exp(-np.array(sums) / (np.array(letters) + [3, 1]))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_demonstrations_go_from_easy_to_hard():
    config = config_of.get_config("warm,smoke")
    config.sft.update(batch_size=4, prompts=dict(fn="one_level_after_another", column="calls", steps=2))
    dice = random.Random(0)
    records = [RECORD | {"info": json.dumps(INFO | {"calls": dice.randrange(3)})} for _ in range(40)]
    batches = warm_start.demonstrations(setup_of(config), records)
    levels = [{json.loads(record["info"])["calls"] for record in next(batches)} for _ in range(8)]
    assert levels == [{0}, {0}, {1}, {1}, {2}, {2}, {2}, {2}]
    again = warm_start.demonstrations(setup_of(config), records)
    for _ in range(3):
        next(again)
    other = warm_start.demonstrations(setup_of(config), records)
    other.set_state(json.loads(json.dumps(again.get_state())))
    assert next(other) == next(again)
    config.sft.prompts = dict(fn="")
    shuffled = warm_start.demonstrations(setup_of(config), records)
    assert len({json.loads(record["info"])["calls"] for _ in range(4) for record in next(shuffled)}) == 3
    config.sft.prompts = dict(fn="by_success")
    with pytest.raises(ValueError, match="sft.prompts.fn='by_success' learns from what becomes of its prompts"):
        warm_start.demonstrations(setup_of(config), records)
    assert jax.process_count() == 1
