"""Worlds with one kind of tool each: a search, a database, other models to ask."""

import copy
import random
from collections import Counter
from collections.abc import Iterator

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World
from rl_jax.rewards import sql

PEOPLE = ("ann", "bob", "cid", "dee", "eli", "fay", "gus", "hal", "ida", "jon")
PETS = ("ant", "bee", "cat", "dog", "eel", "fox")


class Search(World):
    """Questions about who has what, and a search over a corpus: "eli?" -> "s eli" -> "eli has a cat" -> "cat".

    "s WORDS" gives the document with the most of these words: of several one that begins with them, else the first. "a
    ANSWER" or any other word ends the episode, 1 if it is right. A share of the questions has two hops ("friend of
    eli?": "eli likes bob", "bob has a fox"). Every question can be answered by what was read; the best return is
    1 - price x hops if `most` leaves room. A stand-in for UR2's retrieval over an encyclopedia (arXiv 2508.06165):
    records whose info has "search": false answer "off" to a search (its switch per prompt, from the pass rate); the
    corpus has every fact once, in an order of its own seed. The facts are the same in all episodes of a seed, so a
    policy may also learn them by heart: `fresh` draws them anew for each episode.

    Args:
      price: of a search.
      hops: most hops of a question, 1 or 2.
      fresh: new facts for each episode.
      seed: of the facts.
      tool: False: no search answers, whatever a record says.
      most: turns.
    """

    ALPHABET = "abcdefghijklmnopqrstuvwxyz ?\n"
    NUMBERS = ("calls",)

    def __init__(
        self,
        *,
        price: float = 0.05,
        hops: int = 2,
        fresh: bool = True,
        seed: int = 0,
        tool: bool = True,
        most: int = 5,
    ):
        super().__init__(price=price, most=most)
        if hops not in (1, 2):
            raise ValueError(f"hops={hops} must be 1 or 2")
        self._hops, self._fresh, self._seed, self._tool = hops, fresh, seed, tool

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """A person, one hop or two."""
        while True:
            who, far = rng.choice(PEOPLE), self._hops == 2 and rng.random() < 0.5
            facts = rng.randrange(2**31) if self._fresh else self._seed
            yield (f"friend of {who}?\n" if far else f"{who}?\n"), {"who": who, "far": far, "facts": facts}

    def begin(self, info: dict, dice: random.Random) -> None:
        """The corpus."""
        rng = random.Random(info["facts"])
        pets = {who: rng.choice(PETS) for who in PEOPLE}
        friends = {who: rng.choice([other for other in PEOPLE if other != who]) for who in PEOPLE}
        self._documents = [f"{who} has a {pets[who]}" for who in PEOPLE]
        self._documents += [f"{who} likes {friends[who]}" for who in PEOPLE]
        rng.shuffle(self._documents)
        self._who, self._far = info["who"], info["far"]
        self._right = pets[friends[info["who"]] if info["far"] else info["who"]]
        self._allowed, self._found = info.get("search", True) and self._tool, []

    def state_key(self) -> str:
        """The documents that were found, in any order."""
        return f"found {'|'.join(sorted(set(self._found)))}"

    def right_answer(self) -> str:
        """What wins."""
        return f"a {self._right}"

    def step(self, said: str) -> Step:
        """A document, or the end."""
        words = said.split()
        if not words:
            return self.bad()
        if words[0] != "s":
            return self.won() if words[-1] == self._right else self.lost()
        if not self._allowed or len(words) == 1:
            return self.answer("off\n" if len(words) > 1 else "?\n", calls=1.0, malformed=float(len(words) == 1))
        wanted, asked = Counter(words[1:]), " ".join(words[1:])

        def score(document: str) -> tuple[int, bool]:  # "eli likes" is in "gus likes eli", too
            return (Counter(document.split()) & wanted).total(), f"{document} ".startswith(f"{asked} ")

        best = max(self._documents, key=score)  # the first of the best
        text = best if score(best)[0] else "none"
        self._found.append(text)
        return self.answer(f"{text}\n", calls=1.0)

    def expert(self, rng: random.Random) -> str:
        """The next search by what was read so far, then the answer; a guess where nothing can be read any more.

        Where the tool is off it knows by heart what stays the same in all episodes.
        """
        who = self._told(f"{self._who} likes ") if self._far else self._who
        pet = self._told(f"{who} has a ") if who else ""
        if not self._allowed and not self._fresh:
            pet = self._right
        if pet or not self._allowed or self.turn + 1 == self.most:
            return f"a {pet or rng.choice(PETS)}"
        return f"s {who} has" if who else f"s {self._who} likes"

    def _told(self, beginning: str) -> str:
        """The rest of a document that was found and begins so; "" if there is none."""
        return next((text.removeprefix(beginning) for text in self._found if text.startswith(beginning)), "")

    def novice(self, rng: random.Random) -> str:
        """A search for anybody, or a guess."""
        return rng.choice([f"s {rng.choice(PEOPLE)}", f"a {rng.choice(PETS)}"])


