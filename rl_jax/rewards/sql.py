"""Verifier of SQL by execution in sqlite, and the partial scores of Reasoning-SQL (arXiv 2503.23157).

A query runs in a copy of the database in memory, may only read, and ends after a number of steps of sqlite's machine,
so a query that never ends costs a fraction of a second. The database is a file (.sqlite or .sqlite.gz) or a script.
"""

import functools
import gzip
import pathlib
import re
import sqlite3
import sys
from collections import Counter
from typing import Any, NamedTuple

from rl_jax.rewards import parsing

MAX_QUERY = 10_000  # characters
MAX_ROWS = 20_000
MAX_BYTES = 64 * 2**20  # of all rows of a query, in this process
MAX_TEXT = 100_000  # bytes of a value, which bounds what one step can cost
MAX_MEMORY = 256 * 2**20  # bytes of sqlite in this process
STEPS_A_CALL = 2_000
# Not the same at each call, or made to be large.
REFUSED_FUNCTIONS = {
    *("load_extension", "random", "randomblob", "zeroblob", "printf", "format", "changes", "total_changes"),
    *("last_insert_rowid", "current_date", "current_time", "current_timestamp"),
}
# Functions of a time: which of their arguments is one; where it is left out, or is one of NOW, they read the clock.
TIMES = {**dict.fromkeys(("date", "time", "datetime", "julianday", "unixepoch"), (0,)), "strftime": (1,)}
TIMES["timediff"] = (0, 1)
NOW = {"now", "subsec", "subsecond"}
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
WEIGHTS = {"execution": 3.0, "syntax": 1.0, "schema": 1.0, "ngram": 1.0, "format": 1.0}

_TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/"  # comments, dropped
    r"|'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`|\[[^\]]*\]"
    r"|[^\W\d]\w*|\d+(?:\.\d+)?|<=|>=|<>|!=|\|\||\S",
    re.DOTALL,
)


class Database(NamedTuple):
    """A database that can only be read.

    Attributes:
      connection: to a copy in memory.
      names: lower-case names of its tables and columns.
    """

    connection: sqlite3.Connection
    names: frozenset[str]


def score(
    prompt: str,
    completion: str,
    info: dict,
    *,
    weights: dict[str, float] = WEIGHTS,
    strict: bool = False,
    max_steps: int = 2_000_000,
) -> dict[str, float]:
    """R = sum_k w_k r_k of the scores below. Source: arXiv 2503.23157, its authors' training script.

    There, a wrong query is also judged by a model; here it has 0 for its execution.

    Args:
      prompt: not read.
      completion: the query is its last code block, else its <answer>, else all of it.
      info: "query", a right one; "database", a path, or "script", SQL that makes the database.
      weights: component -> w; what it leaves out does not count.
      strict: as in `same_rows`.
      max_steps: steps of sqlite's machine after which a query is stopped.

    Returns:
      reward; execution: 1 for the rows of the right query; syntax: 1 if the query runs; schema: share of the tables and
      columns of the right query that it names; ngram: |A and B| / |A or B| of the pairs of neighbouring tokens;
      format: `layout`.

    Raises:
      ValueError: if the right query fails or gives no value (then any empty result would be right), or a weight names
        no score.
    """
    if unknown := sorted(set(weights) - set(WEIGHTS)):
        raise ValueError(f"weights names {', '.join(unknown)}; the scores are {', '.join(WEIGHTS)}")
    source = _source(info)
    database = open_database(*source)
    truth = _right_rows(*source, info["query"], max_steps)
    query = read_query(completion)
    scores = dict.fromkeys(WEIGHTS, 0.0) | {"format": layout(completion)}
    if query is not None:
        rows = run(database, query, max_steps=max_steps)
        ordered = strict and _is_ordered(info["query"])
        scores["syntax"] = float(rows is not None)
        scores["execution"] = float(rows is not None and same_rows(rows, truth, strict=strict, ordered=ordered))
        scores["schema"] = schema_recall(query, info["query"], database.names)
        scores["ngram"] = ngram_overlap(query, info["query"])
    return {"reward": sum(weight * scores[name] for name, weight in weights.items()), **scores}


