"""A server on 127.0.0.1 that speaks OpenAI's protocol, with scripted answers."""

import contextlib

from tests.rollout.test_external import serving


@contextlib.contextmanager
def speaking(answer):
    """A server whose answers are answer(text of the last message, or the prompt). Yields it; `texts`: what it got."""
    texts = []

    def handle(body):
        chat = "messages" in body
        text = body["messages"][-1]["content"] if chat else body["prompt"]
        texts.append(text)
        said = answer(text)
        return {"choices": [{"message": {"role": "assistant", "content": said}} if chat else {"text": said}]}

    with serving(handle) as server:
        server.texts = texts
        yield server
