"""A reward worker, started by `rl_jax.rewards.pool`: JSON lines in, JSON lines out. Stdlib only.

The worker imports the reward function and never calls it: it forks a child for each item, and kills the child and all
that it has started before it answers. So an item starts from the state after the import, whatever others did. Functions
that say so (replies.shares_process) keep their child from item to item.

First line: {"path": sys.path, "function": "module:qualname", "kwargs": {...}, "time_limit_s", "memory_gb", "parent":
pid}; answer {"ready": true} or {"failed": reason}. Then chunks [[id, prompt, completion, info], ...]. For each item one
line [id, [{component: value}, null] or [null, reason], whether it was late].
"""

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
import warnings

GIB = 2**30
READ = 2**16


class _ParentIsGone(BaseException):
    """The program that started the worker has ended or closed it."""


class _Child:
    """A forked process that scores items; see the head of this file."""

    def __init__(self, worker: "_Worker"):
        requests, self.requests = os.pipe()
        self.replies, replies = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or the child would print it again
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that the function's module has started
            self.pid = os.fork()
        if not self.pid:
            try:
                for other in (worker.requests, worker.replies, self.requests, self.replies):
                    os.close(other)
                worker.contain(os.getpid())
                _answer(worker, requests, replies)
            finally:
                os._exit(1)
        os.close(requests)
        os.close(replies)
        for end in (self.requests, self.replies):
            os.set_blocking(end, False)
        try:
            self.death = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            self.death = None  # then a child's end is seen by its pipe, or by the time limit

    def end(self, spare: frozenset[int]) -> str:
        """Kills it and all that it has started, but not `spare`. Returns how it had ended."""
        for end in (self.requests, self.replies, self.death):
            if end is not None:
                os.close(end)
        status = containment.end_children(self.pid, spare=spare)
        code = os.waitstatus_to_exitcode(status) if status is not None else 1
        return f"the reward function ended its process (exit status {code})"


class _Worker:
    """The loop of a worker. `requests`, `replies`: its pipes from and to the program."""

    def __init__(self, requests: int, replies: int, setup: dict, inbox: bytes):
        self.requests, self.replies, self.inbox, self.parent = requests, replies, inbox, setup["parent"]
        self.kwargs, self.limit_s = setup["kwargs"], setup["time_limit_s"]
        self.memory_gb = setup["memory_gb"]
        self.child, self.pid, self.leaving = None, os.getpid(), False

    def load(self, name: str) -> None:
        """Imports the function, and prepares it."""
        self.function = replies.resolve(name)
        replies.hook(self.function, "prepare", self.kwargs, None)
        self.keeps = replies.shares_process(self.function, self.kwargs)
        self.max_names = replies.hook(self.function, "max_names", self.kwargs, replies.MAX_NAMES)
        self.spare = frozenset(containment.children())  # what the import has started serves all items
        self.fence = containment.signal_fence()
        # Once for all children: they inherit these.
        containment.prefer_for_oom()
        containment.set_limits(memory_bytes=containment.memory_bytes() + self.memory_gb * GIB)

    def contain(self, pid: int) -> None:
        """In a child: what holds it."""
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        os.setsid()
        containment.set_readable(True)
        containment.on_parent_death(signal.SIGKILL)
        if os.getppid() != self.pid:  # it ended before that
            os._exit(0)
        if not self.keeps:
            containment.set_cpu_limit(self.limit_s * (os.cpu_count() or 1) + containment.SPARE_CPU_S)
        containment.go_behind(self.fence)

    def leave(self) -> None:
        """The program has ended or closed the pipe.

        Its end closes the pipe and sends SIGCONT, one just after the other. The second must not raise again: that could
        be while `main` ends the children, and would leave them behind.
        """
        self.leaving = True
        raise _ParentIsGone

    def woken(self, *_) -> None:
        """SIGCONT: the kernel sends it when the parent ends, also to a worker that was stopped."""
        if not self.leaving and os.getpid() == self.pid and os.getppid() != self.parent:
            self.leave()

    def serve(self) -> None:
        """Answers chunk by chunk."""
        while True:
            while b"\n" not in self.inbox:
                self.receive()
            line, _, self.inbox = self.inbox.partition(b"\n")
            for number, *item in json.loads(line):
                result, late = self.score(item)
                self.send([number, result, late])

    def receive(self) -> None:
        """Reads from the program; waits if there is nothing."""
        data = os.read(self.requests, READ)
        if not data:
            self.leave()
        self.inbox += data

    def send(self, message) -> None:
        """Writes a line to the program."""
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self.replies, data) :]
        except BrokenPipeError:
            self.leave()

    def score(self, item: list) -> tuple[tuple, bool]:
        """((values, reason) of an item, whether it was late)."""
        if self.child is not None and _has_more(self.child.replies):  # nothing was asked
            self.child.end(self.spare)
            self.child = None
        try:
            child = self.child or _Child(self)
        except OSError as error:
            return (None, f"no process could be started for it: {error}"), False
        self.child = child
        nonce = os.urandom(16).hex()
        line, late = self.ask(child, json.dumps([nonce, *item]).encode() + b"\n")
        try:
            if late:
                return (None, f"the reward function took over {self.limit_s} s"), True
            result = replies.decode(line, nonce, self.max_names) if line is not None else None
        except ValueError as error:
            result, self.child = (None, f"its process sent no valid reply: {error}"), None
        finally:
            if late or line is None or self.child is None or not self.keeps:
                self.child = None
                ended = child.end(self.spare)
        return result or (None, ended), False

    def ask(self, child: _Child, request: bytes) -> tuple[bytes | None, bool]:
        """(the first line that the child writes, False); None if it has ended; (None, True) if it is late."""
        found, deadline, alive = b"", time.monotonic() + self.limit_s, True
        while True:
            poll = select.poll()
            for end in (self.requests, child.replies, child.death):
                if end is not None:
                    poll.register(end, select.POLLIN)
            if request:
                poll.register(child.requests, select.POLLOUT)
            wait = max(0.0, deadline - time.monotonic())
            ready = {end for end, _ in poll.poll(min(wait * 1000 + 1, 2**30))}
            if self.requests in ready:
                self.receive()  # nothing is sent in the middle of a chunk, so this is its end
            if child.requests in ready:
                with contextlib.suppress(BlockingIOError):
                    try:
                        request = request[os.write(child.requests, request) :]
                    except BrokenPipeError:
                        request = b""
            # The clock and the child's end are read before its pipe: an answer that has arrived counts.
            now, alive = time.monotonic(), child.death not in ready
            with contextlib.suppress(BlockingIOError):
                while data := os.read(child.replies, READ):
                    found += data
                    if b"\n" in found or len(found) > replies.MAX_REPLY:
                        return found.partition(b"\n")[0][: replies.MAX_REPLY], False
                alive = False  # the pipe is closed
            if not alive:
                return None, False
            if now > deadline:
                return None, True


