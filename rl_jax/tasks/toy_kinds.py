"""Generated questions whose answers a verifier of rl_jax.rewards can check, one function per kind.

Each draws one question: what is asked, the right answer, answers that are wrong in the way the kind is about, and the
verifier's info. Texts are short enough for a model of characters from scratch.
"""

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

NAMES = ("Ann", "Bob", "Eve", "Joe", "Kim", "Leo", "Mia", "Sam", "Tom", "Zoe")
SCRIPT = """CREATE TABLE pet (name TEXT, kind TEXT, age INTEGER, owner TEXT);
CREATE TABLE town (owner TEXT, city TEXT);
INSERT INTO pet VALUES ('Rex','dog',3,'Ann'),('Tux','cat',5,'Bob'),('Pip','bird',1,'Eve'),('Fox','dog',7,'Joe'),
('Ivy','cat',2,'Ann'),('Max','dog',4,'Kim'),('Sky','bird',6,'Bob'),('Zip','cat',8,'Eve');
INSERT INTO town VALUES ('Ann','Rome'),('Bob','Oslo'),('Eve','Rome'),('Joe','Bern'),('Kim','Oslo');"""


class Toy(NamedTuple):
    """One question.

    Attributes:
      prompt: text.
      right: an answer that the verifier pays in full.
      wrong: answers that it does not.
      info: of the verifier, JSON values.
    """

    prompt: str
    right: str
    wrong: tuple[str, ...]
    info: dict[str, Any]


def calls(rng: random.Random) -> Toy:
    """A tool call in ToolRL's layout (tools.fine): "lamp hall 40:". Wrong: a value, a parameter, the tool, the form."""
    name, key, value = rng.choice([("lamp", "level", 10), ("heat", "degrees", 1), ("door", "minutes", 5)])
    room, amount = rng.choice(("hall", "attic", "shed", "bath", "den")), value * rng.randint(1, 9)
    other = rng.choice([tool for tool in ("lamp", "heat", "door") if tool != name])

    def text(name: str, parameters: dict) -> str:
        call = json.dumps({"name": name, "parameters": parameters}, separators=(",", ":"))
        return f"<think>{name}</think>\n<tool_call>\n{call}\n</tool_call>"

    right = {"room": room, key: amount}
    wrong = (
        text(name, {"room": room, key: amount + value}),
        text(name, {"room": room}),
        text(other, right),
        text(name, right).partition("\n")[2],
    )
    return Toy(f"{name} {room} {amount}:", text(name, right), wrong, {"calls": [{"name": name, "parameters": right}]})


def queries(rng: random.Random) -> Toy:
    """SQL on two tables (sql.score): "age of dog:". Wrong: a condition, a column, a table, no SQL."""
    column = rng.choice(("name", "age", "owner"))
    kind = rng.choice(("dog", "cat", "bird"))
    if rng.random() < 0.3:
        city = rng.choice(("Rome", "Oslo", "Bern"))
        prompt, right = f"owners in {city}?", f"SELECT owner FROM town WHERE city = '{city}'"
        wrong = ("SELECT owner FROM town", f"SELECT city FROM town WHERE city = '{city}'", f"owner {city}")
    else:
        conditions = [f"kind = '{kind}'"] * rng.randint(0, 1) + [f"age > {rng.randint(1, 5)}"] * rng.randint(0, 1)
        words = [text.replace("kind = ", "").replace("age > ", "over ").replace("'", "") for text in conditions]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        prompt, right = f"{column} {' '.join(words)}?", f"SELECT {column} FROM pet{where}"
        more = "city" if column != "city" else "name"
        wrong = (f"SELECT kind FROM pet{where}", f"SELECT {column} FROM town{where}", f"SELECT {more} pet{where}")
    return Toy(prompt, right, wrong, {"script": SCRIPT, "query": right})


def boxes(rng: random.Random) -> Toy:
    """One to three boxes from corners and sizes (boxes.detection): "2,3+4 1,1+5:". Wrong: boxes too many, or moved."""
    things = [(rng.randint(0, 6), rng.randint(0, 6), rng.randint(2, 3)) for _ in range(rng.randint(1, 3))]
    found = [[x, y, x + size, y + size] for x, y, size in things]
    moved = [[x + 2, y + 2, x2 + 2, y2 + 2] for x, y, x2, y2 in found]

    def text(rows: list) -> str:
        return "".join(f"[{','.join(map(str, row))}]" for row in rows)

    wrong = (text([*found, found[0]]), text([*found, *moved]), text(moved))
    prompt = " ".join(f"{x},{y}+{size}" for x, y, size in things) + ":"
    return Toy(prompt, text(found), wrong, {"boxes": found})


