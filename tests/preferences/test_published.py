"""The readers of published datasets on the real files: how many records, what is left out, what one looks like."""

import gzip
import json
from collections import Counter

import pytest

from rl_jax import preferences
from rl_jax.data import readers
from rl_jax.preferences import solutions
from tests.paths import shared_data

HH = "prefs/hh_harmless_test.jsonl.gz"
PANDALM = "prefs/pandalm_human_testset.json.gz"
SOLUTIONS = "math/gsm8k_test_model_solutions.jsonl.gz"
SKIP = {"skip_bad_records": True}


def load(name, path, tmp_path, **settings):
    return preferences.load(name, path=str(path), data_dir=str(tmp_path), **settings)


def all_records(prefs, splits=("train", "test")):
    return [record for split in splits for record in prefs.data_source(split)]


def test_hh(tmp_path):
    prefs = load("hh", shared_data(HH), tmp_path, **SKIP)
    found = all_records(prefs)
    # 2312 lines: 5 do not share their prompt, 4 of the other 2307 have a chosen side without a word.
    assert len(found) == 2303 and prefs.data_source("train").num_skipped == 9
    assert prefs.data_source("train").report["skipped"][-1].split(".gz, ")[1].startswith("line 1255: the two sides do")
    for record in found:
        assert record["prompt"].startswith("\n\nHuman:") and record["prompt"].endswith("\n\nAssistant:")
        assert all(response.startswith(" ") and "\n\nAssistant:" not in response for response in record["responses"])
    with gzip.open(shared_data(HH), "rt", encoding="utf-8") as file:
        sides = {json.loads(line)["chosen"] for line in file}
    assert {record["prompt"] + record["responses"][0] for record in found} <= sides


def test_hh_stops_at_the_first_bad_line(tmp_path):
    with pytest.raises(readers.DataError, match=r"hh_harmless_test.jsonl.gz, line 87, field 'chosen': nothing but"):
        load("hh", shared_data(HH), tmp_path)


@pytest.mark.slow
def test_hh_as_chats_has_the_same_turns_and_the_same_splits(tmp_path):
    plain, chats = (load("hh", shared_data(HH), tmp_path, chat=chat, **SKIP) for chat in (False, True))
    names = {"user": "Human", "assistant": "Assistant"}
    for split in ("train", "test"):
        pairs = list(zip(plain.data_source(split), chats.data_source(split), strict=True))
        for left, right in pairs[:50]:
            text = "".join(f"\n\n{names[turn['role']]}: {turn['content']}" for turn in right["prompt"])
            assert (text + "\n\nAssistant:").split() == left["prompt"].split()
            assert right["responses"] == [response.strip() for response in left["responses"]]


def test_pandalm(tmp_path):
    prefs = load("pandalm", shared_data(PANDALM), tmp_path, **SKIP)
    found = all_records(prefs)
    report = prefs.data_source("train").report
    assert (len(found), report["num_ties"], report["num_skipped"]) == (835, 105, 59)  # 999 in all
    probs = Counter((tuple(sorted(record["info"]["votes"])), round(record["label_prob"], 3)) for record in found)
    assert {prob for _, prob in probs} == {1.0, 0.667}
    # The annotators disagree on 69; one of those has a bool for a response.
    assert probs[(1, 1, 2), 0.667] == 32 and probs[(1, 2, 2), 0.667] == 36
    assert all(prob == 1.0 for (votes, prob) in probs if 0 in votes or len(set(votes)) == 1)


def test_pandalm_names_the_line_of_its_array(tmp_path):
    with pytest.raises(readers.DataError, match=r"testset.json.gz, line 218, field 'response1': empty text") as caught:
        load("pandalm", shared_data(PANDALM), tmp_path)
    lines = gzip.open(shared_data(PANDALM), "rt", encoding="utf-8").read().split("\n")
    assert lines[217].strip() == "{" and '"idx": 18,' in lines[218] and "line 218" in str(caught.value)


def test_llmbar_is_for_evaluation(tmp_path):
    prefs = load("llmbar", shared_data("prefs/llmbar_natural.json.gz").parent, tmp_path)
    found = all_records(prefs, ["test"])
    files = Counter(record["info"]["file"] for record in found)
    assert sorted(files.values()) == [46, 47, 92, 100, 134] and files["llmbar_natural.json.gz"] == 100
    with pytest.raises(ValueError, match="llmbar has no split 'train'"):
        prefs.data_source("train")
    one = load("llmbar", shared_data("prefs/llmbar_natural.json.gz").parent, tmp_path, subsets=["adv_gptout"])
    assert len(one.data_source("test")) == 47


def test_persona_pairs_are_one_word_each_way(tmp_path):
    found = all_records(load("persona", shared_data("prefs/persona_risk-averse.jsonl.gz").parent, tmp_path))
    assert Counter(tuple(record["responses"]) for record in found) == {(" Yes", " No"): 2000, (" No", " Yes"): 2000}
    assert all(0.8 < record["label_prob"] < 1 for record in found)


def test_bbmistake(tmp_path):
    folder = shared_data("prm/bbmistake_word_sorting.jsonl.gz").parent
    with pytest.raises(readers.DataError, match=r"bbmistake_dyck_languages.jsonl.gz, line 539, field 'steps\[54\]'"):
        load("bbmistake", folder, tmp_path)
    prefs = load("bbmistake", folder, tmp_path, **SKIP)
    found = all_records(prefs)
    assert prefs.kind == "steps" and len(found) == 2185
    assert sum(all(label == 1 for label in record["labels"]) for record in found) in (477, 478)  # no mistake
    for record in found:
        if 0 in record["labels"]:
            first = record["labels"].index(0)
            assert record["labels"][:first] == [1] * first and set(record["labels"][first + 1 :]) <= {None}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("labels", 5268), ("pairs", 2426), ("rankings", 731)])
