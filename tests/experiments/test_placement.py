"""experiments.plan --placement: hand-made cases, brute force on small ones, laws of the estimates."""

import itertools
import json
import math
import random

import numpy as np
import pytest

from configs import plans
from experiments.plan import chips, costs, placement, placing
from experiments.plan.costs import Call, Cost, Model, Seat, Work

CHIP = chips.CHIPS["v5p"]
SIZES = dict(params=8e9, layers=32, width=4096, kv_heads=8, kv_width=1024)
ACTOR, REFERENCE = Model("actor", **SIZES), Model("reference", **SIZES)
WORK = Work(512, 1024, np.array([100, 200, 400, 3000]), 8)
STEP = (
    Call("generate", "actor", "generate"),
    Call("score", "reference", "score", ("generate",)),
    Call("train", "actor", "train", ("generate", "score")),
)


def task_of(seconds, devices, *, held=None, calls=STEP):
    """A problem whose times are given: seconds(call, seat)."""
    models = [model._replace(kv_heads=1) for model in (ACTOR, REFERENCE)]  # no tensor axis
    task = placement.problem(calls, models, WORK, devices, CHIP._replace(links=math.inf))
    for call in calls:
        for size in (1 << k for k in range(devices.bit_length())):
            for start in range(0, devices, size):
                seat = Seat(start, size, 1)
                task.costs[call.name, seat] = Cost(seconds(call.name, seat), held(seat) if held else 0.0, 0.0)
    return task


# --- By hand ---------------------------------------------------------------------------------------------------------


def test_what_scales_badly_is_split_if_steps_overlap():
    """4 s on one device, 3 s on two: apart a step is as long as one call, together as both."""
    task = task_of(lambda name, seat: 0.0 if name == "score" else {1: 4.0, 2: 3.0}[seat.count], 2)
    plan, seconds, how = placement.search(task, placement.overlapped)
    assert (seconds, how) == (4.0, "enumerated") and not plan["generate"].overlaps(plan["train"])
    together, seconds, _ = placement.search(task, placement.one_by_one)
    assert seconds == 6.0 and together["generate"].count == together["train"].count == 2
    assert "generation on 1 devices takes 4 s, training on 1 takes 4 s" in placing.balance(task, plan)


def test_calls_that_do_not_wait_for_each_other_run_side_by_side():
    calls = (STEP[0], Call("a", "reference", "score", ("generate",)), Call("b", "actor", "score", ("generate",)))
    task = task_of(lambda name, seat: 2.0 if seat.count == 1 else 1.5, 2, calls=calls)
    plan, seconds, _ = placement.search(task, placement.one_by_one)
    assert seconds == 1.5 + 2.0 and not plan["a"].overlaps(plan["b"])


def test_what_does_not_fit_is_infinite():
    task = task_of(lambda name, seat: 1.0, 2, held=lambda seat: 0.6 * CHIP.bytes / seat.count)
    apart = {"generate": Seat(0, 1, 1), "score": Seat(1, 1, 1), "train": Seat(1, 1, 1)}
    assert placement.overlapped(task, apart) == placement.one_by_one(task, apart) == math.inf
    with pytest.raises(ValueError, match="no plan for 1 devices fits"):
        placement.search(task_of(lambda name, seat: 1.0, 1, held=lambda seat: 0.6 * CHIP.bytes), placement.overlapped)
    with pytest.raises(ValueError, match="score fits on no seat of 1 devices"):
        alone = [Call("score", "reference", "score")]
        placement.search(placement.problem(alone, [REFERENCE], WORK, 1, CHIP._replace(bytes=2**30)), min)


def test_weights_travel_to_other_seats_only():
    task = task_of(lambda name, seat: 1.0, 2)._replace(chip=CHIP)
    near = {name: Seat(0, 2, 1) for name in ("generate", "score", "train")}
    far = near | {"generate": Seat(0, 1, 1), "score": Seat(0, 1, 1)}
    assert placement.one_by_one(task, near) == 3.0
    assert placement.one_by_one(task, far) == pytest.approx(3.0 + 2 * 8e9 / CHIP.links)  # the reference never changes


# --- Brute force -----------------------------------------------------------------------------------------------------


def longest_path(task, plan):
    """Independent of placement.one_by_one: a list of intervals per device."""
    taken, ends = {device: [] for device in range(task.devices)}, {}
    for call in task.calls:
        devices = range(plan[call.name].start, plan[call.name].start + plan[call.name].count)
        ready = [ends[name] for name in call.after] + [end for d in devices for _, end in taken[d]]
        start = max(ready, default=0.0)
        ends[call.name] = start + task.costs[call.name, plan[call.name]].seconds
        for device in devices:
            taken[device].append((start, ends[call.name]))
    return max(ends.values())


