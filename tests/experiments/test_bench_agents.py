"""experiments.bench.agents_peers: every side has the same work and the same game; what is printed was counted."""

import json
import types

import pytest

from configs import agents as agents_config
from experiments.bench import agents_peers
from experiments.bench.peers import calculator_game
from experiments.parts import players
from rl_jax.envs.text.calculator import Calculator
from rl_jax.tasks import calculator

PRICE = 0.05
SAID = ["408", "409", "", "c12*34", "c12*", "c*34", "c12**34", "c", "c12-34", "c9+9", "12*34", "c1234567890*1", "0408"]


@pytest.mark.parametrize("said", SAID)
def test_the_peers_play_the_same_game(said):
    env = Calculator(price=PRICE)
    assert env.reset({"prompt": "12*34=", "info": json.dumps({"answer": 408})}, 0) == "12*34="
    ours = env.step(said)
    told, reward, solved = calculator_game.step(said, "408", PRICE)
    assert ours.done == (told is None) and ours.reward == reward and ours.numbers["correct"] == solved
    assert [message["content"] for message in ours.messages] == ([told] if told else [])
    assert ours.numbers["calls"] == (told is not None) and calculator_game.CALL == calculator.ALPHABET[-3]


def make_work(tmp_path, steps=2):
    config = agents_config.get_config("calculator")
    problems = [[f"{left}*7=", str(left * 7)] for left in range(10, 10 + 2 * config.sample.prompts_per_step)]
    return agents_peers.make_work(config, problems, tmp_path, steps=steps)


def test_the_work_is_that_of_the_config(tmp_path):
    work = make_work(tmp_path)
    assert work == json.loads(json.dumps(work))
    config = agents_peers.config_of(work)
    limits = players.limits_of(config)
    assert (limits.turns, limits.turn_tokens, limits.row) == (work["turns"], work["turn_tokens"], work["row"])
    assert config.agent.env.price == work["price"] and config.init_from == work["run"]
    assert config.train.optimizer.learning_rate == work["rate"] and config.train.optimizer.decay_steps == 0
    assert {name: config.model[name] for name in agents_peers.SIZES} == work["sizes"]
    task = agents_peers.task_of(work)
    source = task.data_source("train")
    records = [(source[i]["prompt"], json.loads(source[i]["info"])["answer"]) for i in range(len(source))]
    assert records == [(prompt, int(answer)) for prompt, answer in work["problems"]]
    assert all(len(task.tokenizer.encode(prompt, bos=True)) <= work["prompt"] for prompt, _ in records)


def test_problems_for_other_steps_are_refused(tmp_path):
    with pytest.raises(ValueError, match="3 steps of 16 need 48 problems, not 32"):
        make_work(tmp_path, steps=3)


def test_counts_are_differences_and_means(monkeypatch):
    now = iter([10.0, 12.0, 15.0])
    monkeypatch.setattr(calculator_game.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(calculator_game.time, "process_time", lambda: 1.0)
    counts = calculator_game.Counts(3, 4)
    for step in range(3):
        counts.add(step, solved=step, calls=1)
        counts.add(step, solved=step, tokens=8)
        counts.updated()
    expected = {"name": "x", "step_s": [2.0, 3.0], "cpu_s": [0.0, 0.0], "calls": [0.25] * 3, "tokens": [2.0] * 3}
    assert counts.result("x") == expected | {"solved": [0.0, 0.5, 1.0]}


def test_ratios_are_of_the_steps_after_the_warm_up(monkeypatch):
    """Rounds take turns, each with a seed of its own; ours in front."""
    runs, seen = iter([1.0, 3.0, 2.0, 5.0]), []

    def run_apart(side, command, work):
        seen.append((side, work["seed"]))
        seconds = next(runs)
        means = dict.fromkeys(("solved", "calls", "tokens"), [0.1, 9.0, 0.2, 0.4, 0.6, 0.8, 1.0])
        return {"step_s": [99.0, seconds], "cpu_s": [99.0, 2 * seconds], **means}

    monkeypatch.setattr(agents_peers, "run_apart", run_apart)
    found = agents_peers.measure({"seed": 7}, {"trl": "python"}, rounds=2, warmup=2)
    assert seen == [("ours", 7), ("trl", 7), ("ours", 8), ("trl", 8)]
    assert found["sides"]["ours"] == {"step_s": 1.5, "cpu_s": 3.0} | dict.fromkeys(
        ("solved", "calls", "tokens"), [0.1, 0.6]
    )
    assert found["ratio"] == {"trl": {"step_s": 2.67, "cpu_s": 2.67}}


def test_ours_counts_every_update(monkeypatch, tmp_path):
    """One difference fewer than updates; the means are the run's own."""

    def run(config, workdir, *, task):
        workdir.mkdir()
        rows = [{"step": 0, "eval/pass@1": 0.0}]
        for step in range(2):
            agents_peers.agents.update("state")
            rows.append({"episode/correct": step / 2, "episode/calls": 1.0, "completion_length": 7.0})
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    fake = types.SimpleNamespace(run=run, update=lambda *_: None)
    monkeypatch.setattr(agents_peers, "agents", fake)
    found = agents_peers.run_ours(make_work(tmp_path))
    assert len(found["step_s"]) == len(found["cpu_s"]) == 1
    assert found["solved"] == [0.0, 0.5] and found["calls"] == [1.0, 1.0] and found["tokens"] == [7.0, 7.0]


def test_a_warm_up_that_leaves_no_step_is_refused(capsys):
    with pytest.raises(SystemExit):
        agents_peers.main(["--steps=5", "--warmup=5"])
    assert "must be 1 or more, and less than --steps=5" in capsys.readouterr().err
