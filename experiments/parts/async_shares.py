"""Several samplers of one run: each samples its share of every batch, and no bit depends on how many there are.

    python -m experiments.grpo_async ... --config.flow.samplers=2 --role=trainer
    python -m experiments.grpo_async ... --config.flow.samplers=2 --role=sampler --sampler=0      # and --sampler=1

Sampler i of N has the groups of place p in a batch with p mod N = i. In a delay line (flow.order=oldest,
flow.in_flight=drain: `delay1` to `delay16`) its clock, decode calls, is its own: the batch is the B oldest groups, and
those that were let in end before new weights enter, so neither depends on a clock. With other orders the samplers make
their decode calls together (async_clock).

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


# What makes batches and their weights depend on no clock.
OWN_CLOCK = {"order": "oldest", "in_flight": "drain", "max_running": 0}

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


def shares_clock(config) -> bool:
    """Whether the groups of this config depend on decode calls of all samplers: all but those of a delay line."""
    flow = config.flow
    return flow.samplers > 1 and any(flow[name] != value for name, value in OWN_CLOCK.items())


def shares_of(config, share: Share) -> list[Share]:
    """The samplers of a process: this share, or all of them in the process that has the whole."""
    return [Share(index, config.flow.samplers) for index in range(config.flow.samplers)] if share == WHOLE else [share]


def check_several(config) -> None:
    """Raises ValueError if there are several samplers, and they cannot be one to the bit."""
    flow, sample = config.flow, config.sample
    if flow.samplers == 1:
        return
    wrong = []
    if flow.schedule != "counted":
        wrong.append(f"flow.schedule={flow.schedule!r}: their clock is their decode calls, 'counted'")
    if sample.prompts_per_step % flow.samplers:
        wrong.append(f"sample.prompts_per_step={sample.prompts_per_step}, no multiple of {flow.samplers}")
    if sample.prompts.fn != "shuffled" or sample.memory.on:
        wrong.append(f"sample.prompts={sample.prompts.fn!r}: each draws the prompts by itself, 'shuffled', no memory")
    if wrong:
        raise ValueError(f"flow.samplers={flow.samplers}: {'; '.join(wrong)}")