def all_plans(task):
    ranges = [(s, n) for n in (1, 2, 4) if n <= task.devices for s in range(0, task.devices, n)]
    for chosen in itertools.product(ranges, repeat=len(task.calls)):
        yield {call.name: Seat(*one, 1) for call, one in zip(task.calls, chosen, strict=True)}


def random_task(seed, devices=4):
    rng = random.Random(seed)
    shape = {call.name: (rng.uniform(1, 8), rng.uniform(0.2, 1.0)) for call in STEP}
    return task_of(lambda name, seat: shape[name][0] / seat.count ** shape[name][1], devices)


@pytest.mark.parametrize("seed", range(2))
def test_the_best_plan_is_the_best_of_all(seed, monkeypatch):
    """Enumerated and by Metropolis, for both objectives; 343 plans of 4 devices."""
    task = random_task(seed)
    paths = min(longest_path(task, plan) for plan in all_plans(task))

    def load(plan, device):
        seats = [(name, seat) for name, seat in plan.items() if seat.start <= device < seat.start + seat.count]
        return sum(task.costs[one].seconds for one in seats)

    loads = min(max(load(plan, device) for device in range(4)) for plan in all_plans(task))
    for objective, best in ((placement.one_by_one, paths), (placement.overlapped, loads)):
        _, seconds, how = placement.search(task, objective)
        assert how == "enumerated" and seconds == pytest.approx(best)
        monkeypatch.setattr(placement, "ENUMERATED", 0)
        monkeypatch.setattr(placement, "WALK", 500)
        _, seconds, how = placement.search(task, objective)
        assert how == "metropolis" and seconds == pytest.approx(best)
        monkeypatch.undo()


def test_colocated_blocks_against_all_of_them():
    """Two models on 4 devices: together on all, or on 2 and 2 (the only split into two powers of two)."""
    task = random_task(7)
    found = sorted(placement.by_stages(task, plan) for plan in placement.colocations(task))

    def stages(actor, reference):
        times = [task.costs[call.name, actor if call.model == "actor" else reference].seconds for call in STEP]
        return sum(times)

    whole, halves = Seat(0, 4, 1), (Seat(0, 2, 1), Seat(2, 2, 1))
    assert found == pytest.approx(sorted([stages(whole, whole), stages(*halves)]))
    assert len(list(placement._partitions(["a", "b", "c", "d"]))) == 15  # Bell(4)
    assert set(placement._splits(8, 3)) == {(4, 2, 2)} and set(placement._splits(4, 2)) == {(2, 2)}


# --- Estimates -------------------------------------------------------------------------------------------------------


def test_more_devices_are_faster_and_hold_less():
    for kind in costs.KINDS:
        found = [costs.cost(kind, ACTOR, Seat(0, n, 1), WORK, CHIP) for n in (8, 16, 32)]
        assert all(a.seconds > b.seconds and a.held >= b.held for a, b in itertools.pairwise(found)), kind
    with pytest.raises(ValueError, match="kind='play'"):
        costs.cost("play", ACTOR, Seat(0, 1, 1), WORK, CHIP)


def test_a_long_tail_costs_weights_for_few_rows():
    """Equal tokens: rows of one length against a tail. The weights are read once per step of the longest row."""
    even, tail = WORK._replace(lengths=np.array([400] * 10)), WORK._replace(lengths=np.array([100] * 9 + [3100]))
    seat = Seat(0, 8, 1)
    assert even.tokens == tail.tokens
    short, long = (costs.cost("generate", ACTOR, seat, work, CHIP).seconds for work in (even, tail))
    least = 3100 * 2 * 8e9 / CHIP.bandwidth / costs.EFFICIENCY
    assert long > least > short
    assert costs.cost("train", ACTOR, seat, even, CHIP) == costs.cost("train", ACTOR, seat, tail, CHIP)


def test_known_numbers():
    """8B, by hand: a training step's 8 N tokens FLOPs at half the peak, 16 bytes per parameter."""
    seat = Seat(0, 16, 1)
    found = costs.cost("train", ACTOR, seat, WORK, CHIP)
    computed = 8 * 8e9 * WORK.tokens / 16 / CHIP.flops / costs.EFFICIENCY
    state = 2 * 16 * 8e9 / 16 / CHIP.bandwidth
    assert found.seconds == pytest.approx(computed + state) and found.held == 16 * 8e9 / 16


