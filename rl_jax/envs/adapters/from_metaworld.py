"""Meta-World's tasks of a robot arm in our protocol (the optional extra `metaworld`), stepped on the host.

    metaworld/reach-v3                    a task of its 50 (MT1), its goal seen; hidden=True: ML1
    metaworld/reach-v3+drawer-close-v3    several: environment i has task i mod K; K last features, 1 at the task
    metaworld/MT10, MT25, MT50            the benchmark's tasks, like several of one's own
    metaworld/ML10, ML25, ML45            the same for meta-learning, goals and tasks hidden; split="train" or "test"

An episode has one of the task's num_goals goals, and 500 steps; it goes on after a success. An observation has 39
numbers: the hand, the gripper and two objects, now and one step ago, and the goal, 0 if it is hidden. For the
consequences of living on the host see rl_jax.envs.adapters.host. Sources: arXiv 1910.10897; metaworld 3.0.0.
"""

import functools

import numpy as np

from rl_jax.envs.adapters.from_host import Row
from rl_jax.envs.adapters.host import hosted
from rl_jax.envs.protocol import Box, Vector

try:
    import metaworld
    import mujoco
    from metaworld import env_dict, sawyer_xyz_env
except ImportError as error:
    raise ImportError("Meta-World needs the extra: pip install -e '.[metaworld]'") from error

SIZE = 39  # of an observation without a task's id
MULTI_TASK = {"MT10": env_dict.MT10_V3, "MT25": env_dict.MT25_V3, "MT50": env_dict.MT50_V3}
META = {"ML10": env_dict.ML10_V3, "ML25": env_dict.ML25_V3, "ML45": env_dict.ML45_V3}


def _reset_mocap_welds(self) -> None:
    """The library's own, for any MuJoCo: it sets 11 numbers; MuJoCo 3.17 has 12, the last of which stays as it is."""
    for i in np.flatnonzero(self.model.eq_type == mujoco.mjtEq.mjEQ_WELD):
        self.model.eq_data[i, :11] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 5.0)


sawyer_xyz_env.SawyerMocapBase.reset_mocap_welds = _reset_mocap_welds


class Task:
    """One of the tasks as a host_worlds.HostEnv; the seed of an episode chooses its goal.

    Args:
      name: of the task, such as "reach-v3".
      goals: metaworld.Task, as from `goals_of`.
      label: float32 [K], written after the observation; K may be 0.
      max_steps: after so many steps an episode is cut off; at most 500.
      reward: version of the task's reward, "v2" or "v1".
    """

    def __init__(self, name: str, goals: tuple, label: np.ndarray, *, max_steps: int, reward: str):
        self._env = env_dict.ALL_V3_ENVIRONMENTS[name](reward_function_version=reward)
        self._goals, self._label, self._max_steps, self.solved = goals, label, max_steps, False
        high = np.concatenate([np.full(SIZE, np.inf, np.float32), np.ones_like(label)])
        self.observation_space = Box(np.concatenate([-high[:SIZE], np.zeros_like(label)]), high)
        self.action_space = Box(np.full(4, -1.0, np.float32), np.ones(4, np.float32))

    def reset(self, seed: int) -> np.ndarray:
        """Starts the episode of this seed. Returns its first observation, float32 [39 + K]."""
        self._env.set_task(self._goals[np.random.default_rng(seed).integers(len(self._goals))])
        self._time, self.solved = 0, False
        return self._observe(self._env.reset()[0])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Moves the hand by action[:3] and the gripper by action[3]. Never terminates."""
        observation, reward, _, truncated, info = self._env.step(np.asarray(action, np.float32))
        self._time += 1
        self.solved = self.solved or bool(info["success"])
        return self._observe(observation), float(reward), False, bool(truncated) or self._time >= self._max_steps

    def _observe(self, observation: np.ndarray) -> np.ndarray:
        return np.concatenate([observation, self._label]).astype(np.float32)


@functools.lru_cache(maxsize=64)
def goals_of(name: str, *, hidden: bool, split: str, num_goals: int, seed: int) -> tuple:
    """The goals of a task, as the benchmark draws them: metaworld.Task, num_goals of them."""
    usual, metaworld._N_GOALS = metaworld._N_GOALS, num_goals  # as the library's own keyword num_goals sets it
    try:
        drawn = metaworld.ML1(name, seed=seed) if hidden else metaworld.MT1(name, seed=seed)
    finally:
        metaworld._N_GOALS = usual
    return tuple(drawn.test_tasks if split == "test" else drawn.train_tasks)


def tasks_of(name: str, split: str) -> tuple[str, ...]:
    """The names of the tasks of a benchmark, or those that `name` joins by "+".

    Raises:
      ValueError: if a task or the split is unknown.
    """
    if split not in ("train", "test") or (split == "test" and name in MULTI_TASK):
        raise ValueError(f"metaworld/{name}: split={split!r} is not train, nor test of meta-learning")
    names = tuple(META[name][split] if name in META else MULTI_TASK.get(name, name.split("+")))
    if unknown := [task for task in names if task not in env_dict.ALL_V3_ENVIRONMENTS]:
        known = ", ".join([*MULTI_TASK, *META, *env_dict.ALL_V3_ENVIRONMENTS])
        raise ValueError(f"metaworld/{name}: {unknown[0]!r} is none of {known}")
    return names


def make_vector(name: str, num_envs: int, **keywords) -> Vector:
    """num_envs environments of the tasks, as a Vector with their names. Arguments and errors are `make_tasks`'s."""
    names, envs = make_tasks(name, num_envs, **keywords)
    return hosted(Row(envs, solving=True), num_envs, names)


