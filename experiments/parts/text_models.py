"""Language models beside a run, as functions ask(texts) -> answers: by a server, or a script in its place.

A config names one by a function of this file or by its import path: dict(fn="by_server", url="http://127.0.0.1:8000").

A server is any that speaks OpenAI's protocol: vLLM, SGLang, or a run of our own (experiments.tools.serve_text). Tested
against loopback servers only. Requests are greedy by default, so the same text has one answer, and what was asked
before is answered from memory, or from the file `kept` after a restart. Servers that want a key are not covered.
Conversations, and several answers to one question: chat.py.
"""

import json
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from rl_jax.data.append_lines import append_lines
from rl_jax.rollout.lm.client import CHAT, COMPLETIONS, Client
from rl_jax.runs.logging import read_jsonl

MAX_CACHED = 100_000  # answers kept in memory
Ask = Callable[[Sequence[str]], list[str]]


class Cached:
    """Asks each text once.

    Args:
      ask: texts -> answers, in the same order.
      path: a file to which answers are appended, a JSON line each, and from which they are read at the start; "": none.
      by: who answers. Only lines with the same `by` are read.

    Raises:
      ValueError: if a line of the file is no JSON object, or lacks a field.
    """

    def __init__(self, ask: Ask, path: str = "", by: str = ""):
        self._ask, self._known, self._by = ask, {}, by
        self._path = pathlib.Path(path).expanduser() if path else None
        if self._path is not None and self._path.exists():
            for row in read_jsonl(self._path):
                if lacking := sorted({"by", "question", "answer"} - set(row)):
                    raise ValueError(f"{path}: a line lacks {', '.join(lacking)}: it holds no kept answers")
                if row["by"] == by:
                    self._known[row["question"]] = row["answer"]

    def __call__(self, questions: Sequence[str]) -> list[str]:
        """The answer to each question."""
        new = [text for text in dict.fromkeys(questions) if text not in self._known]
        if len(self._known) + len(new) > MAX_CACHED:
            self._known, new = {}, list(dict.fromkeys(questions))
        if new:
            answers = dict(zip(new, self._ask(new), strict=True))
            self._known |= answers
            self._keep(answers)
        return [self._known[text] for text in questions]

    def _keep(self, answers: dict[str, str]) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"by": self._by, "question": question, "answer": answer} for question, answer in answers.items()]
        append_lines(self._path, map(json.dumps, rows))


def by_server(
    *,
    url: str,
    model: str = "",
    system: str = "",
    chat: bool = True,
    max_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    timeout_s: float = 60.0,
    retries: int = 3,
    concurrency: int = 16,
    kept: str = "",
    remember: bool = True,
) -> Ask:
    """Makes ask(texts) -> answers of a server, one request per text.

    Args:
      url: of the server, "http://127.0.0.1:8000". The client connects to nothing else.
      model: the server's name for it; "" is the one that it serves.
      system: what a chat begins with, in the role "system"; "": nothing.
      chat: whether a text is a message (/v1/chat/completions) or is continued as it is (/v1/completions).
      max_tokens: longest answer.
      temperature: 0 is greedy.
      seed: of the request, for other temperatures.
      timeout_s: seconds per request.
      retries: further attempts after a failed connection, HTTP 429 or 5xx.
      concurrency: requests in flight at once.
      kept: a file of answers (`Cached`); "": in memory only.
      remember: whether a text is asked once. False: each time, for a model that learns meanwhile.

    Raises:
      ValueError: if a number is out of its range, the URL is not of the form http://HOST:PORT, there is a system prompt
        without a chat, or answers are kept that are not to be remembered. Of ask: ConnectionError, TimeoutError or
        RuntimeError, with the URL.
    """
    if max_tokens < 1 or temperature < 0.0:
        raise ValueError(f"by_server: max_tokens={max_tokens} must be 1 or more, temperature={temperature} 0 or more")
    if system and not chat:
        raise ValueError(f"by_server: system={system!r:.40} is for chats: set chat=True, or put it into the texts")
    if kept and not remember:
        raise ValueError(f"by_server: kept={kept!r} keeps answers that remember=False would not read")
    path = CHAT if chat else COMPLETIONS
    client = Client(url, timeout_s=timeout_s, retries=retries, concurrency=concurrency)
    fields = {"model": model} if model else {}
    fields |= {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}

    def body(text: str) -> dict[str, Any]:
        if not chat:
            return fields | {"prompt": text}
        said = [{"role": "system", "content": system}] if system else []
        return fields | {"messages": [*said, {"role": "user", "content": text}]}

    def ask(texts: Sequence[str]) -> list[str]:
        answers = client.post_all([body(text) for text in texts], path=path)
        return [_text_of(answer, chat, client.address + path) for answer in answers]

    if not remember:
        return ask
    return Cached(ask, kept, json.dumps(fields | {"system": system, "chat": chat}, sort_keys=True))


def _text_of(answer: Any, chat: bool, url: str) -> str:
    """The text of a server's answer; "" if its content is null. Raises RuntimeError if it has none."""
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] if chat else choice["text"]
    except (KeyError, IndexError, TypeError) as error:
        field = "choices[0].message.content" if chat else "choices[0].text"
        raise RuntimeError(f"{url}: the answer has no {field}: {answer!r:.200}") from error
    if not isinstance(text, str | None):
        raise RuntimeError(f"{url}: the answer's text is of type {type(text).__name__}")
    return text or ""


def by_words(*, liked: Sequence[str]) -> Ask:
    """A script that answers the questions of annotators.py: more patterns in a message are better.

    Args:
      liked: regular expressions.
    """

    def answer(question: str) -> str:
        grades = [
            sum(bool(re.search(pattern, said)) for pattern in liked)
            for said in re.findall(r'^Message(?: \d)?: "(.*)"$', question, re.MULTILINE)
        ]
        if len(grades) == 1:
            return "YES" if grades[0] else "NO"
        return "NONE" if grades[0] == grades[1] else str(1 + (grades[1] > grades[0]))

    return lambda questions: [answer(question) for question in questions]
