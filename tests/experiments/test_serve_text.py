"""experiments/tools/serve_text.py: what is answered, and what is refused."""

import threading

import pytest

from experiments.parts.text_models import by_server
from experiments.tools import serve_text

CHAT = serve_text.CHAT


def ask(texts):
    return [text.upper() for text in texts]


def cut(text, limit):
    return text[:limit]


def test_a_server_of_ones_own_is_asked_as_any_other():
    server = serve_text.make_server(ask, cut, longest=64)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert by_server(url=url, system="be loud")(["a", "b"]) == ["BE LOUD\nA", "BE LOUD\nB"]
        assert by_server(url=url, chat=False, max_tokens=2)(["abc"]) == ["AB"]
        with pytest.raises(RuntimeError, match=r"HTTP 400: temperature=1.0: answers are greedy"):
            by_server(url=url, temperature=1.0)(["a"])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_replies():
    found = serve_text.reply(
        "/v1/completions", {"prompt": ["a", "b"], "temperature": 0, "stream": None, "tools": []}, ask, cut, 9
    )
    assert [choice["text"] for choice in found["choices"]] == ["A", "B"]
    for path, body, said in (
        ("/v1/models", {}, "not /v1/models"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a text as content"),
        (CHAT, {}, "messages must be"),
        ("/v1/completions", {"prompt": [1, 2]}, "a list of texts"),
        ("/v1/completions", {"prompt": "a", "n": 2}, "n=2"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens=0"),
        ("/v1/completions", {"prompt": "a", "logprobs": 0}, "logprobs=0: answers are greedy"),
        ("/v1/completions", {"prompt": "a", "echo": True}, "echo=True"),
        ("/v1/completions", {"prompt": "a", "top_k": 5}, "top_k=5"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"5": -100}}, "logit_bias="),
        (CHAT, {"messages": [{"content": "a"}], "response_format": {"type": "json_object"}}, "response_format="),
        (CHAT, {"messages": [{"content": "a"}], "tools": [{"type": "function"}]}, "tools="),
        ("/v1/completions", {"prompt": "a", "stop": ""}, "stop='' must be a text"),
        (CHAT, {"messages": [{"content": "a"}], "stop": [1]}, "stop=.1. must be a text"),
    ):
        with pytest.raises(ValueError, match=said):
            serve_text.reply(path, body, ask, cut, 9)


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({}, "ABCDEFGHI", "length"),  # of the server's 9
        ({"max_tokens": 99}, "ABCDEFGHI", "length"),
        ({"max_tokens": 2}, "AB", "length"),
        ({"stop": "D"}, "ABC", "stop"),
        ({"stop": ["F", "CD"], "max_tokens": 8, "logprobs": False}, "AB", "stop"),
        ({"stop": ["F"], "max_tokens": 2}, "AB", "length"),
        ({"prompt": "abcdefghi"}, "ABCDEFGHI", "stop"),
    ],
)
def test_where_an_answer_ends(fields, text, reason):
    body = {"prompt": "abcdefghijkl"} | fields
    [choice] = serve_text.reply("/v1/completions", body, ask, cut, 9)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text, reason)


def test_a_run_that_is_not_there_is_a_message(tmp_path):
    with pytest.raises(SystemExit, match="serve_text: .*nowhere.*config.json"):
        serve_text.main([str(tmp_path / "nowhere")])


def test_a_followed_run_is_loaded_again_when_it_has_a_newer_checkpoint(tmp_path, monkeypatch):
    loaded = []

    def make_ask(setup, path, what, max_tokens, size):
        loaded.append(max_tokens)
        return lambda texts: [str(len(loaded))] * len(texts)

    monkeypatch.setattr(serve_text, "setup_of", lambda folder: None)
    monkeypatch.setattr(serve_text, "make_ask", make_ask)
    (tmp_path / "checkpoints" / "9").mkdir(parents=True)
    stays, follows = (serve_text.NewestRun(tmp_path, 5, follow=follow) for follow in (False, True))
    assert (stays(["a"]), follows(["a"])) == (["1"], ["2"])
    (tmp_path / "checkpoints" / "10.orbax-checkpoint-tmp").mkdir()
    assert follows(["a"]) == ["2"], "not written yet"
    (tmp_path / "checkpoints" / "10").mkdir()
    assert (stays(["a"]), follows(["a"])) == (["2"], ["3"])
