"""What cannot be is found in the config, by the field's name, before anything is loaded; what is shipped can be."""

import functools
import importlib
import math
import re
import shlex

import pytest
from ml_collections import ConfigDict

from configs.asynchronous import areal_1
from configs.control import environments
from configs.control import preferences as control_preferences
from configs.methods import grpo_r1
from configs.methods import ppo as ppo_method
from configs.preferences import best_of_n, given, online, reward_models
from configs.tasks import arithmetic, arithmetic_ppo, hf
from experiments.parts import check_config
from experiments.parts.check_config import check, literal
from rl_jax.core.binding import bind, public_functions
from tests.paths import REPO_ROOT

FILES = sorted(
    path.relative_to(REPO_ROOT)
    for path in (REPO_ROOT / "configs").rglob("*.py")
    if path.name != "__init__.py" and "def get_config" in path.read_text(encoding="utf-8")
)
# And those whose model.path is yet to be given.
UNFINISHED = {"configs/task.py": "--config.task.path=", "configs/agents.py:own": "agent.env: 'MODULE:CLASS'"} | {
    f"configs/prompts/fleming_r1.py:{word}": "--config.task.path=" for word in ("own", "scratch", "lora")
}


@functools.cache
def shipped() -> list[ConfigDict]:
    """Every shipped config, to be read only."""
    return [importlib.import_module(".".join(path.with_suffix("").parts)).get_config() for path in FILES]


def with_fields(config: ConfigDict, **values) -> ConfigDict:
    """The config with other values: train__steps=3. A dict takes the place of a group."""
    config.unlock()
    for name, value in values.items():
        *groups, last = name.split("__")
        place = config
        for group in groups:
            place = place[group]
        place[last] = value
    return config


def pairs(**values) -> ConfigDict:
    """A config of DPO that is complete."""
    return with_fields(given.get_config(), data__path="pairs.jsonl", **values)


def reward_model(**values) -> ConfigDict:
    return with_fields(reward_models.get_config(), **values)


def _of_rows(terms, weights, *, by):
    return terms["right"] / max(terms["right"])


def grpo(**values) -> ConfigDict:
    return with_fields(arithmetic.get_config(), **values)


def ppo(**values) -> ConfigDict:
    return with_fields(arithmetic_ppo.get_config(), **values)


def online_dpo(**values) -> ConfigDict:
    return with_fields(online.get_config(), **values)


def control(**values) -> ConfigDict:
    return with_fields(environments.get_config(), **values)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_what_is_shipped_can_be_run(path):
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    words = re.findall(r"`(\w+)`", (module.__doc__ or "").partition("Argument")[2])
    for word in (None, *words):
        config = module.get_config(word)
        missing = UNFINISHED.get(f"{path}:{word}", UNFINISHED.get(str(path))) if word != "smoke" else None
        if missing is None and check_config.get(config, "model.path") == check_config.FOLDER:
            missing = "--config.model.path="
        if missing:
            with pytest.raises(ValueError, match=re.escape(missing)):
                check(config)
        else:
            check(config)


def test_an_unfinished_config_can_be_finished():
    check(with_fields(hf.get_config(), model__path="/models/mine"))
    check(pairs())


