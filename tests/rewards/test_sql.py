"""rewards/sql.py: rows against rows, what a query may not do or cost, and the scores of Reasoning-SQL."""

import gzip
import json
import random
import sqlite3
import time

import pytest

from rl_jax.rewards import sql
from tests.paths import shared_data

SCRIPT = """
CREATE TABLE t (a INTEGER, b INTEGER, c TEXT);
INSERT INTO t VALUES (1, 1, 'x'), (2, 1, 'y'), (2, 2, 'z'), (3, 3, NULL);
CREATE TABLE other (a INTEGER, name TEXT);
INSERT INTO other VALUES (1, 'one'), (2, 'two');
"""
INFO = {"script": SCRIPT, "query": "SELECT a FROM t WHERE b = 1"}


def score(query, info=INFO, **keywords):
    return sql.score("", query, info, **keywords)


@pytest.mark.parametrize(
    ("query", "right"),
    [
        ("SELECT a FROM t WHERE b = 1", 1),
        ("select a from T where B=1;", 1),
        ("```sql\nSELECT a FROM t WHERE b = 1\n```", 1),
        ("<think>SELECT 5</think><answer>SELECT a FROM t WHERE b < 2</answer>", 1),
        ("SELECT 1 UNION SELECT 2", 1),  # the rows are what is verified
        ("WITH s AS (SELECT * FROM t) SELECT s.a FROM s WHERE b = 1", 1),
        ("VALUES (2), (1)", 1),
        ("SELECT a + 0.0 FROM t WHERE b = 1", 1),
        ("SELECT a FROM t WHERE b = 1 -- a comment", 1),
        ("SELECT a FROM t WHERE b = 2", 0),
        ("SELECT a, b FROM t WHERE b = 1", 0),
        ("SELECT a FROM t WHERE 0", 0),
        ("SELECT CAST(a AS TEXT) FROM t WHERE b = 1", 0),
        ("SELECT a FROM t WHERE b = 1; SELECT 1", 0),
        ("SELECT a FROM missing", 0),
        ("SELEC a FROM t", 0),
        ("a FROM t", 0),
        ("", 0),
        ("1\n2", 0),
    ],
)
def test_accepts_and_rejects(query, right):
    assert score(query)["execution"] == right == sql.execution("", query, INFO)["reward"]


def test_rows_are_compared_as_sets_or_strictly():
    twice = {"script": SCRIPT, "query": "SELECT a FROM t ORDER BY a"}
    assert score("SELECT DISTINCT a FROM t", twice)["execution"] == 1.0
    assert score("SELECT DISTINCT a FROM t", twice, strict=True)["execution"] == 0.0
    assert score("SELECT a FROM t ORDER BY a DESC", twice)["execution"] == 1.0
    assert score("SELECT a FROM t ORDER BY a DESC", twice, strict=True)["execution"] == 0.0
    inner = {"script": SCRIPT, "query": "SELECT a FROM (SELECT a FROM t ORDER BY a)"}
    assert score("SELECT a FROM t ORDER BY a DESC", inner, strict=True)["execution"] == 1.0
    assert sql.same_rows([(0.1 + 0.2, None)], [(0.3, None)]) and not sql.same_rows([(1, 2)], [(2, 1)])


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE t",
        "DELETE FROM t WHERE (SELECT 1)",
        "INSERT INTO t SELECT 1, 1, 1",
        "CREATE TABLE u AS SELECT 1",
        "PRAGMA writable_schema = 1 -- SELECT",
        "ATTACH 'x.sqlite' AS x -- SELECT",
        "SELECT * FROM sqlite_master",
        "SELECT load_extension('x')",
        "SELECT random() FROM t",
        "SELECT date('now')",
        "SELECT time()",
        "SELECT datetime('NOW', '+1 day')",
        "SELECT julianday('n' || 'ow') FROM t",
        "SELECT unixepoch('subsec')",
        "SELECT strftime('%s')",
        "SELECT strftime('%Y', x'6e6f77')",
        "SELECT date('now' || char(0))",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT current_date",
        "SELECT CURRENT_TIME",
        "SELECT changes()",
        "SELECT total_changes()",
        "SELECT last_insert_rowid()",
        "SELECT printf('%.*c', 1000000000, 'x')",
        "SELECT replace(hex(zeroblob(100000)), '00', 'xxxxxxxxxx')",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "SELECT count(*) FROM " + ", ".join(f"t AS t{i}" for i in range(20)),
        "SELECT * FROM " + ", ".join(f"t AS t{i}" for i in range(20)) + " ORDER BY 1, 2, 3",
        "SELECT " + "(" * 500 + "1" + ")" * 500,
        "SELECT 1" + " UNION SELECT 1" * 300,
        "SELECT '" + "x" * 9_000 + "' LIKE '" + "%x" * 300 + "y'",
        "SELECT 1 /*" + "x" * 20_000 + "*/",
        "SELECT \0",
    ],
)
def test_a_query_can_only_read_and_ends(query):
    start = time.monotonic()
    scores = score(query)
    assert scores["execution"] == scores["syntax"] == 0.0
    assert time.monotonic() - start < 5.0
    assert score("SELECT a FROM t WHERE b = 1")["execution"] == 1.0  # all is as it was


def test_the_rows_of_a_query_are_bounded_in_bytes(monkeypatch):
    """Each is within sqlite's limits, and all lie outside of its memory: 3.8 GB in one query."""
    monkeypatch.setattr(sql, "MAX_BYTES", 100_000)
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i || '{}' FROM n"
    database = sql.open_database("", SCRIPT)
    assert len(sql.run(database, many.format(90, "x" * 1000), max_steps=100_000)) == 90
    assert sql.run(database, many.format(100, "x" * 1000), max_steps=100_000) is None


