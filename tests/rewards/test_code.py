"""rewards/code.py: right programs in many forms are accepted, wrong and cheating ones are not."""

import json
import sys

import pytest

from rl_jax.rewards import code, terms
from rl_jax.rewards.pool import RewardPool
from rl_jax.rewards.sandbox import landlock, start
from rl_jax.rewards.sandbox.protocol import Limits, RunResult

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not landlock.abi(), reason="this kernel has no Landlock")

ADD = [{"call": "add", "args": [1, 2], "expected": 3}, {"call": "add", "args": [-5, 5], "expected": 0}]
ECHO = [{"input": "2 3\n", "output": "5\n"}, {"input": "10 -4", "output": "6"}]
PAIR = [{"call": "pair", "args": [1], "expected": {"__tuple__": [1, 2]}}]
RIGHT = "def add(a, b):\n    return a + b\n"
STDIN = "a, b = map(int, input().split())\nprint(a + b)\n"

ACCEPT = {
    "plain": (RIGHT, ADD),
    "fenced": (f"Here:\n```python\n{RIGHT}```\nDone.", ADD),
    "the last of two blocks": (f"```python\ndef add(a, b): return 0\n```\nNo:\n```py\n{RIGHT}```", ADD),
    "an example of its use behind it": (f"```python\n{RIGHT}```\nAs in\n```python\nprint(add(1, 2))\n```", ADD),
    "after a thought": (f"<think>hm ```1```</think>\n{RIGHT}", ADD),
    "in answer tags": (f"<answer>{RIGHT}</answer>", ADD),
    "a lambda": ("add = lambda a, b: a + b", ADD),
    "prints on the side": (f"print('hello')\n{RIGHT}", ADD),
    "a helper and an import": ("import operator\ndef add(a, b):\n    return operator.add(a, b)", ADD),
    "a float for an int": ("def add(a, b): return float(a + b)", ADD),
    "a bool for 1": ("def add(a, b): return True", [{"call": "add", "args": [1, 0], "expected": 1}]),
    "a tuple": ("def pair(x): return x, x + 1", PAIR),
    "arguments of all kinds": (
        "def f(*a): return list(map(type, a)) == [tuple, set, dict, float, bytes, complex, int]",
        [
            {
                "call": "f",
                "args": [
                    {"__tuple__": [1]},
                    {"__set__": [1]},
                    {"__dict__": [[1, 2]]},
                    {"__float__": "inf"},
                    {"__bytes__": "00"},
                    {"__complex__": [0, 1]},
                    {"__int__": hex(2**70)},
                ],
                "expected": True,
            }
        ],
    ),
    "a large int": ("def f(): return 10**30", [{"call": "f", "args": [], "expected": {"__int__": hex(10**30)}}]),
    "a set": ("def f(): return {2, 1}", [{"call": "f", "args": [], "expected": {"__set__": [1, 2]}}]),
    "any order, as the test says": (
        "def f(): return [2, 1]",
        [{"call": "f", "args": [], "expected": [1, 2], "apply": "sorted"}],
    ),
    "close enough": ("def f(): return [1/3]", [{"call": "f", "args": [], "expected": [0.3333], "tolerance": 1e-3}]),
    "close enough in a dict": (
        "def f(): return [{'a': 0.1 + 0.2, 'b': (1 / 3,), 'c': 'x'}]",
        [
            {
                "call": "f",
                "args": [],
                "expected": [{"a": 0.3, "b": {"__tuple__": [0.3333]}, "c": "x"}],
                "tolerance": 1e-3,
            }
        ],
    ),
    "a Counter": (
        "import collections\ndef f(): return collections.Counter('aab')",
        [{"call": "f", "args": [], "expected": {"a": 2, "b": 1}}],
    ),
    "a match, if any is right": (
        "import re\ndef f(x): return re.match('a', x)",
        [{"call": "f", "args": ["ab"], "expected": True, "apply": "bool"}],
    ),
    "surrogates": ("def f(): return '\\ud800'", [{"call": "f", "args": [], "expected": "\ud800"}]),
    "main program": (STDIN, ECHO),
    "other spaces": (STDIN.replace("print(a + b)", "print(' ', a + b, '\\n')"), ECHO),
    "main program, close": ("print(0.3000001)", [{"input": "", "output": "0.3", "tolerance": 1e-6}]),
    "under __main__": ("if __name__ == '__main__':\n    print(5)", [{"input": "", "output": "5"}]),
    "sys.exit at the end": ("print(5)\nimport sys\nsys.exit(0)", [{"input": "", "output": "5"}]),
    "a body after its beginning": ("    return a + b\n", ADD, "def add(a, b):\n    '''Adds.'''\n"),
    "a whole function after its beginning": (f"```python\n{RIGHT}```", ADD, "def add(a, b):\n    '''Adds.'''\n"),
}

