"""Solutions with labelled steps or outcomes: BIG-Bench-Mistake, ProcessBench, GSM8K, PRM800K, Math-Shepherd."""

import itertools
from collections.abc import Sequence

from rl_jax.data.checks import Problem, check_text, kind_of, need, same_text, typed
from rl_jax.preferences import published, sources
from rl_jax.preferences.records import parse

BBMISTAKE = (
    "dyck_languages",
    "logical_deduction",
    "multistep_arithmetic",
    "tracking_shuffled_objects",
    "word_sorting",
)
SOLVERS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
SHEPHERD_MARK = "\u043a\u0438"  # after each step of Math-Shepherd


def load_bbmistake(
    *,
    path: str,
    subsets: Sequence[str] = BBMISTAKE,
    chat: bool = False,
    test_share: float = 0.2,
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """BIG-Bench-Mistake (arXiv 2311.08516): steps and the index of the first wrong one (null if none).

    2186 records, one of them with an empty step. info: target and answer.

    Args:
      path: the folder of bbmistake_{subset}.jsonl.gz.
      subsets: some of BBMISTAKE.
      chat: whether prompts are chats instead of texts.
      test_share: fraction of the prompts in the test split.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences of kind "steps".

    Raises:
      readers.DataError: if a record is bad.
    """
    paths = published.subset_paths(path, "bbmistake_{}.jsonl.gz", subsets, BBMISTAKE)

    def make(raw, counts):
        prompt = published.ask(check_text(need(raw, "input"), "input"), chat=chat)
        fields = {name: need(raw, name) for name in ("steps", "mistake_index")}
        more = {name: raw.get(name) for name in ("target", "answer")}
        return [parse("steps", {"prompt": prompt, **fields, **more})]

    settings = {"test_share": test_share, "skip_bad_records": skip_bad_records, "data_dir": data_dir}
    arguments = {"chat": bool(chat)}
    return published.load_files("bbmistake", "steps", paths, make, arguments=arguments, code=__file__, **settings)


def load_processbench(
    *,
    path: str,
    chat: bool = False,
    test_share: float = 1.0,
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """ProcessBench (arXiv 2412.06559): steps and the index of the first wrong one (`label`, -1 if none).

    info: generator and final_answer_correct.

    Args:
      path: a file of it as JSON lines: gsm8k, math, olympiadbench or omnimath.
      chat: whether prompts are chats instead of texts.
      test_share: fraction of the prompts in the test split; it is an evaluation, so all of them.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences of kind "steps".

    Raises:
      readers.DataError: if a record is bad.
    """

    def make(raw, counts):
        prompt = published.ask(check_text(need(raw, "problem"), "problem"), chat=chat)
        label = typed(raw, "label", int)
        more = {name: raw.get(name) for name in ("generator", "final_answer_correct")}
        mistake = None if label == -1 else label
        return [parse("steps", {"prompt": prompt, "steps": need(raw, "steps"), "mistake_index": mistake, **more})]

    settings = {"test_share": test_share, "skip_bad_records": skip_bad_records, "data_dir": data_dir}
    arguments = {"chat": bool(chat)}
    return published.load_files("processbench", "steps", [path], make, arguments=arguments, code=__file__, **settings)


def load_gsm8k_solutions(
    *,
    path: str,
    kind: str = "labels",
    chat: bool = False,
    test_share: float = 0.2,
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """Four models' solutions of the 1319 GSM8K test problems (arXiv 2110.14168), right or wrong.

    A solution that repeats another of its problem is left out and counted (num_repeated). Problems without both a right
    and a wrong solution give no pair and no ranking (num_one_sided).

    Args:
      path: the file, one JSON object per line.
      kind: "labels": one record per solution; "pairs": each right solution against each wrong one of a problem;
        "rankings": the right ones before the wrong ones, with rewards 1 and 0.
      chat: whether prompts are chats instead of texts.
      test_share: fraction of the prompts in the test split.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences.

    Raises:
      ValueError: for another kind.
      readers.DataError: if a record is bad.
    """
    if kind not in ("labels", "pairs", "rankings"):
        raise ValueError(f"gsm8k_solutions has kind labels, pairs or rankings, not {kind!r}")

    def make(raw, counts):
        prompt = published.ask(check_text(need(raw, "question"), "question"), chat=chat)
        result = []
        for solver in SOLVERS:
            solution = typed(raw, solver, dict)
            try:
                label = typed(solution, "is_correct", bool)
                text = check_text(need(solution, "solution"), "solution")
            except Problem as problem:
                raise Problem(problem.text, f"{solver}.{problem.field}") from None
            if any(same_text(text, other) for other, _, _ in result):
                counts["num_repeated"] += 1
            else:
                result.append((text, label, solver))
        sides = [[item for item in result if item[1] is label] for label in (True, False)]
        if kind == "labels":
            return [
                parse("labels", {"prompt": prompt, "completion": say(text), "label": label, "solver": solver})
                for text, label, solver in result
            ]
        if not all(sides):
            counts["num_one_sided"] += 1
            return []
        if kind == "rankings":
            ordered = sides[0] + sides[1]
            texts, rewards = [say(text) for text, _, _ in ordered], [float(label) for _, label, _ in ordered]
            solvers = [solver for _, _, solver in ordered]
            return [parse("rankings", {"prompt": prompt, "responses": texts, "rewards": rewards, "solvers": solvers})]
        return [
            published.pair(
                prompt, right[0], wrong[0], chat=chat, fields=(right[2], wrong[2]), solvers=[right[2], wrong[2]]
            )
            for right, wrong in itertools.product(*sides)
        ]

    def say(text):
        return published.answer(text, chat=chat)

    settings = {"test_share": test_share, "skip_bad_records": skip_bad_records, "data_dir": data_dir}
    arguments = {"chat": bool(chat)}
    return published.load_files("gsm8k_solutions", kind, [path], make, arguments=arguments, code=__file__, **settings)


def load_openr(
    *,
    path: str,
    layout: str,
    chat: bool = False,
    test_share: float = 0.0,
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """Labelled steps in the layout of "prm800k" (arXiv 2305.20050) or "math-shepherd" (arXiv 2312.08935).

    prm800k: for each step the chosen completion, else the labeller's own (unlabelled), else, as the last step, the
    first completion. A rating of 1 or 0 (neutral) counts as right, -1 as wrong. math-shepherd: "+" and "-" in `label`
    at the places of the mark in `input`; the problem ends at "Step 1:".

    Args:
      path: the file, one JSON object per line.
      layout: "prm800k" or "math-shepherd".
      chat: whether prompts are chats instead of texts.
      test_share: fraction of the prompts in the test split.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences of kind "steps".

    Raises:
      ValueError: for another layout.
      readers.DataError: if a record is bad.
    """
    makers = {"prm800k": _prm800k, "math-shepherd": _math_shepherd}
    if layout not in makers:
        raise ValueError(f"unknown layout {layout!r}; the layouts are {', '.join(makers)}")

    def make(raw, counts):
        problem, steps, labels = makers[layout](raw)
        return [parse("steps", {"prompt": published.ask(problem, chat=chat), "steps": steps, "labels": labels})]

    settings = {"test_share": test_share, "skip_bad_records": skip_bad_records, "data_dir": data_dir}
    arguments = {"chat": bool(chat), "layout": layout}
    return published.load_files("openr", "steps", [path], make, arguments=arguments, code=__file__, **settings)


def _prm800k(raw: dict) -> tuple[str, list, list]:
    problem = check_text(need(typed(raw, "question", dict), "problem"), "question.problem")
    steps, labels = [], []
    for place, step in enumerate(published.list_of(typed(raw, "label", dict), "steps", dict)):
        where = f"label.steps[{place}]"
        completions = published.list_of(step, "completions", dict) if step.get("completions") else []
        chosen, own = step.get("chosen_completion"), step.get("human_completion")
        if chosen is not None and (type(chosen) is not int or not 0 <= chosen < len(completions)):
            raise Problem(f"chosen_completion {chosen!r:.40} is none of its {len(completions)} completions", where)
        if chosen is None and not own and not completions:
            break  # the labeller gave up at this step
        taken = completions[chosen or 0] if chosen is not None or not own else own
        if not isinstance(taken, dict):
            raise Problem(f"expected an object for human_completion, found {kind_of(taken)}", where)
        text, rating = check_text(taken.get("text"), f"{where}.text"), taken.get("rating")
        if rating is not None and rating not in (-1, 0, 1):
            raise Problem(f"expected a rating of -1, 0, 1 or null, found {rating!r:.40}", where)
        steps.append(text)
        labels.append(None if rating is None else int(rating >= 0))
        if chosen is None and taken is not own:
            break
    return problem, steps, labels


def _math_shepherd(raw: dict) -> tuple[str, list, list]:
    text, labelled = (check_text(need(raw, name), name) for name in ("input", "label"))
    problem, separator, _ = text.partition("Step 1:")
    if not separator or not problem.strip():
        raise Problem("expected a problem and then 'Step 1:'", "input")
    pieces = text[len(problem) :].split(SHEPHERD_MARK)
    if pieces.pop().strip():
        raise Problem(f"text after the last {SHEPHERD_MARK!r}", "input")
    steps, labels, place = [], [], len(problem)
    for piece in pieces:
        place += len(piece)
        sign = labelled[place : place + 1]
        if sign not in ("+", "-"):
            raise Problem(f"expected + or - for step {len(steps)} at character {place}, found {sign!r}", "label")
        # The labels are one character each, so the texts drift apart by one character per step.
        text_to_here = labelled[place - len(piece) : place]
        if text_to_here != piece:
            raise Problem(f"its step {len(steps)} is not that of 'input'", "label")
        steps.append(piece.strip())
        labels.append(int(sign == "+"))
        place += 1
    return problem.strip(), steps, labels