def regions(rng: random.Random) -> Toy:
    """One box from a corner and its sides (boxes.near): "2,3 4x5:". Wrong: moved, or of another size."""
    x, y, width, height = rng.randint(0, 9), rng.randint(0, 9), rng.randint(2, 9), rng.randint(2, 9)
    wrong = ([x + 1, y, x + width + 1, y + height], [x, y, x + width + 2, y + height], [x, y, x + 2 * width, y + 1])
    right, *others = ("[" + ",".join(map(str, box)) + "]" for box in ([x, y, x + width, y + height], *wrong))
    return Toy(f"{x},{y} {width}x{height}:", right, tuple(others), {"box": [x, y, x + width, y + height]})


def paths(rng: random.Random) -> Toy:
    """Points on a way of equal steps (ways.near): "1,2 to 5,4 in 2:". Wrong: back, too short, aside."""
    x, y, steps = rng.randint(0, 5), rng.randint(0, 5), rng.randint(2, 4)
    dx, dy = rng.randint(0, 2), rng.randint(1, 2)
    points = [[x + i * dx, y + i * dy] for i in range(steps + 1)]

    def text(rows: list) -> str:
        return "".join(f"({a},{b})" for a, b in rows)

    wrong = (text(points[::-1]), text(points[:-1]), text([[a + 1, b] for a, b in points]))
    end_x, end_y = points[-1]
    return Toy(f"{x},{y} to {end_x},{end_y} in {steps}:", text(points), wrong, {"points": points})


def clicks(rng: random.Random) -> Toy:
    """Where a button is, which the prompt does not say (boxes.exploring_click): "red save:".

    Each button has a place of its own; the demonstrations of the wrong kind look where most buttons are.
    """
    color, label = rng.choice(("red", "blue", "green", "gray")), rng.choice(("save", "open", "quit", "help", "undo"))
    hidden = random.Random(f"{color} {label}")
    x, y = hidden.randint(1, 8), hidden.randint(1, 8)

    def text(*points: tuple[int, int]) -> str:
        return json.dumps([{"point_2d": list(point)} for point in points], separators=(",", ":"))

    guesses = [(rng.randint(0, 3), rng.randint(0, 3)) for _ in range(2)]
    wrong = (text((1, 1)), text((2, 1)), text(*guesses), text(guesses[0], (x, y)))
    return Toy(f"{color} {label}:", text((x, y)), wrong, {"box": [x - 0.5, y - 0.5, x + 0.5, y + 0.5]})


def changes(rng: random.Random) -> Toy:
    """What has changed between scenes (claims.triples): "red cube > blue cube:". Wrong: too many, too few, values."""
    colors, sizes = ("red", "blue", "green"), ("big", "small")
    before, after, truth = [], [], []
    for thing in rng.sample(("cube", "ball", "cone"), rng.randint(1, 2)):
        old, new = rng.sample(colors, 2)
        big, small = rng.sample(sizes, 2)
        recolored = rng.random() < 0.5
        before.append(f"{old} {big} {thing}")
        after.append(f"{new} {big} {thing}" if recolored else f"{old} {small} {thing}")
        truth.append([thing, "color", new] if recolored else [thing, "size", small])

    def text(rows: list) -> str:
        return "".join(f"({','.join(row)})" for row in rows)

    listed = [[thing, "color", color] for thing, *_ in truth for color in colors]
    swapped = [[thing, name, rng.choice(colors if name == "color" else sizes)] for thing, name, _ in truth]
    wrong = (text(listed), text(truth[:-1]), text(swapped), text([*truth, *swapped]))
    return Toy(f"{', '.join(before)} > {', '.join(after)}:", text(truth), wrong, {"triples": truth})


