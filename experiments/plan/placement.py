"""Where each call of a step runs: devices and meshes for generation, scoring and training (HybridFlow, ReaLHF).

    python -m experiments.plan --config=configs/plans.py:8b --topology=v5p:4x4x2 --placement [--lengths=RUN]

Three answers, each the best of its kind:

    one by one     every call has a seat of its own; a step is the longest path through its calls, where calls that
                   share a device wait for each other, plus the way of new weights to other seats (ReaLHF)
    co-located     models are split into blocks with devices of their own; a stage (generate, score, train) lasts as
                   long as its slowest block, and stages follow each other (HybridFlow)
    overlapped     the next rows are sampled while these are trained (experiments.grpo_async): a step lasts as long as
                   its busiest device

A seat is an aligned power of two of the devices with a tensor axis inside. Small spaces are enumerated; large ones are
walked by Metropolis: a call's seat changes, and a slower plan is kept with probability exp(-beta (c' - c) / c).
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.plan.chips import Chip
from experiments.plan.costs import KINDS, RESERVE, Call, Cost, Model, Seat, Work, cost, move_s

Plan = Mapping[str, Seat]  # call -> seat
ENUMERATED = 100_000  # plans, at most
BETA, WALK, RESTARTS = 50.0, 6000, 4


class Problem(NamedTuple):
    """What is to be placed.

    Attributes:
      calls: of a step, each after those that it waits for.
      models: by name.
      work: the rows of a step.
      devices: their number, a power of two.
      chip: each of them.
      costs: (call, seat) -> Cost; found once.
    """

    calls: tuple[Call, ...]
    models: dict[str, Model]
    work: Work
    devices: int
    chip: Chip
    costs: dict[tuple[str, Seat], Cost]

    def cost(self, call: Call, seat: Seat) -> Cost:
        """The estimate of a call on a seat."""
        key = (call.name, seat)
        if key not in self.costs:
            self.costs[key] = cost(call.kind, self.models[call.model], seat, self.work, self.chip)
        return self.costs[key]


def problem(calls: Sequence[Call], models: Sequence[Model], work: Work, devices: int, chip: Chip) -> Problem:
    """A Problem.

    Raises:
      ValueError: if the number of devices is no power of two, or a call waits for one that does not come before it.
    """
    if devices < 1 or devices & (devices - 1):
        raise ValueError(f"{devices} devices: a placement is planned for a power of two")
    seen: set[str] = set()
    for call in calls:
        if missing := [name for name in call.after if name not in seen]:
            raise ValueError(f"call {call.name} waits for {missing[0]}, which does not come before it")
        seen.add(call.name)
    return Problem(tuple(calls), {model.name: model for model in models}, work, devices, chip, {})


def seats(task: Problem, call: Call, ranges: Sequence[tuple[int, int]] | None = None) -> list[Seat]:
    """The seats on which a call fits into memory by itself.

    Where a forward over whole rows fits on none of a range's meshes, its rows are too long for a device, or too few for
    all: then a context axis splits them (ring attention), over as few devices as it takes.

    Args:
      task: the problem.
      call: whose seats.
      ranges: (start, count) of the devices; None: every aligned power of two.
    """
    if ranges is None:
        sizes = [1 << k for k in range(task.devices.bit_length())]
        ranges = [(start, size) for size in sizes for start in range(0, task.devices, size)]
    heads, limit, found = task.models[call.model].kv_heads, RESERVE * task.chip.bytes, []
    for start, size in ranges:
        tensors = [t for t in (1, 2, 4, 8) if size % t == 0 and heads % t == 0]
        contexts = [1] if call.kind == "generate" else [1 << k for k in range(size.bit_length())]
        for context in (c for c in contexts if task.work.longest % c == 0):
            here = [Seat(start, size, t, context) for t in tensors if size % (t * context) == 0]
            here = [seat for seat in here if seat.replicas <= task.work.rows]
            fitting = [seat for seat in here if (one := task.cost(call, seat)).held + one.used <= limit]
            found += fitting
            if fitting:
                break
    return found


# --- What a plan costs -----------------------------------------------------------------------------------------------


def trained_seat(task: Problem, plan: Plan, model: str) -> Seat | None:
    """Where a model is trained; None if it never changes."""
    found = [plan[call.name] for call in task.calls if call.model == model and call.kind == "train"]
    return found[0] if found else None


def moved(task: Problem, plan: Plan, call: Call) -> float:
    """Seconds of new weights on their way to a call's seat; 0 where the model is trained or never changes."""
    home, seat = trained_seat(task, plan, call.model), plan[call.name]
    return 0.0 if home is None or home == seat else move_s(task.models[call.model], seat, task.chip)