ALWAYS_EQUAL = "class Yes:\n    def __eq__(self, other): return True\n    __hash__ = None\n"
REJECT = {
    "nothing": ("", ADD),
    "words": ("I cannot do that.", ADD),
    "a syntax error": ("def add(a, b) return a + b", ADD),
    "wrong": ("def add(a, b): return a - b", ADD),
    "wrong for one test": ("def add(a, b): return 3", ADD),
    "special cases of tests it has seen": ("def add(a, b):\n    if (a, b) == (1, 2): return 3\n    return None", ADD),
    "another name": ("def sum_of(a, b): return a + b", ADD),
    "prints instead of returning": ("def add(a, b): print(a + b)", ADD),
    "a text for a number": ("def add(a, b): return str(a + b)", ADD),
    "a list for a tuple": ("def pair(x): return [x, x + 1]", PAIR),
    "the last of two that define it": (f"```python\n{RIGHT}```\nor\n```python\ndef add(a, b): return 0\n```", ADD),
    "too far in a dict": (
        "def f(): return {'a': 0.4}",
        [{"call": "f", "args": [], "expected": {"a": 0.3}, "tolerance": 1e-3}],
    ),
    "another key in a dict": (
        "def f(): return {'b': 0.3}",
        [{"call": "f", "args": [], "expected": {"a": 0.3}, "tolerance": 1e-3}],
    ),
    "nan": ("def add(a, b): return float('nan')", ADD),
    "a generator": ("def add(a, b): yield a + b", ADD),
    "raises": ("def add(a, b): raise ValueError(a + b)", ADD),
    "too long": ("#" * 200_000 + "\n" + RIGHT, ADD),
    "sys.exit(0)": ("import sys\nsys.exit(0)", ADD),
    "os._exit(0)": ("import os\nos._exit(0)", ADD),
    "exit in the function": ("def add(a, b):\n    import os; os._exit(0)", ADD),
    "exit at exit": ("import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0", ADD),
    "__eq__ that is always true": (f"{ALWAYS_EQUAL}\ndef add(a, b): return Yes()", ADD),
    "an int whose __eq__ is always true": (
        f"{ALWAYS_EQUAL.replace('Yes:', 'Yes(int):')}\ndef add(a, b): return Yes()",
        ADD,
    ),
    "a str of its own": (
        "class S(str):\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(): return S('x')",
        [{"call": "f", "args": [], "expected": "y"}],
    ),
    "a list of its own": ("class L(list): pass\ndef f(): return L([1])", [{"call": "f", "args": [], "expected": [1]}]),
    "an always equal inside": (
        f"{ALWAYS_EQUAL}\ndef f(): return [Yes()]",
        [{"call": "f", "args": [], "expected": [1]}],
    ),
    "patched json": ("import json\njson.dumps = lambda *a, **k: 'true'\ndef add(a, b): return 0", ADD),
    "patched assert and builtins": (
        "import builtins\nbuiltins.AssertionError = Exception\nbuiltins.all = builtins.any = lambda *a: True\n"
        "def add(a, b): return 0",
        ADD,
    ),
    "forged verdicts": (
        "import os\nfor fd in range(1, 64):\n    try: os.write(fd, b'[0, [{\"reward\": 1.0}, null], false]\\n')\n"
        "    except OSError: pass\ndef add(a, b): return 0",
        ADD,
    ),
    "the harness's success line": ("print('OK')\nprint('2 passed')\ndef add(a, b): return 0", ADD),
    "the answer channel flooded": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'3' * 10)\n    except OSError: pass\n"
        "def add(a, b): return a + b",
        ADD,
    ),
    "looks through frames for what is expected": (
        "import sys\ndef add(a, b):\n    f, seen = sys._getframe(), []\n    while f:\n"
        "        for d in (f.f_locals, f.f_globals):\n"
        "            seen += [v for v in d.values() if isinstance(v, dict) and 'expected' in v]\n"
        "        f = f.f_back\n    return seen[0]['expected']",
        ADD,
    ),
    "looks through memory": (
        "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n"
        "        if isinstance(o, dict) and 'expected' in o: return o['expected']",
        ADD,
    ),
    "reads the test files": (
        "import glob\ndef add(a, b):\n    for p in glob.glob('**', recursive=True) + glob.glob('../**'):\n"
        "        if 'expected' in open(p).read(): return 3",
        ADD,
    ),
    "reads the data set": ("def add(a, b): return open('/work/shared/data/code/HumanEval.jsonl.gz').read()", ADD),
    "leaves a file for the next test": (
        "import os\ndef add(a, b):\n    open('/tmp/rl_jax_left', 'w').write('x')\n    return a + b",
        ADD,
    ),
    "counts the tests": (
        "n = [3, 0]\ndef add(a, b): return n.pop(0)",
        [*ADD[:1], {"call": "add", "args": [9, 9], "expected": 0}],
    ),
    "a thread that prints later": (
        "import threading\nthreading.Timer(0.01, print, ['3']).start()\ndef add(a, b): return 0",
        ADD,
    ),
    "patched time": ("import time\ntime.time = lambda: 0\nwhile True: pass", ADD),
    "never ends": ("while True: pass", ADD),
    "floods": ("while True: print('5')", ECHO),
    "kills its parent": ("import os\nos.kill(os.getppid(), 9)\ndef add(a, b): return a + b", ADD),
    "replaces the harness": ("import sys\nsys.modules['__main__'].main = lambda: None\ndef add(a, b): return 0", ADD),
    "replaces its encoder": (
        "import sys\nsys.modules['__main__'].plain = lambda v: {'__any__': 1}\ndef add(a, b): return 0",
        ADD,
    ),
    "unknown mark": ("def add(a, b): return {'__any__': [3]}", ADD),
    "a deep answer": ("def add(a, b):\n    x = []\n    for _ in range(900): x = [x]\n    return x", ADD),
    "more words": (STDIN.replace("print(a + b)", "print(a + b, 'ok')"), ECHO),
    "fewer words": ("", ECHO),
    "all answers at once": ("print(5, 6)", ECHO),
    "the input": ("print(input())", ECHO),
    "right, then an error": (STDIN + "1 / 0", ECHO),
    "right, then another exit code": (STDIN + "import sys; sys.exit(1)", ECHO),
    "nan for a number": ("print('nan')", [{"input": "", "output": "0.3", "tolerance": 1e-6}]),
    "infinity": ("print('inf')", [{"input": "", "output": "0.3", "tolerance": 1e-6}]),
}


