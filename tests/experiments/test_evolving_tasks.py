"""parts/evolving_tasks.py, task_authors.py: failed tasks become new ones, who writes them, and a run that asks them."""

import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pyarrow.parquet
import pytest

from configs import agents_papers
from experiments import ppo
from experiments.parts import evolving_tasks, players, task_authors
from experiments.parts.evolving_tasks import EvolvingPrompts
from rl_jax.envs.text.orders import Orders
from rl_jax.experience import PromptMemory, PromptStream, PromptTable, sources, trajectory
from rl_jax.experience.prompt import Feedback, prompt_id
from rl_jax.runs.logging import read_jsonl
from rl_jax.tokenizers import CharTokenizer
from tests.envs.test_orders import TWO
from tests.envs.test_site import HOME, INFO
from tests.experiments.chat_server import bodies, said, scripted
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations  # noqa: F401  fixtures

RECORDS = [{"prompt": f"{name}?", "info": json.dumps({"wanted": name})} for name in "abcdefgh"]


def new(name, index=0):
    made = {"prompt": f"{name}?", "info": json.dumps({"wanted": name})}
    return made | {"id": prompt_id(made), "source": "evolved", "index": index}


def prompts_of(share=0.5, keep=8, batch=4):
    stream = PromptStream(RECORDS, sources.ordered(PromptTable(RECORDS)), batch_size=batch, memory=PromptMemory())
    return EvolvingPrompts(stream, share=share, keep=keep, seed=3)


def seen(batch, success):
    rows = np.asarray(success, float)
    return Feedback(
        np.asarray([one["index"] for one in batch]), [one["id"] for one in batch], rows, rows,
        np.ones(rows.shape, int), [[""] * rows.shape[1]] * len(batch),
    )  # fmt: skip


def wanted(records):
    return "".join(json.loads(one["info"])["wanted"] for one in records)


def test_a_phase_asks_its_tasks_and_remembers_what_failed():
    prompts = prompts_of()
    batch = next(prompts)
    assert wanted(batch) == "abcd"
    prompts.feedback(seen(batch, [[0, 0.5], [0, 1], [0, 0], [1, 1]]))
    assert wanted(prompts.failed) == "ac"
    prompts.begin([new("x"), new("y"), new("z")])
    assert prompts.failed == []
    asked = []
    for _ in range(6):
        batch = next(prompts)
        assert len(batch) == 4 and [one.get("source") for one in batch] == ["", "", "evolved", "evolved"]
        asked += batch[2:]
        prompts.feedback(seen(batch, [[1], [1], [1], [0]]))
    drawn = wanted(asked)
    assert all(sorted(drawn[i : i + 3]) == ["x", "y", "z"] for i in range(0, 12, 3)) and drawn != "xyz" * 4
    last = {one["id"]: place % 2 for place, one in enumerate(asked)}  # 0: solved
    assert sorted(one["id"] for one in prompts.failed) == sorted(name for name, odd in last.items() if odd)
    assert 0 < len(prompts.failed) < 3  # what was solved in the end has not failed
    told = prompts._prompts._memory  # the task's own prompts hear of themselves only
    assert sorted(told.state()) == sorted(prompt_id(record) for record in RECORDS[:6])  # g and h made room for others
    assert [told.get(prompt_id(record))["visits"] for record in RECORDS] == [4, 4, 1, 1, 3, 3, 0, 0]
    few = prompts_of(share=0.01, keep=2)
    few.begin([new("x")])
    batch = next(few)
    assert wanted(batch) == "abcx"  # at least one
    few.feedback(seen(batch, [[0]] * 4))
    assert wanted(few.failed) == "cx"
    whole = prompts_of(share=1.0)
    whole.begin([new("x")])
    batch = next(whole)
    whole.feedback(seen(batch, [[0]] * 4))
    assert wanted(batch) == "xxxx" and wanted(whole.failed) == "x" and len(whole._prompts._memory) == 0


def test_its_state_goes_on_with_the_same_tasks():
    prompts, other = prompts_of(), prompts_of()
    prompts.feedback(seen(next(prompts), [[0], [0], [1], [1]]))
    prompts.begin([new("x"), new("y"), new("z")])
    prompts.feedback(seen(next(prompts), [[1], [0], [0], [1]]))
    other.set_state(json.loads(json.dumps(prompts.get_state())))
    assert other.failed == prompts.failed != []
    for _ in range(4):
        one, two = next(prompts), next(other)
        assert one == two
        for stream in (prompts, other):
            stream.feedback(seen(one, [[0]] * 4))
    assert other.get_state() == prompts.get_state()


