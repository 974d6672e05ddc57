"""experiments/parts/text_models.py: what is sent to a server, what is read, and what is kept."""

import json

import pytest

from experiments.parts import text_models
from tests.experiments.loopback import speaking
from tests.rollout.test_external import serving

pytestmark = pytest.mark.usefixtures("no_waiting")


def test_each_text_is_asked_once_and_kept_for_the_next_run(tmp_path):
    kept = tmp_path / "answers" / "kept.jsonl"
    with speaking(str.upper) as server:
        fields = dict(url=server.url, model="m", max_tokens=7, kept=str(kept))
        ask = text_models.by_server(**fields)
        assert ask(["a", "b", "a"]) == ["A", "B", "A"] and ask(["b", "c"]) == ["B", "C"]
        assert sorted(server.texts) == ["a", "b", "c"]
        path, _, body = next(seen for seen in server.seen if seen[2]["messages"][0]["content"] == "c")
        assert path == "/v1/chat/completions" and body == {
            "model": "m",
            "max_tokens": 7,
            "temperature": 0.0,
            "seed": 0,
            "messages": [{"role": "user", "content": "c"}],
        }
        again = text_models.by_server(**fields)
        assert again(["c", "a"]) == ["C", "A"] and len(server.texts) == 3
        other = text_models.by_server(**fields | dict(model="another"))
        other(["a"])
        assert len(server.texts) == 4, "another model answers for itself"
        plain = text_models.by_server(url=server.url, chat=False, remember=False)
        assert plain(["x"]) == plain(["x"]) == ["X"] and server.seen[-1][0] == "/v1/completions"
        assert server.texts[-2:] == ["x", "x"], "nothing is remembered"
        system = text_models.by_server(url=server.url, system="be short")
        system(["y"])
        assert server.seen[-1][2]["messages"][0] == {"role": "system", "content": "be short"}
    kept.write_text(json.dumps({"question": "a"}) + "\n")
    with pytest.raises(ValueError, match="a line lacks answer, by"):
        text_models.by_server(**fields)


def test_an_answer_after_a_torn_line_is_kept(tmp_path):
    """The line is torn in a letter of two bytes."""
    kept = tmp_path / "kept.jsonl"
    ask = text_models.Cached(lambda texts: [text.upper() for text in texts], str(kept), "me")
    ask(["a"])
    kept.write_bytes(kept.read_bytes() + '{"by": "me", "question": "é'.encode()[:-1])
    again = text_models.Cached(lambda texts: ["new"] * len(texts), str(kept), "me")
    with pytest.warns(UserWarning, match=r"kept\.jsonl: cut 27 bytes"):
        assert again(["a", "b"]) == ["A", "new"]
    asked = []
    last = text_models.Cached(lambda texts: asked.extend(texts) or texts, str(kept), "me")
    assert last(["b", "a"]) == ["new", "A"] and not asked


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"choices": []}, r"has no choices\[0\].message.content"),
        ({"choices": [{"message": {"content": 3}}]}, "of type int"),
        ((400, b'{"error": {"message": "no such model"}}'), "HTTP 400: no such model"),
    ],
)
def test_an_answer_that_cannot_be_read_names_the_server(answer, said):
    with serving(lambda body: answer) as server, pytest.raises(RuntimeError, match=said) as error:
        text_models.by_server(url=server.url)(["a"])
    assert server.url in str(error.value)


def test_an_empty_message_and_what_is_refused():
    with serving(lambda body: {"choices": [{"message": {"content": None}}]}) as server:
        assert text_models.by_server(url=server.url)(["a"]) == [""]
    for fields, said in (
        (dict(max_tokens=0), "max_tokens=0"),
        (dict(system="x", chat=False), "set chat=True"),
        (dict(url="nowhere"), "not of the form"),
        (dict(kept="answers.jsonl", remember=False), "remember=False would not read"),
    ):
        with pytest.raises(ValueError, match=said):
            text_models.by_server(**dict(url="http://127.0.0.1:9") | fields)


def test_a_script_in_a_model_s_place():
    ask = text_models.by_words(liked=("gold", "door"))
    one, two = 'x\nMessage: "{}"\n', 'x gold\nMessage 1: "{}"\nMessage 2: "{}"\n'
    assert ask([one.format("a door"), one.format("a wall")]) == ["YES", "NO"]
    assert ask([two.format("gold door", "gold"), two.format("a", "door"), two.format("gold", "door")]) == [
        "1",
        "2",
        "NONE",
    ]