def execution(
    prompt: str, completion: str, info: dict, *, strict: bool = False, max_steps: int = 2_000_000
) -> dict[str, float]:
    """1 if the query gives the rows of info["query"], else 0; components and arguments as in `score`."""
    return score(prompt, completion, info, weights={"execution": 1.0}, strict=strict, max_steps=max_steps)


def partial(prompt: str, completion: str, info: dict, *, of: str, max_steps: int = 2_000_000) -> float:
    """One score of `score` alone, as a term of its own: GDPO normalises each term by itself.

    Args:
      prompt: not read.
      completion: as in `score`.
      info: as in `score`.
      of: the score's name.
      max_steps: as in `score`.
    """
    return score(prompt, completion, info, weights={of: 1.0}, max_steps=max_steps)["reward"]


# --- Running ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def open_database(path: str, script: str) -> Database:
    """A copy in memory of the file at `path`, or what `script` makes; kept for the next call.

    Raises:
      ValueError: if the file is missing or no database, or the script fails.
    """
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    try:
        if path:
            data = pathlib.Path(path).expanduser().read_bytes()
            connection.deserialize(gzip.decompress(data) if path.endswith(".gz") else data)
        else:
            connection.executescript(script)
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = [row[1] for name in tables for row in connection.execute(f'PRAGMA table_info("{name}")')]
    except (OSError, sqlite3.Error) as error:
        raise ValueError(f"cannot open the database {path or 'of the script'}: {error}") from error
    clock = sqlite3.connect(":memory:", check_same_thread=False)
    for name, places in TIMES.items():
        connection.create_function(name, -1, functools.partial(_of_time, clock, name, places), deterministic=True)
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA hard_heap_limit = {MAX_MEMORY}")
    limits = {
        sqlite3.SQLITE_LIMIT_LENGTH: MAX_TEXT,
        sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_QUERY,
        sqlite3.SQLITE_LIMIT_ATTACHED: 0,
        sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
        sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
        sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    }
    for limit, value in limits.items():
        connection.setlimit(limit, value)
    connection.set_authorizer(_may)
    return Database(connection, frozenset(name.lower() for name in (*tables, *columns)))


