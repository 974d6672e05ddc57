"""rl_jax.envs.text.adapters: reasoning-gym, textarena, verifiers, openenv, MCP; each skipped where it is not installed.

pip install -r requirements-agents.txt; pytest tests/envs/test_text_adapters.py -rs
"""

import asyncio
import copy
import functools
import json
import random
import re
import socket
import sys
import threading
import time
import types

import numpy as np
import pytest

from rl_jax.envs.text.adapters import problems
from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.tools import ToolFailed


def record(number):
    return {"prompt": "", "info": json.dumps({"number": number})}


def test_problems_are_numbers():
    task = problems.load(num_train=3, num_test=2)
    train, test = task.data_source("train"), task.data_source("test")
    assert [problems.number_of(train[n], 7) for n in range(3)] == [0, 1, 2] and len(task.data_source("sft_train")) == 0
    assert {problems.number_of(test[n], 7) for n in range(2)}.isdisjoint(range(3))
    assert problems.number_of({"info": "{}"}, 7) == 7 and task.tokenizer.decode(task.tokenizer.encode("Ab?")) == "Ab?"
    with pytest.raises(IndexError):
        train[3]


# --- reasoning-gym ----------------------------------------------------------------------------------------------------


@pytest.fixture
def reasoning():
    pytest.importorskip("reasoning_gym")
    from rl_jax.envs.text.adapters import reasoning

    return reasoning


def test_a_question_is_scored_by_its_task(reasoning):
    env = reasoning.ReasoningGym(tasks=("chain_sum",), settings={"chain_sum": {"min_terms": 2, "max_terms": 2}})
    messages = env.reset(record(5), 0)
    again = reasoning.ReasoningGym(tasks=("chain_sum",), settings={"chain_sum": {"min_terms": 2, "max_terms": 2}})
    assert again.reset(record(5), 9) == messages and again.reset(record(6), 0) != messages
    right = env.step(env.right_answer())
    assert right.done and right.reward == 1.0 and right.numbers == {"correct": 1.0, "score": 1.0, "raised": 0.0}
    wrong = env.step("no number")
    assert wrong.reward == 0.0 and wrong.numbers["correct"] == 0


def test_any_answer_pays_a_little_unless_a_threshold_says_no(reasoning):
    """countdown pays .05 for an expression that is wrong."""
    paid, strict = (reasoning.ReasoningGym(tasks="countdown", threshold=threshold) for threshold in (0.0, 1.0))
    for env in (paid, strict):
        env.reset(record(1), 0)
    assert 0 < paid.step("1 + 1").reward < 0.5 and strict.step("1 + 1").reward == 0


