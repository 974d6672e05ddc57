"""GeoQuery: questions about the geography of the USA and the SQL that answers them, with the database.

geography.json.gz and geography.sqlite.gz are those of jkkummerfeld/text2sql-data. A query that fails in sqlite or gives
no row is left out and counted: any empty result would be right for it.
"""

import gzip
import json
import pathlib

from rl_jax.data import readers
from rl_jax.rewards import sql
from rl_jax.tasks import base
from rl_jax.tokenizers import ByteTokenizer

FIELDS = {"sql": list, "sentences": list}


def load(*, path: str, max_characters: int = 0, data_dir: str = base.DEFAULT_DATA_DIR) -> base.Task:
    """The task of questions and their queries.

    Args:
      path: the folder of the two files.
      max_characters: leaves out questions with a longer query. 0: none.
      data_dir: where the prepared dataset is stored.

    Returns:
      Task, whose reward is sql.execution. Splits are those of the questions ("question-split"): "train", and "test"
      with what the files call dev and test.

    Raises:
      readers.DataError: if a file is missing, or is not of this form.
    """
    folder = pathlib.Path(path).expanduser()
    questions, database = folder / "geography.json.gz", folder / "geography.sqlite.gz"
    for file in (questions, database):
        if not file.is_file():
            raise readers.DataError(f"{file} is missing: task.path is the folder of geography.json.gz and .sqlite.gz")

    def make():
        return read(questions, database, max_characters)

    arguments = {"max_characters": int(max_characters), "database": str(database.resolve())}
    code, files = [__file__, sql.__file__], [questions, database]
    stored = base.record_splits("geoquery", make, arguments=arguments, sources=files, code=code, data_dir=data_dir)
    return base.Task("geoquery", ByteTokenizer(), stored, sql.execution)


def read(questions: pathlib.Path, database: pathlib.Path, max_characters: int) -> tuple[dict, dict]:
    """({split: records}, counts of what was left out).

    Raises:
      readers.DataError: if an entry has no sql, sentences, texts or variables.
    """
    splits: dict[str, list[dict]] = {"train": [], "test": []}
    report = {"num_failing": 0, "num_empty": 0, "num_long": 0}
    source = str(database.resolve())
    opened = sql.open_database(source, "")
    try:
        entries = json.loads(gzip.decompress(questions.read_bytes()))
    except (OSError, ValueError) as error:
        raise readers.DataError(f"{questions}: no gzipped JSON: {error}") from error
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(k), t) and entry[k] for k, t in FIELDS.items()):
            raise readers.DataError(f"{questions}: entry {place} has no lists {' and '.join(FIELDS)}")
        for sentence in entry["sentences"]:
            missing = [name for name in ("text", "variables", "question-split") if name not in sentence]
            if missing:
                raise readers.DataError(f"{questions}: a sentence of entry {place} has no {', '.join(missing)}")
            text, query = sentence["text"], entry["sql"][0].rstrip(" ;")
            for name, value in sentence["variables"].items():
                text, query = text.replace(name, value), query.replace(name, value)
            rows = sql.run(opened, query, max_steps=20_000_000)
            if why := "failing" if rows is None else "empty" if not rows else None:
                report[f"num_{why}"] += 1
            elif 0 < max_characters < len(query):
                report["num_long"] += 1
            else:
                split = "train" if sentence["question-split"] == "train" else "test"
                info = json.dumps({"database": source, "query": query, "source": "geoquery"})
                splits[split].append({"prompt": f"{text}\n", "completion": query, "info": info})
    return splits, report
