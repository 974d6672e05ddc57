"""Novelty search and SERENE: a population of policies whose rewards are sparse. Source: arXiv 2203.01027.

    novelty(b)  = mean distance of a behaviour b to its k nearest in population, offspring and archives
    explore     two mutated children per policy; the most novel of both generations live on; lambda random children
                go to the archive
    exploit     a child that is rewarded starts an emitter, a local evolution strategy:
                m policies ancestor + sigma eps, sigma = distance to the nearest other policy / reach;
                two children each, the m of most reward live on

SERENE gives the evaluations in chunks to one and the other. A new emitter is tried for five generations and dropped if
its rewards do not rise; then emitters from the Pareto front of (novelty of the ancestor among rewarded behaviours, rise
of the rewards) run until the chunk is used or they stagnate. Without a reward there is no emitter, and SERENE is
novelty search bit for bit. `evaluate` is the compiled part, whole episodes of all policies at once; the search is on
the host. control.taxons learns what behaviours are compared by.

From the published code (GPaolo/SERENE). Departs: an emitter's own novelty is over its k nearest, not all but the
nearest; a rewarded policy of the first population starts an emitter too.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control.relabelling.novelty import nearest_distance
from rl_jax.stats import pareto

Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # genomes [N, P] -> (descriptors [N, D], rewards [N])
Describe = Callable[[np.ndarray], np.ndarray]  # descriptors [N, D] -> float32 [N, F], between which distances are taken
_distance = jax.jit(nearest_distance, static_argnums=3)


class Members(NamedTuple):
    """Policies that have been evaluated.

    Attributes:
      genomes: float32 [N, P]. Their params.
      descriptors: float32 [N, D]. What they did.
      rewards: float32 [N].
    """

    genomes: np.ndarray
    descriptors: np.ndarray
    rewards: np.ndarray

    def take(self, rows) -> "Members":
        """The members of these rows."""
        return Members(*(x[rows] for x in self))

    def with_members(self, others: "Members") -> "Members":
        """These and then the others."""
        return Members(*(np.concatenate(pair) for pair in zip(self, others, strict=True)))


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The numbers of a search; the defaults are the published code's.

    Attributes:
      population: M.
      neighbours: k.
      sigma: of a mutation in exploration.
      limit: params stay in [-limit, limit].
      archived: lambda, children that go to the archive per generation.
      chunk: evaluations of a phase.
      emitter: m.
      reach: an emitter's sigma is the distance to the nearest other policy over this. 3 makes each param move by a
        third of it, so all P of them by sqrt(P) / 3 of it: 3 sqrt(P) keeps an emitter nearer.
      patience: steps of an emitter before it may stagnate; None is 20 P / m + 120.
    """

    population: int = 100
    neighbours: int = 15
    sigma: float = 0.05
    limit: float = 5.0
    archived: int = 5
    chunk: int = 1000
    emitter: int = 6
    reach: float = 3.0
    patience: int | None = None

    def __post_init__(self):
        if (
            min(self.population, self.neighbours, self.emitter, self.chunk) < 1
            or min(self.sigma, self.limit, self.reach) <= 0
        ):
            raise ValueError(f"quality_diversity: sizes must be 1 or more, sigma, limit and reach above 0: {self}")
        if self.neighbours >= 2 * self.population:
            raise ValueError(f"quality_diversity: neighbours={self.neighbours} must be below 2 population, see {self}")


@dataclasses.dataclass
class Emitter:
    """A local evolution strategy.

    Attributes:
      ancestor: the rewarded policy that it began with, Members [1].
      sigma: of its mutations.
      members: Members [m].
      values: the rewards of the members after each step.
      rise: mean reward of the last three steps less that of the first three, at least 0.
      best: the largest reward that it has put into the archive.
      record: the largest novelty that it has found.
      novel: descriptors that were novel, for the archive when it ends.
    """

    ancestor: Members
    sigma: float
    members: Members | None = None
    values: list = dataclasses.field(default_factory=list)
    rise: float = 0.0
    best: float = 0.0
    record: float = -np.inf
    novel: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Search:
    """A search so far.

    Attributes:
      population: Members [M].
      archive: float32 [Q, D]. Descriptors.
      rewarded: Members [R]. Rewarded policies: where emitters began, and the best that they found.
      born: Members. The last generation's children.
      waiting: emitters that have not been tried.
      emitters: those that go on.
      explored: evaluations spent in exploration.
      exploited: evaluations spent by emitters.
    """

    population: Members
    archive: np.ndarray
    rewarded: Members
    born: Members
    waiting: list
    emitters: list
    explored: int
    exploited: int


def as_is(descriptors: np.ndarray) -> np.ndarray:
    """The Describe that compares descriptors themselves."""
    return descriptors


def padded(x: np.ndarray) -> np.ndarray:
    """Rows [N, D] with rows of zeros behind them, float32 [a power of 2 from 16 on, D]: few shapes to compile."""
    result = np.zeros((1 << max(len(x) - 1, 15).bit_length(), *x.shape[1:]), np.float32)
    result[: len(x)] = x
    return result