def test_what_reasoning_gym_has_not_is_refused(reasoning):
    with pytest.raises(ValueError, match="reasoning_gym has no chain_sun"):
        reasoning.ReasoningGym(tasks=("chain_sun",))
    with pytest.raises(ValueError, match="threshold=2 must be"):
        reasoning.ReasoningGym(threshold=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_task_asks_and_scores(reasoning):
    """Its own answer is right where it shows one, and nonsense is not."""
    env = reasoning.ReasoningGym()
    assert len(env._tasks) > 90
    wrong, silent = [], []
    for number, name in enumerate(env._tasks):
        (message,) = env.reset(record(number), 0)
        assert message["content"], name
        if env.step("@@ nonsense @@").reward:
            wrong.append(f"{name} pays for nonsense")
        answer = env.right_answer()
        if not answer:
            silent.append(name)
        elif env.step(answer).reward != 1:
            wrong.append(f"{name} does not take its own answer")
    # Tasks that do not take the answer that they show, or show none: many are right there.
    assert len(wrong) <= 4 and len(silent) <= 12, (wrong, silent)


# --- textarena --------------------------------------------------------------------------------------------------------


def test_a_game_for_one(request):
    pytest.importorskip("textarena")
    from rl_jax.envs.text.adapters.arena import TextArena

    async def game(env):
        told = await env.reset(record(3), 0)
        low, high = 1, 20
        while True:
            guess = (low + high) // 2
            step = await env.step(f"[{guess}]")
            if step.done:
                return told, step
            text = step.messages[0]["content"].lower()
            assert "higher" in text or "lower" in text
            low, high = (guess + 1, high) if "higher" in text else (low, guess - 1)

    told, last = asyncio.run(game(TextArena(game="GuessTheNumber-v0-raw")))
    assert "between 1 and 20" in told[0]["content"] and last.reward == 1.0 and last.numbers["correct"] == 1
    assert asyncio.run(game(TextArena(game="GuessTheNumber-v0-raw")))[0] == told
    with pytest.raises(ValueError, match="game='Gues'"):
        TextArena(game="Gues")
    with pytest.raises(ValueError, match="players=3 must be 1 or 2"):
        TextArena(game="GuessTheNumber-v0-raw", players=3)


@pytest.mark.parametrize("seat", [0, 1])
def test_a_game_for_two_with_a_partner(seat):
    pytest.importorskip("textarena")
    from rl_jax.envs.text.adapters.arena import TextArena

    async def game():
        env, heard = TextArena(game="Nim-v0-raw", players=2), []
        with pytest.raises(ValueError, match="needs config.agent.partner"):
            await env.reset(record(seat), 0)

        async def partner(text):
            heard.append(text)
            return "[1 1]" if len(heard) == 1 and seat == 1 else "[nonsense]"  # twice invalid: it loses

        env.partner = partner
        (told,) = await env.reset(record(seat), 0)
        assert (f"Player {seat}" in told["content"]) and bool(heard) == (seat == 1)
        for _ in range(20):
            step = await env.step("[0 1]")
            if step.done:
                return step, heard
        raise AssertionError("the game does not end")

    last, heard = asyncio.run(game())
    assert heard and last.reward == 1.0


def test_a_game_that_a_partner_ends_at_once():
    pytest.importorskip("textarena")
    from rl_jax.envs.text.adapters.arena import TextArena

    async def game():
        env = TextArena(game="Nim-v0-raw", players=2)

        async def partner(text):
            return "[nonsense]"

        env.partner = partner
        return await env.reset(record(1), 0), await env.step("[0 1]")

    told, last = asyncio.run(game())
    assert told[0]["content"] == "The game is over." and last.done and last.reward == 1.0


class Dice:
    """A game of textarena that draws from the process's `random` and numpy in all that it does; it has three moves."""

    def roll(self):
        return f"{random.random()} {np.random.random()}"

    def __init__(self):
        self.made = self.roll()

    def reset(self, num_players, seed):
        random.seed(seed)  # as textarena.State does, which leaves numpy alone
        self.told, self.turn, self.players = self.made + self.roll(), 0, num_players

    def get_observation(self):
        return self.turn % self.players, f"{self.told} seen {self.roll()}"

    def step(self, said):
        self.turn, self.told = self.turn + 1, self.roll()
        return self.turn == 3, {}

    def close(self):
        return {0: random.random()}, {}


def draws():
    return random.random(), np.random.random()


@pytest.mark.parametrize("players", [1, 2])
def test_games_at_the_same_time_do_not_share_their_draws(monkeypatch, players):
    """An episode is a function of its number, whoever draws between its turns; nor does it move the process's draws."""
    monkeypatch.setitem(sys.modules, "textarena", types.SimpleNamespace(make=lambda game: Dice()))
    from rl_jax.envs.text.adapters.arena import TextArena

    async def partner(text):
        draws()
        return "mine"

    async def game(number):
        env = TextArena(game="dice", players=players)
        env.partner = partner
        heard = [await env.reset(record(number), 0)]
        while not isinstance(heard[-1], Step) or not heard[-1].done:
            await asyncio.sleep(0)  # the other one's turn
            heard.append(await env.step("yours"))
        return heard

    async def both():
        return await asyncio.gather(game(2), game(4))

    alone = [asyncio.run(game(number)) for number in (2, 4)]
    assert alone[0] != alone[1] and asyncio.run(both()) == alone
    saved, numpys = random.getstate(), np.random.get_state()
    try:
        random.seed(3), np.random.seed(3)
        expected = [draws() for _ in range(2)]
        random.seed(3), np.random.seed(3)

        async def branched():
            env = TextArena(game="dice")
            await env.reset(record(2), 0)
            other = copy.deepcopy(env)
            return await env.step("yours"), await other.step("yours")

        first, second = asyncio.run(branched())
        assert first == second and [draws() for _ in range(2)] == expected
    finally:
        random.setstate(saved), np.random.set_state(numpys)


def test_a_game_that_raises_leaves_the_process_its_draws(monkeypatch):
    class Broken(Dice):
        def step(self, said):
            self.roll()
            raise RuntimeError("broken")

    monkeypatch.setitem(sys.modules, "textarena", types.SimpleNamespace(make=lambda game: Broken()))
    from rl_jax.envs.text.adapters.arena import TextArena

    env = TextArena(game="dice")
    asyncio.run(env.reset(record(2), 0))
    before = random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(env.step("x"))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


# --- verifiers --------------------------------------------------------------------------------------------------------


def make_taskset():
    """Three tasks: say the number; half of the reward for a digit at all."""
    import verifiers.v1 as vf

    class Data(vf.TaskData):
        answer: str

    class Say(vf.Task[Data, vf.State, vf.TaskConfig]):
        @vf.reward(weight=0.5)
        async def digit(self, trace) -> float:
            return float(any(c.isdigit() for c in trace.last_reply))

        @vf.reward(weight=0.5)
        async def right(self, task, trace) -> float:
            return float(trace.last_reply.strip() == task.answer)

        @vf.metric
        async def length(self, trace) -> float:
            return float(len(trace.last_reply))

    class Numbers(vf.Taskset[Say, vf.TasksetConfig]):
        def load(self):
            for n in range(3):
                yield Say(Data(prompt=f"Say {n}.", system_prompt="Be brief.", answer=str(n)), vf.TaskConfig())

    return Numbers(vf.TasksetConfig(id="numbers"))


def test_a_task_of_verifiers_scores_an_answer():
    pytest.importorskip("verifiers.v1")
    from rl_jax.envs.text.adapters.verifiers import Verifiers

    env = Verifiers(taskset="tests.envs.test_text_adapters:make_taskset")
    system, asked = env.reset(record(4), 0)
    assert system == {"role": "system", "content": "Be brief."} and asked["role"] == "user"
    right = re.fullmatch(r"Say (\d)\.", asked["content"])[1]
    said = {text: asyncio.run(env.step(text)) for text in (right, "7", "no")}
    assert [step.reward for step in said.values()] == [1.0, 0.5, 0.0]
    assert said["no"].numbers == {"correct": 0.0, "length": 2.0} and said[right].numbers["correct"] == 1


def make_chats():
    """Two chats of verifiers' own messages; the reward looks at how many each of the roles said."""
    import verifiers.v1 as vf
    from verifiers.v1.types import AssistantMessage, UserMessage

    class Talk(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
        @vf.reward
        async def roles(self, trace) -> float:
            wanted = ["system", "user", "assistant", "user", "assistant"]
            return float([message.role for message in trace.messages] == wanted and trace.last_reply == "so")

    class Chats(vf.Taskset[Talk, vf.TasksetConfig]):
        def load(self):
            for n in range(2):
                chat = [UserMessage(content=f"Say {n}."), AssistantMessage(content="Hm"), UserMessage(content="Well?")]
                yield Talk(vf.TaskData(prompt=chat, system_prompt="Be brief."), vf.TaskConfig())

    return Chats(vf.TasksetConfig(id="chats"))


def test_a_chat_of_verifiers_is_scored_as_it_is():
    pytest.importorskip("verifiers.v1")
    from rl_jax.envs.text.adapters.verifiers import Verifiers

    env = Verifiers(taskset="tests.envs.test_text_adapters:make_chats")
    assert [m["role"] for m in env.reset(record(0), 0)] == ["system", "user", "assistant", "user"]
    assert asyncio.run(copy.deepcopy(env).step("so")).reward == 1.0 == asyncio.run(env.step("so")).reward


MADE = {"prompts": (), "system": None, "read": 0}  # what the stand-in's taskset is made of; how often it was read


def make_stub():
    """A taskset as verifiers has it, of MADE["prompts"]; a task pays 1 and keeps the trace that it has scored."""

    async def score(trace):
        trace.rewards, trace.metrics = {"all": types.SimpleNamespace(value=1.0)}, {"length": 2, "correct": 7.0}
        MADE["trace"] = trace

    MADE["read"] += 1
    for prompt in MADE["prompts"]:
        data = types.SimpleNamespace(prompt=prompt, prompt_text="flat", system_prompt=MADE["system"])
        yield types.SimpleNamespace(data=data, score=score)


@pytest.fixture
def stub_verifiers(monkeypatch):
    """rl_jax.envs.text.adapters.verifiers with a module `verifiers` that has messages and nodes; none is needed."""
    kinds = {role: functools.partial(types.SimpleNamespace, role=role) for role in ("system", "user", "assistant")}
    parts = {
        "": {"v1": None},
        ".v1": {"Trace": types.SimpleNamespace, "AgentConfig": types.SimpleNamespace},
        ".v1.graph": {"MessageNode": types.SimpleNamespace},
        ".v1.trace": {"AgentInfo": types.SimpleNamespace, "TraceTask": types.SimpleNamespace},
        ".v1.types": {f"{role.capitalize()}Message": kind for role, kind in kinds.items()},
    }
    modules = {f"verifiers{name}": types.SimpleNamespace(**what) for name, what in parts.items()}
    modules["verifiers"].v1 = modules["verifiers.v1"]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(MADE, "system", None)
    monkeypatch.setitem(MADE, "read", 0)
    monkeypatch.setitem(MADE, "prompts", tuple(f"Say {n}." for n in range(40)))
    from rl_jax.envs.text.adapters import verifiers

    verifiers.split.cache_clear()
    yield verifiers
    verifiers.split.cache_clear()


def message(role, content, **more):
    return types.SimpleNamespace(role=role, content=content, **more)


STUB = "tests.envs.test_text_adapters:make_stub"


def prompts_of(env, first, count):
    return {env.reset(record(first + n), 0)[-1]["content"] for n in range(count)}


def test_no_task_of_the_evaluation_is_trained(stub_verifiers, monkeypatch):
    """Whatever the order of the tasks, the same ones are held out; a prompt that comes twice is on one side."""
    env = stub_verifiers.Verifiers(taskset=STUB, test_share=0.25)
    train, test = prompts_of(env, 0, 200), prompts_of(env, 10**9, 200)
    assert not train & test and train | test == set(MADE["prompts"]) and 4 <= len(test) <= 16
    monkeypatch.setitem(MADE, "prompts", MADE["prompts"][::-1] + MADE["prompts"][:7])
    stub_verifiers.split.cache_clear()
    again = stub_verifiers.Verifiers(taskset=STUB, test_share=0.25)
    assert prompts_of(again, 10**9, 200) == test and prompts_of(again, 0, 200) == train
    few = stub_verifiers.Verifiers(taskset=STUB, test_share=1e-9)
    assert len(prompts_of(few, 10**9, 200)) == 1 and len(prompts_of(few, 0, 200)) == 39


def test_a_taskset_is_read_once_in_a_process(stub_verifiers):
    """There is an environment for each episode of a step."""
    envs = [stub_verifiers.Verifiers(taskset=STUB) for _ in range(3)]
    assert MADE["read"] == 1 and len(prompts_of(envs[2], 0, 200)) > 30
    copied = copy.deepcopy(envs[0])  # for an episode that branches: without the tasks
    assert copied.reset(record(1), 0) == envs[1].reset(record(1), 0)
    stub_verifiers.Verifiers(taskset=STUB, most=7)
    assert MADE["read"] == 2


def test_tasks_that_cannot_be_held_out_are_refused(stub_verifiers, monkeypatch):
    for share in (0, 1, float("nan")):
        with pytest.raises(ValueError, match=f"test_share={share} must be between 0 and 1"):
            stub_verifiers.Verifiers(taskset=STUB, test_share=share)
    with pytest.raises(ValueError, match="info has no number"):
        stub_verifiers.Verifiers(taskset=STUB).reset({"prompt": "2+2?"}, 3)
    for prompts in ((), ("Say 1.",), ("Say 1.", "Say 1.")):
        monkeypatch.setitem(MADE, "prompts", prompts)
        stub_verifiers.split.cache_clear()
        with pytest.raises(ValueError, match=f"{len(set(prompts))} distinct prompts among .* of at least 2"):
            stub_verifiers.Verifiers(taskset=STUB)


def test_a_chat_of_verifiers_is_read_message_by_message(stub_verifiers, monkeypatch):
    """And scored so: a task may look at who said what."""
    chats = []
    for n in range(2):
        parts = [types.SimpleNamespace(type="text", text=text) for text in ("1 +", f"{n}?")]
        turns = message("system", "Be brief."), message("user", parts), message("assistant", "Hm", tool_calls=None)
        chats.append([*turns, message("user", "Again?")])
    monkeypatch.setitem(MADE, "prompts", chats)
    monkeypatch.setitem(MADE, "system", "First.")
    env = stub_verifiers.Verifiers(taskset=STUB)
    told = env.reset(record(0), 0)
    assert [(m["role"], m["content"]) for m in told if "1 +" not in m["content"]] == [
        ("system", "First."), ("system", "Be brief."), ("assistant", "Hm"), ("user", "Again?")
    ]  # fmt: skip
    assert told[2]["content"] in ("1 +\n0?", "1 +\n1?") and told[2]["role"] == "user"
    step = asyncio.run(env.step("so"))
    assert step.numbers == {"length": 2.0, "correct": 1.0}, "a metric of that name does not count as right"
    nodes = MADE["trace"].nodes
    assert [(node.message.role, node.parent, node.sampled) for node in nodes] == [
        ("system", None, False), ("system", 0, False), ("user", 1, False), ("assistant", 2, False), ("user", 3, False),
        ("assistant", 4, True),
    ]  # fmt: skip
    assert nodes[-1].message.content == "so" and nodes[2].message in [chat[1] for chat in chats] and step.reward == 1.0


@pytest.mark.parametrize(
    "unseen",
    [
        message("user", [types.SimpleNamespace(type="image_url", image_url="x")]),
        message("assistant", None, tool_calls=["call"]),
    ],
)
def test_what_a_model_would_not_see_of_a_chat_is_refused(stub_verifiers, monkeypatch, unseen):
    monkeypatch.setitem(MADE, "prompts", ["fine", [unseen, message("user", "What is it?")]])
    with pytest.raises(ValueError, match="task 1: .* is of texts"):
        stub_verifiers.Verifiers(taskset=STUB)


# --- openenv ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def server():
    """A real OpenEnv server on the loopback: echoes, pays .5 a message, ends with the second."""
    pytest.importorskip("openenv.core")
    uvicorn = pytest.importorskip("uvicorn")
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Say(Action):
        message: str

    class Heard(Observation):
        text: str = ""
        letters: int = 0

    class Echo(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed=None, episode_id=None, **_):
            self.count = 0
            return Heard(text=f"begin {seed}", done=False, reward=0.0)

        def step(self, action, timeout_s=None, **_):
            self.count += 1
            text = action.message
            return Heard(text=f"heard {text}", letters=len(text), done=self.count == 2, reward=0.5)

        @property
        def state(self):
            return State(step_count=self.count)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = create_fastapi_app(Echo, Say, Heard)
    running = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    running.should_exit = True
    thread.join()


def test_a_session_of_an_openenv_server(server):
    from rl_jax.envs.text.adapters.openenv import OpenEnv

    env = OpenEnv(url=server, observation="text", numbers=("letters",))
    for _ in range(2):  # two calls of play, an event loop each
        assert asyncio.run(env.reset(record(3), 0)) == [{"role": "user", "content": "begin 3"}]
        first, last = (asyncio.run(env.step(text)) for text in ("hello", "ok"))
        assert first.messages[0]["content"] == "heard hello" and (first.reward, first.done) == (0.5, False)
        assert last.done and last.numbers == {"letters": 2.0}
    env.close()


def test_an_openenv_server_has_limited_time_for_an_answer(monkeypatch):
    """The package need not be installed for this."""
    given = []

    class GenericEnvClient:
        def __init__(self, base_url, connect_timeout_s=10.0, message_timeout_s=60.0):  # as openenv-core 0.3 has it
            given.append({"base_url": base_url, "message_timeout_s": message_timeout_s})

        def sync(self):
            begun = types.SimpleNamespace(observation={"text": "x"})
            return types.SimpleNamespace(connect=lambda: None, reset=lambda seed: begun)

    for name in ("openenv", "openenv.core", "openenv.core.generic_client"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(GenericEnvClient=GenericEnvClient))
    from rl_jax.envs.text.adapters.openenv import OpenEnv

    asyncio.run(OpenEnv(url="http://x", timeout_s=2.0).reset(record(3), 0))
    assert given == [{"base_url": "http://x", "message_timeout_s": 2.0}]


# --- MCP --------------------------------------------------------------------------------------------------------------

SERVER = '''
import os
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
server = MCPServer("numbers")
@server.tool()
def add(a: int, b: int = 1) -> int:
    """The sum."""
    return a + b
@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ToolError(why)
@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(1)
server.run()
'''


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_tools_of_an_mcp_server(tmp_path):
    pytest.importorskip("mcp.client.client")
    from rl_jax.envs.text.adapters.mcp import McpUser

    (tmp_path / "server.py").write_text(f"import sys; sys.path += {sys.path!r}\n{SERVER}")
    env = McpUser(command=(sys.executable, str(tmp_path / "server.py")), price=0.1)
    assert {tool["function"]["name"] for tool in env.tools} == {"add", "fail", "die"}
    assert env.reset({"prompt": "2+3?"}, 0) == "2+3?"
    step = env.step(call("add", a=2, b=3) + call("add", a=2))
    assert [message["content"] for message in step.messages] == ["5", "3"] and step.reward == -0.2
    bad = env.step(call("add", a="2") + call("fail", why="because") + call("gone"))
    assert "a='2' is not of type integer" in bad.messages[0]["content"] and "because" in bad.messages[1]["content"]
    assert "there is no tool 'gone'" in bad.messages[2]["content"] and bad.numbers["malformed"] == 2
    assert env.step("5").done
    with pytest.raises(ToolFailed, match="the MCP server .*server.py: Connection closed"):
        env.step(call("die"))
    assert env.step(call("add", a=2)).messages[0]["content"] == "3", "the next call starts it again"
    assert len(McpUser._connections) == 1
    McpUser(command=(sys.executable, str(tmp_path / "server.py")), only=("add",))
    assert len(McpUser._connections) == 1, "one server serves all"
    with pytest.raises(ValueError, match="the server has no sub"):
        McpUser(command=(sys.executable, str(tmp_path / "server.py")), only=("sub",))
    with pytest.raises(ValueError, match="give one of command"):
        McpUser()


class StubError(Exception):
    """As mcp.MCPError."""

    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


@pytest.fixture
def stub(monkeypatch):
    """A module `mcp` whose clients do what `stub.script` says: the text of an answer, an exception, or "hang"."""
    stub = types.SimpleNamespace(script=[], started=0, ended=0, StdioServerParameters=lambda **_: None)
    stub.stdio_client = lambda program: "transport"
    stub.schemas, stub.cursors = {"ask": {}}, [None]  # name of a tool -> its arguments; cursor of each page of tools

    class Client:
        def __init__(self, server):
            pass

        async def __aenter__(self):
            stub.started += 1
            await self.say()
            return self

        async def __aexit__(self, *_):
            stub.ended += 1

        async def say(self):
            said = stub.script.pop(0)
            if isinstance(said, Exception):
                raise said
            if said == "hang":
                await asyncio.sleep(60)
            return said

        async def list_tools(self, *, cursor=None):
            await self.say()
            page = stub.cursors.index(cursor)
            return types.SimpleNamespace(
                tools=[
                    types.SimpleNamespace(
                        name=name,
                        description="Asks.",
                        model_dump=lambda name=name, **_: {
                            "inputSchema": {"properties": stub.schemas[name], "required": list(stub.schemas[name])}
                        },
                    )
                    for name in list(stub.schemas)[page :: len(stub.cursors)]
                ],
                next_cursor=[*stub.cursors, None][page + 1],
            )

        async def call_tool(self, name, arguments):
            text = await self.say()
            part = types.SimpleNamespace(text=text)
            return types.SimpleNamespace(content=[part], model_dump=lambda **_: {"isError": text == "no"})

    stub.Client = Client
    monkeypatch.setitem(sys.modules, "mcp", stub)
    from rl_jax.envs.text.adapters import mcp

    monkeypatch.setattr(mcp.McpUser, "_connections", {})
    monkeypatch.setattr(mcp.Connection.__init__, "__defaults__", (0.2,))
    before = set(threading.enumerate())
    yield stub
    for connection in mcp.McpUser._connections.values():
        connection.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        (StubError(-32000), "code -32000"),
        (StubError(-32001), "code -32001"),
        (ConnectionResetError("reset"), "reset"),
        ("hang", "no answer within 0.2 s"),
    ],
)
def test_a_lost_mcp_server_fails_the_environment_and_is_reached_again(stub, lost, says):
    """The model reads what the server says is wrong, but not that it is gone, and pays for no such call."""
    from rl_jax.envs.text.adapters.mcp import McpUser

    stub.script = ["start", "tools", "no", StubError(-32602), lost, "start", "fine"]
    env = McpUser(command=("server", "x"), price=0.1)
    assert env.step(call("ask")).messages[0]["content"] == "Error: RuntimeError: no"
    assert env.step(call("ask")).messages[0]["content"] == "Error: StubError: code -32602"
    with pytest.raises(ToolFailed, match=f"the MCP server server x: {says}"):
        env.step(call("ask"))
    assert env.step(call("ask")).messages[0]["content"] == "fine"
    assert stub.started == 2 and not stub.script


