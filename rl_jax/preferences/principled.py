"""Preferences that depend on a principle in the prompt: data of a principle-following reward model (SALMON).

    "Lists should be short.\n4 17 8 3:"                     -> "4" before "4 17 8"
    "It is wrong that lists should be short.\n4 17 8 3:"    -> "4 17 8" before "4"

The same answers to the same question are preferred in one order or the other, as the principle says, so that a reward
model that does not read it is right half of the time. Source: arXiv 2310.05910, whose principles and their negations
are labelled by a language model.
"""

import hashlib

from rl_jax.preferences import generated, sources

# Of each world of rl_jax.preferences.generated with two users: what user 0 and user 1 want.
PRINCIPLES = {
    "length": ("lists should be short.", "lists should be long."),
    "order": ("numbers should rise.", "numbers should fall."),
}
NEGATION = "It is wrong that "


def load(
    *,
    world: str = "length",
    kind: str = "pairs",
    num_prompts: int = 2_000,
    negated_share: float = 0.5,
    judged_by: int = -1,
    seed: int = 0,
    test_share: float = 0.1,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """Generated pairs with a principle before each prompt; each prompt comes with both tastes.

    Args:
      world: one of PRINCIPLES.
      kind: "pairs" or "rankings".
      num_prompts: distinct prompts.
      negated_share: of the records, chosen by a hash, whose principle is the negation of the opposite one.
      judged_by: -1, or the user whose principle a policy is judged by: its prompt is then the question alone, the judge
        reads the principle and the question in info["judge_prompt"]. The responses stay those of both users.
      seed: of everything that is drawn.
      test_share: the share of prompts in the test split.
      data_dir: where the dataset is prepared, once.

    Returns:
      sources.Preferences of that kind.

    Raises:
      ValueError: if the world has no principles, the share is out of its range, or there is no such user.
    """
    if world not in PRINCIPLES:
        raise ValueError(f"world={world!r} has no principles; {', '.join(PRINCIPLES)} have")
    if not 0 <= negated_share <= 1:
        raise ValueError(f"negated_share={negated_share} must be in [0, 1]")
    if judged_by not in (-1, 0, 1):
        raise ValueError(f"judged_by={judged_by} must be 0 or 1, or -1 for none")
    options = dict(num_prompts=num_prompts, seed=seed, test_share=test_share, data_dir=data_dir)
    plain = generated.load(kind=kind, world=world, **options)

    def source(split: str) -> Principled:
        return Principled(plain.data_source(split), world, negated_share, judged_by)

    return plain._replace(name="principles", data_source=source)


class Principled:
    """The records of a source of two users, with what the user wants before the prompt.

    Attributes:
      kind: of the source.
      name: of the source.
      split: of the source.
      report: of the source.
      num_skipped: of the source.
    """

    def __init__(self, source: sources.PreferenceSource, world: str, negated_share: float, judged_by: int = -1):
        """The records of `source`, of a world of PRINCIPLES. judged_by: as of `load`."""
        self._source, self._wanted, self._share = source, PRINCIPLES[world], negated_share
        self._judged_by = judged_by
        self.kind, self.name, self.split = source.kind, source.name, source.split
        self.report, self.num_skipped = source.report, source.num_skipped

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict:
        record = self._source[index]
        hidden = self._judged_by >= 0
        user = self._judged_by if hidden else record["info"]["user"]
        digest = hashlib.sha256(f"{user} {record['prompt']}".encode()).digest()
        negated = digest[0] < 256 * self._share
        wanted = self._wanted[1 - user if negated else user]
        principle = NEGATION + wanted if negated else wanted.capitalize()
        more, asked = {"principle": principle, "negated": negated}, f"{principle}\n{record['prompt']}"
        if hidden:
            return {**record, "info": {**record["info"], **more, "judge_prompt": asked}}
        return {**record, "prompt": asked, "info": {**record["info"], **more}}
