"""Several samplers of one run: each samples its share of every batch, and no bit depends on how many there are.

    python -m experiments.grpo_async ... --config.flow.samplers=2 --role=trainer
    python -m experiments.grpo_async ... --config.flow.samplers=2 --role=sampler --sampler=0      # and --sampler=1

Sampler i of N has the groups of place p in a batch with p mod N = i. Its clock, decode calls, is its own, so what a
batch is and which weights drew it must not depend on a clock: the batch is the B oldest groups, and those that were
let in end before new weights enter (flow.order=oldest, flow.in_flight=drain: the delay lines `delay1` to `delay16`).

With flow.samplers above 1 the engine has programs of one shape, in one process, too: one process, two samplers and
three give the same bits. With flow.samplers=1, which has smaller programs for fewer rows, a log-prob's last bit may
differ from those.
"""

from typing import NamedTuple


class Share(NamedTuple):
    """Which groups a sampler has.

    Attributes:
      index: i, from 0.
      count: N.
    """

    index: int = 0
    count: int = 1

    def number(self, own: int, batch: int) -> int:
        """The number in the run of this sampler's group `own`, from 0. batch: B, groups per batch of the run."""
        version, place = divmod(own, batch // self.count)
        return version * batch + place * self.count + self.index

    def of_batch(self, records: list) -> list:
        """Its records of a batch."""
        return records[self.index :: self.count]


WHOLE = Share()  # of a run with one sampler


def names_of(samplers: int) -> list[str]:
    """The names of a run's samplers, and of their folders in the workdir."""
    return ["sampler"] if samplers == 1 else [f"sampler_{index}" for index in range(samplers)]


def share_of(config, index: int) -> Share:
    """The share of sampler `index`.

    Raises:
      ValueError: if there is no such sampler, or a run with this config cannot have several.
    """
    check_several(config)
    if not 0 <= index < config.flow.samplers:
        raise ValueError(
            f"--sampler={index}: flow.samplers={config.flow.samplers}, so it is one of 0 to {config.flow.samplers - 1}"
        )
    return Share(index, config.flow.samplers)


def check_several(config) -> None:
    """Raises ValueError if the groups of this config depend on the clock of a sampler, and there are several."""
    flow, batch = config.flow, config.sample.prompts_per_step
    if flow.samplers == 1:
        return
    wanted = {"order": "oldest", "in_flight": "drain", "max_running": 0, "schedule": "counted"}
    wrong = [f"flow.{name}={flow[name]!r}, not {value!r}" for name, value in wanted.items() if flow[name] != value]
    if batch % flow.samplers:
        wrong.append(f"sample.prompts_per_step={batch}, no multiple of {flow.samplers}")
    if wrong:
        raise ValueError(
            f"flow.samplers={flow.samplers}: each sampler has a clock of its own, and with {'; '.join(wrong)} the "
            "batches would depend on it: take configs/grpo_async.py:delay1 (or :delay2 ...), or one sampler"
        )
