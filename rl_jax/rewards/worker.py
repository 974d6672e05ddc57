"""A reward worker process, started by `rl_jax.rewards.pool`: JSON lines in, JSON lines out. Stdlib only.

First line: {"path": sys.path, "function": "module:qualname", "kwargs": {...}}; answer {"ready": true} or {"failed":
reason}. Then chunks [[id, prompt, completion, info], ...]. For each item one line [id, {component: value}, null] or
[id, null, reason] is returned as soon as it is done.
"""
import importlib
import json
import math
import os
import queue
import sys
import threading

FLOAT32_MAX = 3.4028234663852886e38


def checked(result) -> dict[str, float]:
    """Returns named components as finite floats.

    Raises:
      TypeError: if `result` is not a dict of named numbers with the key "reward".
      ValueError: if a number is not a finite float32.
    """
    if not isinstance(result, dict) or "reward" not in result:
        raise TypeError(f"the reward function must return a dict with the key 'reward', got {result!r:.200}")
    values = {}
    for name, value in result.items():
        if not isinstance(name, str) or value is None or isinstance(value, (str, bytes)):
            raise TypeError(f"component {name!r:.80} is not a named number: {value!r:.80}")
        values[name] = float(value)
        if not math.isfinite(values[name]) or abs(values[name]) > FLOAT32_MAX:
            raise ValueError(f"component {name!r} is {values[name]}, not a finite float32")
    return values


def resolve(name: str):
    """The object named "module:qualname"."""
    module, _, qualname = name.partition(":")
    target = importlib.import_module(module)
    for part in qualname.split("."):
        target = getattr(target, part)
    return target


def describe(error: BaseException) -> str:
    """"Type: message", truncated; also works for an exception whose __str__ raises."""
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except BaseException:  # noqa: BLE001 - a broken __str__ must not take the worker down
        return type(error).__name__


def main() -> None:
    """Serves until the pipe from the parent closes."""
    # The protocol keeps private copies of the pipes (not inherited by children). The reward function's stdout goes to
    # stderr, and its stdin is empty.
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)

    def reply(message) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(replies, data):]

    inbox: queue.SimpleQueue = queue.SimpleQueue()

    def listen() -> None:
        for line in requests:
            inbox.put(line)
        os._exit(0)  # the parent closed the pipe or died: stop, even in the middle of an item

    setup = json.loads(requests.readline())
    sys.path[:] = setup["path"]
    try:
        function = resolve(setup["function"])
        prepare = getattr(function, "prepare", None)  # what takes long once, before the time of an item counts
        if prepare is not None:
            prepare(**setup["kwargs"])
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        reply({"failed": describe(error)})
        return
    reply({"ready": True})
    threading.Thread(target=listen, daemon=True).start()
    while True:
        for number, prompt, completion, info in json.loads(inbox.get()):
            try:
                values, reason = checked(function(prompt, completion, json.loads(info), **setup["kwargs"])), None
            except BaseException as error:  # noqa: BLE001 - SystemExit and the like are failures of this item, too
                values, reason = None, describe(error)
            reply([number, values, reason])


if __name__ == "__main__":
    main()
