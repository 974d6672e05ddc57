"""Tools of an MCP server (PyPI mcp): a task's prompt, and the server's tools to call before the answer.

    config.agent.env = dict(fn="rl_jax.envs.text.adapters.mcp:McpUser", command=("python", "my_server.py"))

The tools run in the server's process; one server serves all episodes of a program. What a tool answers, errors
included, is read by the model. A server that is gone, or does not answer, is a failure of the environment (ToolFailed),
which begins the episode anew; the next call starts or reaches the server again.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from rl_jax.envs.text.tool_user import ToolUser
from rl_jax.envs.text.tools import Tool, ToolFailed

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
_NAMES = {kind: name for name, kind in TYPES.items()} | {type(None): "null"}
LOST = (-32000, -32001)  # codes of mcp.MCPError: the connection was closed, the request timed out


def _types(about: Any) -> set[str]:
    """The JSON types that the schema of an argument admits; none if it does not name them."""
    if not isinstance(about, Mapping):
        return set()
    if found := about.get("type"):
        return {found} if isinstance(found, str) else set(found)
    if options := about.get("anyOf") or about.get("oneOf"):
        each = [_types(option) for option in options]
        return set().union(*each) if all(each) else set()
    values = about.get("enum") or ([about["const"]] if "const" in about else [])
    return {_NAMES[type(value)] for value in values}


class _Client:
    """One connection of mcp.Client, in a thread of its own."""

    def __init__(self, server: Any, timeout_s: float):
        self._server, self._timeout_s = server, timeout_s
        self._loop, self._task, self._client, self._error = None, None, None, None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True)
        self._thread.start()
        if not self._ready.wait(timeout_s):
            self.close()
            raise TimeoutError(f"it does not start within {timeout_s:g} s")
        if self._error is not None:
            raise ConnectionError(f"it does not start: {self._error}") from self._error

    async def _serve(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            import mcp

            async with mcp.Client(self._server) as self._client:
                self._ready.set()
                await asyncio.Event().wait()
        except BaseException as error:  # noqa: BLE001 - the thread that waits has to hear of it
            self._error = error
        finally:
            self._ready.set()

    def ask(self, question: Callable) -> Any:
        """What the coroutine function `question` of an mcp.Client gives."""
        coroutine = question(self._client)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:  # the loop is closed
            coroutine.close()
            raise ConnectionError(f"it has ended: {self._error}") from error
        try:
            return future.result(self._timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {self._timeout_s:g} s") from error
        finally:
            future.cancel()

    def close(self) -> None:
        """Ends the connection, and a server that was started for it."""
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._task.cancel)


class Connection:
    """A client that connects when it is asked first, and again after the connection was lost.

    Args:
      name: of the server, for messages.
      server: () -> what mcp.Client takes: a URL, a server in this process, or a transport.
      timeout_s: for one answer, and for the start.
    """

    def __init__(self, name: str, server: Callable[[], Any], timeout_s: float = 60.0):
        self._name, self._server, self._timeout_s, self._client = name, server, timeout_s, None

    def _ask(self, question: Callable) -> Any:
        """Raises ToolFailed if the server is gone or does not answer; that connection is not used again."""
        try:
            self._client = self._client or _Client(self._server(), self._timeout_s)
            return self._client.ask(question)
        except Exception as error:
            if not isinstance(error, (OSError, CancelledError)) and getattr(error, "code", None) not in LOST:
                raise  # an answer of the server
            self.close()
            raise ToolFailed(f"the MCP server {self._name}: {error}") from error

    def close(self) -> None:
        """Ends the connection, if there is one."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def tools(self, only: Sequence[str] = ()) -> list[Tool]:
        """The server's tools; those named in `only`, if any are.

        Raises:
          ValueError: if one of these has an argument without a plain type, or the server's pages of tools do not end.
          ToolFailed: if the server does not answer, after a new connection too.
        """
        try:
            found = self._pages()
        except ToolFailed:
            found = self._pages()
        return [self._tool(one) for one in found if not only or one.name in only]

    def _pages(self) -> list:
        """The tools of all pages, as the server describes them."""
        cursors, found = [None], []
        while True:
            page = self._ask(lambda client: client.list_tools(cursor=cursors[-1]))
            found += page.tools
            if page.next_cursor is None:
                return found
            if page.next_cursor in cursors:
                raise ValueError(
                    f"the MCP server {self._name}: its pages of tools do not end: {page.next_cursor!r} again"
                )
            cursors.append(page.next_cursor)

    def _tool(self, found: Any) -> Tool:
        given = found.model_dump(by_alias=True, mode="json").get("inputSchema") or {}
        required, types = set(given.get("required", ())), {}
        for name, about in given.get("properties", {}).items():
            admitted = _types(about)
            kind = admitted - {"null"}
            if len(kind) != 1 or not kind <= set(TYPES):
                raise ValueError(f"MCP tool {found.name!r}: argument {name!r} has no plain type: {about}")
            types[name] = TYPES[kind.pop()]
            if "null" in admitted:  # a required one may be null, which call_all only lets pass for others
                required.discard(name)
        function = {"name": found.name, "description": found.description or "", "parameters": given}
        schema = {"type": "function", "function": function}
        return Tool(found.name, schema, self._caller(found.name), types, tuple(sorted(required)))

    def _caller(self, name: str):
        def call(**arguments) -> str:
            result = self._ask(lambda client: client.call_tool(name, arguments))
            text = "\n".join(part.text for part in result.content if getattr(part, "text", None) is not None)
            if result.model_dump(by_alias=True).get("isError"):
                raise RuntimeError(text)
            return text

        return call


class McpUser(ToolUser):
    """A ToolUser with the tools of an MCP server.

    Args:
      command: program and arguments that speak MCP over their standard streams.
      url: of a server, in place of a command.
      price: of a call.
      only: names of the tools to offer; (): all.
    """

    _connections: dict[Any, Connection] = {}

    def __init__(self, *, command: Sequence[str] = (), url: str = "", price: float = 0.0, only: Sequence[str] = ()):
        from mcp import StdioServerParameters, stdio_client

        if bool(command) == bool(url):
            raise ValueError(f"give one of command={tuple(command)} and url={url!r}")
        place = url or tuple(command)
        if place not in self._connections:
            program = None if url else StdioServerParameters(command=command[0], args=list(command[1:]))
            self._connections[place] = Connection(url or " ".join(command), lambda: url or stdio_client(program))
        known = {tool.name: tool for tool in self._connections[place].tools(only)}
        if missing := sorted(set(only) - set(known)):
            raise ValueError(f"only={tuple(only)}: the server has no {', '.join(missing)}")
        self._tools, self._price = known, price
        self.tools = [tool.schema for tool in known.values()]
