"""Asynchronous GRPO: rows are sampled while the policy is trained, with bounded staleness.

    python -m experiments.grpo_async --config=configs/grpo_async.py --workdir=runs/async

The task and the model of configs/tasks/arithmetic.py. Rows may be of older versions than the policy that is trained:
AReaL's decoupled loss weighs each token by exp(old_logp - behavior_logp), up to 5, and clips about the policy at the
start of the updates. Arguments: `sync` (eta 0: experiments.grpo, bit for bit), `free` (clocks decide, and are logged),
`drain`, `keep` (what becomes of rows in flight), `oldest`, `drop` (which groups make a batch), `one_step_off` (the next
batch is sampled while this one is trained on, with a barrier between batches), `delay8` (a delay line: every row is
exactly 8 versions old, the first ones younger), `smoke` (seconds, for CI).
"""

from configs import common, sweeps
from configs.tasks import arithmetic

DELAYS = {f"delay{lag}": lag for lag in (1, 2, 4, 8, 16)}


def flow(**changes) -> dict:
    """config.flow: staleness and schedule."""
    fields = dict(
        eta=2,
        age=8,
        order="ready",
        max_running=0,
        schedule="counted",
        train_ticks=1,
        in_flight="interrupt",
        decode_steps=0,
        measure=True,
        timeout_s=1800.0,
        samplers=1,
        streaming=False,
        columns=False,
        balance=False,
    )
    return fields | changes


def of(config, **changes):
    """The config of a run of experiments.grpo as one of experiments.grpo_async. changes: of config.flow."""
    config.program = "grpo_async"
    config.flow = flow(**changes)
    config.rollout.engine.name = "continuous"
    return config


def delayed(config, lag: int):
    """A delay line: batch n is sampled by version n - lag, all of it before the next version is there."""
    config.flow.update(eta=lag, age=max(lag, 8), order="oldest", in_flight="drain")
    return config


def base(name: str):
    """A whole run: common.base with config.flow."""
    return of(common.base(name))


def get_config(arg: str | None = None):
    words = common.parse(arg, ("sync", "free", "drain", "keep", "oldest", "drop", "one_step_off", *DELAYS, "smoke"))
    config = of(arithmetic.get_config("smoke" if "smoke" in words else None))
    config.name = "grpo_async"
    config.flow.decode_steps = 4  # of 12 tokens at most
    for word in words & {"drain", "keep"}:
        config.flow.in_flight = word
    for word in words & {"oldest", "drop"}:
        config.flow.order = word
    for word in words & set(DELAYS):
        delayed(config, DELAYS[word])
    if "one_step_off" in words:
        delayed(config, 1)
    if "free" in words:
        config.flow.schedule = "free"
    if "sync" in words:
        config.flow.update(eta=0, age=0, decode_steps=0)
        return config
    config.train.update(minibatches=2)
    config.algorithm.behavior_weight = dict(fn="masked", cap=5.0)
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)


def sweep_eta(arg: str | None = None):
    """How far sampling runs ahead."""
    return sweeps.grid("flow.eta", sweeps.numbers(arg, (0, 1, 2, 4, 8)))