def fits(task: Problem, plan: Plan) -> bool:
    """Whether every device holds what its calls keep, and what the largest of them uses."""
    copies: dict[tuple[str, Seat, str], float] = {}
    for call in task.calls:
        seat = plan[call.name]
        if call.kind == "score" and seat == trained_seat(task, plan, call.model):
            continue  # reads the weights that are trained there
        copies[call.model, seat, call.kind] = task.cost(call, seat).held
    limit = RESERVE * task.chip.bytes
    for device in {seat.start for seat in plan.values()}:  # what overlaps most begins with one of its seats
        held = sum(size for (_, seat, _), size in copies.items() if seat.start <= device < seat.start + seat.count)
        here = [c for c in task.calls if plan[c.name].start <= device < plan[c.name].start + plan[c.name].count]
        if held + max((task.cost(call, plan[call.name]).used for call in here), default=0.0) > limit:
            return False
    return True


def one_by_one(task: Problem, plan: Plan) -> float:
    """Seconds of a step whose calls run one after the other where they must; inf if it does not fit."""
    if not fits(task, plan):
        return math.inf
    free, ended = np.zeros(task.devices), {}
    for call in task.calls:
        seat = plan[call.name]
        here = slice(seat.start, seat.start + seat.count)
        start = max([free[here].max(), *(ended[name] for name in call.after)])
        ended[call.name] = start + moved(task, plan, call) + task.cost(call, seat).seconds
        free[here] = ended[call.name]
    return float(max(ended.values()))


def busy(task: Problem, plan: Plan) -> np.ndarray:
    """Seconds per step that each device works, float [devices]."""
    return np.array([load(task, plan, device) for device in range(task.devices)])


def load(task: Problem, plan: Plan, device: int, kinds: Sequence[str] = KINDS) -> float:
    """Seconds per step that a device works on calls of some kinds."""
    found = 0.0
    for call in task.calls:
        seat = plan[call.name]
        if call.kind in kinds and seat.start <= device < seat.start + seat.count:
            found += moved(task, plan, call) + task.cost(call, seat).seconds
    return found


def overlapped(task: Problem, plan: Plan) -> float:
    """Seconds of a step if steps overlap as far as devices allow; inf if it does not fit."""
    if not fits(task, plan):
        return math.inf
    return max(load(task, plan, seat.start) for seat in plan.values())


def by_stages(task: Problem, plan: Plan) -> float:
    """Seconds of a step of stages: each lasts as long as the slowest device in it; inf if it does not fit."""
    if not fits(task, plan):
        return math.inf
    starts = {seat.start for seat in plan.values()}
    return sum(max(load(task, plan, device, (kind,)) for device in starts) for kind in KINDS)


# --- Search ----------------------------------------------------------------------------------------------------------


