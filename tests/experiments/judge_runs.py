"""Finished runs that nobody trained: folders with a config and a checkpoint, for judges to load."""

import jax

from configs.preferences import reward_models
from experiments.parts import reward_readers, trained_heads
from experiments.parts.run import record_run
from experiments.parts.setup import make_setup
from rl_jax.runs.logging import write_atomically
from rl_jax.training import checkpoint

SMALL = dict(embed_dim=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64, tied_head=False)


def reward_run(
    folder,
    alphabet: str,
    *,
    reads: str = "response",
    seed: int = 0,
    members: int = 1,
    scale: float = 20.0,
    layers: int = 1,
):
    """A run of experiments.reward_model with random params, whose head is `scale` times the usual."""
    words = {"response": "smoke,scratch", "steps": "smoke,scratch,steps", "log_ratio": "smoke,scratch,implicit"}[reads]
    config = reward_models.get_config(words)
    config.seed, config.task.alphabet = seed, alphabet
    config.model.update(**SMALL)
    config.rollout.update(completion_length=8, prompt_buckets=(16,))
    config.algorithm.members, config.algorithm.head.layers = members, layers
    config.log.update(progress=False, tensorboard=False)
    setup = make_setup(config)
    reader = reward_readers.make_reader(setup)
    params = reader.add_head(setup.init_params(), jax.random.key(seed))
    head = jax.tree.map(lambda x: scale * x, trained_heads.head_of(params))
    items = {"params": {n: p for n, p in params.items() if n not in head}, **({"head": head} if head else {})}
    if reads == "log_ratio":  # else the model is its reference, and every ratio 0
        items["params"] = jax.tree.map(lambda x: x * 1.5, items["params"])
    return save(folder, setup, items, "reward_model")


def model_run(folder, config, *, seed: int = 0):
    """A run of a policy program, with random params."""
    config = config.copy_and_resolve_references().unlock()
    config.seed = seed
    setup = make_setup(config)
    return save(folder, setup, {"params": setup.init_params()}, config.program)


def save(folder, setup, items, program):
    """Writes config.json, the checkpoint and final.json. Returns the folder's path."""
    record_run(setup.config, folder, program, setup.mesh.devices.flat)
    with checkpoint.Checkpointer(folder / "checkpoints", every=1) as checkpoints:
        checkpoints.save(1, items, {"step": 1}, {})
    write_atomically(folder / "final.json", b'{"step": 1}\n')
    return str(folder)