def test_an_mcp_server_that_does_not_come_back_says_so(stub):
    from rl_jax.envs.text.adapters.mcp import McpUser

    stub.script = ["start", "tools", StubError(-32000), OSError("gone"), "start", "tools"]
    env = McpUser(url="http://here")
    for says in ("code -32000", "it does not start: gone"):
        with pytest.raises(ToolFailed, match=f"the MCP server http://here: {says}"):
            env.step(call("ask"))
    McpUser(url="http://here")
    stub.script = [StubError(-32000), "start", "tools"]
    McpUser(url="http://here")  # lost since, and reached again
    assert stub.started == 4 and not stub.script
    stub.script = ["hang", "hang"]
    with pytest.raises(ToolFailed, match="http://there: it does not start within 0.2 s"):
        McpUser(url="http://there")


@pytest.mark.parametrize(
    ("about", "kind"),
    [
        ({"type": "integer"}, int),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, int),
        ({"oneOf": [{"type": "null"}, {"type": "string", "minLength": 1}]}, str),
        ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, str),
        ({"type": ["number", "null"]}, float),
        ({"enum": ["a", "b"]}, str),
        ({"enum": [1, 2, None]}, int),
        ({"enum": [True, False]}, bool),
        ({"const": "a"}, str),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, None),
        ({"type": ["integer", "string"]}, None),
        ({"enum": [1, "a"]}, None),
        ({"enum": [1, True]}, None),
        ({"enum": [None]}, None),
        ({"type": "null"}, None),
        ({"$ref": "#/$defs/x"}, None),
        ({}, None),
    ],
)
def test_an_argument_of_an_mcp_tool_has_one_plain_type(stub, about, kind):
    from rl_jax.envs.text.adapters.mcp import McpUser

    stub.schemas, stub.script = {"ask": {"x": about}}, ["start", "tools"]
    if kind is None:
        with pytest.raises(ValueError, match="MCP tool 'ask': argument 'x' has no plain type"):
            McpUser(url="http://here")
    else:
        env = McpUser(url="http://here")
        assert env._tools["ask"].types == {"x": kind}
        stub.script = ["fine"]
        told = env.step(call("ask", x=None)).messages[0]["content"]
        assert (told == "fine") == ("null" in str(about) or "None" in str(about)), told
        if stub.script:
            assert told.startswith("Error: ask: x=None is not of type")