def novelties(points: np.ndarray, reference: np.ndarray, neighbours: int, *, among: bool = False) -> np.ndarray:
    """Mean distance to the k nearest of the reference, float32 [N]; over fewer if there are fewer, 0 for none.

    Args:
      points: float32 [N, D].
      reference: float32 [Q, D].
      neighbours: k.
      among: whether the points are in the reference themselves; their own distance of 0 is left out then.
    """
    if not len(reference):
        return np.zeros(len(points), np.float32)
    rows, places = (jnp.asarray(padded(x)) for x in (points, reference))
    count = min(neighbours + among, len(reference))
    found = np.asarray(_distance(rows, places, jnp.arange(len(places)) < len(reference), count))
    return found[: len(points)] * np.float32(count / max(count - among, 1))


def _born(evaluate: Evaluate, parents: np.ndarray, sigma: float, limit: float, rng: np.random.Generator) -> Members:
    """A mutated child of each row of parents [N, P], evaluated."""
    genomes = np.clip(parents + sigma * rng.standard_normal(parents.shape), -limit, limit).astype(np.float32)
    descriptors, rewards = evaluate(genomes)
    return Members(genomes, np.asarray(descriptors, np.float32), np.asarray(rewards, np.float32))


def begin(evaluate: Evaluate, size: int, numbers: Numbers, rng: np.random.Generator) -> Search:
    """A search whose first population is uniform in [-1, 1]^P, evaluated. size: P."""
    genomes = rng.uniform(-1.0, 1.0, (numbers.population, size)).astype(np.float32)
    descriptors, rewards = (np.asarray(x, np.float32) for x in evaluate(genomes))
    first = Members(genomes, descriptors, rewards)
    none = first.take(slice(0))
    found = Search(first, descriptors[:0], none, none, [], [], len(genomes), 0)
    _await(found, first, first.genomes, numbers)
    return found


def _await(search: Search, born: Members, genomes: np.ndarray, numbers: Numbers) -> None:
    """Puts emitters of the rewarded among those just born into the queue. genomes: of all, to measure sigma."""
    for row in np.flatnonzero(born.rewards > 0):
        gaps = np.linalg.norm(genomes - born.genomes[row], axis=1)
        gaps = gaps[gaps > 0]
        sigma = float(gaps.min()) / numbers.reach if len(gaps) else numbers.sigma
        search.waiting.append(Emitter(born.take([row]), sigma))
        search.rewarded = search.rewarded.with_members(born.take([row]))