def test_gsm8k_solutions(tmp_path, kind, count):
    prefs = load("gsm8k_solutions", shared_data(SOLUTIONS), tmp_path, kind=kind)
    found = all_records(prefs)
    assert prefs.kind == kind and len(found) == count
    assert prefs.data_source("train").report["num_repeated"] == 8
    right = {}
    with gzip.open(shared_data(SOLUTIONS), "rt", encoding="utf-8") as file:
        for raw in map(json.loads, file):
            prompt = f"\n\nHuman: {raw['question']}\n\nAssistant:"
            right |= {(prompt, " " + raw[name]["solution"]): raw[name]["is_correct"] for name in solutions.SOLVERS}
    for record in found:
        labels = [right[record["prompt"], response] for response in record["responses"]]
        assert labels == [reward == 1.0 for reward in record["rewards"]]
        assert kind == "labels" or labels == sorted(labels, reverse=True) and len(set(labels)) == 2
    if kind == "labels":
        assert sum(record["rewards"] == [1.0] for record in found) in range(1993, 2002)


def test_prm800k_layout(tmp_path):
    path = shared_data("prm/openr_samples_prm800k.jsonl.gz")
    found = all_records(load("openr", path, tmp_path, layout="prm800k"), ["train"])
    labels = [record["labels"] for record in found]
    assert labels == [
        [1, None, 1, 1, 1, 1],  # the second step is the labeller's own
        [1, 1, 1, 1, 1, 1, 0],  # ends with a wrong step; a neutral one counts as right
        [1] * 5,
        [1] * 7,
        [1] * 7 + [None],  # given up behind the labeller's own step
        [1] * 12,
    ]


def test_math_shepherd_layout(tmp_path):
    path = shared_data("prm/openr_samples_math-shepherd.jsonl.gz")
    found = all_records(load("openr", path, tmp_path, layout="math-shepherd"), ["train"])
    assert [record["labels"] for record in found][:2] == [[1, 1, 1, 1, 0], [0, 0, 0]] and len(found) == 7
    assert all(step.startswith(f"Step {place + 1}:") for r in found for place, step in enumerate(r["steps"]))
    assert not any("\u043a\u0438" in step for record in found for step in record["steps"])


def prm(step):
    return json.dumps({"question": {"problem": "x"}, "label": {"steps": [step]}})


def shepherd(**fields):
    good = {"input": "P? Step 1: a \u043a\u0438\nStep 2: b \u043a\u0438", "label": "P? Step 1: a +\nStep 2: b -"}
    return json.dumps(good | fields) + "\n"


@pytest.mark.parametrize(
    ("name", "settings", "raw", "message"),
    [
        (
            "hh",
            {},
            '{"chosen": "A \\n\\nAssistant: b", "rejected": "A \\n\\nAssistant: c"}',
            "'chosen': a dialogue begins w",
        ),
        ("hh", {}, '{"chosen": "x"}', "field 'rejected': missing"),
        ("pandalm", {}, '[{"annotator1": 3}]', r"field 'annotator1': expected one of \[0, 1, 2\], found 3"),
        ("pandalm", {}, '[{"annotator1": true}]', r"field 'annotator1': expected one of \[0, 1, 2\], found True"),
        ("gsm8k_solutions", {}, '{"question": "q"}', "field '6b_finetuning': missing"),
        (
            "gsm8k_solutions",
            {},
            '{"question": "q", "6b_finetuning": {"is_correct": 1, "solution": "x"}}',
            "field '6b_finetuning.is_correct': expected bool, found int",
        ),
        ("openr", {"layout": "prm800k"}, prm(1), r"field 'steps\[0\]': expected dict, found int"),
        ("openr", {"layout": "prm800k"}, prm({"completions": "x"}), "field 'completions': expected a list of dict"),
        (
            "openr",
            {"layout": "prm800k"},
            prm({"completions": [{"text": "a", "rating": 1}], "chosen_completion": 1}),
            r"field 'label.steps\[0\]': chosen_completion 1 is none of its 1 completions",
        ),
        (
            "openr",
            {"layout": "prm800k"},
            prm({"completions": [{"text": "a", "rating": 2}], "chosen_completion": 0}),
            r"field 'label.steps\[0\]': expected a rating of -1, 0, 1 or null, found 2",
        ),
        (
            "openr",
            {"layout": "prm800k"},
            prm({"completions": None, "human_completion": {"text": ""}}),
            r"field 'label.steps\[0\].text': empty text",
        ),
        ("openr", {"layout": "prm800k"}, prm({}), "field 'steps': no steps"),
        (
            "openr",
            {"layout": "math-shepherd"},
            shepherd(label="P? Step 1: a +\nStep 2: b *"),
            r"expected \+ or - for step 1",
        ),
        (
            "openr",
            {"layout": "math-shepherd"},
            shepherd(label="P? Step 1: A +\nStep 2: b -"),
            "step 0 is not that of 'inp",
        ),
        (
            "openr",
            {"layout": "math-shepherd"},
            shepherd(input="P? a \u043a\u0438"),
            "expected a problem and then 'Step 1:'",
        ),
        ("openr", {"layout": "math-shepherd"}, shepherd(input="P? Step 1: a"), "text after the last"),
    ],
)
def test_a_bad_record_of_a_published_file(tmp_path, name, settings, raw, message):
    path = tmp_path / "file"
    path.write_text(raw, encoding="utf-8")
    with pytest.raises(readers.DataError, match=message) as caught:
        load(name, path, tmp_path, **settings)
    assert f"{path}, line 1, field " in str(caught.value)
