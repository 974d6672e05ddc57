"""Preferences from recorded episodes of experiments.agents: pairs of turns, pairs of whole episodes, good episodes.

    python -m experiments.agents --config=configs/agents_worlds.py:guess --config.agent.record=true --workdir=runs/guess
    python -m experiments.dpo --config=configs/preferences/episodes.py:guess,turns --config.data.path=runs/guess

Everything is the token ids that were sampled and read; no text is encoded again. What an environment wrote is in a
response, but not trained on. numpy and pyarrow, no jax.
"""

import pathlib
import random
from collections.abc import Iterator, Sequence

import numpy as np

from rl_jax.data.readers import DataError
from rl_jax.experience import trajectory
from rl_jax.experience.own_judgement import judged_pairs
from rl_jax.experience.trajectory import Span, Trajectory
from rl_jax.preferences.sources import Preferences, prompt_share

FOLDER = "trajectories"  # of a run
PAIRS = ("turns", "judged", "episodes", "altered", "none")


def load(
    *,
    path: str,
    pairs: str = "turns",
    gap: float = 1e-6,
    discount: float = 1.0,
    least: float = 0.5,
    newest: int = 0,
    test_share: float = 0.1,
    data_dir: str = "",
) -> Preferences:
    """Preferences among the episodes of a run.

    Args:
      path: workdir of a run with agent.record=true, or its folder `trajectories`.
      pairs: "turns": two turns after exactly the same tokens, the one with the highest mean return to go against the
        one with the lowest. "judged": two turns of a tree, by the policy's own judgement (own_judgement.judged_pairs).
        "episodes": the best episode of a group against the worst, their turns trained on and what the environment wrote
        not. "altered": the best episode of a group, if its reward is `least` or more, against the same one with
        the end of another group's: triplets of ARMAP (arXiv 2502.12130). "none": labelled episodes for SFT or KTO,
        desirable from `least` on.
      gap: pairs whose returns, or judged values, differ by less are left out.
      discount: of the return to go, per turn, for pairs="turns". 0: what a turn earned itself, for environments whose
        turns are trajectories of their own (rl_jax.envs.text.attempts.Guided).
      least: the reward from which an episode is desirable, for pairs="none" and "altered"; the least value of the
        better turn, for pairs="judged".
      newest: how many of the newest steps are read. 0: all.
      test_share: of the prompts.
      data_dir: unused; other data is stored there.

    Raises:
      ValueError: if a setting is out of its range.
      DataError: if there is no recorded episode, or no pair among them; names the folder.
    """
    del data_dir
    if pairs not in PAIRS or not 0 <= test_share < 1 or newest < 0:
        raise ValueError(
            f"pairs={pairs!r} must be one of {', '.join(PAIRS)}, test_share={test_share} in [0, 1) and newest={newest} "
            "0 or more"
        )
    if not 0 <= discount <= 1:
        raise ValueError(f"discount={discount} must be in [0, 1]")
    records, folder = {"train": [], "test": []}, pathlib.Path(path)
    seen, kind = 0, "labels" if pairs == "none" else "pairs"
    good: list[Trajectory] = []  # the good episodes of the groups before
    for group in groups(folder, newest):
        seen += len(group)
        made = {
            "turns": lambda group=group: pairs_of_turns(group, gap, discount),
            "judged": lambda group=group: pairs_by_judgement(group, gap, least),
            "episodes": lambda group=group: pairs_of_episodes(group, gap),
            "altered": lambda group=group: altered(group, good, least),
            "none": lambda group=group: labelled(group, least),
        }
        for record in made[pairs]():
            share = prompt_share(" ".join(map(str, group[0].segments[0][0].ids.tolist())) + group[0].prompt_id)
            records["test" if share < test_share else "train"].append(record)
    if not records["train"]:
        raise DataError(
            f"{folder}: {seen} recorded episodes hold no pair of {pairs}" + (f" that differ by {gap}" if seen else "")
            + "; record more steps, or set test_share=0"
        )  # fmt: skip
    return Preferences("episodes", kind, lambda split: Source(records[split], kind))


class Source:
    """Records in memory, as a PreferenceSource.

    Attributes:
      num_skipped: 0.
    """

    num_skipped = 0

    def __init__(self, records: list[dict], kind: str):
        self._records, self.kind = records, kind

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict:
        return self._records[index]

    def __repr__(self) -> str:
        return f"episodes.Source({len(self)} {self.kind})"


def groups(folder: pathlib.Path, newest: int = 0) -> Iterator[list[Trajectory]]:
    """The groups of a run's recorded episodes, without those that failed, step by step.

    Raises:
      DataError: if the folder has no file of episodes, or one that cannot be read.
    """
    import pyarrow
    import pyarrow.parquet

    folder = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise DataError(f"{folder} has no recorded episodes (*.parquet): record them with --config.agent.record=true")
    for file in files[-newest:]:
        try:
            found = trajectory.from_table(pyarrow.parquet.read_table(file))
        except (pyarrow.ArrowException, ValueError) as error:
            raise DataError(f"{file} is no file of recorded episodes: {error}") from error
        by_group: dict[int, list[Trajectory]] = {}
        for one in found:
            if one.status != "error" and one.turns:
                by_group.setdefault(one.group, []).append(one)
        yield from by_group.values()


