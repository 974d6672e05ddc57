"""Rewards from a task in words, by a chat server: terms with weights, or a formula in linear temporal logic.

terms     a motion description, then calls that set terms                        Language to Rewards 2306.08647
formula   a tree of tasks, the order of each task's parts, a formula of it       Nl2Hltl2Plan 2408.08188

What the server writes is read with `ast` or `json` and checked by the functions that use it; what is refused goes back
with the error, `repairs` times. The words of the prompts are ours; the two requests of `terms` follow the published
code of Language to Rewards, the three kinds of `formula` the prompts on the site of Nl2Hltl2Plan; `by_team` gives the
parts to robots, by the planner of envs.worlds.robots. Departs: there a fine-tuned model translates to formulas, and the
lowest tasks are sequences of robots' actions.
"""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.parts.chat import Chat, Message, fenced, says
from rl_jax.control.relabelling import machines, terms
from rl_jax.core import ltl
from rl_jax.core.binding import bind
from rl_jax.envs.worlds import robots

MAX_FORMULA = 200  # characters
MAX_TASKS = 32  # of a tree: each is asked for twice or more
# Call -> its arguments beside `weight`.
CALLS = {
    "residual": {"entry", "target", "norm", "width"},
    "progress": {"entry"},
    "effort": set(),
    "alive": set(),
    "ended": set(),
}
DESCRIBE = """Describe the motion that a task needs in this form, and nothing else:
[start of description]
{entries}
* [optional] the number NAME should grow as fast as it can, or shrink.
* [optional] the actions should be small.
* [optional] the episode should go on for long, or end soon.
[end of description]
Replace [NUM: 0.0] by a number. Leave out what the task does not need. Say of each line that you keep how important it \
is: little, normal or very."""
ENTRY = "* [optional] the number {name} should be [NUM: 0.0]."
CODE = """Turn a description of a motion into calls of these functions, one per line, between ``` and ```:
residual(entry="NAME", target=0.0, weight=1.0)   pays -(x - target)^2 / 2, x the number NAME after the step
residual(entry="NAME", target=0.0, norm="smooth_abs", width=0.1, weight=1.0)   the same with |x - target|, about
progress(entry="NAME", weight=1.0)               pays how much NAME grew in the step; a negative weight: shrank
effort(weight=0.1)                               pays -|action|^2
alive(weight=1.0)                                pays 1 for a step that does not end the episode
ended(weight=1.0)                                pays 1 for the step that ends it
NAME is one of: {names}. Numbers are plain numbers. Call nothing else."""
TREE = """Split a task into a tree of smaller tasks, as people think of it. Answer with a JSON object and nothing \
else: a key per task, whose value is {{"text": what is to be done, in words, "parts": [names, three at most]}}. The \
key of the whole task is "task". A part is another key of the object, or one of the propositions: {places}. Keys are \
words of small letters and _. Every key but "task" is a part of exactly one other task. Tasks whose order is free, and \
tasks that follow each other, belong under the same task. A task of few steps needs no further keys."""
ORDER = """An instruction: {task}
It was split. The part {name!r}, {text!r}, is done when all of these are done: {parts}. Each of them will be done at \
some time. What does the instruction say about their order? Answer in one sentence that uses only these names, such as \
"a and b in any order", "first a, then b", "b not before a", "b never"."""
FORMULA = """Translate a sentence into one formula of linear temporal logic on finite traces, and answer with it \
alone, between ``` and ```. Operators: ! not, & and, | or, X next, F eventually, G always, f U g until; brackets. \
"first a, then b" is F (a & F b), "a and b in any order" is F a & F b, "b not before a" is !b U a. The only names are: \
{names}. A proposition is true in a step that is there; a task stands for a formula of its own, which is put in the \
place of its name and read from that step on. The sentence: {text}"""
AGAIN = "That cannot be used: {error}. Write it again, complete."


def answered(
    chat: Chat, messages: Sequence[Message], read: Callable[[str], Any], repairs: int
) -> tuple[Any, list[Message]]:
    """(what `read` makes of the answer, the messages with the answer); a refused answer goes back with the error.

    Raises:
      ValueError: if the last answer is refused, too.
    """
    messages = list(messages)
    for attempt in range(repairs + 1):
        answer = chat.ask(messages)[0]
        messages.append(says("assistant", answer))
        try:
            return read(answer), messages
        except ValueError as error:
            if attempt == repairs:
                raise ValueError(f"no usable answer after {repairs + 1} requests: {error}") from error
            messages.append(says("user", AGAIN.format(error=error)))
    raise AssertionError  # repairs is 0 or more


