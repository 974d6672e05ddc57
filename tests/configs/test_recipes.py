"""configs/recipes: each recipe and its smoke size pass the checks; the page tells what the files say."""

import importlib
import pathlib
import re

import pytest

from configs import common
from configs.recipes import _start
from experiments.parts import check_config
from experiments.plan import runs, stored
from experiments.tools import tiny_model
from tests.configs.test_configs import arguments
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.paths import REPO_ROOT

FILES = sorted(path for path in (REPO_ROOT / "configs" / "recipes").glob("*.py") if not path.name.startswith("_"))
NAMES = [path.stem for path in FILES]
PAGE = (REPO_ROOT / "docs" / "pages" / "recipes.md").read_text(encoding="utf-8")
FIELDS = ("model", "data", "hardware", "published", "source", "plan", "departs")


def module_of(name: str):
    return importlib.import_module(f"configs.recipes.{name}")


def words_of(name: str) -> list[str | None]:
    """None and each of its words but smoke."""
    path = pathlib.Path("configs/recipes", f"{name}.py")
    return [None, *(word for word in arguments(path)[1:] if word != "smoke")]


CASES = [(name, word) for name in NAMES for word in words_of(name)]


@pytest.mark.parametrize(("name", "word"), CASES, ids=[f"{name}:{word or ''}" for name, word in CASES])
def test_a_recipe_and_its_smoke_size_pass_the_checks(name, word):
    config = module_of(name).get_config(word)
    small = module_of(name).get_config(",".join(filter(None, (word, "smoke"))))
    for found in (config, small):
        check_config.check(found)
    assert config.model.path.startswith("hf://") and config.model.dtype == "bfloat16" and config.mesh
    text = repr(small.to_dict())
    assert "hf://" not in text and common.DATA not in text and small.mesh == "" and small.train.steps == 2
    assert pathlib.Path(small.model.path).parent == pathlib.Path(_start.TINY).expanduser()
    assert pathlib.Path(small.model.path).name in tiny_model.FAMILIES and small.program == config.program
    same = set(config.algorithm) - {"shaping"}
    assert all(config.algorithm[field] == small.algorithm[field] for field in same), "the method is the recipe's own"


@pytest.mark.parametrize(
    ("name", "method", "fields"),
    [
        ("dapo_7b", "dapo", ("advantage", "surrogate", "aggregate", "kl_coef")),
        ("dr_grpo_7b", "dr_grpo", ("advantage", "aggregate", "kl_coef")),
        ("tulu3_dpo", "preferences.ln_dpo", ("reference", "length_power", "link", "offset")),
        ("simpo_ultrafeedback", "preferences.simpo", ("reference", "length_power", "beta", "link")),
    ],
)
def test_a_recipe_has_the_method_of_its_paper(name, method, fields):
    wanted = importlib.import_module(f"configs.methods.{method}").get_config().algorithm
    found = module_of(name).get_config().algorithm
    assert {field: found[field] for field in fields} == {field: wanted[field] for field in fields}


