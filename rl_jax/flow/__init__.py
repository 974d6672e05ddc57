"""Weights one way, finished groups the other, between the loop that trains and the loops that sample. No jax.

    trainer                                        sampler
    link.resume(step)                              version, params = link.newest(after=version)
    link.publish(version, params)      ------->    link.weights(version), or link.slices(version): parts (shards)
    groups = link.take(n)              <-------    link.put([Group(number, finished, table)])
    link.acknowledge(step, numbers)                link.known()
    link.settle(step)                              link.say("sampler-0", beat)
    link.say("end", True)              <------>    link.hear("end")

Four links have this protocol (`protocol.Link`):

    Local()                       one process; the two sides are two loops, or two threads
    Folder(folder, role=...)      processes that see one folder, which may be a mounted bucket
    FlightTrainer(folder, ...)    the trainer's side over the network, with the folder as its write-ahead log
    FlightSampler(address, ...)   a sampler's side over the network

`columns` is a trainer's: samples as rows whose columns fill one by one, and each task takes those that it can. Their
values may be in `storage` units, processes of their own to which samplers put rows as they end (`units`).
`requests` is for workers that only answer (actors that step environments): bytes in, bytes out, over the network.

A group has a number that is unique in the run. It is trained once, or, if the trainer died before its checkpoint, once
in the steps that count: `ledger` says why.
"""

from rl_jax.flow.folder import Folder
from rl_jax.flow.local import Local
from rl_jax.flow.protocol import Group, Link

__all__ = ["Folder", "Group", "Link", "Local"]
