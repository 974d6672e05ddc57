r"""Tunes the standards of a judge of writing by a chat server: an adversary hides flaws, known verdicts correct it.

    python -m experiments.tools.judge_standards --queries=queries.jsonl --known=known.jsonl --workdir=runs/standards \
        --url=http://127.0.0.1:8000 --rounds=10 --path=FOLDER

queries.jsonl has a line {"query": what is asked for} each; known.jsonl {"query", "response", "label": "Good" or "Bad"}.
After arXiv 2508.21476 (experiments.parts.judge_standards). The standards, and the entry of config.judge that reads them
with the language model at --path, are written to standards.json, what was asked and answered to exchanges.jsonl.
"""

import argparse
import json
import pathlib

from experiments.parts.chat import Chat
from experiments.parts.judge_standards import judge_of, tune
from rl_jax.data import readers
from rl_jax.runs.logging import encode_row, write_atomically


def run(options: argparse.Namespace) -> str:
    """Writes standards.json. Returns the flag that gives a run this judge.

    Raises:
      FileExistsError: if standards.json is there already.
      ValueError: if a file lacks what is needed, or the server's answers cannot be used.
    """
    path = options.workdir / "standards.json"
    if path.exists():
        raise FileExistsError(f"{path} is there already: name another --workdir, or remove it")
    queries = [row.get("query", "") for _, row in readers.read_objects(options.queries, readers.BadRecords())]
    if not all(isinstance(query, str) and query for query in queries):
        raise ValueError(f"{options.queries}: each line must have a query")
    known = [row for _, row in readers.read_objects(options.known, readers.BadRecords())] if options.known else []
    options.workdir.mkdir(parents=True, exist_ok=True)
    log = options.workdir / "exchanges.jsonl"
    chat = Chat(options.url, model=options.model, temperature=options.temperature, seed=options.seed, log=log)
    found = tune(chat, queries, known, rounds=options.rounds, size=options.size, seed=options.seed)
    for number, count in enumerate(found.rounds, 1):
        print(f"round {number}: " + ", ".join(f"{name} {value}" for name, value in count.items()), flush=True)
    judge = {"standards": judge_of(found.standards, options.path)}
    whole = {"standards": list(found.standards), "flaws": list(found.flaws), "rounds": list(found.rounds)}
    write_atomically(path, (encode_row(whole | {"judge": judge}) + "\n").encode())
    return f"--config.judge={json.dumps(judge)}"


def main() -> None:
    """Asks the server of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", required=True, type=pathlib.Path, help="JSON lines with a query each")
    parser.add_argument(
        "--known", type=pathlib.Path, help="JSON lines with query, response and label; none: no reflection"
    )
    parser.add_argument("--workdir", required=True, type=pathlib.Path)
    parser.add_argument("--url", required=True, help="of a chat server, http://127.0.0.1:8000")
    parser.add_argument("--path", default="", help="the judge of the run to come: its folder")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--size", type=int, default=4, help="queries, and known answers, of a round")
    parser.add_argument("--model", default="", help="the server's name for its model")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0, help="of the draws and the requests")
    options = parser.parse_args()
    try:
        print(run(options))
    except (OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
