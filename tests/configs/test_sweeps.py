"""Sweeps beside configs: the combinators, and every point of every sweep that the repository has."""

import re

import pytest

from configs import sweeps
from experiments.parts import budgets
from experiments.sweep import points
from tests.paths import REPO_ROOT

CONFIGS = [
    str(path.relative_to(REPO_ROOT))
    for path in sorted((REPO_ROOT / "configs").rglob("*.py"))
    if "def get_config" in path.read_text(encoding="utf-8")
]
WITH_SWEEPS = [
    path for path in CONFIGS if any(word in (REPO_ROOT / path).read_text() for word in ("def sweep_", "def space_"))
]


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(REPO_ROOT)


A, B = [{"a": 1}, {"a": 2}], [{"b": 3}, {"b": 4}]


def test_product_chain():
    assert list(sweeps.product(A, B)) == [{"a": x, "b": y} for x in (1, 2) for y in (3, 4)]
    assert list(sweeps.product()) == [{}]
    assert list(sweeps.chain(A, B, A)) == A + B
    assert list(sweeps.product(iter(A), iter(B))) == list(sweeps.product(A, B))
    with pytest.raises(ValueError, match="two sweeps set a"):
        list(sweeps.product(A, A))


def test_subsample_draws_without_replacement_and_always_the_same():
    whole = list(sweeps.grid("x", range(100)))
    drawn = list(sweeps.subsample(whole, 10, seed=3))
    assert drawn == list(sweeps.subsample(whole, 10, seed=3)) != list(sweeps.subsample(whole, 10, seed=4))
    values = [point["x"] for point in drawn]
    assert len(set(values)) == 10 and values == sorted(values) and set(values) <= set(range(100))
    assert list(sweeps.subsample(whole, 100)) == whole
    with pytest.raises(ValueError, match="101 points cannot be sampled from a sweep of 100"):
        list(sweeps.subsample(whole, 101))


def test_tuning_seeds_and_test_seeds_are_disjoint():
    test = [point["seed"] for point in sweeps.seeds("9999")]
    tuning = [point["seed"] for point in sweeps.tuning_seeds("100")]
    assert not set(test) & set(tuning) and len(set(test)) == 9999 and len(set(tuning)) == 100
    assert [point["seed"] for point in sweeps.seeds("7/9")] == [7, 9]
    assert [point["seed"] for point in sweeps.tuning_seeds("10005/10009")] == [10005, 10009]
    for make, arg in ((sweeps.seeds, "3/10000"), (sweeps.seeds, "10001"), (sweeps.tuning_seeds, "10000/9999")):
        with pytest.raises(ValueError, match="tuning and testing use different seeds"):
            list(make(arg))
    with pytest.raises(ValueError, match="is read as a number of seeds"):
        list(sweeps.tuning_seeds("10003"))
    with pytest.raises(ValueError, match="twice"):
        list(sweeps.seeds("3/3"))
    with pytest.raises(ValueError, match="neither a number of seeds"):
        list(sweeps.seeds("-1"))


def test_numbers_and_words():
    assert sweeps.numbers("1e-4/2", (1.0,)) == (1e-4, 2.0) and sweeps.numbers(None, (1.0,)) == (1.0,)
    assert sweeps.words(None, ("a", "b")) == ("a", "b") and sweeps.words("b", ("a", "b")) == ("b",)
    with pytest.raises(ValueError, match=r"\['c'\] is none of a, b"):
        sweeps.words("c", ("a", "b"))


def test_the_issue_s_sweeps_are_there():
    found = {path: set(points.functions_of(points.load_module(path), "sweep_")) for path in WITH_SWEEPS}
    assert found["configs/tasks/arithmetic.py"] >= {"lr", "seed", "clip", "entropy", "kl"}
    assert found["configs/control/environments.py"] >= {"lr", "seed", "clip", "entropy", "kl"}
    assert found["configs/preferences/given.py"] >= {"lr", "seed", "beta"}
    # A file that builds on another one's config sweeps what that does.
    assert set(points.functions_of(points.load_module("configs/methods/gspo.py"), "sweep_")) >= {"lr", "seed"}


