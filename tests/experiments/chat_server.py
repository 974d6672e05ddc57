"""A chat server on 127.0.0.1 that answers from a script."""

import contextlib

from tests.rollout.test_external import serving


@contextlib.contextmanager
def scripted(*answers, ignores_n=False):
    """Yields a server whose requests take the answers in order, n of them each; `server.left` is what was not taken.

    An answer that is a tuple (status, bytes) is sent as it is.
    """
    left = list(answers)

    def handle(body):
        if not left:
            return 400, b'{"error": "no answer is left"}'
        if isinstance(left[0], tuple):
            return left.pop(0)
        taken = [left.pop(0) for _ in range(1 if ignores_n else body["n"])]
        return {"choices": [{"index": i, "message": {"content": text}} for i, text in enumerate(taken)]}

    with serving(handle) as server:
        server.left = left
        yield server


def bodies(server):
    """The requests so far, all of them to the chat's path."""
    assert {path for path, _, _ in server.seen} <= {"/v1/chat/completions"}
    return [body for _, _, body in server.seen]


def said(body) -> str:
    """The last message of a request."""
    return body["messages"][-1]["content"]