@pytest.mark.parametrize(
    "value",
    [
        "date('2024-02-28', '+2 days')",
        "time('10:00', 'subsec')",
        "datetime(1700000000, 'unixepoch')",
        "julianday(x'323032302d30312d3031')",
        "strftime('%Y-%m now', '2020-01-01')",
        "strftime('%Y', c)",
        "date(NULL)",
        "date('then')",
        "strftime('%d', '2020-01-05') + a",
    ],
)
def test_a_time_that_is_given_is_as_in_sqlite(value):
    query = f"SELECT {value} FROM t"
    plain = sqlite3.connect(":memory:")
    plain.executescript(SCRIPT)
    assert sql.run(sql.open_database("", SCRIPT), query, max_steps=10**6) == plain.execute(query).fetchall()
    plain.close()


def test_a_right_query_that_reads_the_clock_is_refused():
    with pytest.raises(ValueError, match="fails, as one that reads the clock does: .SELECT date"):
        score("SELECT 1", INFO | {"query": "SELECT date('now')"})


def test_numbers_of_the_atlas():
    assert sql.ngram_overlap("select a from t", "select a from t where b = 1") == pytest.approx(3 / 7)
    names = sql.open_database("", SCRIPT).names
    assert names == {"t", "other", "a", "b", "c", "name"}
    assert sql.schema_recall("select a from t", "select a from t where b = 1", names) == pytest.approx(2 / 3)
    assert sql.schema_recall('SELECT "A" FROM [t] -- b', "select a from t where b = 1", names) == pytest.approx(2 / 3)
    assert sql.schema_recall("SELECT 'b', 'a' FROM t", "select a from t where b = 1", names) == pytest.approx(1 / 3)


def test_the_sum_of_reasoning_sql():
    formed = "<reasoning>\nso\n</reasoning>\n<answer>\nSELECT a FROM t WHERE b = 1\n</answer>"
    # Nothing follows </answer>: -1 character is not charged, and the end of the third rule is the whole text.
    assert sql.layout(formed + "\n") == pytest.approx(0.5)
    assert score(formed + "\n")["reward"] == pytest.approx(3 + 1 + 1 + 1 + 0.5)
    wrong = score("SELECT a FROM t")
    assert wrong["execution"] == 0.0 and wrong["format"] == 0.0
    assert wrong["reward"] == pytest.approx(1 + 2 / 3 + 3 / 7)
    assert score("SELECT a FROM t", weights={"syntax": 0.5})["reward"] == 0.5
    assert sql.partial("", "SELECT a FROM t", INFO, of="ngram") == pytest.approx(3 / 7)
    with pytest.raises(ValueError, match="weights names speed; the scores are execution, "):
        score("SELECT a", weights={"speed": 1.0})


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"script": SCRIPT, "query": "SELECT a FROM t WHERE 0"}, "gives no row or nothing but NULL"),
        ({"script": SCRIPT, "query": "SELECT max(a) FROM t WHERE 0"}, "gives no row or nothing but NULL"),
        ({"script": SCRIPT, "query": "SELECT q FROM t"}, "fails"),
        ({"script": "CREATE", "query": "SELECT 1"}, "cannot open the database of the script"),
        ({"database": "/missing.sqlite", "query": "SELECT 1"}, "cannot open the database /missing.sqlite"),
        ({"query": "SELECT 1"}, 'info must have "database"'),
    ],
)
def test_a_bad_record_is_named(info, message):
    with pytest.raises(ValueError, match=message):
        score("SELECT 1", info)


def test_a_file_is_read_packed_or_not(tmp_path):
    with sqlite3.connect(tmp_path / "d.sqlite") as connection:
        connection.executescript(SCRIPT)
    connection.close()
    (tmp_path / "d.sqlite.gz").write_bytes(gzip.compress((tmp_path / "d.sqlite").read_bytes()))
    for name in ("d.sqlite", "d.sqlite.gz"):
        info = {"database": str(tmp_path / name), "query": "SELECT a FROM t WHERE b = 1"}
        assert score("SELECT a FROM t WHERE b = 1", info)["execution"] == 1.0


def test_noise_is_worth_nothing():
    rng = random.Random(0)
    words = [
        "SELECT",
        "FROM",
        "t",
        "a",
        "*",
        ",",
        "(",
        ")",
        "'",
        '"',
        ";",
        "1",
        "WHERE",
        "--",
        "/*",
        "UNION",
        "é",
        "\0",
    ]
    ran = 0
    for _ in range(2_000):
        scores = score(" ".join(rng.choices(words, k=rng.randrange(12))))
        assert scores["execution"] == 0.0
        ran += scores["syntax"]
    assert 0 < ran < 200


def test_geoquery_accepts_its_own_queries_and_no_other():
    records = json.loads(gzip.decompress(shared_data("sql/geography.json.gz").read_bytes()))
    info = {"database": str(shared_data("sql/geography.sqlite.gz"))}
    usable, left_out = [], 0
    for record in records:
        query = record["sql"][0]
        for name, value in record["sentences"][0]["variables"].items():
            query = query.replace(name, value)
        try:
            scores = sql.score("", query, info | {"query": query})
        except ValueError:
            left_out += 1
            continue
        assert [scores[name] for name in ("execution", "syntax", "schema", "ngram")] == [1.0] * 4
        usable.append(query)
    assert len(usable) >= 230 and left_out <= 16
    mixed = [sql.execution("", a, info | {"query": b})["reward"] for a, b in zip(usable, usable[1:], strict=False)]
    assert sum(mixed) < 0.05 * len(mixed)
