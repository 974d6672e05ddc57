"""Rows of steps for the tests of relabellings: random ones, and those of a table walked at random."""

import numpy as np

from rl_jax.models.agents.distributions import categorical
from rl_jax.rollout.envs.steps import Transitions

TWO = categorical(2)


def random_rows(seed=0, envs=3, steps=8, size=4, actions=2) -> Transitions:
    """Steps whose observations are numbers; s' is the next step's s inside an episode."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(envs, steps + 1, size)).astype(np.float32)
    done = rng.random((envs, steps)) < 0.2
    late = rng.random((envs, steps)) < 0.5
    return Transitions(
        observations=observations[:, :-1],
        next_observations=np.where(done[..., None], rng.normal(size=(envs, steps, size)), observations[:, 1:]).astype(
            np.float32
        ),
        outputs=np.zeros((envs, steps, actions), np.float32),
        actions=rng.integers(actions, size=(envs, steps)).astype(np.int32),
        rewards=rng.normal(size=(envs, steps)).astype(np.float32),
        terminated=done & ~late,
        truncated=done & late,
    )


def one_hot(places, size) -> np.ndarray:
    """int [...] -> float32 [..., size]."""
    return np.eye(size, dtype=np.float32)[np.asarray(places)]


def walk(places, size, *, actions=None, ended=True) -> Transitions:
    """One environment that goes through these places, one-hot; the episode terminates at the last one."""
    places = np.asarray(places)
    steps = len(places) - 1
    actions = np.zeros(steps, np.int32) if actions is None else np.asarray(actions, np.int32)
    end = np.arange(steps) == steps - 1
    return Transitions(
        observations=one_hot(places[:-1], size)[None],
        next_observations=one_hot(places[1:], size)[None],
        outputs=np.zeros((1, steps, 2), np.float32),
        actions=actions[None],
        rewards=np.zeros((1, steps), np.float32),
        terminated=(end & ended)[None],
        truncated=np.zeros((1, steps), bool),
    )
