"""Threads for what environments hand to `asyncio.to_thread`; nobody waits for one that hangs. No jax."""

import collections
import concurrent.futures
import functools
import threading
from collections.abc import Callable

MOST = 64  # calls at once; one that hangs keeps its thread until it returns


class Threads(concurrent.futures.ThreadPoolExecutor):
    """An executor of daemon threads, whose shutdown waits for none of them.

    `asyncio.run` ends by waiting for its executor, and the interpreter for its threads, however long that takes. So a
    call that a time limit has given up would hold up both. asyncio takes no executor of another base class; the base's
    own threads are never started.
    """

    def __init__(self):
        super().__init__(1)
        self._guard, self._ended, self._working = threading.Lock(), False, 0
        self._calls: collections.deque = collections.deque()

    def submit(self, function: Callable, /, *arguments, **keywords) -> concurrent.futures.Future:
        """The future of a call, as soon as fewer than MOST others run.

        Raises:
          RuntimeError: after the shutdown.
        """
        future = concurrent.futures.Future()
        with self._guard:
            if self._ended:
                raise RuntimeError("a call after the shutdown of its threads")
            if self._working < MOST:
                threading.Thread(target=self._work, name="environment", daemon=True).start()
                self._working += 1
            self._calls.append((future, functools.partial(function, *arguments, **keywords)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Cancels the calls that have not begun. It waits for none, whatever `wait` says."""
        del wait, cancel_futures
        with self._guard:
            self._ended, calls = True, tuple(self._calls)
            self._calls.clear()
        for future, _ in calls:
            future.cancel()

    def _work(self) -> None:
        """Runs calls until none is left."""
        while True:
            with self._guard:
                if not self._calls:
                    self._working -= 1
                    return
                future, call = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - whoever awaits the call gets it
                    future.set_exception(error)
