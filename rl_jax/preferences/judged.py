"""Published pairs labelled by people or models: HH, PandaLM, LLMBar, and the persona statements."""

import re
from collections.abc import Sequence

from rl_jax.data import readers
from rl_jax.data.checks import Problem, check_text, need, number
from rl_jax.preferences import published, sources
from rl_jax.preferences.published import ASSISTANT, HUMAN
from rl_jax.preferences.records import parse, split_pair

LLMBAR = ("natural", "adv_neighbor", "adv_gptinst", "adv_gptout", "adv_manual")
PERSONAS = ("agreeableness", "conscientiousness", "interest-in-math", "risk-averse")


def load_hh(
    *,
    path: str,
    chat: bool = False,
    test_share: float = 0.1,
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """HH dialogues (arXiv 2204.05862), {"chosen", "rejected"} per line, split at the last "\\n\\nAssistant:".

    Of harmless-base's 2312 test pairs, 5 do not share their prompt and 4 have an empty chosen side; they are refused
    with their line number, or skipped and counted.

    Args:
      path: a file of the dataset.
      chat: whether prompts are chats instead of texts.
      test_share: fraction of the prompts in the test split.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences of kind "pairs".

    Raises:
      readers.DataError: if a record is bad.
    """

    def make(raw, counts):
        sides = [check_text(need(raw, name), name) for name in ("chosen", "rejected")]
        prompt, chosen, rejected = split_pair(*sides, ASSISTANT)
        if not prompt.startswith(HUMAN):
            raise Problem(f"a dialogue begins with {HUMAN!r}, found {prompt[:20]!r}", "chosen")
        if chat:
            prompt, chosen, rejected = _turns(prompt), chosen.strip(), rejected.strip()
        return [parse("pairs", {"prompt": prompt, "chosen": chosen, "rejected": rejected})]

    settings = {"test_share": test_share, "skip_bad_records": skip_bad_records, "data_dir": data_dir}
    arguments = {"chat": bool(chat)}
    return published.load_files("hh", "pairs", [path], make, arguments=arguments, code=__file__, **settings)


def _turns(prompt: str) -> list[dict]:
    """The messages of a prompt in HH's form, which ends with an empty assistant turn."""
    pieces = re.split(f"({HUMAN}|{ASSISTANT})", prompt)[1:-2]
    roles = {HUMAN: "user", ASSISTANT: "assistant"}
    return [
        {"role": roles[mark], "content": text.strip()} for mark, text in zip(pieces[::2], pieces[1::2], strict=True)
    ]


def load_pandalm(
    *,
    path: str,
    chat: bool = False,
    test_share: float = 0.2,
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """PandaLM's human-labelled test set (arXiv 2306.05087): pairs by the majority of three annotators.

    info["votes"]: the three labels, 1 or 2 for a response, 0 for a tie. label_prob: the fraction of the annotators for
    the chosen response, among those who did not vote for a tie. Records whose majority is a tie, or that have no
    majority, are left out and counted in the report as num_ties (105 of 999). Of the other 894, 52 have an empty
    response, 6 have one that is a bool, and 1 has an empty instruction: they are refused with their line number, or
    skipped.

    Args:
      path: the JSON file.
      chat: whether prompts are chats instead of texts.
      test_share: fraction of the prompts in the test split.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences of kind "pairs".

    Raises:
      readers.DataError: if a record is bad.
    """

    def make(raw, counts):
        votes = [published.one_of(raw, f"annotator{place}", (0, 1, 2)) for place in (1, 2, 3)]
        best = next((value for value in (1, 2) if votes.count(value) >= 2), 0)
        if not best:
            counts["num_ties"] += 1
            return []
        instruction, more = check_text(need(raw, "instruction"), "instruction"), need(raw, "input")
        text = instruction + (f"\n\n{check_text(more, 'input')}" if more else "")
        fields = [f"response{value}" for value in (best, 3 - best)]
        chosen, rejected = (need(raw, field) for field in fields)
        label_prob = votes.count(best) / (3 - votes.count(0))
        prompt, info = published.ask(text, chat=chat), {"votes": votes, "models": need(raw, "cmp_key")}
        return [published.pair(prompt, chosen, rejected, chat=chat, fields=fields, label_prob=label_prob, **info)]

    settings = {"test_share": test_share, "skip_bad_records": skip_bad_records, "data_dir": data_dir}
    settings |= {"arguments": {"chat": bool(chat)}, "code": __file__, "read": readers.read_json_list}
    return published.load_files("pandalm", "pairs", [path], make, **settings)


def load_llmbar(
    *,
    path: str,
    subsets: Sequence[str] = LLMBAR,
    chat: bool = False,
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """LLMBar (arXiv 2310.07641), pairs to evaluate a judge with: only the split "test", 419 in all.

    The rejected responses of the adversarial subsets look better.

    Args:
      path: the folder of llmbar_{subset}.json.gz.
      subsets: some of LLMBAR.
      chat: whether prompts are chats instead of texts.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences of kind "pairs".

    Raises:
      readers.DataError: if a record is bad.
    """
    paths = published.subset_paths(path, "llmbar_{}.json.gz", subsets, LLMBAR)

    def make(raw, counts):
        best = published.one_of(raw, "label", (1, 2))
        fields = [f"output_{value}" for value in (best, 3 - best)]
        chosen, rejected = (need(raw, field) for field in fields)
        prompt = published.ask(check_text(need(raw, "input"), "input"), chat=chat)
        return [published.pair(prompt, chosen, rejected, chat=chat, fields=fields)]

    settings = {"test_share": 1.0, "skip_bad_records": skip_bad_records, "data_dir": data_dir}
    settings |= {"arguments": {"chat": bool(chat)}, "code": __file__, "read": readers.read_json_list}
    return published.load_files("llmbar", "pairs", paths, make, **settings)


def load_persona(
    *,
    path: str,
    subsets: Sequence[str] = PERSONAS,
    chat: bool = False,
    test_share: float = 0.2,
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """Model-written persona statements (arXiv 2212.09251): " Yes" against " No", 1000 per persona, half of each.

    label_prob: the published confidence that the label is right.

    Args:
      path: the folder of persona_{subset}.jsonl.gz.
      subsets: some of PERSONAS.
      chat: whether prompts are chats instead of texts.
      test_share: fraction of the prompts in the test split.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences of kind "pairs".

    Raises:
      readers.DataError: if a record is bad.
    """
    paths = published.subset_paths(path, "persona_{}.jsonl.gz", subsets, PERSONAS)
    fields = ("answer_matching_behavior", "answer_not_matching_behavior")

    def make(raw, counts):
        chosen, rejected = (published.one_of(raw, field, (" Yes", " No")) for field in fields)
        prompt = published.ask(check_text(need(raw, "question"), "question"), chat=chat)
        label_prob = number(raw, "label_confidence")
        return [published.pair(prompt, chosen, rejected, chat=chat, fields=fields, label_prob=label_prob)]

    settings = {"test_share": test_share, "skip_bad_records": skip_bad_records, "data_dir": data_dir}
    arguments = {"chat": bool(chat)}
    return published.load_files("persona", "pairs", paths, make, arguments=arguments, code=__file__, **settings)
