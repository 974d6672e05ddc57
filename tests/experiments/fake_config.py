"""The config of tests/experiments/fake_program.py, with sweeps."""

from ml_collections import ConfigDict

from configs import sweeps


def get_config(arg=None):
    fake = dict(lr=0.1, steps=3, fail=arg or "", gate="")
    return ConfigDict(dict(name="fake", seed=0, fake=fake))


def sweep_lr(arg=None):
    return sweeps.grid("fake.lr", sweeps.numbers(arg, (0.1, 0.2)))


def sweep_seed(arg=None):
    return sweeps.seeds(arg, default=2)


def sweep_bad(arg=None):
    return sweeps.grid("fake.lrr", (0.1,))


def sweep_fail(arg=None):
    return sweeps.grid("argument", sweeps.words(arg, ("once", "always", "stop")))


def space_lr():
    return {"fake.lr": ("uniform", 0.0, 1.0)}
