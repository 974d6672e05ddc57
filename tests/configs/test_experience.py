"""Every file of configs/experience: it says what it is, and its defining part is in its config."""

import importlib
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import experience
from experiments.parts import policy
from experiments.parts.check_config import check
from experiments.tools import methods
from rl_jax import advantages as adv
from rl_jax.core.binding import bind
from rl_jax.credit import shaping
from rl_jax.rewards import boxes
from rl_jax.tasks import toy_kinds
from tests.paths import REPO_ROOT

KEYS = sorted(p.stem for p in (REPO_ROOT / "configs" / "experience").glob("*.py") if not p.stem.startswith("_"))


def module_of(key: str):
    return importlib.import_module(f"configs.experience.{key}")


@pytest.mark.parametrize("key", KEYS)
def test_a_file_says_what_it_is(key):
    text = module_of(key).__doc__
    assert re.search(r"arXiv \d{4}\.\d{5}", text.partition("\n")[0]) and "Departs from GRPO:" in text
    shown = re.sub(r"    python -m experiments.sft.*\n", "", text.partition("\n\nArguments")[0])  # what comes first
    said = methods.read_docstring(shown)
    assert re.search(r"[=<>~]", said.equation)
    program = module_of(key).get_config().program
    assert f"    python -m experiments.{program} --config=configs/experience/{key}.py" in text
    assert experience.__doc__


@pytest.mark.parametrize("arg", [None, "smoke", "game24,smoke"])
@pytest.mark.parametrize("key", KEYS)
def test_its_config_can_run_and_has_its_rows(key, arg):
    config = module_of(key).get_config(arg)
    check(config)
    policy.check_choices(config)
    assert config.name.startswith(key)
    soup = config.algorithm.reference_soup.init_from
    own = config.foreign or config.schedules or soup or config.reward.terms or config.rollout.window
    own = own or config.sft.loss.fn or config.algorithm.action_mask.top_p < 1
    assert own or config.algorithm.perception.kl_coef
    size = config.sample.group_size
    rules = {
        "scaf_grpo": dict(at_most=0, count=1, train_on="original"),
        "ghpo": dict(at_most=0, replace="group", train_on="hinted", levels=(0.25, 0.5, 0.75)),
        "critique_grpo": dict(at_most=size, count=1),
        "hpt": dict(at_most=0, rest="drop"),
        "tempsamp_r1": dict(at_most=size, count=1),
        "arpo_replay": dict(size=8, above=0.1, behavior="drawn"),
        "ppo_plus_plus": dict(share=0.5, random_level=True, until_right=False),
    }
    for name, value in rules.get(key, {}).items():
        assert next(iter(config.foreign.values()))[name] == value


def test_the_shaping_of_tempsamp_changes_its_advantages():
    """Of rewards with two values any shaping is affine, and a group's std takes it away: the run's are graded."""
    config = module_of("tempsamp_r1").get_config()
    assert config.task.kinds == ("regions",) and config.reward.terms.iou.fn == "boxes.overlap"
    toy = toy_kinds.regions(random.Random(0))
    rewards = jnp.array([boxes.overlap("", text, toy.info)["reward"] for text in (toy.right, *toy.wrong)])
    chosen = config.algorithm.to_dict()
    shape, advantage = bind(chosen["shaping"], shaping), bind(chosen["advantage"], adv)
    rest = jnp.ones(4, int), jnp.zeros(4, bool), jax.random.key(0)
    plain, changed = (advantage(x, group_size=4) for x in (rewards, shape(rewards, *rest)))
    assert np.abs(plain - changed).max() > 0.02
    two = jnp.array([1.0, 0.0, 0.0, 1.0])
    shaped = advantage(shape(two, *rest), group_size=4)
    np.testing.assert_allclose(shaped, advantage(two, group_size=4), atol=1e-4)


def test_published_numbers():
    """PAPO's run without a reference KL; D2LOLS' beta and the share of its first phase in tril's configs."""
    papo = module_of("papo").get_config().algorithm
    assert papo.kl_coef == 0.0 and papo.perception.kl_coef == 0.01
    assert papo.perception.entropy_coef == papo.perception.corrupted_entropy_coef == 0.03
    d2lols = module_of("d2lols").get_config()
    switch = d2lols.train.steps // 5 + 1
    assert d2lols.schedules.aggrevate["values"] == ((1, 1.0), (switch, 0.0))
    assert d2lols.schedules.guide["values"] == ((1, 0.0), (switch, 0.8))