def facts(rng: random.Random) -> Toy:
    """A person's three facts, as told before (claims.facts): "Ann?". Wrong: facts left out, or made up."""
    name = f"{rng.choice(NAMES)} {rng.choice('ABCDEFGHIJ')}"
    known = random.Random(name)
    lists = (("Rome", "Oslo", "Bern"), ("a dog", "a cat", "a bird"), ("tea", "milk", "juice"))
    true, false = zip(*(known.sample(words, 2) for words in lists), strict=True)
    verbs = ("in", "has", "likes")

    def text(words: tuple) -> str:
        return " ".join(f"{verb} {word}." for verb, word in zip(verbs, words, strict=False))

    wrong = (text(true[:1]), text(true[:2]), text((true[0], false[1], true[2])), text(false))
    return Toy(f"{name}?", text(true), wrong, {"facts": list(true)})


def letters(rng: random.Random) -> Toy:
    """A short letter (rubrics.score): "Ann, rain:". Wrong: no name, no topic, an ending left out, a rude one."""
    name, topic = rng.choice(NAMES), rng.choice(("rain", "lunch", "the bus", "a book", "the key", "work"))
    right = f"Dear {name}, thanks for {topic}. Yours"
    wrong = (
        f"Thanks for {topic}. Yours",
        f"Dear {name}, thanks. Yours",
        f"Dear {name}, thanks for {topic}!!! thanks!!!",
    )
    rubric = [
        {"name": "to", "regex": f"^Dear {name},"},
        {"name": "topic", "regex": topic},
        {"name": "ends", "regex": "Yours$"},
    ]
    return Toy(f"{name}, {topic}:", right, wrong, {"rubric": rubric})


def echoes(rng: random.Random) -> Toy:
    """A sentence to say again (overlap.bleu). Wrong: words left out, exchanged or said twice."""
    nouns, verbs = ("cat", "dog", "man", "boy", "cow", "hen"), ("saw", "met", "fed", "led")
    words = f"the {rng.choice(nouns)} {rng.choice(verbs)} a {rng.choice(nouns)} and a {rng.choice(nouns)}".split()
    swapped = rng.sample(words, len(words))
    wrong = (" ".join(words[:4]), " ".join(swapped), " ".join(words + words[-3:]))
    return Toy(f"say {' '.join(words)}:", " ".join(words), wrong, {"reference": " ".join(words)})


def screening(rng: random.Random) -> Toy:
    """Hire if the years asked for are there (exact.match): "sql 3, go 1; sql 2:". Wrong: the other decision."""
    skills = rng.sample(("sql", "go", "java", "ml"), 2)
    years = [rng.randint(1, 6) for _ in skills]
    place, asked = rng.randrange(2), rng.randint(1, 6)
    decision = "hire" if years[place] >= asked else "reject"
    other = "reject" if decision == "hire" else "hire"
    prompt = f"{', '.join(f'{s} {y}' for s, y in zip(skills, years, strict=True))}; {skills[place]} {asked}:"
    return Toy(prompt, decision, (other,), {"answer": decision})


def unit_tests(rng: random.Random) -> Toy:
    """A unit test (unit_tests.quality): "test add 1 2:". Wrong: nothing asserted, twice the same, printed."""
    name = rng.choice(("add", "sub", "mul"))
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    call = f"{name}({a},{b})"
    check = f"assert {call}=={dict(add=a + b, sub=a - b, mul=a * b)[name]}"
    start = f"def test_{name}():"
    wrong = (f"{start} {call}", f"{start} {check};{check}", f"{start} print({call});{check}", f"test_{name}: {check}")
    return Toy(f"test {name} {a} {b}:", f"{start} {check}", wrong, {"focal": name})


def programs(rng: random.Random) -> Toy:
    """A function to write, with hidden tests (code.score): "f(x)=3x+2:". Wrong: a number, a print, an exit."""
    a, b = rng.randint(2, 9), rng.randint(1, 9)
    tests = [{"call": "f", "args": [x], "expected": a * x + b} for x in (0, 1, -3, rng.randint(10, 99))]
    wrong = (f"def f(x): return {a}*x", f"def f(x): return {b}", f"def f(x): print({a}*x+{b})", f"print({b});exit(0)")
    return Toy(f"f(x)={a}x+{b}:", f"def f(x): return {a}*x+{b}", wrong, {"tests": tests})