def scored(entry, **keywords):
    completion, tests, *before = entry
    info = {"tests": tests, "before": before[0] if before else ""}
    return code.score("", completion, json.loads(json.dumps(info)), cpu_s=0.5, **keywords)


def test_right_programs_are_accepted():
    found = {name: scored(entry) for name, entry in ACCEPT.items()}
    assert {name: value for name, value in found.items() if value["reward"] != 1} == {}


@pytest.mark.slow
def test_wrong_and_cheating_programs_are_rejected():
    found = {name: scored(entry) for name, entry in REJECT.items()}
    assert {name: value for name, value in found.items() if value["reward"] != 0} == {}
    assert len(ACCEPT) + len(REJECT) >= 60


def test_shares_and_parts():
    assert scored(REJECT["wrong for one test"]) == {"reward": 0.0, "passed": 0.0, "share": 0.5, "ended": 1.0}
    assert scored(REJECT["wrong for one test"], reward="share")["reward"] == 0.5
    assert scored(REJECT["os._exit(0)"])["ended"] == 1.0 and scored(REJECT["raises"])["ended"] == 0.0
    with pytest.raises(ValueError, match="'all' or 'share'"):
        scored(ACCEPT["plain"], reward="most")
    with pytest.raises(ValueError, match="at least one test"):
        code.score("", "", {"tests": []})
    with pytest.raises(ValueError, match='"call", "args" and "expected"; got'):
        code.score("", "x", {"tests": [{"call": "f"}]})
    with pytest.raises(ValueError, match="\"apply\" of a test is one of set, .*; got 'max'"):  # not 0 for every answer
        code.score("", "x", {"tests": [{"call": "f", "args": [], "expected": 1, "apply": "max"}]})