def make_task(name: str, **keywords) -> Task:
    """One task as a host_worlds.HostEnv, for actors (rl_jax.rollout.actors). Arguments are `make_tasks`'s.

    Raises:
      ValueError: as `make_tasks`, and if the name is of several tasks.
    """
    names, envs = make_tasks(name, 1, **keywords)
    if len(names) > 1:
        raise ValueError(f"metaworld/{name} are {len(names)} tasks, and actors step one: name a task")
    return envs[0]


def make_tasks(
    name: str,
    num_envs: int,
    *,
    hidden: bool = False,
    split: str = "train",
    num_goals: int = 50,
    goal_seed: int = 0,
    max_steps: int = 500,
    reward: str = "v2",
) -> tuple[tuple[str, ...], list[Task]]:
    """num_envs environments of the tasks, environment i of task i mod K.

    Args:
      name: of a task, of several joined by "+", or of a benchmark; see the module.
      num_envs: B; a multiple of K gives all tasks equally many.
      hidden: neither the goal nor the task's id is seen; always so in ML10, ML25 and ML45.
      split: "test": other goals, and of ML10, ML25 and ML45 other tasks. With hidden goals only.
      num_goals: per task; the benchmark has 50.
      goal_seed: which goals.
      max_steps: after so many steps an episode is cut off; at most the library's 500.
      reward: version of the tasks' rewards, "v2" or "v1".

    Returns:
      (the names of the K tasks, the environments).

    Raises:
      ValueError: if a task, split or reward is unknown, or max_steps or num_goals is out of range.
    """
    names, hidden = tasks_of(name, split), hidden or name in META
    if split == "test" and not hidden:
        raise ValueError(f"metaworld/{name}: split='test' is of hidden goals: set hidden=True")
    if reward not in ("v1", "v2"):
        raise ValueError(f"metaworld/{name}: reward={reward!r} is neither v1 nor v2")
    if not 1 <= max_steps <= 500 or num_goals < 1:
        raise ValueError(f"metaworld/{name}: max_steps={max_steps} must be 1 to 500, num_goals={num_goals} 1 or more")
    chosen = dict(hidden=hidden, split=split, num_goals=num_goals, seed=goal_seed)
    labels = np.eye(len(names), dtype=np.float32) if len(names) > 1 and not hidden else np.zeros((len(names), 0))
    envs = []
    for i in range(num_envs):
        task = i % len(names)
        goals = goals_of(names[task], **chosen)
        envs.append(Task(names[task], goals, labels[task], max_steps=max_steps, reward=reward))
    return names, envs
