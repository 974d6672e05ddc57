"""Mathematics in words, with the verifier of mathematics: GSM8K and MATH, or generated problems in their form.

    kind "gsm8k": gsm8k_{train,test}.jsonl.gz; a worked answer ends in "#### 18". The calculator's marks <<3+4=7>> are
      left out.
    kind "math": math_train_7474.json.gz and math500_test.jsonl.gz; the answer stands in \\boxed{}. The training file
      has answers without solutions, so its SFT targets are the boxed answers.

The tokens are bytes, unless the model brings its own tokenizer. A prompt or a training target that is too
long is left out and counted, and so is a test problem that is also a training problem.
"""

import json
import pathlib
import re
from collections.abc import Iterator

from rl_jax.data import readers
from rl_jax.rewards import mathematics
from rl_jax.tasks import base, hold_out, made_problems
from rl_jax.tokenizers import ByteTokenizer

# kind -> (how the answer is found, training file, test file, what makes generated ones, what holds them out)
KINDS = {
    "gsm8k": ("hash", "gsm8k_train.jsonl.gz", "gsm8k_test.jsonl.gz", made_problems.word_problem, str),
    "math": ("boxed", "math_train_7474.json.gz", "math500_test.jsonl.gz", made_problems.exercise, hold_out.unordered),
}
INSTRUCTIONS = {
    "gsm8k": "\nReason step by step, then write the answer behind ####.\n",
    "math": "\nReason step by step, and put the final answer within \\boxed{}.\n",
}
_CALCULATION = re.compile(r"<<[^<>]*>>")


def read_gsm8k(path: pathlib.Path, bad: readers.BadRecords) -> Iterator[tuple[str, str, str]]:
    """(question, worked answer, answer) of each record; one without "#### ANSWER" is bad."""
    for line, record in readers.read_jsonl(path, {"question": str, "answer": str}, bad):
        worked, mark, answer = record["answer"].rpartition("####")
        if not mark or not answer.strip() or "\n" in answer.strip():
            problem = f"expected '#### ANSWER' at the end, found {record['answer'][-40:]!r}"
            bad.reject(path, line, problem, field="answer")
            continue
        answer = answer.strip()
        yield record["question"].strip(), _CALCULATION.sub("", worked).strip() + f"\n#### {answer}", answer


def read_math(path: pathlib.Path, bad: readers.BadRecords) -> Iterator[tuple[str, str, str]]:
    """(problem, solution, answer) of each record; one without an answer that can be compared with is bad."""
    lines = readers.read_json_list if path.name.removesuffix(".gz").endswith(".json") else readers.read_objects
    for line, record in lines(path, bad):
        problem, answer = record.get("problem"), record.get("answer")
        if not isinstance(problem, str) or not problem.strip():
            bad.reject(path, line, f"expected a text, found {problem!r:.40}", field="problem")
            continue
        try:
            answer = mathematics.right_answer({"answer": answer}, "answer")
        except ValueError:
            bad.reject(path, line, f"expected an answer with balanced braces, found {answer!r:.40}", field="answer")
            continue
        solution = record.get("solution") if isinstance(record.get("solution"), str) else ""
        yield problem.strip(), solution or rf"\boxed{{{answer}}}", answer


def load(
    *,
    kind: str = "gsm8k",
    path: str = "",
    num_problems: int = 4_000,
    seed: int = 0,
    instruction: bool = False,
    max_prompt_bytes: int = 512,
    max_completion_bytes: int = 512,
    backend: str = "exact",
    skip_bad_records: bool = False,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """Word problems with their verifier.

    Args:
      kind: "gsm8k" or "math".
      path: the folder of the files; "": generated problems.
      num_problems: of generated ones.
      seed: of generated ones.
      instruction: whether the prompt says what form the answer has; for a pretrained model.
      max_prompt_bytes: longest prompt.
      max_completion_bytes: longest SFT target.
      backend: of rl_jax.rewards.mathematics.score.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Task.

    Raises:
      ValueError: if the kind is unknown or there are too few generated problems.
      readers.DataError: if a record is bad; the message names file, line and field.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is none of {', '.join(KINDS)}")
    extract, train, test, make_one, key = KINDS[kind]
    files = {"train": pathlib.Path(path) / train, "test": pathlib.Path(path) / test} if path else {}
    read, ending = (read_gsm8k if kind == "gsm8k" else read_math), INSTRUCTIONS[kind] if instruction else "\n"

    def records(problems, report, split):
        for question, worked, answer in problems:
            prompt = question + ending
            long_target = len(worked.encode()) > max_completion_bytes
            too_long = len(prompt.encode()) > max_prompt_bytes or long_target and split != "test"
            report[f"num_{split}_too_long"] = report.get(f"num_{split}_too_long", 0) + too_long
            if not too_long:
                completion = "" if long_target else worked
                yield {"prompt": prompt, "completion": completion, "info": json.dumps({"answer": answer})}

    def make():
        bad, report = readers.BadRecords(skip=skip_bad_records), {}
        if not path:
            drawn = made_problems.distinct(make_one, count=num_problems, seed=seed)
            return hold_out.by_prompt(records(drawn, report, "all"), key=key), report
        splits = {split: list(records(read(file, bad), report, split)) for split, file in files.items()}
        seen = {record["prompt"] for record in splits["train"]}
        kept = [record for record in splits["test"] if record["prompt"] not in seen]
        report["num_test_duplicates"] = len(splits["test"]) - len(kept)
        return {**splits, "test": kept}, report | {"num_skipped": bad.num_skipped, "skipped": bad.first}

    arguments = {"kind": kind, "num_problems": int(num_problems), "seed": int(seed), "instruction": bool(instruction)}
    arguments |= {"max": [int(max_prompt_bytes), int(max_completion_bytes)], "skip_bad_records": bool(skip_bad_records)}
    code = [__file__, mathematics.__file__, hold_out.__file__, made_problems.__file__]
    sources = base.record_splits(f"{kind}_problems" if path else f"{kind}_generated", make, arguments=arguments,
                                 sources=files.values(), code=code, data_dir=data_dir)  # fmt: skip
    return base.Task(kind, ByteTokenizer(), sources, mathematics.score, {"extract": extract, "backend": backend})