@pytest.mark.parametrize("path", WITH_SWEEPS)
def test_every_point_of_every_sweep_is_a_config(path):
    """Strict: an unknown field, or a value of another type, is an error. Each changes what it says and nothing else."""
    for name in points.functions_of(points.load_module(path), "sweep_"):
        found = points.expand(path, name)
        assert len({point.arm if name != "seed" else point.name for point in found}) == len(found) > 1
        for point in found:
            resolved = points.set_fields(points.load_config(point.config), point.overrides)
            assert budgets.program_of(resolved) == point.program
            for field, value in points.fields_of(point.overrides).items():
                place = resolved
                for part in field.split("."):
                    place = place[part]
                assert place == value
    for name, space in points.functions_of(points.load_module(path), "space_").items():
        config = points.load_config(path)
        for field, (kind, *bounds) in space().items():
            assert kind in ("uniform", "log_uniform", "int", "choice"), name
            for value in bounds[0] if kind == "choice" else bounds:
                points.set_fields(config, {field: value})


@pytest.mark.parametrize("path", CONFIGS)
def test_the_groups_of_a_config_say_which_program_it_is_for(path):
    """The program is one that the head of its file names; a run of it says what it trains on."""
    named = set(re.findall(r"python -m experiments\.([\w.]*\w)", points.load_module(path).__doc__))
    others = ("plan", "tools", "sft", "evaluate")  # they take the configs of others
    named = {name for name in named if name.split(".")[0] not in others}
    config = points.load_config(path)
    assert not named or budgets.program_of(config) in named
    assert budgets.samples_per_step(config) or budgets.program_of(config) in ("best_of_n", "frontier")


def test_budgets():
    config = points.load_config("configs/control/environments.py:cartpole")
    assert budgets.budget_of(config, "control.ppo") == {"env_steps": 300_000}
    config = points.load_config("configs/tasks/arithmetic.py")
    assert budgets.budget_of(config, "grpo") == {"steps": 200, "samples": 51_200, "completion_tokens": 614_400}
    sampled = points.set_fields(config, {"sample.dynamic_sampling.max_batches": 10})
    assert budgets.budget_of(sampled, "grpo")["completion_tokens"] == 6_144_000
    with pytest.raises(ValueError, match="how long evaluate trains"):
        budgets.budget_of(config, "evaluate")


def test_set_fields_is_as_strict_as_a_command_line():
    config = points.load_config("configs/tasks/arithmetic.py")
    assert points.set_fields(config, {"algorithm.kl_coef": 1}).algorithm.kl_coef == 1.0
    assert config.algorithm.kl_coef == 0.0, "the config itself was changed"
    for overrides, said in (
        ({"algorithm.kl_coeff": 1.0}, "no field algorithm.kl_coeff; near it: algorithm.kl_coef"),
        ({"algorithm.surrogate": 1.0}, "is a group of fields; name one of algorithm.surrogate.clip_high, "),
        ({"train.steps": 1.5}, "1.5 is a float"),
        ({"algorithm.mask_truncated": 1}, "1 is a int"),
        ({"seed": True}, "True is a bool"),
    ):
        with pytest.raises(ValueError, match=said):
            points.set_fields(config, overrides)


def test_names_of_points():
    found = points.expand("configs/tasks/arithmetic.py:smoke", "method:gspo/dapo,seed:1")
    assert [(point.name, point.config) for point in found] == [
        ("method=gspo,seed=0", "configs/methods/gspo.py:smoke"),
        ("method=dapo,seed=0", "configs/methods/dapo.py:smoke"),
    ]
    found = points.expand("configs/control/environments.py:matching", "method:ppo/a2c,lr:1e-3")
    assert [(point.arm, point.config) for point in found] == [
        ("method=ppo,lr=0.001", "configs/control/environments.py:matching,ppo"),
        ("method=a2c,lr=0.001", "configs/control/environments.py:matching,a2c"),
    ]
    assert [point.name for point in points.expand("configs/control/environments.py", "clip:0.1/0.3")] == [
        "clip=0.1",
        "clip=0.3",
    ]
    with pytest.raises(ValueError, match="number, a string, a bool or a tuple"):
        points.make_point("configs/control/environments.py", {"algorithm.kl": {"fn": "k1"}}, name="x", arm="x")
    with pytest.raises(ValueError, match="two points of the sweep have the name"):
        points.expand("configs/control/environments.py", "lr:1e-3/1e-3")
