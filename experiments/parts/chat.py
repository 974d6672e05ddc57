"""A chat server of OpenAI's protocol: messages in, texts out. By rl_jax.rollout.lm.client, without a key."""

import json
import pathlib
import re
import zlib
from collections.abc import Sequence
from typing import Any

from rl_jax.data.append_lines import append_lines
from rl_jax.rollout.lm.client import CHAT, Client
from rl_jax.runs.logging import encode_row

Message = dict[str, str]


def says(role: str, content: str) -> Message:
    """One message. role: "system", "user" or "assistant"."""
    return {"role": role, "content": content}


class Chat:
    """Asks one server, and keeps what was asked and answered.

    A request's seed is made of a checksum of its messages, so that a run that is started again asks the same.

    Args:
      url: of the server, "http://127.0.0.1:8000". Nothing else is connected to, and no key is sent.
      model: the server's name for it; "" is the one that it serves.
      temperature: of its sampling.
      max_tokens: of an answer.
      timeout_s: seconds per request.
      retries: further attempts after a failed connection, HTTP 429 or 5xx.
      seed: added to the checksum.
      log: file that gets a JSON line per question; None: none.

    Raises:
      ValueError: if the url or a number is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str = "",
        temperature: float = 1.0,
        max_tokens: int = 2048,
        timeout_s: float = 600.0,
        retries: int = 3,
        seed: int = 0,
        log: pathlib.Path | None = None,
    ):
        self._client = Client(url, timeout_s=timeout_s, retries=retries)
        self._options = {"temperature": temperature, "max_tokens": max_tokens} | ({"model": model} if model else {})
        self._seed, self._log = seed, log
        self._known: dict[str, str] = {}

    def ask(self, messages: Sequence[Message], count: int = 1, *, salt: int = 0) -> list[str]:
        """`count` answers to the same messages. Asks again for those that a server that ignores `n` did not give.

        Args:
          messages: the conversation.
          count: of answers.
          salt: added to the seed: the same messages may be asked twice, for other answers.

        Raises:
          ValueError: if the server cannot be used: unreachable, too slow, an error, or an answer of another form.
        """
        answers: list[str] = []
        seed = self._seed + 1000 * salt + zlib.crc32(json.dumps(list(messages)).encode())
        while len(answers) < count:
            body = {"messages": list(messages), "n": count - len(answers), "seed": (seed + len(answers)) % 2**31}
            try:
                found = self._client.post(CHAT, body | self._options)
            except (RuntimeError, OSError) as error:
                raise ValueError(f"chat server: {error}") from error
            answers += _texts(found)[: count - len(answers)]
        if self._log is not None:
            append_lines(self._log, [encode_row({"messages": list(messages), "answers": answers})])
        return answers

    def once(self, messages: Sequence[Message]) -> str:
        """The answer to these messages; the server is asked once for it in this process. Raises as `ask`."""
        key = json.dumps(list(messages))
        if key not in self._known:
            self._known[key] = self.ask(messages)[0]
        return self._known[key]


def _texts(answer: Any) -> list[str]:
    """The texts of a response; an empty one if a choice has no content."""
    try:
        found = [choice["message"]["content"] or "" for choice in answer["choices"]]
    except (TypeError, KeyError):
        found = []
    if not found or not all(isinstance(text, str) for text in found):
        raise ValueError(f"chat server: an answer without choices[].message.content: {str(answer)[:200]!r}")
    return found


def fenced(answer: str) -> str:
    """What is between the first pair of ``` of an answer, without the language's name; all of it if there is none."""
    found = re.search(r"```[a-zA-Z]*[ \t]*\n(.*?)```", answer, re.DOTALL)
    return (found[1] if found else answer).strip()
