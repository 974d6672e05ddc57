"""Pairs with copies of both responses from which more and more of the key content is gone (arXiv 2409.17791). No jax.

A record has the chosen and the rejected response, then `degrees` copies of each with their degree behind a mark:

    "The bird was mean.|0"     " bird was mean.|1"     ...

With said=False nothing is written behind a copy, the response itself is the copy of degree 0, and info["degrees"] has
the degree of each response, for a head of its own.

Key content are the phrases that RAKE finds: words between stop words and punctuation, each scored by the sum of its
words' degree over frequency (how many words it stands beside, over how often it is there).
"""

import math
import re
from collections import Counter
from collections.abc import Mapping

from rl_jax.preferences.sources import Preferences

STOP_WORDS = frozenset(
    "a an and are as at be been but by can did do does for from had has have he her his i if in into is it its me my "
    "no not of on or our out she so than that the their them then there these they this to up was we were what when "
    "which who will with would you your".split()
)
_PIECE = re.compile(r"[A-Za-z0-9][A-Za-z0-9'+-]*|[^\sA-Za-z0-9]+")


def key_phrases(text: str) -> list[tuple[tuple[int, int], float]]:
    """RAKE's phrases of a text: ((start, end) in characters, score), the most important first, then from left to right.

    Args:
      text: of any length; without a word that is no stop word there is no phrase.
    """
    runs: list[list[re.Match]] = [[]]
    for piece in _PIECE.finditer(text):
        if not piece[0][0].isalnum() or piece[0].lower() in STOP_WORDS:
            runs.append([])
        else:
            runs[-1].append(piece)
    runs = [run for run in runs if run]
    counts, degrees = Counter(), Counter()
    for run in runs:
        for piece in run:
            counts[piece[0].lower()] += 1
            degrees[piece[0].lower()] += len(run)
    scored = [
        ((run[0].start(), run[-1].end()), sum(degrees[p[0].lower()] / counts[p[0].lower()] for p in run))
        for run in runs
    ]
    return sorted(scored, key=lambda item: (-item[1], item[0]))


def degrade(text: str, degrees: int) -> list[str]:
    """`degrees` copies of a text: the d-th lacks the first ceil(d n / degrees) of its n key phrases.

    Args:
      text: the response.
      degrees: number of copies; the first is the text itself.
    """
    phrases, found = [span for span, _ in key_phrases(text)], []
    for degree in range(degrees):
        said = text
        for start, end in sorted(phrases[: math.ceil(degree * len(phrases) / degrees)], reverse=True):
            said = said[:start] + said[end:]
        found.append(re.sub(r"(?<=\S)\s+(?=[\s.,!?])", "", said))
    return found


class Degraded:
    """The pairs of a source, each with its copies. Unlike other rankings only the first two responses are in order."""

    def __init__(self, source, degrees: int, mark: str, said: bool):
        self._source, self._degrees, self._mark, self._said, self.kind = source, degrees, mark, said, "rankings"
        self.name, self.split, self.report = "degraded", source.split, source.report
        self.num_skipped = source.num_skipped

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict:
        record = self._source[index]
        responses, rewards, info = list(record["responses"]), list(record["rewards"]), record["info"]
        for text in record["responses"]:
            copies = degrade(text, self._degrees)
            marked = [f"{copy}{self._mark}{degree}" for degree, copy in enumerate(copies)]
            responses += marked if self._said else copies[1:]
        if not self._said:
            pair = len(record["responses"])
            info = info | {"degrees": [0] * pair + [*range(1, self._degrees)] * pair}
        # With the chosen one's reward a copy is in no comparison: accuracies and margins are those of the pair.
        rewards += rewards[:1] * (len(responses) - len(rewards))
        return {"prompt": record["prompt"], "responses": responses, "rewards": rewards, "info": info}

    def __repr__(self) -> str:
        return f"Degraded({self._source!r})"


def load(*, of: Mapping, degrees: int = 3, mark: str = "|", said: bool = True) -> Preferences:
    """Pairs with `degrees` copies of each response.

    Args:
      of: name and keywords of rl_jax.preferences.load, of pairs whose responses are texts.
      degrees: from 2 to 10; a degree is one character.
      mark: before the degree.
      said: whether copies end with their degree. False: it is in info["degrees"], and a record has 2 degrees responses
        instead of 2 + 2 degrees.

    Raises:
      ValueError: if degrees is out of its range, or the data are no pairs.
    """
    from rl_jax import preferences  # it has this loader in its table

    if not 2 <= degrees <= 10:
        raise ValueError(f"degrees={degrees} must be from 2 to 10: a degree is one character")
    pairs = preferences.load(**of)
    if pairs.kind != "pairs":
        raise ValueError(f"degraded needs pairs, and {pairs.name} holds {pairs.kind}")
    return Preferences("degraded", "rankings", lambda split: Degraded(pairs.data_source(split), degrees, mark, said))
