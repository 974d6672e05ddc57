"""The families of methods: their files, their baselines, and the functions that a config names."""

import importlib
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from ml_collections import ConfigDict

from configs import ppo_common
from configs.preferences import online
from experiments.parts import actor_critic, policy, preference_steps
from rl_jax.core import trackers
from rl_jax.core.binding import bind
from rl_jax.losses.preference import batch_stats
from rl_jax.selection import candidate_values, pair_selection, reference_policy

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Family(NamedTuple):
    """Methods that are compared with one of them, GRPO or DPO.

    Attributes:
      name: key of FAMILIES.
      package: of the method files.
      baseline: key of the baseline.
      groups: config groups that define a method.
      of_the_task: fields in these groups that the task decides, not the method: batch sizes, learning rates.
      usual: group that the baseline lacks -> its default content.
      own: fields of such a group that are always shown.
      test: the test file that covers every method.
    """

    name: str
    package: str
    baseline: str
    groups: tuple[str, ...]
    of_the_task: tuple[str, ...]
    usual: dict[str, Callable[[], ConfigDict]]
    own: tuple[str, ...]
    test: str

    @property
    def folder(self) -> pathlib.Path:
        """The folder of the method files."""
        return ROOT / self.package.replace(".", "/")

    @property
    def departs(self) -> str:
        """The words that begin the paragraph of differences in a method file."""
        return f"Departs from {self.baseline.upper()}:"


FAMILIES = {
    "online": Family(
        name="online",
        package="configs.methods",
        baseline="grpo",
        groups=("",),
        of_the_task=("name", "program", "train.optimizer", "critic.optimizer", "critic.warmup_steps", "critic.support"),
        usual={"critic": ppo_common.critic},
        own=("critic.advantage", "critic.loss"),
        test="tests/configs/test_methods.py",
    ),
    "preference": Family(
        name="preference",
        package="configs.methods.preferences",
        baseline="dpo",
        groups=("algorithm.", "sample."),
        of_the_task=("sample.prompts_per_step", "sample.prompts_per_batch"),
        usual={"sample": online.sample, "algorithm": online.choices},
        own=("algorithm.pair_selection",),
        test="tests/configs/test_methods_preference.py",
    ),
}


def keys(family: str = "online") -> list[str]:
    """A family's methods, one file each. The first is the baseline."""
    baseline = FAMILIES[family].baseline
    result = sorted(path.stem for path in FAMILIES[family].folder.glob("*.py") if not path.stem.startswith("_"))
    return [baseline, *(key for key in result if key != baseline)]


def all_keys() -> list[str]:
    """The methods of all families; keys are unique over the families."""
    return [key for family in FAMILIES for key in keys(family)]


def family_of(key: str) -> Family:
    """The family that has the method."""
    return next(family for family in FAMILIES.values() if (family.folder / f"{key}.py").exists())


def module_of(key: str):
    """The method's file, as a module."""
    return importlib.import_module(f"{family_of(key).package}.{key}")


def load(key: str, arg: str | None = None) -> ConfigDict:
    """The config of a method on the task that `arg` names."""
    return module_of(key).get_config(arg)


def bound_functions(config: ConfigDict) -> dict[str, Callable]:
    """Slot -> its function, with keywords bound."""
    return _bound_preference(config) if "link" in config.algorithm else _bound_online(config)


def _bound_online(config: ConfigDict) -> dict[str, Callable]:
    chosen = policy.make_credit(config)._asdict() | policy.make_objective(config)._asdict()
    chosen["token_selection"] = chosen.pop("selection")
    if "critic" in config:
        del chosen["advantage"]  # the critic gives the advantage
        estimator, objective = actor_critic.make_estimator(config), actor_critic.make_objective(config)
        chosen |= {"critic.advantage": estimator.advantage, "critic.loss": objective.value_loss}
    for place, spec in config.algorithm.trackers.items():
        chosen |= {f"trackers.{place}": bind(spec.to_dict(), trackers)} if spec.fn else {}
    return {slot: fn for slot, fn in chosen.items() if callable(fn)}


def _bound_preference(config: ConfigDict) -> dict[str, Callable]:
    chosen = preference_steps.make_objective(config)._asdict()
    if config.algorithm.regularizer_coef:
        chosen["regularizer_coef"] = chosen["regularizer"]
    chosen["batch_stats"] = bind(config.algorithm.batch_stats.to_dict(), batch_stats, beta=config.algorithm.beta)
    modules = {
        "candidate_value": candidate_values, "pair_selection": pair_selection, "reference_schedule": reference_policy
    }
    for slot in filter(config.algorithm.__contains__, modules):
        chosen[slot] = bind(config.algorithm[slot].to_dict(), modules[slot])
    return {slot: fn for slot, fn in chosen.items() if callable(fn)}
