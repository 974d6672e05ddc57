"""parts/real_data.py: a config whose real data are missing names the command that downloads them."""

import pathlib

import pytest

from configs import common
from configs.preferences import given, reward_models, stories
from experiments.parts import help as program_help
from experiments.parts import real_data
from tests.configs.test_bare_clone import FILES, REAL, module_of, words_of
from tests.experiments.test_help import doc_of, flags_of

# Words that are not the name of their set. All of their files are in this one.
SETS = {"gsm8k": "solutions"}
# What the word `real` of a config takes.
OF_REAL = {"game24": "game24", "gsm8k": "gsm8k", "math": "math", "cls_rl": "sentiment", "mr_rlvr": "gsm8k"}
OF_REAL |= {"partial_prompts": "gsm8k", "reasoning_sql": "sql", "rlpt": "text", "toolrl": "tools", "code_tests": "code"}
CONFIGS = [(module_of(path), word) for path in FILES for word in words_of(module_of(path)) if word in REAL]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The folder where real data are looked up first, empty; the other one is empty too."""
    monkeypatch.setattr(common, "DATA", str(tmp_path / "data"))
    monkeypatch.setattr(common, "FETCHED", str(tmp_path / "fetched"))
    return tmp_path / "data"


def put(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Makes the files of a set, empty."""
    paths = [folder / file for file in real_data.catalogue()[0][name]]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


@pytest.mark.parametrize(("module", "word"), CONFIGS, ids=[f"{module.__name__}:{word}" for module, word in CONFIGS])
def test_a_config_of_real_data_names_the_set_to_download(data, module, word):
    name = OF_REAL[module.__name__.rpartition(".")[2]] if word == "real" else SETS.get(word, word)
    with pytest.raises(ValueError, match=rf"^missing data files: .*path=.*: python -m .*fetch_data {name}$"):
        real_data.check(module.get_config(word))
    put(data, name)
    real_data.check(module.get_config(word))


def test_only_what_is_missing_is_named(data):
    paths = put(data, "hh")
    paths[0].unlink()
    with pytest.raises(ValueError, match=rf"files: data.path={paths[0]}. Download them with: .*fetch_data hh$"):
        real_data.check(stories.get_config("hh"))


def test_a_folder_with_files_of_another_set_is_not_enough(data):
    put(data, "hh")
    with pytest.raises(ValueError, match=rf"files: data.path={data}/prefs. Download .* persona$"):
        real_data.check(stories.get_config("persona"))


def test_files_of_several_sets_name_a_command_for_each(data):
    config = stories.get_config("hh")
    config.task.tokenizer_path = f"{data}/sql/geography.json.gz"
    with pytest.raises(ValueError, match=r"fetch_data \S+ && python -m \S+fetch_data \S+$"):
        real_data.check(config)


def test_downloaded_files_are_found(data, tmp_path):
    put(tmp_path / "fetched", "bbmistake")
    real_data.check(config := reward_models.get_config("bbmistake"))
    assert config.data.path == str(tmp_path / "fetched" / "prm")


def test_files_that_are_not_read_and_other_paths_are_not_checked(data):
    config = reward_models.get_config("hh")
    config.data.path, config.model.checkpoint, config.task.tokenizer_path = "mine.jsonl", "gone.bin", ""
    with pytest.raises(ValueError, match="benchmarks.sets.llmbar.path"):
        real_data.check(config)
    config.benchmarks.names = ()
    real_data.check(config)
    real_data.check(given.get_config())


@pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")  # ml_collections
def test_a_program_ends_with_the_command(data, monkeypatch):
    arguments = ["--config=configs/preferences/stories.py:hh"]
    monkeypatch.setattr(program_help, "FLAGS", flags_of(arguments))
    monkeypatch.setattr(program_help, "started", lambda: ("experiments.dpo", doc_of("dpo")))
    with pytest.raises(SystemExit) as stopped:
        program_help.parse_flags_helpfully(["program", *arguments])
    assert str(stopped.value).startswith("experiments.dpo: missing data files: ")
    assert str(stopped.value).endswith("Download them with: python -m experiments.tools.fetch_data hh")