NAN = math.nan


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (grpo(train__minibatches=3), "sample.prompts_per_step=32 x sample.group_size=8 (256 rows) must be a multiple "),
        (grpo(train__minibatches=2, train__micro_batches=3), "train.minibatches=2 x train.micro_batches=3"),
        (ppo(critic__micro_batches=5), "critic.micro_batches=5"),
        (pairs(score__micro_batches=2), "score.micro_batches=2: experiments.dpo scores all rows at once"),
        (grpo(score__micro_batches=3), "score.micro_batches=3"),
        (pairs(train__micro_batches=5), "train.batch_size=32 must be a multiple of train.micro_batches=5"),
        (reward_model(train__micro_batches=5), "train.batch_size=32 must be a multiple of train.micro_batches=5"),
        (online_dpo(sample__prompts_per_batch=5), "must be a multiple of sample.prompts_per_batch=5"),
        (grpo(sft__micro_batches=7), "sft.batch_size=128 must be a multiple of sft.micro_batches=7"),
        (control(train__minibatches=7), "sample.num_steps=128 (1024 rows) must be a multiple of train.minib"),
        (control(network__kind="gru", train__minibatches=16), "sample.num_envs=8 must be a multiple of train.minib"),
        (grpo(train__optimizer__learning_rate=0.0), "train.optimizer.learning_rate=0.0 must be a number above 0"),
        (grpo(train__optimizer__learning_rate=-1e-3), "learning_rate=-0.001 must be"),
        (grpo(sft__optimizer__learning_rate=NAN), "sft.optimizer.learning_rate=nan must be"),
        (grpo(train__optimizer__learning_rate=math.inf), "learning_rate=inf must be"),
        (control(train__optimizer__learning_rate=NAN), "train.optimizer.learning_rate=nan must be"),
        (grpo(train__max_grad_norm=0.0), "train.max_grad_norm=0.0 must be above 0"),
        (grpo(train__max_grad_norm=NAN), "train.max_grad_norm=nan must be above 0"),
        (grpo(algorithm__kl_coef=-0.1), "algorithm.kl_coef=-0.1 must be 0 or more"),
        (grpo(algorithm__reward_kl_coef=NAN), "algorithm.reward_kl_coef=nan must be 0 or more"),
        (grpo(algorithm__entropy_coef=NAN), "algorithm.entropy_coef=nan must be a number"),
        (grpo(train__steps=-1), "train.steps=-1 must be 0 or more"),
        (grpo(sft__steps=-1), "sft.steps=-1 must be 0 or more"),
        (grpo(train__epochs=0), "train.epochs=0 must be 1 or more"),
        (grpo(train__minibatches=0), "train.minibatches=0 must be 1 or more"),
        (grpo(train__micro_batches=0), "train.micro_batches=0 must be 1 or more"),
        (grpo(sample__group_size=0), "sample.group_size=0 must be 1 or more"),
        (grpo(sample__prompts_per_step=-8), "sample.prompts_per_step=-8 must be 1 or more"),
        (grpo(eval__every=-1), "eval.every=-1 must be 0 (only before and after) or more"),
        (grpo(sft__eval_every=0), "sft.eval_every=0 must be 1 or more"),
        (grpo(checkpoint__every=0), "checkpoint.every=0 must be 1 or more"),
        (grpo(checkpoint__keep_best=1, checkpoint__best_mode="min"), "best_mode='min' needs checkpoint.best_metric"),
        (control(log_every=0), "log_every=0 must be 1 or more"),
        (grpo(algorithm__surrogate__clip_low=-0.1), "algorithm.surrogate.clip_low=-0.1 must be from 0 to 1"),
        (grpo(algorithm__surrogate__clip_low=1.2), "algorithm.surrogate.clip_low=1.2 must be from 0 to 1"),
        (grpo(algorithm__surrogate__clip_low=NAN), "algorithm.surrogate.clip_low=nan must be from 0 to 1"),
        (grpo(algorithm__surrogate__clip_high=-0.1), "algorithm.surrogate.clip_high=-0.1 must be 0 or more"),
        (control(algorithm__surrogate__clip_high=NAN), "algorithm.surrogate.clip_high=nan must be 0 or more"),
        (pairs(algorithm__beta=0.0), "algorithm.beta=0.0 must be a number above 0"),
        (pairs(algorithm__beta=NAN), "algorithm.beta=nan must be a number above 0"),
        (online_dpo(algorithm__beta=-1.0), "algorithm.beta=-1.0 must be a number above 0"),
        (grpo(reward__time_limit_s=0.0), "reward.time_limit_s=0.0 must be above 0 seconds"),
        (grpo(reward__num_workers=-1), "reward.num_workers=-1 must be 0 or more"),
        (grpo(rollout__temperature=0.0), "rollout.temperature=0.0 must be above 0; for greedy decoding set top_k=1"),
        (grpo(eval__top_p=0.0), "eval.top_p=0.0 must be above 0"),
        (grpo(rollout__prompt_buckets=()), "rollout.prompt_buckets=() must be widths"),
        (ppo(critic__advantage__lam=1.5), "critic.advantage.lam=1.5 must be from 0 to 1"),
        (control(algorithm__advantage__discount=NAN), "algorithm.advantage.discount=nan must be from 0 to 1"),
        (grpo(model__path="FOLDER"), "model.path: give --config.model.path=FOLDER"),
        (with_fields(given.get_config(), data__name="jsonl"), "data.path is empty: give --config.data.path="),
        (online_dpo(sample__data="pairs"), "sample.pairs.path is empty: give --config.sample.pairs.path=PAIRS.jsonl"),
        (with_fields(best_of_n.get_config(), best_of_n__samples=4), "best_of_n.sizes=(1, 2, 4, 8, 16) must be at most"),
        (grpo(algorithm__advantage__fn="group_relativ"), "algorithm.advantage: rl_jax.advantages has no function"),
        (grpo(algorithm__trackers__baseline__fn="ema"), "algorithm.trackers.baseline: rl_jax.core.trackers has no"),
        (ppo(critic__loss__fn="clip"), "critic.loss: rl_jax.losses.value has no function 'clip'; it has: "),
        (pairs(algorithm__link__fn="logisticc"), "algorithm.link: rl_jax.losses.preference.links has no function"),
        (online_dpo(algorithm__pair_selection__fn="x"), "algorithm.pair_selection: rl_jax.selection.pair"),
        (reward_model(algorithm__loss__fn="x"), "algorithm.loss: rl_jax.losses.reward_model has no function 'x'"),
        (control(algorithm__surrogate__fn="x"), "algorithm.surrogate: rl_jax.losses.policy has no function 'x'"),
        (control(network__distribution="x"), "network.distribution: rl_jax.models.agents.distributions has no"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_named(config, said):
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        check(config)
    assert "\n" not in str(raised.value), "one mistake, one line"


@pytest.mark.parametrize(
    "config",
    [
        grpo(train__max_grad_norm=math.inf),
        grpo(train__steps=0),
        grpo(sft__steps=0, sft__micro_batches=7),
        grpo(reward__num_workers=0),
        grpo(algorithm__entropy_coef=-0.01),
        grpo(algorithm__surrogate__clip_low=0.0),
        grpo(algorithm__surrogate__clip_low=1.0),
        grpo(algorithm__advantage=dict(fn=lambda rewards: rewards)),
        grpo_r1.get_config(),  # 10 on both sides: no bounds
        ppo(critic__shared=True, critic__micro_batches=5),
        with_fields(areal_1.get_config(), score__micro_batches=2),
        with_fields(ppo_method.get_config(), name="a name of one's own"),
        control(algorithm__kl_control=dict(fn="")),
        with_fields(control_preferences.get_config("cpl"), train__minibatches=7),  # which it does not have
    ],
)
def test_what_can_be_passes(config):
    check(config)


def test_all_mistakes_are_named_at_once():
    config = grpo(train__steps=-1, reward__num_workers=-1, algorithm__kl=dict(fn="k9"))
    with pytest.raises(ValueError) as raised:
        check(config)
    lines = str(raised.value).splitlines()
    assert [line.split("=")[0].split(":")[0] for line in lines] == ["reward.num_workers", "train.steps", "algorithm.kl"]


def test_another_function_without_its_keywords_says_what_to_type():
    with pytest.raises(ValueError, match="cispo takes no keyword 'clip_high', 'clip_low'") as raised:
        check(grpo(algorithm__surrogate__fn="cispo"))
    assert literal("algorithm.surrogate", {"fn": "cispo"}) in str(raised.value)


def test_a_config_without_a_program_is_held_to_the_ranges_only():
    config = grpo(train__minibatches=3)
    del config["program"]
    check(config)
    with pytest.raises(ValueError, match="train.steps"):
        check(with_fields(config, train__steps=-1))


@pytest.mark.parametrize("spec", [{"fn": "a", "x": 1.5}, {"fn": "a", "x": 'say "it\'s $5"'}], ids=str)
def test_a_literal_survives_the_shell(spec):
    (word,) = shlex.split(literal("a.b", spec))
    assert word == f"--config.a.b={spec!r}"


@pytest.mark.parametrize("program", sorted(check_config.FUNCTIONS))
def test_every_field_that_names_a_function_is_bound_early(program):
    """FUNCTIONS has each group with `fn` of the shipped configs of a program, and modules that have functions."""
    known = check_config.FUNCTIONS[program] | check_config.OPTIMIZERS
    for module in set(known.values()):
        assert public_functions(importlib.import_module(module))
    found = set()
    for config in shipped():
        if config.program == program:
            own = {name for name in groups_with_fn(config) if not name.startswith(check_config.OUTSIDE)}
            found |= own
            for name in set(known) & own:
                spec = check_config.get(config, name).to_dict()
                assert not spec["fn"] or callable(bind(spec, importlib.import_module(known[name])))
    unbound = {"segments.label"} if program == "control.preferences" else set()  # judges of the program itself
    kinds = {"agent.replay", "agent.step_model", "agent.turn_rewards"}  # which modules of their names check
    unbound |= (kinds | {"agent.curriculum"}) & found
    of_others = {name for name in found if program == "best_of_n" and name.startswith(("algorithm.", "sample."))}
    found -= {name for name in found if any(name.startswith(f"{group}.") for group in known)}  # inside another
    assert found - set(known) == unbound | of_others


def groups_with_fn(config: ConfigDict, prefix: str = "") -> set[str]:
    """The dotted names of the groups that name a function."""
    groups = {name: value for name, value in config.items() if isinstance(value, ConfigDict)}
    found = {prefix + name for name, value in groups.items() if "fn" in value}
    return found.union(*(groups_with_fn(value, f"{prefix}{name}.") for name, value in groups.items()))


TERMS = dict(right=dict(fn="math"), short=dict(fn="brevity.ease", weight=0.1))
GATE = dict(fn="gate", by="right")


@pytest.mark.parametrize(
    ("compose", "said"),
    [
        (dict(fn="gate", by="rigth"), "no reward term is called rigth; terms: right, short"),
        (dict(fn="clip", low=-1.0, of=dict(fn="gate", by="right", gated=("shrot",))), "is called shrot"),
        (dict(fn="veto", by=("near",)), "is called near; terms: right, short"),
        (dict(fn="by_source", table=dict(code=dict(rihgt=1.0))), "by_source: code: no reward term is called rihgt"),
        (dict(fn="rl_jax.rewards.contrast:only", names=("x",)), "is called x"),
        (dict(fn="clip", of=dict(fn="saturatoin", scale=1.0)), "nearest: 'saturation'"),
        (dict(fn="clip", low=2.0, high=1.0, of=dict(fn="my_rewards:mine", by="x")), "low 2.0 is above high 1.0"),
        (dict(fn="gate"), "gate needs by"),
    ],
)
def test_names_of_terms_in_a_composition_are_checked_before_anything_runs(compose, said):
    with pytest.raises(ValueError, match="^reward.compose: ") as refused:
        check(grpo(reward__terms=TERMS, reward__compose=compose))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        dict(reward__terms=TERMS, reward__compose=GATE),
        dict(reward__terms=TERMS, reward__compose=dict(fn="clip", of=GATE | dict(gated=("short",)))),
        dict(reward__terms=TERMS, reward__compose=dict(fn="rl_jax.rewards.constraints:constrained", by=("short",))),
        dict(reward__terms=dict(right=dict(fn="task")), reward__compose=GATE),
        dict(reward__terms=TERMS, reward__compose=dict(fn=_of_rows, by="x")),  # one's own may need rows
        dict(reward__compose=dict(fn="gate", by="task"), judge=dict(near=dict(fn="contrastive"))),
        dict(reward__terms=TERMS, reward__compose=dict(fn="gate", by="near"), judge=dict(near=dict(fn="contrastive"))),
    ],
)
def test_compositions_of_terms_that_there_are_pass(changes):
    assert list(check_config._terms(grpo(**changes))) == []


def test_a_composition_of_no_terms_is_refused():
    (said,) = check_config._terms(grpo(reward__compose=dict(fn="clip", low=-0.25, high=0.25)))
    assert "there are no reward.terms, so nothing is composed" in said


def test_a_folder_that_is_named_like_the_placeholder_is_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "model.path: give --config.model.path=FOLDER" in "".join(check_config._missing(hf.get_config()))
    (tmp_path / "FOLDER").mkdir()
    assert list(check_config._missing(hf.get_config())) == []
