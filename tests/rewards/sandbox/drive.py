"""Makes the attempts and prints the verdicts: `python drive.py MODE [NAMES...]`; "bare" is a fork with no sandbox.

NAMES are of prove.ENDED: what is made besides in a sandbox, and what is left out of a bare run.

A program of its own, so that test_attempts.py can start it as another user.
"""

import importlib
import json
import os
import pathlib
import sys
import tempfile

from rl_jax.rewards.sandbox import client, prove

# Never end by themselves, or end everywhere: nothing to show without a sandbox.
NO_CANARY = {"stop_itself", "sleep", "bomb", "recursion", "power", "backtracking"}


def bare(names, facts, folder):
    """name -> verdict, each in a fork of this process that works in `folder`."""
    for name, text in prove.programs().items():
        pathlib.Path(folder, name).write_text(text)
    os.chdir(folder)
    sys.path.insert(0, folder)
    attempts = importlib.import_module("attempts")
    importlib.import_module("further_attempts")
    facts = facts | {"descriptor": os.open(facts["secret"], os.O_RDONLY)}
    attempts.FACTS.update(facts)
    verdicts = {}
    for name in names:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            null = os.open(os.devnull, os.O_WRONLY)
            for place in (1, 2):
                os.dup2(null, place)
            try:
                verdict = f"open: {attempts.find(name)()}"
            except BaseException as error:
                verdict = f"blocked: {type(error).__name__}: {error}"
            os.write(writing, verdict[:300].encode())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as answers:
            verdicts[name] = answers.read().decode() or "blocked: no verdict"
        os.waitpid(pid, 0)
    return verdicts


def main(mode, *given):
    with prove.Bait() as bait:
        if mode == "bare":
            names = [name for name in (*prove.QUICK, *prove.ENDED) if name not in NO_CANARY.union(given)]
            with tempfile.TemporaryDirectory() as folder:
                verdicts = bare(names, bait.facts, folder)
                os.chdir("/")
        else:
            with client.ProcessSandbox(mode) as sandbox:
                verdicts = prove.prove(sandbox, ended=given)
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main(*sys.argv[1:])