def run_of(values, said, **changes):
    """(setup, programs, prompts) of a phase whose critic gives `values` and whose author says `said`."""
    config = agents_papers.get_config("webrl,smoke")
    config.agent.curriculum = dict(fn=f"{__name__}:author", every=2, share=0.5, seeds=2, requests=2, keep=9, size=9,
                                   low=0.05, high=0.75) | changes  # fmt: skip
    config.sample.update(prompts_per_step=2, group_size=2)
    config.rollout.update(prompt_buckets=(40,), completion_length=5)
    ASKED.clear()
    ANSWERS[:] = said
    task = SimpleNamespace(tokenizer=CharTokenizer(Orders.ALPHABET))
    setup = SimpleNamespace(config=config, task=task)
    left = list(values)

    def predict(critic, rows):
        tokens, real = np.asarray(rows.tokens), np.asarray(rows.segment_ids, bool)
        assert critic == "critic" and tokens.shape == (4, 45) and not real[:, 40:].any()
        for row, live, place in zip(tokens, real, np.asarray(rows.positions), strict=True):
            ASKED.append(task.tokenizer.decode(row[live][1:].tolist()))
            assert place[live].tolist() == list(range(live.sum())) and live[39]
        found = np.full((4, 6), 9.0)
        found[:, 0] = [left.pop(0) if left else 9.0 for _ in range(4)]
        return found

    prompts = EvolvingPrompts(None, share=0.5, keep=9, seed=0)
    return setup, SimpleNamespace(predict=predict, generate="player"), prompts


ASKED, ANSWERS = [], []


def author(who, asked):
    assert who.params == "policy" and who.player == "player" and who.step in (2, 4)
    ASKED.append(asked)
    return ANSWERS


def failed(*names):
    made = [Orders().instructed(TWO, name) for name in names]
    return [one | {"id": prompt_id(one), "source": "", "index": i} for i, one in enumerate(made)]


def evolve(monkeypatch, setup, programs, prompts, step=2):
    monkeypatch.setattr(evolving_tasks, "to_mesh", lambda setup, rows: rows)
    learner = SimpleNamespace(policy_params=lambda: "policy", critic_params=lambda: "critic")
    return evolving_tasks.evolve(setup, programs, learner, prompts, step, jax.random.key(0))


def test_new_tasks_are_those_that_can_be_done_and_that_the_critic_finds_neither_hopeless_nor_done(monkeypatch):
    said = [["dog", "cow", "cat top", "egg fig?"], ["fig egg", "dog", "jam", "kite"]]
    setup, programs, prompts = run_of([0.05, 0.04, 0.75, 0.76, 0.5], said)
    prompts.failed = failed("cat top", "eel")
    assert evolve(monkeypatch, setup, programs, prompts, step=3) == {} and ASKED == []  # within a phase
    told = evolve(monkeypatch, setup, programs, prompts)
    assert [sorted(texts) for texts in ASKED[0]] == [["cat top?", "eel?"]] * 2
    # cow is on no shelf, cat top has failed itself, dog comes once; rows are filled up with the part's own.
    order = [f"{name}?{HOME}" for name in ("dog", "egg fig", "fig egg", "jam", "kite")]
    assert ASKED[1:] == [*order[:4], *[order[4]] * 4]
    assert [one["prompt"] for one in prompts.tasks] == [order[0], order[2], order[4]]
    assert told == {
        "curriculum/failed": 2, "curriculum/written": 8, "curriculum/feasible": 5, "curriculum/tasks": 3,
        "curriculum/value": pytest.approx(0.42),
    }  # fmt: skip
    task = prompts.tasks[0]
    assert task["index"] in (0, 1) and task["source"] == "evolved" and json.loads(task["info"])["prices"]
    assert prompts.failed == [] and json.loads(task["info"]) == INFO | {"wanted": "dog"}
    setup, programs, prompts = run_of([0.5] * 8, said, size=2)
    prompts.failed = failed("cat top")
    evolve(monkeypatch, setup, programs, prompts)
    assert len(prompts.tasks) == 2 and ASKED[0] == [["cat top?"]] * 2
    assert evolve(monkeypatch, setup, programs, prompts, step=4) == {
        f"curriculum/{name}": 0 for name in ("failed", "written", "feasible", "tasks")
    }
    assert prompts.tasks == []  # nothing has failed: the task's own


def context(seed=0, **more):
    config = agents_papers.get_config("webrl,smoke")
    task = SimpleNamespace(tokenizer=CharTokenizer(Orders.ALPHABET))
    setup = SimpleNamespace(config=config, task=task)
    return task_authors.Author(setup, more.get("player"), "params", jax.random.key(seed), 7)


def test_a_rule_writes_with_the_words_of_each_request():
    asked = [["cat?", "dog eel?"], ["fig?"]]
    (one,), (two,) = task_authors.rule(context(), asked)
    assert set(one.split()) <= {"cat", "dog", "eel"} and two == "fig"
    many = {task_authors.rule(context(seed), asked)[0][0] for seed in range(20)}
    assert len(many) > 4 and task_authors.rule(context(3), asked) == task_authors.rule(context(3), asked)