def slow_programs(rng: random.Random) -> Toy:
    """A slow function to make faster (code.run_time): "sum 3..3n:". Wrong: the slow one itself, and wrong sums."""
    a = rng.randint(2, 9)
    slow = f"def f(n): return sum(range({a},{a}*n+1,{a}))"
    # Of a million numbers the sum took as long as an interpreter's start: on a busy machine either program was faster.
    tests = [{"call": "f", "args": [n], "expected": a * n * (n + 1) // 2} for n in (0, 7, 4_000_000)]
    wrong = (slow, f"def f(n): return {a}*n", f"def f(n): return {a}*n*n//2")
    return Toy(f"sum {a}..{a}n:", f"def f(n): return {a}*n*(n+1)//2", wrong, {"tests": tests, "slow": slow})


def fuzz_inputs(rng: random.Random) -> Toy:
    """An input that reaches a line (fuzzing.distance): "x>40,x%7==3:". Wrong: one condition alone, none, no number."""
    low, modulus = rng.randint(10, 60), rng.randint(3, 9)
    rest = rng.randrange(modulus)
    program = f"x = int(input())\nif x > {low}:\n    y = x % {modulus}\n    if y == {rest}:\n        print('bug')\n"
    right = next(x for x in range(low + 1, 100) if x % modulus == rest)
    wrong = (str(right + 1), str(low % modulus), str(right - 100 * modulus), "x")
    return Toy(f"x>{low},x%{modulus}=={rest}:", str(right), wrong, {"program": program, "target": 5})


def views(rng: random.Random) -> Toy:
    """A question seen by several people, with an answer that is accepted (groups.roles): "tea or milk, hot?"."""
    first, second = rng.sample(("tea", "milk", "juice", "water", "soup", "cake"), 2)
    when = rng.choice(("hot", "cold"))
    choice = first if (when == "hot") == (first in ("tea", "soup", "milk")) else second
    people = rng.sample(("cook", "nurse", "child", "guest", "coach"), 2)
    words = [f"as a {who} {rng.choice((first, second))}." for who in people]
    wrong = (f"<answer>{choice}</answer>", f"{words[0]} <answer>{second if choice == first else first}</answer>")
    right = f"{' '.join(words)} <answer>{choice}</answer>"
    return Toy(
        f"{first} or {second}, {when}?", right, (*wrong, f"{words[0]} <answer>{choice}</answer>"), {"answer": choice}
    )


def choices(rng: random.Random) -> Toy:
    """A sum as a multiple choice (exact.choice): "3+4? A 8 B 7 C 6:". Wrong: another letter, two letters, none."""
    first, second = rng.randint(0, 9), rng.randint(0, 9)
    options = [first + second, *rng.sample([n for n in range(19) if n != first + second], 2)]
    rng.shuffle(options)
    right = "ABC"[options.index(first + second)]
    shown = " ".join(f"{letter} {value}" for letter, value in zip("ABC", options, strict=True))
    others = [letter for letter in "ABC" if letter != right]
    info = {"answer": right, "options": [str(value) for value in options]}
    return Toy(f"{first}+{second}? {shown}:", right, (*others, f"<answer>{right}, {others[0]}</answer>", "?"), info)


def gestures(rng: random.Random) -> Toy:
    """One to three actions on a screen (actions.by_type): "<save> 'hi' up:". Wrong: an argument, too many, too few."""
    steps = rng.randint(1, 3)
    actions, shown = [], []
    for kind in rng.choices(("tap", "write", "drag"), k=steps):
        words = {"tap": ("save", "open", "back", "menu"), "write": ("hi", "yes", "bye", "ok"), "drag": ("up", "down")}
        argument = rng.choice(words[kind])
        actions.append([kind, argument])
        shown.append({"tap": f"<{argument}>", "write": f"'{argument}'", "drag": argument}[kind])
    said = [f"{kind}({argument})" for kind, argument in actions]
    other = [f"{actions[0][0]}(exit)", *said[1:]]
    wrong = (" ".join(other), " ".join([*said, "tap(exit)"]), " ".join(said[:-1]) or "tap exit")
    return Toy(f"{' '.join(shown)}:", " ".join(said), wrong, {"actions": actions, "steps": steps})


KINDS: dict[str, Callable[[random.Random], Toy]] = {
    fn.__name__: fn
    for fn in (
        calls,
        queries,
        boxes,
        regions,
        paths,
        clicks,
        changes,
        facts,
        letters,
        echoes,
        screening,
        unit_tests,
        programs,
        slow_programs,
        fuzz_inputs,
        views,
        choices,
        gestures,
    )
}