def test_a_problem_that_cannot_be():
    with pytest.raises(ValueError, match="6 devices: a placement is planned for a power of two"):
        placement.problem(STEP, [ACTOR, REFERENCE], WORK, 6, CHIP)
    with pytest.raises(ValueError, match="train waits for generate"):
        placement.problem(STEP[::-1], [ACTOR, REFERENCE], WORK, 2, CHIP)


def test_lengths_of_a_file_and_of_a_run(tmp_path):
    path = tmp_path / "lengths.json"
    path.write_text("[3, 0.2, 5.6]")
    assert placing.read_lengths(path).tolist() == [3, 1, 6]
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"completion_length": 7.4}\n')
    assert placing.read_lengths(tmp_path).tolist() == [7]
    for bad in ("[]", "{}", "[-1]", "x", '["a"]', "[[1]]"):
        path.write_text(bad)
        with pytest.raises(ValueError, match="lengths.json: "):
            placing.read_lengths(path)
    with pytest.raises(ValueError, match="nowhere"):
        placing.read_lengths(tmp_path / "nowhere")


def test_the_command_says_where_each_call_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(placement, "WALK", 50)
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps([100] * 9 + [3000]))
    placing.run(plans.get_config("1b"), "v5p:2x2x1", str(path))
    said = capsys.readouterr().out
    assert "1.24B parameters on v5p:2x2x1" in said and "512 rows of 1024 + 100 /" in said
    for title in ("one by one: ", "co-located: ", "overlapped: ", "balance: "):
        assert title in said
    assert said.count("actor_generate") == 3 and "devices   0-" in said


def test_a_placement_on_devices_apart_is_said_as_the_flags_that_compile_it():
    task = placement.problem(STEP, [ACTOR, REFERENCE], WORK, 64, CHIP)
    plan = {"actor_generate": Seat(32, 32, 8), "actor_train": Seat(0, 32, 1, 2)}
    (said,) = placing.as_flags(task, plan)
    assert "--config.mesh=fsdp:16,context:2,tensor:1 --config.rollout.mesh=data:4,tensor:8 " in said
    assert "--config.rollout.devices=separate" in said
    assert placing.as_flags(task, plan | {"actor_generate": Seat(0, 32, 8)}) == [], "they share devices"
    assert placing.as_flags(task, plan | {"actor_generate": Seat(32, 16, 8)}) == [], "16 would be idle"


# --- Rows too long for a chip: a context axis, with ring attention ---------------------------------------------------


def test_rows_are_split_over_as_few_devices_as_it_takes():
    """A row of 512k tokens keeps 32 x 2 x 4096 bytes per token, 137 GB: too much for one chip of 95 GiB, or two."""
    row = Work(4, 8192, np.array([2**19 - 8192]), 1)
    task = placement.problem(STEP, [ACTOR, REFERENCE], row, 64, CHIP)
    train = [seat for seat in placement.seats(task, STEP[2]) if seat.count == 64]
    assert train and {seat.context for seat in train} == {2}
    assert all(seat.replicas * seat.context * seat.tensor == 64 for seat in train)
    short = placement.problem(STEP, [ACTOR, REFERENCE], WORK, 64, CHIP)
    assert all(seat.context == 1 for call in STEP for seat in placement.seats(short, call))
    assert all(seat.context == 1 for seat in placement.seats(task, STEP[0]))  # decode splits no rows
    plan = dict.fromkeys(("generate", "score"), Seat(0, 64, 8)) | {"train": train[0]}
    said = placing.describe(task, "one by one", plan, 1.0, "by hand")
    assert "context:2" in said[3] and "--config.model.attention=ring" in said[-1]
    assert "ring" not in placing.describe(task, "x", dict.fromkeys(plan, Seat(0, 64, 8)), 1.0, "")[-1]


def test_a_ring_passes_keys_and_values_once_around():
    model, ring = Model("actor", 1e6, layers=3, width=64, kv_heads=2, kv_width=32), Seat(0, 8, 2, 4)
    assert costs.ring_bytes(model, ring._replace(context=1), 100.0) == 0.0
    assert costs.ring_bytes(model, ring, 100.0) == 3 * 100 * (2 * 16 * 2 + 16)
    assert costs.ring_bytes(model, ring, 100.0, backward=True) == 3 * 100 * (2 * 16 * (2 + 4) + 16)
    long = Work(4, 64, np.array([960]), 1)
    whole, split = (costs.cost("train", model, Seat(0, 8, 1, c), long, CHIP) for c in (1, 2))
    assert split.used < whole.used and split.held == 2 * whole.held  # parameters are not split over context