def run(database: Database, query: str, *, max_steps: int) -> list[tuple] | None:
    """The rows of a query.

    None if it fails, writes, takes over `max_steps` steps, or gives over MAX_ROWS rows or MAX_BYTES bytes.
    """
    calls, rows, size = iter(range(max_steps // STEPS_A_CALL)), [], 0
    database.connection.set_progress_handler(lambda: next(calls, None) is None, STEPS_A_CALL)
    try:
        cursor = database.connection.execute(query)
        for row in cursor:  # not all at once: they lie outside of sqlite's own limit of memory
            rows.append(row)
            size += sum(map(sys.getsizeof, row))
            if len(rows) > MAX_ROWS or size > MAX_BYTES:
                break
        cursor.close()
    except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError, OverflowError):  # ValueError: a null character
        return None
    finally:
        database.connection.set_progress_handler(None, 0)
    return rows if len(rows) <= MAX_ROWS and size <= MAX_BYTES and cursor.description is not None else None


def _may(action: int, first: str | None, second: str | None, *context: Any) -> int:
    """What a statement may do: read tables and call functions that are the same each time."""
    refused = action not in ALLOWED
    refused |= action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in REFUSED_FUNCTIONS
    refused |= action == sqlite3.SQLITE_READ and (first or "").lower().startswith("sqlite_")
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


def _of_time(clock: sqlite3.Connection, name: str, places: tuple[int, ...], *values: Any) -> Any:
    """sqlite's function of a time. Raises ValueError if it would read the clock: the query fails."""
    for value in (values[place] if place < len(values) else "now" for place in places):
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        if text.partition("\0")[0].lower() in NOW:  # sqlite reads a text up to its first null character
            raise ValueError(f"{name} reads the clock")
    return clock.execute(f"SELECT {name}({', '.join('?' * len(values))})", values).fetchone()[0]


def _source(info: dict) -> tuple[str, str]:
    path, script = info.get("database", ""), info.get("script", "")
    if bool(path) == bool(script):
        raise ValueError('info must have "database", a path, or "script", SQL that makes the database')
    return path, script


@functools.lru_cache(maxsize=4096)
def _right_rows(path: str, script: str, query: str, max_steps: int) -> list[tuple]:
    rows = run(open_database(path, script), query, max_steps=max_steps)
    if rows is None or all(value is None for row in rows for value in row):
        what = "gives no row or nothing but NULL, as do many wrong ones"
        if rows is None:
            what = "fails, as one that reads the clock does"
        raise ValueError(f'info["query"] {what}: {query!r:.200}')
    return rows


# --- Scores ----------------------------------------------------------------------------------------------------------


def same_rows(first: list[tuple], second: list[tuple], *, strict: bool = False, ordered: bool = False) -> bool:
    """Whether two results are equal. Numbers are compared to 9 digits, 1 equals 1.0, the order of columns matters.

    Args:
      first: rows.
      second: rows.
      strict: whether it matters how often a row is there; False: sets of rows, as in BIRD.
      ordered: whether their order matters, too.
    """
    a, b = ([tuple(map(_plain, row)) for row in rows] for rows in (first, second))
    if ordered:
        return a == b
    return Counter(a) == Counter(b) if strict else set(a) == set(b)


def schema_recall(query: str, truth: str, names: frozenset[str]) -> float:
    """|A and B| / |A| of the tables and columns that the right query (A) and the query (B) name; 1 if A is empty."""
    wanted, found = (set(_words(text)) & names for text in (truth, query))
    return len(wanted & found) / len(wanted) if wanted else 1.0


def ngram_overlap(query: str, truth: str, *, n: int = 2) -> float:
    """|A and B| / |A or B| of the sets of n neighbouring tokens; names and keywords without case."""
    a, b = ({tuple(words[i : i + n]) for i in range(len(words) - n + 1)} for words in map(_words, (query, truth)))
    return len(a & b) / len(a | b) if a | b else 0.0


def layout(completion: str) -> float:
    """1/8 for each of <reasoning>, </reasoning>, <answer>, </answer> that is there once, on a line of its own.

    Each character after the end costs 1/1000, for both of the last two. Source: count_xml of the script of arXiv
    2503.23157.
    """
    total = 0.125 * (completion.count("<reasoning>\n") == 1) + 0.125 * (completion.count("\n</reasoning>\n") == 1)
    if completion.count("\n<answer>\n") == 1:
        total += 0.125 - 0.001 * len(completion.rpartition("\n</answer>\n")[2])
    if completion.count("\n</answer>") == 1:
        total += 0.125 - 0.001 * (len(completion.rpartition("\n</answer>")[2]) - 1)
    return total


def read_query(completion: str) -> str | None:
    """The query in a completion; None if it is longer than MAX_QUERY or has neither SELECT nor VALUES."""
    query = parsing.fenced(parsing.answer(completion))
    words = _words(query) if len(query) <= MAX_QUERY else []
    return query if {"select", "values"} & set(words) else None


def _words(text: str) -> list[str]:
    """The tokens of a query, in lower case, without comments, quotes of names, and the last semicolon."""
    words = [token for token in _TOKEN.findall(text[:MAX_QUERY]) if not token.startswith(("--", "/*"))]
    words = [word[1:-1] if len(word) > 1 and word[0] in '"`[' else word for word in words]
    words = [word if word.startswith("'") else word.lower() for word in words]
    return words[:-1] if words and words[-1] == ";" else words


def _is_ordered(query: str) -> bool:
    """Whether there is an ORDER BY outside of brackets."""
    depth, words = 0, _words(query)
    for word, after in zip(words, words[1:], strict=False):
        depth += (word == "(") - (word == ")")
        if depth == 0 and (word, after) == ("order", "by"):
            return True
    return False


def _plain(value: Any) -> Any:
    return float(f"{value:.9g}") if isinstance(value, (int, float)) else value
