"""How long a call of a step takes on some devices, and what it keeps there: a light estimator, from a chip's peaks.

    generate   prefill + sum over decode steps s of max(bytes(s) / bandwidth, FLOPs(s) / peak) + all-reduces
    score      max(2 N tokens / peak, gathered weights / links)
    train      max((6 or 8) N tokens / peak, 3 gathers per micro-batch / links) + optimizer state / bandwidth

With rows split over a context axis (ring attention, rl_jax.models.transformer.ring) a device also passes on, per layer,

    tokens of its rows x (4 kv_width + 16) bytes per forward, and 8 kv_width more per backward

(keys and values in bfloat16, four int32 ids, and float32 gradients): added to the time, as if nothing overlapped.

N are parameters. At decode step s the rows are live that are longer than s: the histogram of lengths decides how long
weights are read for how few rows. Times are divided by `EFFICIENCY`, which moves all of them alike: a plan's choice
depends on their ratios only. experiments.plan without --placement compiles the programs instead.
"""

from typing import NamedTuple

import numpy as np

from experiments.plan.chips import Chip

KINDS = ("generate", "score", "train")
EFFICIENCY = 0.5  # of the peaks that large programs reach
REDUCE_S = 5e-6  # least time of one all-reduce between chips
RESERVE = 0.9  # share of a chip's memory that a plan may count on
TRAINED_BYTES, WEIGHT_BYTES = 16, 2  # float32 master, gradient and Adam's moments; bfloat16


class Model(NamedTuple):
    """Sizes of one model.

    Attributes:
      name: "actor", "reference", "critic", ...
      params: number of parameters.
      layers: number of layers.
      width: of the hidden states.
      kv_heads: key heads; a tensor axis divides them.
      kv_width: kv_heads x head_dim.
      remat: whether the backward computes the forward again.
    """

    name: str
    params: float
    layers: int
    width: int
    kv_heads: int
    kv_width: int
    remat: bool = True


class Work(NamedTuple):
    """Rows of a step.

    Attributes:
      rows: number of rows.
      prompt: tokens of a prompt.
      lengths: int [n]. Observed lengths of completions, which stand for those of the rows.
      micro_batches: of the train step.
    """

    rows: int
    prompt: int
    lengths: np.ndarray
    micro_batches: int = 1

    @property
    def tokens(self) -> float:
        """Expected tokens of all rows, prompts included."""
        return self.rows * (self.prompt + float(np.mean(self.lengths)))

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return self.prompt + int(np.max(self.lengths))


class Call(NamedTuple):
    """A call of a model in a step.

    Attributes:
      name: "actor_generate", ...
      model: whose.
      kind: one of KINDS.
      after: names of the calls that it waits for.
    """

    name: str
    model: str
    kind: str
    after: tuple[str, ...] = ()


class Seat(NamedTuple):
    """Devices and mesh of a call: start .. start + count - 1, `tensor` x `context` of them per shard of rows."""

    start: int
    count: int
    tensor: int
    context: int = 1

    @property
    def replicas(self) -> int:
        """Parts that the rows are split into."""
        return self.count // (self.tensor * self.context)

    def overlaps(self, other: "Seat") -> bool:
        """Whether they have a device in common."""
        return self.start < other.start + other.count and other.start < self.start + self.count


class Cost(NamedTuple):
    """One call on one seat.

    Attributes:
      seconds: of the call.
      held: bytes per device, between the calls too.
      used: further bytes per device while it runs.
    """

    seconds: float
    held: float
    used: float


def cost(kind: str, model: Model, seat: Seat, work: Work, chip: Chip) -> Cost:
    """The estimate of one call.

    Raises:
      ValueError: if the kind is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is none of {', '.join(KINDS)}")
    return {"generate": _generate, "score": _score, "train": _train}[kind](model, seat, work, chip)


def move_s(model: Model, seat: Seat, chip: Chip) -> float:
    """Seconds until new weights are in a seat's devices: each receives its share."""
    return WEIGHT_BYTES * model.params / seat.tensor / chip.links


def _reduces(model: Model, seat: Seat, tokens: np.ndarray | float, chip: Chip):
    """Seconds of the two all-reduces per layer that a tensor axis makes, for a forward of `tokens` per replica."""
    if seat.tensor == 1:
        return 0.0 * tokens
    sent = 2 * (seat.tensor - 1) / seat.tensor * tokens * model.width * WEIGHT_BYTES
    return 2 * model.layers * np.maximum(sent / chip.links, REDUCE_S)


