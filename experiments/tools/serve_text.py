"""Serves a language model of our own over OpenAI's protocol, for what asks one beside a run.

    python -m experiments.tools.serve_text runs/adapter --port=8000
    curl -d '{"prompt": "1+2=", "max_tokens": 4}' http://127.0.0.1:8000/v1/completions

The model is the workdir of a run (its newest checkpoint, and newer ones as they come with --follow). Answers are
greedy: a request with a temperature above 0, with n above 1, with stream, echo, logprobs or another field of REFUSED is
refused, since it could not be honoured; `stop` is, and `max_tokens` up to --max_tokens. A chat is its messages, one per
line: models from scratch have no template. One request at a time, on 127.0.0.1 unless --host says otherwise; nobody is
asked for a key. For large models take vLLM or SGLang.
"""

import argparse
import http.server
import json
import pathlib
import threading
from collections.abc import Callable
from typing import Any

from experiments.parts import refusals
from experiments.parts.judges.base import setup_of
from experiments.parts.judges.generative import make_ask
from experiments.parts.text_models import CHAT, Ask
from rl_jax.rollout.lm.client import COMPLETIONS

MAX_REQUEST = 1 << 20  # bytes
REFUSED: dict[str, Any] = {  # field of a request -> the value that it may have besides null
    "temperature": 0, "n": 1, "best_of": 1, "stream": False, "echo": False, "top_k": 1, "top_p": 1, "min_p": 0,
    "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "logprobs": False, "top_logprobs": None,
    "logit_bias": {}, "min_tokens": 0, "ignore_eos": False, "suffix": "", "response_format": {"type": "text"},
    "tools": [], "functions": [], "tool_choice": "none",
}  # fmt: skip


class NewestRun:
    """ask(texts) of a run's newest checkpoint.

    Args:
      folder: the run's workdir.
      max_tokens: longest answer.
      follow: whether a newer checkpoint replaces the one that answers.
    """

    def __init__(self, folder: pathlib.Path, max_tokens: int, *, follow: bool = False):
        self._folder, self._max_tokens, self._follow = folder, max_tokens, follow
        self._ask, self._step = None, -1

    def __call__(self, texts) -> list[str]:
        """The answers."""
        newest = max((int(x.name) for x in (self._folder / "checkpoints").glob("*") if x.name.isdigit()), default=-1)
        if self._ask is None or (self._follow and newest != self._step):
            setup, self._step = setup_of(self._folder), newest
            self._ask = make_ask(setup, str(self._folder), "RUN", self._max_tokens, 1)
        return self._ask(texts)


def reply(path: str, body: dict[str, Any], ask: Ask, cut: Callable[[str, int], str], longest: int) -> dict[str, Any]:
    """The body of an answer.

    Args:
      path: of the request.
      body: of the request.
      ask: who answers.
      cut: (text, tokens) -> the text without those that are too many.
      longest: answer, in tokens, whatever the request allows. `ask` gives more than that if there is more.

    Raises:
      ValueError: if the request cannot be honoured.
    """
    if path not in (CHAT, COMPLETIONS):
        raise ValueError(f"there is {CHAT} and {COMPLETIONS}, not {path}")
    for name, allowed in REFUSED.items():
        value = body.get(name)
        if value is not None and (value != allowed or name == "logprobs" and value is not False):  # 0 asks for one
            raise ValueError(f"{name}={value!r}: answers are greedy, one at a time, whole, as text: leave it out")
    if path == CHAT:
        messages = body.get("messages")
        if not messages or not all(isinstance(x, dict) and isinstance(x.get("content"), str) for x in messages):
            raise ValueError("messages must be a list of objects with a text as content")
        prompts = ["\n".join(message["content"] for message in messages)]
    else:
        prompts = body.get("prompt")
        prompts = [prompts] if isinstance(prompts, str) else prompts
        if not prompts or not all(isinstance(text, str) for text in prompts):
            raise ValueError("prompt must be a text, or a list of texts")
    limit = body.get("max_completion_tokens") if body.get("max_tokens") is None else body["max_tokens"]
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ValueError(f"max_tokens={limit!r} must be 1 or more")
    ends = _ends(body.get("stop"))
    choices = []
    for i, text in enumerate(ask(prompts)):
        short = cut(text, min(limit or longest, longest))
        stops = [short.find(end) for end in ends if end in short]
        reason = "length" if short != text and not stops else "stop"
        choices.append({"index": i, "text": short[: min(stops)] if stops else short, "finish_reason": reason})
    if path == CHAT:
        choices = [x | {"message": {"role": "assistant", "content": x.pop("text")}} for x in choices]
    return {"object": "chat.completion" if path == CHAT else "text_completion", "choices": choices}


def _ends(stop: Any) -> list[str]:
    """The texts of a request's `stop`: none, one or a list. Raises ValueError if it is anything else."""
    ends = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(ends, list) or not all(isinstance(end, str) and end for end in ends):
        raise ValueError(f"stop={stop!r:.40} must be a text, or a list of texts, none of them empty")
    return ends


def make_server(ask: Ask, cut: Callable[[str, int], str], *, longest: int, host: str = "127.0.0.1", port: int = 0):
    """An http.server.ThreadingHTTPServer that is not running yet. port: 0 is any that is free.

    Args:
      ask: who answers; one call at a time.
      cut: as in `reply`.
      longest: as in `reply`.
      host: to listen on.
      port: to listen on.
    """
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            try:
                size = int(self.headers.get("Content-Length") or 0)
                if not 0 <= size <= MAX_REQUEST:
                    raise ValueError(f"the request has {size} bytes, not 0 to {MAX_REQUEST}")
                body = json.loads(self.rfile.read(size))
                if not isinstance(body, dict):
                    raise ValueError("the request is not a JSON object")
                with lock:
                    self._send(200, reply(self.path, body, ask, cut, longest))
            except (ValueError, TypeError) as error:
                self._send(400, {"error": {"message": str(error)}})

        def _send(self, status: int, body: dict[str, Any]) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(text)
            self.close_connection = True

        def log_message(self, *_) -> None:
            """Nothing is printed per request."""

    return http.server.ThreadingHTTPServer((host, port), Handler)


def main(argv=None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="workdir of a run")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max_tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--follow", action="store_true", help="answer with newer checkpoints as they come")
    options = parser.parse_args(argv)
    folder = pathlib.Path(options.run)
    if options.max_tokens < 1:
        parser.error(f"--max_tokens={options.max_tokens} must be 1 or more")
    with refusals.refusing("experiments.tools.serve_text"):
        ask = NewestRun(folder, options.max_tokens + 1, follow=options.follow)  # one more tells what was cut
        tokenizer = setup_of(folder).task.tokenizer
        ask([""])  # loaded before the first request

    def cut(text: str, limit: int) -> str:
        ids = tokenizer.encode(text)
        return text if len(ids) <= limit else tokenizer.decode(ids[:limit])

    server = make_server(ask, cut, longest=options.max_tokens, host=options.host, port=options.port)
    print(f"{folder} answers at http://{options.host}:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


if __name__ == "__main__":
    main()
