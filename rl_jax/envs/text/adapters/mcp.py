"""Tools of an MCP server (PyPI mcp): a task's prompt, and the server's tools to call before the answer.

    config.agent.env = dict(fn="rl_jax.envs.text.adapters.mcp:McpUser", command=("python", "my_server.py"))

The tools run in the server's process; one server serves all episodes of a program.
"""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Any

from rl_jax.envs.text.tool_user import ToolUser
from rl_jax.envs.text.tools import Tool

TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}


class Connection:
    """A client in a thread of its own, until the program ends.

    Args:
      server: what mcp.Client takes: a URL, a server in this process, or a transport.
      timeout_s: for one answer; a tool that takes longer is an error that the model reads.
    """

    def __init__(self, server: Any, timeout_s: float = 60.0):
        self._server, self._timeout_s = server, timeout_s
        self._loop, self._ready = asyncio.new_event_loop(), threading.Event()
        self._client, self._error = None, None
        threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True).start()
        self._ready.wait()
        if self._error is not None:
            raise RuntimeError(f"the MCP server does not start: {self._error}") from self._error

    async def _serve(self) -> None:
        import mcp

        try:
            async with mcp.Client(self._server) as self._client:
                self._ready.set()
                await asyncio.Event().wait()
        except BaseException as error:  # noqa: BLE001 - the thread that waits has to hear of it
            self._error = error
        finally:
            self._ready.set()

    def _run(self, coroutine: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        with contextlib.ExitStack() as stack:
            stack.callback(future.cancel)
            return future.result(self._timeout_s)

    def tools(self) -> list[Tool]:
        """The server's tools. Raises ValueError if one has an argument without a plain type."""
        return [self._tool(found) for found in self._run(self._client.list_tools()).tools]

    def _tool(self, found: Any) -> Tool:
        given = found.model_dump(by_alias=True, mode="json").get("inputSchema") or {}
        properties, types = given.get("properties", {}), {}
        for name, about in properties.items():
            if about.get("type") not in TYPES:
                raise ValueError(f"MCP tool {found.name!r}: argument {name!r} has no plain type: {about}")
            types[name] = TYPES[about["type"]]
        function = {"name": found.name, "description": found.description or "", "parameters": given}
        schema = {"type": "function", "function": function}
        return Tool(found.name, schema, self._caller(found.name), types, tuple(given.get("required", ())))

    def _caller(self, name: str):
        def call(**arguments) -> str:
            result = self._run(self._client.call_tool(name, arguments))
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
            server = url or stdio_client(StdioServerParameters(command=command[0], args=list(command[1:])))
            self._connections[place] = Connection(server)
        known = {tool.name: tool for tool in self._connections[place].tools() if not only or tool.name in only}
        if missing := sorted(set(only) - set(known)):
            raise ValueError(f"only={tuple(only)}: the server has no {', '.join(missing)}")
        self._tools, self._price = known, price
        self.tools = [tool.schema for tool in known.values()]