def by_novelty(numbers: Numbers, describe: Describe = as_is) -> Callable:
    """Makes the `merits` of `explore` that are novelties."""

    def merits(both: Members, reference: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return novelties(describe(both.descriptors), describe(reference), numbers.neighbours, among=True)

    return merits


def by_reward(both: Members, reference: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The `merits` of `explore` that are rewards, for a comparison."""
    return both.rewards


def explore(
    search: Search, evaluate: Evaluate, numbers: Numbers, rng: np.random.Generator, *, merits: Callable
) -> None:
    """One generation, in place.

    Args:
      search: so far.
      evaluate: genomes [N, P] -> (descriptors [N, D], rewards [N]).
      numbers: of the search.
      rng: of mutations and choices.
      merits: (parents and children Members [3 M], reference [Q, D], rng) -> float [3 M]: those with the most live on,
        ties at random. The reference are their descriptors, the archive's and the rewarded policies'.
    """
    parents = search.population
    born = _born(evaluate, np.repeat(parents.genomes, 2, axis=0), numbers.sigma, numbers.limit, rng)
    search.explored += len(born.rewards)
    both = parents.with_members(born)
    _await(search, born, both.genomes, numbers)
    reference = np.concatenate([both.descriptors, search.archive, search.rewarded.descriptors])
    kept = rng.permutation(len(born.rewards))[: numbers.archived]
    found = merits(both, reference, rng)
    ties = rng.permutation(len(found))
    search.archive = np.concatenate([search.archive, born.descriptors[kept]])
    search.population, search.born = both.take(np.lexsort((ties, -found))[: numbers.population]), born


def _step(emitter: Emitter, search: Search, evaluate: Evaluate, numbers: Numbers, rng) -> int:
    """One step of an emitter, its first one too, in place; returns the evaluations."""
    if emitter.members is None:
        parents = np.repeat(emitter.ancestor.genomes, numbers.emitter, axis=0)
        born = emitter.members = _born(evaluate, parents, emitter.sigma, numbers.limit, rng)
    else:
        parents = np.repeat(emitter.members.genomes, 2, axis=0)
        born = _born(evaluate, parents, emitter.sigma, numbers.limit, rng)
        both = emitter.members.with_members(born)
        emitter.members = both.take(np.argsort(-both.rewards, kind="stable")[: numbers.emitter])
        better = np.flatnonzero(emitter.members.rewards > emitter.best)
        if len(better):
            better = better if emitter.best > 0 else better[:1]  # the first time only the best
            search.rewarded = search.rewarded.with_members(emitter.members.take(better))
            emitter.best = float(emitter.members.rewards.max())
    emitter.values.append(emitter.members.rewards)
    emitter.rise = max(float(np.mean(emitter.values[-3:]) - np.mean(emitter.values[:3])), 0.0)
    search.exploited += len(born.rewards)
    return len(born.rewards)


def _stagnates(emitter: Emitter, numbers: Numbers) -> bool:
    size = emitter.members.genomes.shape[1]
    patience = 20 * size // numbers.emitter + 120 if numbers.patience is None else numbers.patience
    if len(emitter.values) - 1 <= patience:
        return False
    recent, part = emitter.values[-patience:], min(20, max(patience // 2, 1))
    first, last = recent[:part], recent[-part:]
    return bool(np.median(first) >= np.median(last) or np.max(first) >= np.max(last))


def exploit(
    search: Search,
    evaluate: Evaluate,
    numbers: Numbers,
    rng: np.random.Generator,
    *,
    budget: int,
    describe: Describe = as_is,
) -> None:
    """Tries the emitters that wait, then runs emitters from the Pareto front, in place; nothing if there are none.

    Args:
      search: so far.
      evaluate: as at `explore`.
      numbers: of the search.
      rng: of the emitters alone.
      budget: evaluations; the last step may go over it.
      describe: what descriptors are compared by.
    """

    def novel(points: np.ndarray, reference: np.ndarray) -> np.ndarray:
        return novelties(describe(points), describe(reference), numbers.neighbours)

    left = budget
    seen = search.rewarded.descriptors
    order = novel(np.array([e.ancestor.descriptors[0] for e in search.waiting]), seen) if search.waiting else []
    for row in np.argsort(-np.asarray(order), kind="stable"):
        if left <= budget / 3:
            break
        emitter = search.waiting[row]
        for _ in range(6):
            left -= _step(emitter, search, evaluate, numbers, rng)
        if emitter.rise > 0:
            search.emitters.append(emitter)
    search.waiting = [e for e in search.waiting if e.members is None]
    reference = np.concatenate([search.population.descriptors, search.archive, search.rewarded.descriptors])
    while search.emitters and left > 0:
        ancestors = np.array([e.ancestor.descriptors[0] for e in search.emitters])
        rises = np.array([e.rise for e in search.emitters])
        chosen = rng.choice(pareto.front(np.stack([novel(ancestors, search.rewarded.descriptors), rises], axis=1)))
        emitter = search.emitters[chosen]
        if emitter.record == -np.inf:
            emitter.record = float(novel(emitter.ancestor.descriptors, reference)[0])
        while left > 0:
            left -= _step(emitter, search, evaluate, numbers, rng)
            found = novel(emitter.members.descriptors, reference)
            emitter.novel += list(emitter.members.descriptors[found > emitter.record])
            emitter.record = max(emitter.record, float(found.max()))
            if _stagnates(emitter, numbers):
                picked = rng.permutation(len(emitter.novel))[: numbers.archived]
                search.archive = np.concatenate([search.archive, *(emitter.novel[i][None] for i in picked)])
                search.rewarded = search.rewarded.with_members(emitter.ancestor)
                del search.emitters[chosen]
                break


def run(
    evaluate: Evaluate,
    size: int,
    *,
    budget: int,
    seed: int,
    numbers: Numbers,
    emitters: bool = True,
    by: str = "novelty",
) -> Search:
    """SERENE; without emitters novelty search, or with by="reward" evolution towards rewards.

    Args:
      evaluate: genomes float32 [N, P] -> (descriptors [N, D], rewards [N]).
      size: P.
      budget: evaluations in all; the last generation or step may go over it.
      seed: of everything; exploration and emitters draw from streams of their own.
      numbers: of the search.
      emitters: whether rewards are exploited.
      by: who lives on: the most "novelty" or, for a comparison, the most "reward".

    Raises:
      ValueError: if `by` is unknown.
    """
    kinds = {"novelty": by_novelty(numbers), "reward": by_reward}
    if by not in kinds:
        raise ValueError(f"quality_diversity: by={by!r} is neither novelty nor reward")
    exploring, exploiting = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    search = begin(evaluate, size, numbers, exploring)

    def generation() -> None:
        explore(search, evaluate, numbers, exploring, merits=kinds[by])

    def emit(left: int) -> None:
        exploit(search, evaluate, numbers, exploiting, budget=left)

    alternate(search, numbers, budget, generation, emit if emitters else None)
    return search


def alternate(
    search: Search,
    numbers: Numbers,
    budget: int,
    generation: Callable,
    emit: Callable | None,
    after: Callable = lambda: None,
) -> None:
    """Gives chunks of evaluations to exploration and to emitters, in place, until the budget is used.

    Args:
      search: that has just begun.
      numbers: of the search.
      budget: evaluations in all.
      generation: () -> None, one of the exploration.
      emit: (evaluations) -> None, emitters; None: there are none.
      after: () -> None, called after each chunk of the exploration.
    """
    spent = search.explored
    while search.explored + search.exploited < budget:
        while spent < numbers.chunk and search.explored + search.exploited < budget:
            before = search.explored
            generation()
            spent += search.explored - before
        after()
        left = min(numbers.chunk, budget - search.explored - search.exploited)
        if emit is not None and left > 0:
            emit(left)
        spent = 0