class Database(World):
    """Questions about a database, and SQL as the tool: "q SELECT ..." shows rows, "a SELECT ..." is the answer.

    The reward is 1 if the answer's rows are those of the record's query (rewards.sql.execution); a query that fails is
    answered with "error". Records are those of the task "geoquery" (info: "query", "database" or "script"), or the
    generated ones here: a small table made from the seed. Queries only read, and end after a number of steps.

    Args:
      price: of a query that is not the answer.
      rows: rows shown of a result.
      most: turns.
    """

    ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _=<>*(),.'\"|?-+;%\n"
    NUMBERS = ("calls",)
    SCRIPT = "CREATE TABLE pets(name TEXT, kind TEXT, age INTEGER);"

    def __init__(self, *, price: float = 0.05, rows: int = 3, most: int = 4):
        super().__init__(price=price, most=most)
        if rows < 1:
            raise ValueError(f"rows={rows} must be at least 1")
        self._rows = rows

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """How old, what kind, how many."""
        rows = [(who, PETS[place % len(PETS)], 1 + 3 * place % 10) for place, who in enumerate(PEOPLE)]
        script = self.SCRIPT + "".join(f"INSERT INTO pets VALUES('{a}','{b}',{c});" for a, b, c in rows)
        while True:
            who, kind, age = rng.choice(rows)
            question, query = rng.choice(
                [
                    (f"age of {who}", f"SELECT age FROM pets WHERE name = '{who}'"),
                    (f"kind of {who}", f"SELECT kind FROM pets WHERE name = '{who}'"),
                    (f"how many {kind}", f"SELECT count(*) FROM pets WHERE kind = '{kind}'"),
                    (f"older than {age}", f"SELECT count(*) FROM pets WHERE age > {age}"),
                ]
            )
            yield f"{question}\n", {"query": query, "script": script}

    def begin(self, info: dict, dice: random.Random) -> None:
        """Opens the database."""
        self._info, self._said = info, []
        self._database = sql.open_database(info.get("database", ""), info.get("script", ""))

    def copy(self) -> "Database":
        """Another one in the same state; the database, which is only read, is the same."""
        other = copy.copy(self)
        other._said = list(self._said)
        return other

    def state_key(self) -> str:
        """What was asked so far, in any order."""
        return f"asked {'|'.join(sorted(self._said))}"

    def right_answer(self) -> str:
        """The record's query as an answer."""
        return f"a {self._info['query']}"

    def step(self, said: str) -> Step:
        """Rows, or the end."""
        kind, _, query = said.partition(" ")
        if kind == "a":
            right = sql.execution("", query, self._info)["reward"]
            return self.won(right) if right else self.lost()
        if kind != "q" or not query.strip():
            return self.bad()
        self._said.append(query)
        rows = sql.run(self._database, query[: sql.MAX_QUERY], max_steps=200_000)
        if rows is None:
            return self.answer("error\n", calls=1.0, malformed=1.0)
        text = "|".join(",".join(map(str, row)) for row in rows[: self._rows])
        text = "".join(letter if letter in self.ALPHABET else "?" for letter in text[:200])  # a query can write any
        return self.answer(f"{text}{'|...' if len(rows) > self._rows else ''}\n", calls=1.0)

    def expert(self, rng: random.Random) -> str:
        """The record's query."""
        return f"a {self._info['query']}"

    def novice(self, rng: random.Random) -> str:
        """Looks at the table, or answers something."""
        return rng.choice(["q SELECT * FROM pets", "q SELECT name FROM pet", "a SELECT age FROM pets"])


