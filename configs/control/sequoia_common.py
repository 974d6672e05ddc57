"""SEQUOIA (2503.01919) on coupled arms: what configs/control/replay.py:sequoia and :restless_vectors are made of.

The best feasible action is found by an integer program over a ReLU network (or by `search="enumeration"`: the same
answers), errors have priorities, the loss is Huber's. Each change of the network is solved for anew, so the slow copy
stands still for 100 gradient steps, and the network has one layer of 16 units where the paper's has 16 and 32: HiGHS
needs about 12 ms per state, with the paper's .6 s. Departs further: exploration begins at 1, the paper's at .9; no
pre-training on myopic rewards. env.arms and env.budget may be larger than any list of combinations.

    python -m experiments.control.replay --config=configs/control/replay.py:sequoia
    python -m experiments.control.replay --config=configs/control/replay.py:sequoia --config.env.arms=20 \
        --config.env.budget=8
"""


def vectors(restless: dict) -> dict:
    """The environment of listed combinations, with its actions as vectors. restless: its fields."""
    return restless | dict(
        env=dict(name="probes/restless_vectors", arms=6, budget=2),
        network=dict(hidden=(16,)),
        log_every=50,
        checkpoint=dict(every=250),
    )


SEQUOIA = dict(
    algorithm=dict(
        method=dict(fn="sequoia", search="program"),
        head=dict(fn="scalar", delta=1.0),
        tau=1.0,
        target_every=100,
        exploration=dict(initial=1.0, final=0.05, fraction=0.2),
        priority=dict(exponent=0.6, correction=0.4),
    ),
    train=dict(max_grad_norm=5.0),
)