def calls_of(text: str, names: Sequence[str]) -> dict[str, Any]:
    """The relabelling by_terms of a text of calls, one per line.

    Args:
      text: calls of CALLS with named arguments that are literals.
      names: of the observation's entries.

    Raises:
      ValueError: if a line is anything else, a name or a number is not to be used, or there is no line.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the calls are no Python: {error}") from None
    terms_of: dict[str, dict[str, Any]] = {}
    weights: dict[str, float] = {}
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Name(id=fn), args=[], keywords=keywords)) if fn in CALLS:
                spec, weight = _term(statement.lineno, fn, keywords, names)
            case _:
                raise ValueError(f"line {statement.lineno} is no call of {', '.join(CALLS)} with named arguments alone")
        base = fn if "index" not in spec else f"{fn}_{names[spec['index']]}"
        name = base if base not in terms_of else f"{base}_{len(terms_of)}"
        terms_of[name], weights[name] = spec, weight
    if not terms_of:
        raise ValueError("there is no call")
    return dict(fn="by_terms", terms_of=terms_of, weights=weights, keep=0.0)


def _term(line: int, fn: str, keywords: list[ast.keyword], names: Sequence[str]) -> tuple[dict[str, Any], float]:
    """(the spec of relabelling.terms, the weight) of a call."""
    found = {}
    for keyword in keywords:
        try:
            found[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            found[keyword.arg] = None
        if keyword.arg and not isinstance(found[keyword.arg], str | int | float):
            raise ValueError(f"line {line}: {keyword.arg} must be a number or a text")
    if unknown := sorted(set(map(str, found)) - CALLS[fn] - {"weight"}):
        raise ValueError(f"line {line}: {fn} takes {', '.join(sorted(CALLS[fn] | {'weight'}))}, not {unknown[0]}")
    for name in {"target", "width", "weight"} & set(found):
        if isinstance(found[name], bool) or not isinstance(found[name], int | float) or not abs(found[name]) < 3e38:
            raise ValueError(f"line {line}: {name} must be a finite number")
    if "weight" not in found:
        raise ValueError(f"line {line}: {fn} needs a weight")
    weight = float(found.pop("weight"))
    if "entry" in CALLS[fn]:
        entry = found.pop("entry", None)
        if entry not in names:
            raise ValueError(f"line {line}: entry={entry!r} is none of {', '.join(names)}")
        found["index"] = list(names).index(entry)
    if found.get("norm", "quadratic") not in terms.NORMS:
        raise ValueError(f"line {line}: norm={found['norm']!r} is none of {', '.join(terms.NORMS)}")
    if found.get("width", 1.0) <= 0.0:
        raise ValueError(f"line {line}: width must be above 0")
    bind({"fn": fn} | found, terms)
    return {"fn": fn} | found, weight


def described(answer: str) -> str:
    """The description between its two marks; the whole answer if they are missing."""
    inside = answer.partition("[start of description]")[2] or answer
    return inside.partition("[end of description]")[0].strip()


def by_words(chat: Chat, tasks: Sequence[str], names: Sequence[str], *, repairs: int) -> tuple[dict[str, Any], str]:
    """The relabelling by_terms of a task in words, and the description it was made from.

    The first request describes the motion in a form, the second turns the description into calls. The first keeps its
    conversation, so that later tasks correct the earlier ones; the second sees the newest description alone.

    Args:
      chat: the server.
      tasks: the task, then corrections of it.
      names: of the observation's entries.
      repairs: requests that refused calls are sent back in.

    Raises:
      ValueError: if the server cannot be used, or its calls stay refused.
    """
    form = DESCRIBE.format(entries="\n".join(ENTRY.format(name=name) for name in names))
    history, description = [says("system", form)], ""
    for task in tasks:
        history.append(says("user", task))
        description, history = answered(chat, history, described, 0)
    coder = [says("system", CODE.format(names=", ".join(names))), says("user", description)]
    return answered(chat, coder, lambda answer: calls_of(fenced(answer), names), repairs)[0], description


def tree_of(answer: str, places: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """The tree of tasks of an answer: name -> {"text", "parts"}.

    Raises:
      ValueError: if it is no JSON object of that form, a name is not to be used, or it is no tree under "task".
    """
    try:
        tree = json.loads(fenced(answer))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the tree is no JSON: {error}") from None
    if not isinstance(tree, dict) or "task" not in tree:
        raise ValueError('the tree must be a JSON object with the key "task"')
    if len(tree) > MAX_TASKS:
        raise ValueError(f"the tree has {len(tree)} tasks, at most {MAX_TASKS} are read: use fewer")
    for name, node in tree.items():
        good = isinstance(node, dict) and isinstance(node.get("text"), str) and isinstance(node.get("parts"), list)
        if not good or not node["parts"] or not all(isinstance(part, str) for part in node["parts"]):
            raise ValueError(f'{name!r} must be {{"text": text, "parts": [names, one or more]}}')
        if not name.isidentifier() or name in ("X", "F", "G", "U", "true", "false") or name in places:
            raise ValueError(f"{name!r} is no name of its own for a task")
        if unknown := [part for part in node["parts"] if part not in tree and part not in places]:
            raise ValueError(
                f"{name!r} has the part {unknown[0]!r}, which is neither a task nor of {', '.join(places)}"
            )
    owners = [part for node in tree.values() for part in set(node["parts"]) if part in tree]
    for name in tree:
        if owners.count(name) != (name != "task"):
            raise ValueError(f"{name!r} is a part of {owners.count(name)} tasks; every task but the whole one of one")
    reached, open_ = set(), ["task"]
    while open_:
        name = open_.pop()
        reached.add(name)
        open_ += [part for part in tree[name]["parts"] if part in tree]
    if lost := sorted(set(tree) - reached):
        raise ValueError(f"{lost[0]!r} is not under the whole task")
    return tree


def names_in(formula: ltl.Formula) -> set[str]:
    """The names of a formula of ltl.parse."""
    if formula[0] == "name":
        return {formula[1]}
    inside = [part for part in formula[1:] if isinstance(part, tuple)]
    inside += [part for part in formula[1:] if isinstance(part, frozenset) for part in part]
    return set().union(*map(names_in, inside))


def formula_of(answer: str, parts: Sequence[str]) -> str:
    """The formula of an answer, on one line.

    Raises:
      ValueError: if it is no formula, or has a name that is no part.
    """
    text = " ".join(fenced(answer).split())
    if len(text) > MAX_FORMULA:
        raise ValueError(f"a formula of {len(text)} characters, at most {MAX_FORMULA}: use the parts")
    if unknown := sorted(names_in(ltl.parse(text)) - set(parts)):
        raise ValueError(f"{unknown[0]!r} in {text!r} is none of {', '.join(parts)}")
    return text


def formulas_by_logic(
    chat: Chat, task: str, places: Mapping[str, int], check: Callable[[str, Mapping[str, str]], Any], *, repairs: int
) -> tuple[str, dict[str, str]]:
    """(the formula of the whole task, those of its parts) of a task in words, one formula per task of a tree.

    Args:
      chat: the server.
      task: in words.
      places: the propositions.
      check: of both; raises ValueError for formulas that cannot be used, which go back to the server.
      repairs: requests that a refused answer is sent back in.

    Raises:
      ValueError: if the server cannot be used, or an answer stays refused.
    """
    opening = [says("system", TREE.format(places=", ".join(places))), says("user", task)]
    tree, _ = answered(chat, opening, lambda answer: tree_of(answer, places), repairs)
    formulas = {}
    for name, node in sorted(tree.items(), key=lambda item: item[0] == "task"):  # the whole task last
        parts = ", ".join(node["parts"])
        order = chat.ask([says("user", ORDER.format(task=task, name=name, text=node["text"], parts=parts))])[0]
        question = says("user", FORMULA.format(names=parts, text=order))

        def read(answer: str, name: str = name, parts: Sequence[str] = node["parts"]) -> str:
            text = formula_of(answer, parts)
            if name == "task":  # its automaton has all the others in it
                check(text, formulas)
            return text

        formulas[name], _ = answered(chat, [question], read, repairs)
    return formulas.pop("task"), formulas


def by_logic(
    chat: Chat, task: str, places: Mapping[str, int], *, size: int, progress: float, repairs: int
) -> dict[str, Any]:
    """The relabelling by_machine of a task in words: hierarchical LTL, one formula per task of a tree.

    Args:
      chat: the server.
      task: in words.
      places: proposition -> entry of a one-hot observation at which it holds.
      size: as machines.formula takes it.
      progress: as machines.formula takes it.
      repairs: requests that a refused answer is sent back in.

    Raises:
      ValueError: if the server cannot be used, an answer stays refused, or the formulas have too many states.
    """

    def check(whole: str, parts: Mapping[str, str]) -> None:
        machines.formula(task=whole, places=places, size=size, parts=parts)

    whole, formulas = formulas_by_logic(chat, task, places, check, repairs=repairs)
    machine = dict(fn="formula", task=whole, parts=formulas, places=dict(places), size=size, progress=progress)
    return dict(fn="by_machine", machine=machine)


def by_team(
    chat: Chat, task: str, places: Mapping[str, int], *, starts: Sequence[int], length: int, repairs: int
) -> tuple[dict[str, Any], robots.Plan]:
    """The fields of agents/robots for a task in words, and the shortest plan: each robot gets formulas of its own.

    Args:
      chat: the server.
      task: in words.
      places: proposition -> place of the line.
      starts: where the robots start.
      length: places of the line.
      repairs: requests that a refused answer is sent back in.

    Raises:
      ValueError: if the server cannot be used, an answer stays refused, or no robots can do the task.
    """

    def check(whole: str, parts: Mapping[str, str]) -> None:
        robots.allocate(whole, parts, places, starts, length)

    whole, formulas = formulas_by_logic(chat, task, places, check, repairs=repairs)
    owners, found = robots.allocate(whole, formulas, places, starts, length)
    return dict(task=whole, parts=formulas, owners=owners, places=dict(places)), found