class Router(World):
    """Which model to ask: "hard 7?" -> "b" -> "42" -> "=42". Three models of rising skill and price.

        R = (1 - alpha) correct + alpha cost_score;   -1 if the last message is no answer "=NUMBER"

    cost_score = 1 - (x - q05) / (q95 - q05), cut to 0..1, x = sqrt(tokens x price) summed over the calls, and the
    quantiles of a window of 1000 episodes in the paper; here of the costs of all ways to ask once, so that the reward
    is a function of the episode (0.5 if they are equal). With alpha=0 the world pays correctness and format only, and
    rl_jax.credit.prices adds the paper's price, by running quantiles of `cost`. A model answers a question right if its
    skill is at least the question's difficulty, else one off, and the same each time.
    Source: arXiv 2506.09033 (Router-R1); the fork programmer229/Router-R1 (format -1, four turns).

    Args:
      alpha: weight of the cost.
      most: turns.
    """

    ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789=-?: \n"
    NUMBERS = ("calls", "cost")
    MODELS = {"a": (3, 1.0), "b": (6, 4.0), "c": (9, 16.0)}  # skill, price of an answer

    def __init__(self, *, alpha: float = 0.3, most: int = 4):
        super().__init__(price=0.0, most=most)
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha={alpha} must be from 0 to 1")
        self._alpha = alpha

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """A difficulty of 1 to 9, and the answer, which only the models know."""
        while True:
            level = rng.randint(1, 9)
            yield f"level {level}?\n", {"level": level, "answer": rng.randrange(100)}

    def begin(self, info: dict, dice: random.Random) -> None:
        """Nobody asked."""
        self.level, self._right, self._cost, self._heard = int(info["level"]), int(info["answer"]), 0.0, []

    def state_key(self) -> str:
        """Who was asked, in order."""
        return f"asked {''.join(self._heard)}"

    def cost_score(self, cost: float) -> float:
        """1 for the cheapest way to ask once, 0 for the dearest and above."""
        costs = sorted(price**0.5 for _, price in self.MODELS.values())
        return min(max(1 - (cost - costs[0]) / (costs[-1] - costs[0]), 0.0), 1.0)

    def right_answer(self) -> str:
        """What is right."""
        return f"={self._right}"

    def cut(self) -> float:
        """A limit ends the episode: the last message is no answer."""
        return -1.0

    def step(self, said: str) -> Step:
        """A model's answer, or the end."""
        if said in self.MODELS:
            skill, price = self.MODELS[said]
            self._cost += price**0.5
            self._heard.append(said)
            told = self._right + (0 if skill >= self.level else 1)
            if self.turn + 1 >= self.most:  # no answer of its own
                return self.lost(-1.0, calls=1.0, cost=price)
            return self.answer(f"{told}\n", calls=1.0, cost=price)
        number = said.removeprefix("=")
        if not (said.startswith("=") and number.isascii() and number.isdigit() and len(number) < 9):
            return self.lost(-1.0, malformed=1.0)
        right = int(number) == self._right
        reward = (1 - self._alpha) * right + self._alpha * self.cost_score(self._cost)
        return self.won(reward) if right else self.lost(reward)

    def expert(self, rng: random.Random) -> str:
        """The cheapest model that knows, then its answer."""
        if self._heard:
            return f"={self._right}"
        return next(name for name, (skill, _) in self.MODELS.items() if skill >= self.level)

    def novice(self, rng: random.Random) -> str:
        """Anybody, then some answer."""
        return rng.choice("abc") if not self._heard else f"={self._right + rng.randrange(2)}"