def of_step(folder: pathlib.Path, step: int, reader: str) -> list[Trajectory]:
    """The episodes that a run recorded in one of its steps, those that failed among them.

    Args:
      folder: `trajectories` of the run.
      step: its number.
      reader: the field of the config that asks for them, as the error names it.

    Raises:
      FileNotFoundError: if they are not there, as the run would go on with other episodes than it would have had.
    """
    import pyarrow.parquet

    path = folder / f"{step:08d}.parquet"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: {reader} reads the episodes of earlier steps, and those of step {step} are not there. Bring the "
            "file back (a run of --fork begins with those of the other run, which had to have agent.record=True, too), "
            "or begin anew: a new --workdir, without --fork"
        )
    return trajectory.from_table(pyarrow.parquet.read_table(path))


def turns_of(one: Trajectory, discount: float = 1.0) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], float]]:
    """(what was read, what was said, the return to go G_j = r_j + discount G_{j+1}) of each turn j."""
    to_go, after, number = [], 0.0, 0
    for turn in reversed(one.turns):
        after = turn.reward + discount * after
        to_go.insert(0, after)
    for spans in one.segments:
        context: tuple[int, ...] = ()
        for span in spans:
            ids = tuple(span.ids.tolist())
            if span.kind == "sampled":
                yield context, ids, float(to_go[number])
                number += 1
            context += ids


def pairs_of_turns(group: Sequence[Trajectory], gap: float, discount: float = 1.0) -> list[dict]:
    """The best and the worst turn after each history that several episodes of a group have in common."""
    said: dict[tuple[int, ...], dict[tuple[int, ...], list[float]]] = {}
    for one in group:
        for context, ids, value in turns_of(one, discount):
            if ids:
                said.setdefault(context, {}).setdefault(ids, []).append(value)
    records = []
    for context, turns in said.items():
        means = {ids: float(np.mean(values)) for ids, values in turns.items()}
        best, worst = max(means, key=lambda ids: means[ids]), min(means, key=lambda ids: means[ids])
        if means[best] - means[worst] >= gap and best != worst:
            records.append(_record(context, [dict(ids=list(best)), dict(ids=list(worst))], [means[best], means[worst]]))
    return records


def pairs_by_judgement(group: Sequence[Trajectory], gap: float, least: float) -> list[dict]:
    """The records of rl_jax.experience.own_judgement.judged_pairs."""
    found = judged_pairs(group, gap=gap, least=least)
    return [_record(context, [dict(ids=list(ids)) for ids in turns], values) for context, turns, values in found]


def pairs_of_episodes(group: Sequence[Trajectory], gap: float) -> list[dict]:
    """The best and the worst episode of a group, of those with one segment; [] if they are as good."""
    whole = [one for one in group if len(one.segments) == 1]
    if not whole:
        return []
    best, worst = max(whole, key=lambda one: one.reward), min(whole, key=lambda one: one.reward)
    if best.reward - worst.reward < gap:
        return []
    return [_record(best.segments[0][0].ids.tolist(), [_rest(best), _rest(worst)], [best.reward, worst.reward])]


def altered(group: Sequence[Trajectory], others: list[Trajectory], least: float) -> list[dict]:
    """The best episode of a group against itself with the end of another group's, from each turn on; [] if not good.

    From that turn on the worse one has the turns and the observations of a good episode of another group that is drawn
    among those that end otherwise. From the first turn on it is that whole episode, which is of another instruction.

    Args:
      group: of one prompt, the instruction, which also seeds what is drawn.
      others: good episodes of other groups. This one's is added.
      least: the reward of a good episode.
    """
    best = max((one for one in group if len(one.segments) == 1), key=lambda one: one.reward, default=None)
    if best is None or best.reward < least:
        return []
    spans, places = best.segments[0], _places(best)
    own = spans[places[-1]].ids.tolist()
    found = [one for one in others if one.segments[0][_places(one)[-1]].ids.tolist() != own]
    others.append(best)
    if not found:
        return []
    dice = random.Random(f"{best.prompt_id} {spans[0].ids.tolist()} {own}")
    records = []
    for turn, place in enumerate(places):
        other = dice.choice(found)
        start = _places(other)[min(turn, len(_places(other)) - 1)]  # of a shorter one its last turn
        responses = [_joined(spans[1:]), _joined([*spans[1:place], *other.segments[0][start:]])]
        records.append(_record(spans[0].ids.tolist(), responses, [best.reward, 0.0]))
    return records


def _places(one: Trajectory) -> list[int]:
    return [place for place, span in enumerate(one.segments[0]) if span.kind == "sampled"]


def labelled(group: Sequence[Trajectory], least: float) -> list[dict]:
    """Every episode with one segment, desirable or not."""
    return [
        _record(one.segments[0][0].ids.tolist(), [_rest(one)], [float(one.reward >= least)])
        for one in group
        if len(one.segments) == 1
    ]


def _rest(one: Trajectory) -> dict:
    return _joined(one.segments[0][1:])


def _joined(spans: Sequence[Span]) -> dict:
    ids = [token for span in spans for token in span.ids.tolist()]
    return dict(ids=ids, trained=[span.kind == "sampled" for span in spans for _ in span.ids])


def _record(prompt: Sequence[int], responses: list[dict], rewards: list[float]) -> dict:
    return {"prompt": {"ids": list(prompt)}, "responses": responses, "rewards": rewards, "info": {}}