def test_the_policy_reads_failed_instructions_and_says_new_ones():
    read, encode = [], CharTokenizer(Orders.ALPHABET).encode

    def speak(params, draws, key):
        assert params == "params" and [draw.number for draw in draws] == [0, 1]
        read.extend(CharTokenizer(Orders.ALPHABET).decode(draw.prompt.tolist()[1:]) for draw in draws)
        assert all(draw.limit == 9 and len(draw.tokens) == 0 for draw in draws)
        return [np.int32(encode("dog?")), np.int32([])]

    player = SimpleNamespace(speak=speak)
    found = task_authors.policy(context(player=player), [["cat?", "dog eel?"], ["fig?"]], template="~{tasks}", tokens=9)
    assert found == [["dog?"], []] and read == ["~cat?dog eel?", "~fig?"]


def test_a_chat_server_writes_and_says_what_can_be_done():
    answers = ["Here: `dog?` and `fly to the moon?`", "There is. [Yes]", "No moon. [NO]", "`eel?`", "[YES]"]
    with scripted(*answers) as server:
        found = task_authors.chat(context(), [["cat?", "top?"], ["fig?"]], url=server.url, rules="No moon.")
        told = [said(body) for body in bodies(server)]
    assert found == [["dog?"], ["eel?"]] and server.left == []
    assert "- `cat?`\n- `top?`" in told[0] and "No moon." in told[1] and told[2].count("fly to the moon?") == 1
    assert [body["seed"] for body in bodies(server)][0] != [body["seed"] for body in bodies(server)][3]
    with scripted("`dog?`", "`dog?`") as server:
        assert task_authors.chat(context(), [["cat?"]] * 2, url=server.url) == [["dog?"]] * 2
        first, second = bodies(server)
    assert first["seed"] != second["seed"]


def test_what_cannot_be_is_refused():
    config = agents_papers.get_config("webrl,smoke")
    players.check(config)
    config.agent.curriculum.update(every=0, low=0.8)
    config.agent.env = dict(fn="rl_jax.envs.text.maze:Maze")
    config.agent.curriculum.fn = "polcy"
    said = "every=0 must be 1 or more\n.*low=0.8 and high=0.75.*\n.*has no instruction and no instructed.*\n.*'polcy'"
    with pytest.raises(ValueError, match=said):
        players.check(config)
    config.agent.curriculum = dict(fn="rule", every=3)
    with pytest.raises(ValueError, match="agent.curriculum has no share, seeds, requests, keep, size, low, high"):
        players.check(config)
    config = agents_papers.get_config("webrl,smoke")
    config.agent.curriculum = config.agent.curriculum.to_dict() | {"fn": "rule"}
    with pytest.raises(ValueError, match="rule takes no keyword 'template', 'tokens'"):
        players.check(config)
    config = agents_papers.get_config("webrl,fixed,fresh,smoke")
    assert not config.agent.curriculum.fn and not evolving_tasks.problems(config, None)
    config.program, config.agent.curriculum = "agents", agents_papers.get_config("webrl,smoke").agent.curriculum
    assert "works in experiments.ppo, not 'agents'" in evolving_tasks.problems(config, Orders())[0]


class Paid(Orders):
    """An untrained policy finds no price: an even number of letters wins, and an odd one loses."""

    def step(self, said):
        return self.lost() if len(said) % 2 else self.won()


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_run_plays_its_new_tasks_and_a_resumed_one_the_same(tmp_path):
    config = agents_papers.get_config("webrl,by_rule,smoke")
    config.task.update(data_dir=str(tmp_path / "data"), num_train=20, num_test=4, written=0)
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    config.sft.steps = 0
    config.agent.env.fn = f"{__name__}:Paid"
    config.agent.update(max_turns=3)
    config.agent.curriculum.update(every=2, low=0.0, high=1.0, requests=4)
    config.train.steps = 4
    config.critic.warmup_steps = 1
    config.sample.update(prompts_per_step=4, group_size=1)
    config.eval.update(every=4, num_prompts=4, batch_size=4)
    config.checkpoint.every = 1
    config.log.update(progress=False, tensorboard=False)
    ppo.run(config.lock(), tmp_path / "run")
    rows = read_jsonl(tmp_path / "run/metrics.jsonl")[1:]
    assert [("curriculum/tasks" in row) for row in rows] == [False, True, False, True]
    assert 0 < rows[1]["curriculum/tasks"] <= rows[1]["curriculum/feasible"] <= rows[1]["curriculum/written"] == 4
    known = {prompt_id(record) for record in _records(config)}
    ids = [_prompt_ids(tmp_path / f"run/trajectories/{step:08d}.parquet") for step in range(1, 5)]
    assert [sum(name not in known for name in step) for step in ids] == [0, 0, 2, 2]
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints/4")
    assert (tmp_path / "again/checkpoints/3").is_dir()  # within the phase that asks them
    (tmp_path / "again/final.json").unlink()
    ppo.run(config, tmp_path / "again")
    for name in ("final.json", "metrics.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def _records(config):
    from experiments.parts.setup import load_task

    source = load_task(config).data_source("train")
    return [source[i] for i in range(len(source))]


def _prompt_ids(path):
    return [one.prompt_id for one in trajectory.from_table(pyarrow.parquet.read_table(path))]
