"""Nothing needs ../shared: without a word every config is of generated data, and those data are made where they are."""

import importlib
import pathlib
import re

import pytest

from configs import common
from configs.preferences import best_of_n, frontier, given, online, reward_models, stories
from configs.tasks import game24, gsm8k, math, stories_sentiment
from rl_jax import preferences, tasks
from tests.paths import REPO_ROOT

FILES = sorted(  # recipes are of real data by their nature; tests/configs/test_recipes.py holds their smoke sizes
    path.relative_to(REPO_ROOT)
    for path in (REPO_ROOT / "configs").rglob("*.py")
    if path.name != "__init__.py" and "def get_config" in path.read_text(encoding="utf-8")
    and path.parent.name != "recipes"
)
# The words that choose real data: whatever else a config's docstring names is of generated ones.
REAL = {"real", "stories260k", "hh", "pandalm", "persona", "solutions", "bbmistake", "gsm8k"}


def module_of(path):
    return importlib.import_module(".".join(path.with_suffix("").parts))


def words_of(module) -> list[str]:
    """The words in back-quotes behind "Argument" in a config's docstring."""
    return re.findall(r"`(\w+)`", (module.__doc__ or "").partition("Argument")[2])


def is_real(config) -> bool:
    text = repr(config.to_dict())  # a config's own str is YAML, which takes longer than all the rest
    return common.DATA in text or str(pathlib.Path(common.FETCHED).expanduser()) in text


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_config_is_of_real_data_only_where_a_word_says_so(path):
    module = module_of(path)
    words = words_of(module)
    for word in [None, *words]:
        for arg in {word, ",".join(filter(None, [word, "smoke"]))} if "smoke" in words else {word}:
            assert is_real(module.get_config(arg)) == (word in REAL), f"{path}:{arg}"


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (game24, {"real"}),
        (gsm8k, {"real"}),
        (math, {"real"}),
        (stories_sentiment, {"stories260k"}),
        (online, {"stories260k"}),
        (best_of_n, {"stories260k"}),
        (frontier, {"stories260k"}),
        (stories, {"hh", "pandalm", "persona", "solutions"}),
        (reward_models, {"hh", "pandalm", "bbmistake", "gsm8k"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_real_sets_are_a_word_away(module, words):
    assert set(words_of(module)) & REAL == words


DATA = [
    ("given", given, None),
    *((name, stories, name) for name in stories.GENERATED),
    *((name or "pairs", reward_models, name) for name in (None, "steps", "labels", "rankings", "soft")),
]


@pytest.mark.parametrize(("name", "module", "word"), DATA, ids=[f"{m.__name__}:{n}" for n, m, _ in DATA])
def test_generated_preferences_fit_their_config(tmp_path, name, module, word):
    """Every record is encoded within the config's lengths: nothing is cut, nothing dropped."""
    config = module.get_config(word)
    fields = config.data.to_dict() | {"data_dir": str(tmp_path)}
    found = preferences.load(**(fields if fields["name"] == "given" else fields | {"num_prompts": 200}))
    assert found.name == "generated"
    task = tasks.load(**config.task.to_dict())
    source = found.data_source("train")
    records = [source[i] for i in range(len(source))]
    settings = dict(prompt_buckets=(max(config.rollout.prompt_buckets),), truncate="refuse",
                    completion_length=config.rollout.completion_length)
    if found.kind == "steps":
        arrays, counts = preferences.encode_steps(task.tokenizer, records, **settings)
        assert counts["num_steps_cut"] == 0
    elif found.kind == "labels":
        arrays, counts = preferences.encode_labels(task.tokenizer, records, **settings)
    else:
        responses = 4 if found.kind == "rankings" else 2
        arrays, counts = preferences.encode_preferences(task.tokenizer, records, responses=responses, **settings)
    assert counts["num_kept"] == len(records) and counts.get("num_responses_cut", 0) == 0
    if word == "soft":
        assert set(arrays["label_probs"].tolist()) > {1.0}
    if found.kind == "pairs":
        assert (arrays["margins"] > 0).any()


@pytest.mark.slow
@pytest.mark.parametrize("module", [game24, gsm8k, math, stories_sentiment], ids=lambda m: m.__name__)
def test_generated_tasks_fit_their_config(tmp_path, module):
    config = module.get_config()
    task = tasks.load(**config.task.to_dict() | {"data_dir": str(tmp_path)})
    source = task.data_source("sft_train")
    for record in (source[i] for i in range(0, len(source), 7)):
        assert len(task.tokenizer.encode(record["prompt"], bos=True)) <= max(config.rollout.prompt_buckets)
        assert len(task.tokenizer.encode(record["completion"], eos=True)) <= config.rollout.completion_length


def test_a_real_file_is_beside_the_clone_or_where_it_was_fetched(tmp_path, monkeypatch):
    shared, fetched = tmp_path / "shared", tmp_path / "fetched"
    monkeypatch.setattr(common, "DATA", str(shared))
    monkeypatch.setattr(common, "FETCHED", str(fetched))
    assert common.real("math/x.gz") == f"{shared}/math/x.gz", "neither: the message names the first"
    for folder in (fetched, shared):
        (folder / "math").mkdir(parents=True)
        (folder / "math" / "x.gz").write_bytes(b"")
        assert common.real("math/x.gz") == f"{folder}/math/x.gz"


def test_two_data_sets_are_refused():
    for module, arg in ((stories, "hh,moods"), (reward_models, "steps,gsm8k")):
        with pytest.raises(ValueError, match="one data set, not 2"):
            module.get_config(arg)