def test_an_mcp_tool_that_is_not_offered_may_have_any_arguments(stub):
    from rl_jax.envs.text.adapters.mcp import McpUser

    stub.schemas, stub.script = {"odd": {"x": {}}, "ask": {"x": {"type": "string"}}}, ["start", "tools"]
    assert list(McpUser(url="http://here", only=("ask",))._tools) == ["ask"]


def test_all_pages_of_an_mcp_servers_tools_are_read(stub):
    from rl_jax.envs.text.adapters.mcp import McpUser

    stub.schemas, stub.cursors = {name: {} for name in "abcde"}, [None, "2", ""]  # an empty cursor is one, too
    stub.script = ["start", "page", "page", "page"]
    assert set(McpUser(url="http://here")._tools) == set("abcde") and not stub.script
    stub.script = ["page", StubError(-32000), "start", "page", "page", "page"]  # lost between two pages
    assert set(McpUser(url="http://here", only=("c", "e"))._tools) == {"c", "e"} and not stub.script


def test_an_mcp_server_that_names_the_same_page_again_is_refused(stub):
    from rl_jax.envs.text.adapters.mcp import McpUser

    stub.cursors, stub.script = [None, "2", "2"], ["start", *["page"] * 9]
    with pytest.raises(ValueError, match="the MCP server http://here: its pages of tools do not end: '2' again"):
        McpUser(url="http://here")