def _generate(model: Model, seat: Seat, work: Work, chip: Chip) -> Cost:
    rows = -(-work.rows // seat.replicas)
    steps = np.arange(int(np.max(work.lengths)))
    live = np.maximum(rows * (1.0 - np.searchsorted(np.sort(work.lengths), steps, side="right") / len(work.lengths)), 1)
    weights = WEIGHT_BYTES * model.params / seat.tensor
    per_token = 2 * WEIGHT_BYTES * model.kv_width * model.layers / seat.tensor
    read = (weights + live * (work.prompt + steps) * per_token) / chip.bandwidth
    computed = 2 * model.params * live / seat.tensor / chip.flops
    decode = np.sum(np.maximum(read, computed) / EFFICIENCY + _reduces(model, seat, live, chip))
    prompts = rows * work.prompt  # of one replica; a group's prompt is filled in once per row at worst
    prefill = 2 * model.params * prompts / seat.tensor / chip.flops / EFFICIENCY
    prefill += float(_reduces(model, seat, float(prompts), chip))
    cache = rows * (work.prompt + float(np.mean(work.lengths))) * per_token
    return Cost(float(decode + prefill), weights, cache)


def _gather_s(model: Model, seat: Seat, chip: Chip) -> float:
    """Seconds to gather all weights over the devices that shard them."""
    share = 1.0 - 1.0 / seat.replicas
    return share * WEIGHT_BYTES * model.params / seat.tensor / chip.links


def ring_bytes(model: Model, seat: Seat, tokens: float, *, backward: bool = False) -> float:
    """Bytes that a device passes on over the context axis in one pass over all layers: keys, values and their ids.

    Args:
      model: whose layers.
      seat: its mesh.
      tokens: of the rows of one replica.
      backward: whether the float32 gradients of keys and values travel too.
    """
    if seat.context == 1:
        return 0.0
    values = 2 * model.kv_width / seat.tensor  # per token and layer
    return model.layers * tokens * (values * (WEIGHT_BYTES + 4 * backward) + 4 * 4)


def _at_once(seat: Seat, work: Work) -> float:
    """Tokens of a micro-batch on one device: a replica has one row at least."""
    return max(work.tokens / work.micro_batches / seat.replicas, work.longest) / seat.context


def _forward(model: Model, seat: Seat, work: Work, chip: Chip, passes: int, gathers: int) -> float:
    computed = passes * model.params * work.tokens / seat.count / chip.flops
    tokens = work.tokens / seat.replicas
    reduces = passes / 2 * float(_reduces(model, seat, tokens / max(gathers, 1), chip)) * max(gathers, 1)
    return max(computed, gathers * _gather_s(model, seat, chip)) / EFFICIENCY + reduces


def _layer(model: Model, seat: Seat) -> float:
    """Bytes of a layer's gathered weights, two of them at once."""
    return 2 * WEIGHT_BYTES * model.params / model.layers / seat.tensor


def _shards(seat: Seat) -> int:
    """Parts that the parameters are split into: the devices of a context axis hold the same."""
    return seat.count // seat.context


def _score(model: Model, seat: Seat, work: Work, chip: Chip) -> Cost:
    seconds = _forward(model, seat, work, chip, passes=2, gathers=1)
    seconds += ring_bytes(model, seat, work.tokens / seat.replicas) / chip.links
    hidden = 4 * WEIGHT_BYTES * model.width * _at_once(seat, work)
    return Cost(seconds, WEIGHT_BYTES * model.params / _shards(seat), _layer(model, seat) + hidden)


def _train(model: Model, seat: Seat, work: Work, chip: Chip) -> Cost:
    held = TRAINED_BYTES * model.params / _shards(seat)
    passes, gathers = (8, 4) if model.remat else (6, 3)
    seconds = _forward(model, seat, work, chip, passes, 0) + 2 * held / chip.bandwidth
    seconds = max(seconds, gathers * work.micro_batches * _gather_s(model, seat, chip) / EFFICIENCY)
    layers = model.layers if model.remat else 16 * model.layers  # what is kept per token, in hidden states
    kept = layers * WEIGHT_BYTES * model.width * _at_once(seat, work)
    tokens, forwards = work.tokens / seat.replicas, 2 if model.remat else 1
    passed = forwards * ring_bytes(model, seat, tokens) + ring_bytes(model, seat, tokens, backward=True)
    seconds += passed / chip.links
    return Cost(seconds, held, _layer(model, seat) + kept)
