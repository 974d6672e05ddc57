"""Every config file loads, with each of its arguments, and has the fields of its base."""

import importlib
import pathlib
import re

import pytest
from ml_collections import ConfigDict

from configs import agents, common, grpo_async, masked_diffusion, ppo_common
from configs.preferences import given, online, reward_models
from tests.paths import REPO_ROOT

FILES = sorted(
    path.relative_to(REPO_ROOT)
    for path in (REPO_ROOT / "configs").rglob("*.py")
    if path.name != "__init__.py" and "def get_config" in path.read_text(encoding="utf-8")
)
ABLATIONS = sorted(  # those of programs; the studies are held by tests/experiments/test_ablation.py
    path.relative_to(REPO_ROOT)
    for path in (REPO_ROOT / "configs").rglob("*.py")
    if '\n            warm_start="' in (text := path.read_text(encoding="utf-8")) and "def get_ablation" in text
)
# Groups whose fields are the keywords of a function.
PLACES = ("reward_scale", "baseline", "reward_kl", "loss_kl", "entropy")
SLOTS = (  # of GRPO; of DPO; of online DPO; of a reward model
    *("shaping", "reward_kl", "advantage", "behavior_weight", "token_weight"),
    *("token_selection", "row_selection", "entropy_weight"),
    *("surrogate", "kl", "aggregate", "entropy_aggregate"),
    *("score_map", "scale", "offset", "compare", "link", "weight", "regularizer", "batch_stats"),
    *("candidate_value", "pair_selection", "reference_schedule"),
    *("loss", "combine"),
)
OPEN = (
    "task",
    "sample.prompts",
    "agent.env",
    "agent.branching",
    *(f"algorithm.{slot}" for slot in SLOTS),
    *(f"algorithm.trackers.{place}" for place in PLACES),
    *("critic.advantage", "critic.loss", "sft.loss", "sft.prompts"),
    "reward.compose",
)
# Groups whose fields are data, names that a file gives.
FREE = ("agent.replay", "agent.turn_rewards", "task", "data", "algorithm.reference", "sample.pairs", "benchmarks")
FREE += ("agent.curriculum", "critic.support")  # critic.support.members: of several critics only
FREE += ("arms", "programs", "frontier", "best_of_n", "judge", "reward.terms", "foreign", "schedules", "sample.prompts")


def of_samples(name: str) -> ConfigDict:
    """Preferences are the policy's own."""
    return online.of(common.base(name))


# What a config of each program starts from.
BASES = {
    "grpo": common.base,
    "grpo_async": grpo_async.base,
    "agents": agents.base,
    "masked_diffusion": masked_diffusion.base,
    "ppo": common.base,
    "best_of_n": common.base,
    "dpo": given.base,
    "online_dpo": of_samples,
    "frontier": of_samples,
    "reward_model": reward_models.base,
}
# Groups of their own, which a file fills.
OF_SOME = {"frontier": ("arms", "programs", "frontier"), "best_of_n": ("best_of_n",)}


def base_of(config: ConfigDict) -> ConfigDict:
    """The fields that a config of its program has, with their defaults."""
    base = BASES["agents" if "agent" in config else config.program]("x")
    if config.program == "ppo":
        base = ppo_common.with_critic(base)
    for group in OF_SOME.get(config.program, ()):
        base[group] = config[group]
    return base


def module_of(path):
    return importlib.import_module(".".join(path.with_suffix("").parts))


def arguments(path) -> list[str | None]:
    """None, and the words in back-quotes after "Arguments" in a config's docstring."""
    _, _, said = (module_of(path).__doc__ or "").partition("Argument")
    return [None, *re.findall(r"`(\w+)`", said)]


CASES = [(path, argument) for path in FILES for argument in arguments(path)]
IDS = [f"{path}:{argument or ''}" for path, argument in CASES]


def names(config: ConfigDict, prefix: str = "") -> set[str]:
    """The dotted names of the fields, but those of the open groups."""
    found = set()
    for key, value in config.items():
        inside = isinstance(value, ConfigDict) and prefix + key not in (*OPEN, *FREE)
        found |= names(value, f"{prefix}{key}.") if inside else {prefix + key}
    return found


def kind(value):
    """A value's type, as far as a program cares: an int is a good float; a tuple and a list are one thing."""
    return float if type(value) is int else tuple if type(value) is list else type(value)


def test_the_files_are_found():
    assert {"arithmetic.py", "game24.py", "stories_sentiment.py"} <= {path.name for path in FILES}
    assert [argument for path, argument in CASES if path.name == "arithmetic.py"] == [None, "smoke", "shuffled"]


@pytest.mark.parametrize(("path", "argument"), CASES, ids=IDS)
def test_fields_are_those_of_the_base(path, argument):
    config = module_of(path).get_config(argument)
    if "env" in config:
        pytest.skip("of the control programs, which have fields of their own")
    base = base_of(config)
    assert names(config) == names(base)
    for name in names(base) - {*OPEN, *FREE}:
        found, wanted = config, base
        for part in name.split("."):
            found, wanted = found[part], wanted[part]
        assert kind(found) is kind(wanted), f"{name} is {found!r}, the base has {wanted!r}"
    for name in sorted(set(OPEN) & names(base) - set(FREE)):
        found = config
        for part in name.split("."):
            found = found[part]
        assert "fn" in found
    assert "name" in config.task


@pytest.mark.parametrize("path", FILES, ids=str)
def test_smoke_is_small(path):
    if "smoke" not in arguments(path):
        pytest.skip("no smoke argument")
    config = module_of(path).get_config("smoke")
    if "env" in config:
        pytest.skip("of the control programs, which have fields of their own")
    assert config.sft.steps <= 20
    if config.program != "frontier":  # its arms say how many
        assert config.train.steps <= 5 and config.train.get("batch_size", 0) <= 16
        assert "sample" not in config or config.sample.prompts_per_step * config.sample.group_size <= 64
    assert config.eval.num_prompts * config.eval.samples_per_prompt <= 64


@pytest.mark.parametrize("path", FILES, ids=str)
def test_unknown_argument(path):
    with pytest.raises(ValueError, match="'smokee'.* is none of "):
        module_of(path).get_config("smokee")


@pytest.mark.parametrize("path", ABLATIONS, ids=str)
def test_ablations_name_configs_that_load(path):
    ablation = module_of(path).get_ablation()
    for arm in [ablation.warm_start, *ablation.arms.values()]:
        file, _, argument = arm.partition(":")
        module_of(pathlib.Path(file)).get_config(argument or None)


def test_unknown_field_of_a_group():
    with pytest.raises(ValueError, match=r"learning_rat'.*learning_rate"):
        common.optimizer(learning_rat=1.0)
    with pytest.raises(ValueError, match=r"embed'.*embed_dim"):
        common.transformer(embed=3)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("configs.agents_worlds", "maze,wordle"),
        ("configs.agents_libraries", "mcp,reasoning"),
        ("configs.preferences.armap", "maze,search"),
    ],
)
def test_two_words_for_one_choice_are_refused(module, words):
    """A set has no order: one of them would be taken, by the hash seed of the process."""
    with pytest.raises(ValueError, match=f"choose at most one of {words.replace(',', ', ')}"):
        importlib.import_module(module).get_config(words)