def _has_more(pipe: int) -> bool:
    """Whether a pipe has something to read, or is closed."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(0))


def _answer(worker: _Worker, requests: int, answers: int) -> None:
    """In a child: scores items until its pipe closes; one only, unless the function keeps its process."""
    encode, checked, describe, loads = replies.encode, replies.checked, replies.describe, json.loads
    here, pid_of, leave, write = os.getpid(), os.getpid, os._exit, os.write
    with os.fdopen(requests, "rb") as lines:
        for line in lines:
            nonce, prompt, completion, info = loads(line)
            values, reason = None, None
            try:
                values = checked(worker.function(prompt, completion, loads(info), **worker.kwargs), worker.max_names)
            except BaseException as error:  # noqa: BLE001 - SystemExit and the like are failures of this item, too
                reason = describe(error)
            if pid_of() != here:  # a fork that returned, too
                leave(0)
            with contextlib.suppress(BaseException):
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
            data = encode(nonce, values, reason)
            while data:
                data = data[write(answers, data) :]
            if not worker.keeps:
                break
    leave(0)


def main() -> None:
    """Serves until the program closes the pipe, or ends."""
    # The protocol has private copies of the pipes. What is printed goes to stderr, a third pipe; stdin is empty.
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    inbox = b""
    while b"\n" not in inbox:
        data = os.read(requests, READ)
        if not data:
            return
        inbox += data
    line, _, inbox = inbox.partition(b"\n")
    setup = json.loads(line)
    sys.path[:] = setup["path"]
    global containment, replies
    from rl_jax.rewards import containment, replies

    containment.on_parent_death(signal.SIGKILL)  # while the function's module has the word
    if os.getppid() != setup["parent"]:
        return
    worker = _Worker(requests, answers, setup, inbox)
    try:
        worker.load(setup["function"])
    except BaseException as error:  # noqa: BLE001 - the program raises it
        worker.send({"failed": replies.describe(error)})
        return
    gc.collect()
    gc.freeze()  # so that children share the pages
    containment.adopt_orphans()
    containment.set_readable(False)
    try:
        signal.signal(signal.SIGCONT, worker.woken)
        containment.on_parent_death(signal.SIGCONT)
        worker.woken()
        worker.send({"ready": True})
        worker.serve()
    except _ParentIsGone:
        pass
    finally:
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        containment.end_children()
        os._exit(0)


if __name__ == "__main__":
    main()
