"""UltraFeedback: four completions per instruction, each rated from 1 to 5 on four aspects (arXiv 2310.01377)."""

import hashlib
import random
from collections.abc import Sequence

from rl_jax.data import readers
from rl_jax.data.checks import Problem, check_text, need
from rl_jax.preferences import published, sources
from rl_jax.preferences.records import parse

ASPECTS = ("instruction_following", "truthfulness", "honesty", "helpfulness")
STRATEGIES = ("best_random", "best_worst")


def load_ultrafeedback(
    *,
    path: str,
    kind: str = "pairs",
    strategy: str = "best_random",
    aspects: Sequence[str] = ASPECTS,
    chat: bool = False,
    seed: int = 0,
    test_share: float = 0.05,
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """UltraFeedback's completions by their mean rating over the aspects.

    A line is {"instruction", "completions": [{"response", "annotations": {aspect: {"Rating": "4", ...}}}]}, as in
    openbmb/UltraFeedback. A rating that is no number ("N/A") is left out of the mean; info["attribute_targets"] has the
    four ratings of each response, null for a missing one, for the loss `attributes`. Completions without any rating are
    left out (num_unrated), as are instructions with fewer than two different means (num_ties).

    Args:
      path: a JSONL file of the dataset.
      kind: "pairs" or "rankings" (of all completions with different texts, by their means).
      strategy: of pairs: the best against "best_random", one of the worse ones, drawn by a hash of the instruction
        (Zephyr's binarised set), or "best_worst".
      aspects: some of ASPECTS, which the mean is over.
      chat: whether prompts are chats instead of texts.
      seed: of the draws.
      test_share: fraction of the prompts in the test split.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Raises:
      ValueError: if a setting is unknown.
      readers.DataError: if a record is bad.
    """
    if kind not in ("pairs", "rankings") or strategy not in STRATEGIES:
        raise ValueError(f"kind={kind!r} must be pairs or rankings, strategy={strategy!r} {' or '.join(STRATEGIES)}")
    if set(aspects) - set(ASPECTS) or not aspects:
        raise ValueError(f"aspects={tuple(aspects)!r} must be some of {', '.join(ASPECTS)}")

    def make(raw, counts):
        instruction = check_text(need(raw, "instruction"), "instruction")
        rated = _rated(raw, aspects, counts)
        if len({mean for mean, _, _ in rated}) < 2:
            counts["num_ties"] += 1
            return []
        prompt = published.ask(instruction, chat=chat)
        means, ratings, texts = zip(*rated, strict=True)
        if kind == "rankings":
            responses = [published.answer(text, chat=chat) for text in texts]
            said = {"rewards": list(means), "attribute_targets": list(ratings)}
            return [parse(kind, {"prompt": prompt, "responses": responses, **said})]
        worse = [place for place, mean in enumerate(means) if mean < means[0]]
        digest = hashlib.sha256(f"{seed} {instruction}".encode()).hexdigest()
        other = worse[-1] if strategy == "best_worst" else random.Random(digest).choice(worse)
        said = {"chosen_reward": means[0], "rejected_reward": means[other], "margin": means[0] - means[other]}
        said["attribute_targets"] = [ratings[0], ratings[other]]
        fields = ["completions", "completions"]
        return [published.pair(prompt, texts[0], texts[other], chat=chat, fields=fields, **said)]

    settings = {"test_share": test_share, "skip_bad_records": skip_bad_records, "data_dir": data_dir}
    arguments = {"chat": bool(chat), "strategy": strategy, "aspects": list(aspects), "seed": int(seed)}
    settings |= {"arguments": arguments, "code": __file__, "read": readers.read_objects}
    return published.load_files("ultrafeedback", kind, [path], make, **settings)


def _rated(raw, aspects: Sequence[str], counts) -> list[tuple[float, list, str]]:
    """(mean rating, rating of each of ASPECTS or None, text) of each completion, best first; of equal texts the first.

    Raises:
      Problem: if a completion has no response or no annotations.
    """
    result: dict[tuple, tuple[float, list, str]] = {}
    for place, completion in enumerate(published.list_of(raw, "completions", dict)):
        field = f"completions[{place}]"
        text = check_text(need(completion, "response"), f"{field}.response")
        annotations = need(completion, "annotations")
        if not isinstance(annotations, dict):
            raise Problem(f"expected an object with {', '.join(ASPECTS)}", f"{field}.annotations")
        ratings = [_number(annotations.get(aspect)) for aspect in ASPECTS]
        used = [r for r, aspect in zip(ratings, ASPECTS, strict=True) if aspect in aspects and r is not None]
        if not used:
            counts["num_unrated"] += 1
            continue
        result.setdefault(tuple(text.split()), (sum(used) / len(used), ratings, text))
    return sorted(result.values(), key=lambda entry: -entry[0])


def _number(annotation) -> float | None:
    """The rating of an annotation, None if it has none."""
    rating = annotation.get("Rating") if isinstance(annotation, dict) else None
    try:
        return float(rating)
    except (TypeError, ValueError):
        return None