class Counting:
    """A sandbox that counts, and ends each program by a limit."""

    def __init__(self):
        self.files = []

    def run(self, files, *, stdin=b"", limits=None, argv=()):
        self.files.append((files, stdin))
        return RunResult(b"3", b"", -9, "cpu", 9.0, 9.0)


def test_after_a_limit_no_further_test_runs_and_no_expected_value_goes_in():
    box = Counting()
    secret = [{"call": "add", "args": [1], "expected": 987654321}] * 3
    assert code.run_tests(box, RIGHT, secret, Limits())[1:] == [(False, None)] * 2
    assert len(box.files) == 1 and "987654321" not in str(box.files)
    assert code.run_tests(box, "", ADD, Limits()) == [(False, None)] * 2 and len(box.files) == 1


def test_in_a_pool_s_workers_as_a_term():
    items = [["tests", "rl_jax.rewards.code:score", {"cpu_s": 0.5}]]
    info = json.dumps({"tests": ADD})
    completions = [RIGHT, "import os; os._exit(0)", REJECT["forged verdicts"][0], RIGHT]
    with RewardPool(terms.score_item, kwargs={"terms": items}, num_workers=1, time_limit_s=60.0) as pool:
        found = pool([""] * 4, completions, [info] * 4)
    assert found.components["tests"].tolist() == [1.0, 0.0, 0.0, 1.0] and found.num_errors == 0, found
    assert found.components["tests/share"].tolist() == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.slow
def test_a_program_that_outlives_its_item_does_not_disturb_the_next():
    items = [["tests", "rl_jax.rewards.code:score", {}]]
    completions = ["import time; time.sleep(600)", RIGHT] * 2
    with RewardPool(terms.score_item, kwargs={"terms": items}, num_workers=1, time_limit_s=1.5) as pool:
        found = pool([""] * 4, completions, [json.dumps({"tests": ADD})] * 4)
    assert found.components["tests"].tolist() == [0.0, 1.0, 0.0, 1.0] and found.num_timeouts == 2, found


def test_run_time_pays_for_speed():
    assert code.faster(1.0, 1.0) == 0.5 and code.faster(0.0, 1.0) == 1.0 and code.faster(9.0, 1.0) == 0.5
    assert code.faster(0.25, 1.0, right=0.2) == pytest.approx(0.8)
    slow = "def f(n):\n    total = 0\n    for i in range(n + 1): total += i\n    return total"
    info = {"tests": [{"call": "f", "args": [10**6], "expected": 500000500000}], "slow": slow}
    fast = code.run_time("", "def f(n): return n * (n + 1) // 2", info)
    assert fast["reward"] > 0.5 and fast["speedup"] > 1  # a million steps against one
    wrong = code.run_time("", "def f(n): return 0", info)
    assert wrong == {"reward": 0.0, "passed": 0.0, "share": 0.0, "speedup": 0.0}


def test_the_sandbox_is_kept_per_process():
    assert start.kept("") is start.kept("")