def search(task: Problem, objective: Callable[[Problem, Plan], float], *, seed: int = 0) -> tuple[Plan, float, str]:
    """The best plan found, its seconds, and how: "enumerated" or "metropolis".

    Raises:
      ValueError: if a call fits nowhere, or no plan fits.
    """
    options = {call.name: seats(task, call) for call in task.calls}
    for name, found in options.items():
        if not found:
            raise ValueError(
                f"{name} fits on no seat of {task.devices} devices with {task.chip.bytes / 2**30:.0f} GiB each: take "
                "more devices, or fewer rows"
            )
    count = math.prod(map(len, options.values()))
    how = "enumerated" if count <= ENUMERATED else "metropolis"
    if how == "enumerated":
        plans = (dict(zip(options, chosen, strict=True)) for chosen in itertools.product(*options.values()))
        found = ((plan, objective(task, plan)) for plan in plans)
    else:
        found = (metropolis(task, objective, options, seed=seed + i) for i in range(RESTARTS))
    plan, seconds = min(found, key=lambda pair: pair[1])
    if seconds == math.inf:
        raise ValueError(f"no plan for {task.devices} devices fits into memory: take more devices, or fewer rows")
    return plan, seconds, how


def metropolis(
    task: Problem,
    objective: Callable[[Problem, Plan], float],
    options: Mapping[str, Sequence[Seat]],
    *,
    seed: int,
    steps: int = WALK,
    beta: float = BETA,
) -> tuple[Plan, float]:
    """A walk over plans from the greedy one, in which every call has all devices.

    Args:
      task: the problem.
      objective: seconds of a plan.
      options: seats of each call.
      seed: of the walk.
      steps: proposals.
      beta: inverse temperature, in shares of the present seconds.

    Returns:
      (the best plan seen, its seconds).
    """
    rng, names = random.Random(seed), list(options)
    calls = {call.name: call for call in task.calls}
    plan = {}
    for name in names:
        widest = max(seat.count for seat in options[name])
        wide = [seat for seat in options[name] if seat.count == widest]
        plan[name] = min(wide, key=lambda seat, name=name: task.cost(calls[name], seat).seconds)
    value = objective(task, plan)
    best = (dict(plan), value)
    for _ in range(steps):
        name = rng.choice(names)
        other = plan | {name: rng.choice(options[name])}
        found = objective(task, other)
        slower = found - value if found < math.inf else math.inf
        if value == math.inf or slower <= 0 or rng.random() < math.exp(-beta * slower / value):
            plan, value = other, found
            if value < best[1]:
                best = (dict(plan), value)
    return best


def colocations(task: Problem) -> Iterator[Plan]:
    """Plans of blocks: every partition of the models, every split of the devices, the fastest mesh for each call."""
    names = list(task.models)
    for blocks in _partitions(names):
        for sizes in _splits(task.devices, len(blocks)):
            for order in set(itertools.permutations(sizes)):
                starts = dict(zip(sorted(range(len(order)), key=lambda i: -order[i]), _starts(order), strict=True))
                ranges = {name: (starts[i], order[i]) for i, block in enumerate(blocks) for name in block}
                plan = {}
                for call in task.calls:
                    found = seats(task, call, [ranges[call.model]])
                    if not found:
                        break
                    plan[call.name] = min(found, key=lambda s, call=call: task.cost(call, s).seconds)
                else:
                    yield plan


def _starts(sizes: Sequence[int]) -> list[int]:
    """Where blocks begin if the largest is first, so that each is aligned."""
    ordered = sorted(sizes, reverse=True)
    return [sum(ordered[:i]) for i in range(len(ordered))]


def _partitions(items: list[str]) -> Iterator[list[list[str]]]:
    """All set partitions: Bell(n) of them."""
    if not items:
        yield []
        return
    first, *rest = items
    for blocks in _partitions(rest):
        yield [[first], *blocks]
        for i in range(len(blocks)):
            yield [*blocks[:i], [first, *blocks[i]], *blocks[i + 1 :]]


def _splits(devices: int, parts: int, most: int | None = None) -> Iterator[tuple[int, ...]]:
    """Powers of two, the largest first, that use all devices."""
    if parts == 0:
        if devices == 0:
            yield ()
        return
    size = min(most or devices, 1 << (max(devices, 1).bit_length() - 1))
    while size:
        if size <= devices:
            yield from ((size, *rest) for rest in _splits(devices - size, parts - 1, size))
        size //= 2
