"""experiments/parts/chat.py against a server on the loopback."""

import json

import pytest

from experiments.parts.chat import Chat, fenced, says
from rl_jax.runs.logging import read_jsonl
from tests.experiments.chat_server import bodies, scripted

pytestmark = pytest.mark.usefixtures("no_waiting")

MESSAGES = [says("system", "be short"), says("user", "a word?")]


def test_what_is_sent_and_what_comes_back(tmp_path):
    with scripted("one", "two", None) as server:
        chat = Chat(f"{server.url}/v1", model="m", temperature=0.5, max_tokens=9, seed=3, log=tmp_path / "log.jsonl")
        assert chat.ask(MESSAGES, 2) == ["one", "two"] and chat.ask(MESSAGES[1:]) == [""]
    first, second = bodies(server)
    assert first["messages"] == MESSAGES and second["n"] == 1
    assert {name: first[name] for name in ("n", "model", "temperature", "max_tokens")} == dict(
        n=2, model="m", temperature=0.5, max_tokens=9
    )
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rows[0] == {"messages": MESSAGES, "answers": ["one", "two"]}
    with scripted(*"abcdef") as server:  # the same question has the same seed
        chat = Chat(server.url, seed=3)
        chat.ask(MESSAGES, 2)
        chat.ask(MESSAGES, 2, salt=1)
        assert [chat.once(MESSAGES) for _ in range(2)] == ["e", "e"]
    same, salted, _ = bodies(server)
    assert same["seed"] == first["seed"] != second["seed"] and "model" not in same and salted["seed"] != same["seed"]


def test_a_torn_line_of_the_log_is_cut_and_the_next_one_is_whole(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"answers": ["old"], "messages": []}\n{"answers": ["to')
    with scripted("new") as server, pytest.warns(UserWarning, match=r"log\.jsonl: cut 16 bytes of a last line"):
        Chat(server.url, log=log).ask(MESSAGES)
    assert [row["answers"] for row in read_jsonl(log)] == [["old"], ["new"]]


def test_a_server_that_ignores_n_is_asked_again():
    with scripted("a", "b", "c", ignores_n=True) as server:
        assert Chat(server.url).ask(MESSAGES, 3) == ["a", "b", "c"]
    assert [body["n"] for body in bodies(server)] == [3, 2, 1]
    assert len({body["seed"] for body in bodies(server)}) == 3


@pytest.mark.parametrize(
    "answer, complaint",
    [
        ((400, b'{"error": {"message": "no such model"}}'), "HTTP 400: no such model"),
        ((200, b'{"choices": []}'), r"without choices\[\].message.content"),
        ((200, b'{"choices": [{"message": {"content": 3}}]}'), "without choices"),
        ((200, b"[]"), "without choices"),
        ((200, b"no json"), "not JSON"),
        ((200, b""), "without choices"),
    ],
)
def test_what_a_server_may_not_answer(answer, complaint):
    with scripted(answer) as server, pytest.raises(ValueError, match=f"chat server: .*{complaint}"):
        Chat(server.url, retries=0).ask(MESSAGES)


def test_a_server_that_is_not_there():
    with scripted() as server:
        url = server.url
    with pytest.raises(ValueError, match="chat server: http"):
        Chat(url, retries=0).ask(MESSAGES)


def test_fenced():
    assert fenced("thoughts\n```python\nreward = 1\n```\nmore\n```\nx\n```") == "reward = 1"
    assert fenced(" reward = 1\n") == "reward = 1" and fenced("```reward = 1```") == "```reward = 1```"