def test_tulus_command_is_that_of_the_model_whose_results_stand_beside_it():
    """open-instruct docs/tulu3.md, Llama-3.1-Tulu-3-8B: 32 prompts on each of 7 GPUs, 4 epochs; not the 405B's."""
    config, episodes = module_of("tulu3_rlvr").get_config(), 10_000_000
    rows, train = config.sample.prompts_per_step * config.sample.group_size, config.train
    assert (rows, train.epochs, train.minibatches, train.steps) == (32 * 7, 4, 1, episodes // 224)
    assert (train.optimizer.learning_rate, train.optimizer.decay_steps) == (3e-7, 4 * train.steps)
    assert (config.algorithm.reward_kl_coef, config.algorithm.reward_kl.fn) == (0.05, "k1")


@pytest.mark.parametrize(("name", "count"), [("dr_grpo_7b", 500), ("grpo_gsm8k", 1319), ("tulu3_rlvr", 1319)])
def test_a_named_test_set_is_evaluated_whole(name, count):
    """The last batch may be shorter: the evaluator fills it."""
    settings = module_of(name).get_config().eval
    assert settings.num_prompts == count and -count % settings.batch_size < 64, "little is filled"


def test_the_overlong_punishment_weighs_as_verls():
    """There the scores are 1 and -1 beside a punishment of 1 at most; here 1 and 0."""
    assert module_of("dapo_7b").get_config().algorithm.shaping.penalty == (1 - 0) / (1 - -1)


def test_the_asynchronous_recipe_tells_its_bounds():
    module, words = module_of("async_8b"), {4: "four versions ahead", 8: "eight versions old"}
    flow = module.get_config().flow
    assert flow.order == "ready" and words[flow.eta] in module.__doc__ and words[flow.age] in module.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_the_page_tells_what_the_recipe_says(name):
    module = module_of(name)
    recipe, program = module.RECIPE, module.get_config().program
    assert tuple(recipe) == FIELDS and all(recipe[field] for field in FIELDS[:-1])
    assert f"python -m experiments.{program} --config=configs/recipes/{name}.py" in module.__doc__
    row = f"| `{name}` | {program} | {recipe['model']} | {recipe['data']} | {recipe['hardware']} | "
    row += f"{recipe['published']} | {recipe['source']} | {recipe['plan']} | {recipe['departs']} |"
    assert row in PAGE, f"docs/pages/recipes.md needs the row\n{row}"


PLANS = sorted((REPO_ROOT / "experiments" / "plan" / "plans" / "recipes").glob("*.json"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_stored_plan_is_of_the_recipe_as_it_is_and_fits(path):
    """Its sizes are the config's, each of the run's programs fits, and the recipe says so."""
    kept = stored.load(path)
    file, _, word = re.search(r"--config=configs/recipes/(\w+)\.py(:\w+)?", kept["command"]).group(0).partition(".py")
    name = file.rpartition("/")[2]
    config = module_of(name).get_config(word.removeprefix(":") or None)
    rows, minibatch = runs.step_rows(config)
    assert (kept["step_rows"], kept["rows"], kept["micro_batches"]) == (rows, minibatch, config.train.micro_batches)
    assert kept["tokens"] == [max(config.rollout.prompt_buckets), config.rollout.completion_length]
    assert kept["mesh"] == config.mesh and list(kept["programs"]) == list(runs.programs_of(config))
    said = module_of(name).RECIPE["plan"]
    critic = kept["programs"].get("critic", {"argument_bytes": 0})["argument_bytes"]
    beside = critic + 2 * kept["parameter_bytes"]  # with a reference and a judge
    for one in kept["programs"].values():
        assert one["peak_bytes"] + beside < kept["chip_bytes"]
    if not word:
        peaks = ", ".join(f"{kind} {one['peak_bytes'] / stored.GIB:.1f}" for kind, one in kept["programs"].items())
        assert said == f"`{path.name}`: {peaks} of {kept['chip_bytes'] / stored.GIB:.0f} GiB", said


def test_a_recipe_without_a_stored_plan_says_so():
    planned = {path.stem for path in PLANS}
    assert all((module_of(name).RECIPE["plan"].startswith("none")) == (name not in planned) for name in NAMES)


def test_the_page_has_no_other_rows():
    table = PAGE.partition("| recipe |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, flags=re.M) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("family", tiny_model.FAMILIES)
def test_a_tiny_model_is_of_its_family_and_speaks_bytes(family, tmp_path):
    from rl_jax import tokenizers
    from rl_jax.models.hf import loading

    folder = tiny_model.write(family, tmp_path / family)
    config, tokenizer = loading.read_config(folder), tokenizers.load_tokenizer(folder)
    assert config.vocab_size == tokenizer.vocab_size < 300 and config.num_layers == 1
    assert (config.qkv_bias, config.qk_norm) == {"qwen2": (True, False), "qwen3": (False, True)}.get(
        family, (False, False)
    )
    assert tokenizer.decode(tokenizer.encode("What is 2+2? é")) == "What is 2+2? é"
    template = tokenizers.ChatTemplate.load(folder, tokenizer)
    assert template is not None
    before = (folder / "config.json").stat().st_mtime_ns
    assert tiny_model.write(family, folder) == folder and (folder / "config.json").stat().st_mtime_ns == before


def test_unknown_families_are_named(tmp_path):
    with pytest.raises(ValueError, match="unknown family 'gpt5'; the families are qwen2"):
        tiny_model.write("gpt5", tmp_path / "x")


def test_a_folder_of_another_family_is_not_taken_for_it(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    assert tiny_model.main(["qwen2", f"--to={tmp_path}"]) == 0
    assert tiny_model.main(["llama", f"--to={tmp_path}"]) == 2
    assert "has a model of type qwen2, not llama: name another folder" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("name", ["dr_grpo_7b", "simpo_ultrafeedback"])
def test_a_smoke_size_trains(name, tmp_path, monkeypatch):
    """Without an evaluation, which is another program to compile."""
    config = module_of(name).get_config("smoke")
    program = importlib.import_module(f"experiments.{config.program}")
    nothing = ({}, []) if config.program == "grpo" else {}
    monkeypatch.setattr(program, "make_evaluate", lambda *_: lambda *_: nothing)
    config.train.steps = 1
    config.model.path = str(tiny_model.write(pathlib.Path(config.model.path).name, tmp_path / "model"))
    (config.data if "data" in config else config.task).data_dir = str(tmp_path / "data")
    config.log.update(progress=False, tensorboard=False)
    program.run(config.lock(), tmp_path / "run")
    assert (tmp_path / "run" / "final.json").exists() and (tmp_path / "run" / "hf" / "config.json").exists()
