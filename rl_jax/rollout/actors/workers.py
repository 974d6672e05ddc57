"""Where an actor runs: a thread, a process behind two pipes, or another machine's process. No jax, no pickle.

A frame is two lengths, a JSON header (kind, meta, each array's type and shape) and the arrays' bytes.
"""

import io
import json
import os
import queue
import select
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

import numpy as np

from rl_jax.rollout.actors.stage import Message

LENGTHS = struct.Struct("<II")


class LostError(RuntimeError):
    """A worker has died or says nothing; another one can take its place."""


class ActorError(RuntimeError):
    """An environment, or the policy in an actor, has raised: another worker would do the same."""


def to_frame(message: Message) -> bytes:
    """A message as bytes."""
    arrays = [np.ascontiguousarray(x) if np.ndim(x) else np.asarray(x) for x in message.arrays]
    head = {"kind": message.kind, "meta": message.meta, "arrays": [[x.dtype.str, list(x.shape)] for x in arrays]}
    header, body = json.dumps(head).encode(), b"".join(x.tobytes() for x in arrays)
    return LENGTHS.pack(len(header), len(body)) + header + body


def read_frame(read: Callable[[int], bytes]) -> Message:
    """The next message. read: n -> exactly n bytes; raises EOFError at the end."""
    lengths = LENGTHS.unpack(read(LENGTHS.size))
    head, body, arrays, start = json.loads(read(lengths[0])), read(lengths[1]), [], 0
    for kind, shape in head["arrays"]:
        dtype = np.dtype(kind)
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(body, dtype, count, start).reshape(shape))
        start += count * dtype.itemsize
    return Message(head["kind"], head["meta"], arrays)


def answered(handle: Callable[[Message], Message], message: Message) -> Message:
    """The answer of `handle`, or its error as a message of kind "error"."""
    try:
        return handle(message)
    except Exception as error:
        return Message("error", {"text": f"{type(error).__name__}: {error}"})


def answered_frame(handle: Callable[[Message], Message], frame: bytes) -> bytes:
    """`answered`, of a frame and as a frame: what an actor on another machine does with a request."""
    return to_frame(answered(handle, read_frame(io.BytesIO(frame).read)))


def serve(handle: Callable[[Message], Message], read: BinaryIO, write: BinaryIO) -> None:
    """Answers frames until the other side is gone. The body of an actor's process."""

    def exactly(count: int) -> bytes:
        data = read.read(count)
        if len(data) < count:
            raise EOFError
        return data

    try:
        while True:
            write.write(to_frame(answered(handle, read_frame(exactly))))
            write.flush()
    except (EOFError, BrokenPipeError):
        return


class ThreadWorker:
    """An actor in a thread. handle: of its stage."""

    def __init__(self, handle: Callable[[Message], Message]):
        self._in, self._out = queue.SimpleQueue(), queue.SimpleQueue()

        def work():
            while (message := self._in.get()) is not None:
                self._out.put(answered(handle, message))

        self._thread = threading.Thread(target=work, name="actor", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Hands over a message; does not wait."""
        self._in.put(message)

    def receive(self, timeout_s: float) -> Message:
        """The next answer. Raises LostError if none comes in time."""
        try:
            return self._out.get(timeout=timeout_s)
        except queue.Empty:
            raise LostError(f"an actor's thread has said nothing for {timeout_s} s") from None

    def close(self) -> None:
        """Ends the thread after what it does now."""
        self._in.put(None)


class ProcessWorker:
    """An actor in a process of its own, which ends when this one does (its input ends).

    Args:
      command: what is started; it calls `serve` on its standard input and output.
      environment: its variables.
      timeout_s: longest wait for it to read a message.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], timeout_s: float = 60.0):
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        # A session of its own: Ctrl-C is for the trainer, which ends it after the step.
        self._process = subprocess.Popen(list(command), env=dict(environment), start_new_session=True, **pipes)
        self.pid, self._timeout_s = self._process.pid, timeout_s
        os.set_blocking(self._process.stdin.fileno(), False)

    def send(self, message: Message) -> None:
        """Writes a message. Raises LostError if the process is gone, or does not read it in time."""
        late, file, left = time.monotonic() + self._timeout_s, self._process.stdin.fileno(), to_frame(message)
        try:
            while left:
                if not select.select([], [file], [], max(late - time.monotonic(), 0.0))[1]:
                    raise LostError(f"actor process {self.pid} has read nothing for {self._timeout_s} s")
                left = left[os.write(file, left) :]
        except OSError as error:
            raise LostError(f"actor process {self.pid} is gone: {error}") from error

    def receive(self, timeout_s: float) -> Message:
        """The next answer. Raises LostError if the process is gone, or none comes in time."""
        late, file = time.monotonic() + timeout_s, self._process.stdout.fileno()

        def exactly(count: int) -> bytes:
            parts = []
            while count:
                if not select.select([file], [], [], max(late - time.monotonic(), 0.0))[0]:
                    raise LostError(f"actor process {self.pid} has said nothing for {timeout_s} s")
                if not (data := os.read(file, min(count, 1 << 20))):
                    raise LostError(f"actor process {self.pid} has ended with status {self._process.wait()}")
                parts.append(data)
                count -= len(data)
            return b"".join(parts)

        return read_frame(exactly)

    def close(self) -> None:
        """Kills the process: it has nothing that the hub does not know."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                pipe.close()
            except OSError:  # what was still to be written to a process that is gone
                pass


class RemoteWorker:
    """An actor in a process that was started by somebody else, on this machine or another one.

    Args:
      connection: to it (flow.requests.Connection).
    """

    def __init__(self, connection):
        self._connection = connection

    def send(self, message: Message) -> None:
        """Leaves a message; does not wait. Raises LostError if the actor is gone."""
        try:
            self._connection.send(to_frame(message))
        except ConnectionError as error:
            raise LostError(str(error)) from error

    def receive(self, timeout_s: float) -> Message:
        """The next answer. Raises LostError if the actor is gone, or none comes in time."""
        try:
            return read_frame(io.BytesIO(self._connection.receive(timeout_s)).read)
        except (ConnectionError, TimeoutError) as error:
            raise LostError(str(error)) from error

    def close(self) -> None:
        """Asks it nothing more. It has nothing that the hub does not know."""
        self._connection.close()
