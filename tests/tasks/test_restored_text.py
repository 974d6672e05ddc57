"""Masked, shuffled, continued and labelled texts: each target earns all of its reward, others less; files are read."""

import gzip
import json
import random

import pytest

from configs.tasks import cls_rl, mr_rlvr, partial_prompts, rlpt, t1_scaling, visual_jigsaw
from configs.tasks import random_calculation as calculation
from configs.tasks import self_guided_efficiency as brief_config
from rl_jax import tasks
from rl_jax.core import binding
from rl_jax.data import readers
from rl_jax.rewards import terms
from rl_jax.tasks import restored_text
from tests.paths import shared_data


def rows(task, split):
    source = task.data_source(split)
    return [source[i] for i in range(len(source))]


def total(config, task, row, completion):
    """The task's reward, or the weighted sum of the config's item terms."""
    info, spec = json.loads(row["info"]), config.reward.terms.to_dict()
    if not spec:
        return task.reward_fn(row["prompt"], completion, info, **task.reward_kwargs)["reward"]
    found = [t for t in terms.load_terms(spec, binding.resolve) if not t.is_group]
    return sum(t.weight * t.fn(row["prompt"], completion, info, **t.keywords)["reward"] for t in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "arg", "best"),
    [(mr_rlvr, None, 1.0), (visual_jigsaw, None, 1.2), (visual_jigsaw, "exact", 1.2), (rlpt, None, 1.0),
     (rlpt, "exact", 1.0), (partial_prompts, None, 1.0), (cls_rl, None, 2.0), (cls_rl, "no_think", 1.0)],
)  # fmt: skip
def test_targets_fit_their_config_and_earn_everything(tmp_path, module, arg, best):
    config = module.get_config(arg)
    task = tasks.load(**config.task.to_dict() | {"num_texts": 100, "data_dir": str(tmp_path)})
    train, test = rows(task, "train"), rows(task, "test")
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in test}
    for row in train + test:
        assert total(config, task, row, row["completion"]) == pytest.approx(best)
        assert total(config, task, row, "?") == total(config, task, row, "") == 0.0
        assert len(task.tokenizer.encode(row["prompt"], bos=True)) <= max(config.rollout.prompt_buckets)
        assert len(task.tokenizer.encode(row["completion"], eos=True)) <= config.rollout.completion_length


def test_a_partly_right_order_is_paid_unless_it_has_to_be_exact(tmp_path):
    """Red before: texts had three lines and the credit is for five or more, so that it was never paid."""
    default, exact = visual_jigsaw.get_config(), visual_jigsaw.get_config("exact")
    task = tasks.load(**default.task.to_dict() | {"num_texts": 20, "data_dir": str(tmp_path)})
    found = rows(task, "train")
    assert len(found) > 10
    for row in found[:4]:
        first, second, *others = json.loads(row["info"])["answer"]
        assert len(others) == 3
        turned = f"<answer>{', '.join(map(str, (second, first, *others)))}</answer>"
        assert total(default, task, row, turned) == pytest.approx(0.2 + 0.2 * 3 / 5)
        assert total(exact, task, row, turned) == pytest.approx(0.2)
        assert total(default, task, row, row["completion"]) == pytest.approx(1.2)
        assert total(default, task, row, f"<answer>{first}</answer>") == pytest.approx(0.2)


def test_masks_and_orders_are_undone_by_their_answers():
    rng = random.Random(0)
    text = "3+4=7\n7-2=5\n#### 5"
    for _ in range(30):
        masked = restored_text.masked(text, rng)
        restored = masked["prompt"].removeprefix("Fill in:\n").removesuffix("\n")
        for place, answer in enumerate(json.loads(masked["info"])["answer"], start=1):
            restored = restored.replace(f"[{place}]", answer)
        assert restored == text
        shuffled = restored_text.shuffled(text, rng)
        shown = dict(line.split(") ") for line in shuffled["prompt"].strip().split("\n")[1:])
        answer = json.loads(shuffled["info"])["answer"]
        assert "\n".join(shown[str(number)] for number in answer) == text and answer != [1, 2, 3]
    assert restored_text.masked("no number", rng) is None and restored_text.shuffled("one line", rng) is None
    assert restored_text.shuffled("same\nsame", rng) is None
    tagged = restored_text.shuffled(text, rng, True)["completion"]
    assert tagged.startswith("<answer>") and tagged.endswith("</answer>")


def test_segments_and_what_is_between():
    rng, text = random.Random(0), 'Mia ran. "Stop!" she said. He was 3.5 m away.'
    for _ in range(10):
        following = restored_text.following(text, rng)
        assert text.startswith(following["prompt"].strip() + " " + following["completion"])
        between = restored_text.between(text, rng)
        assert between["prompt"].strip().replace("[...]", between["completion"]) == text
    assert restored_text.following("One sentence.", rng) is None and restored_text.between("A. B.", rng) is None


def test_the_rest_of_a_text():
    record = restored_text.rest("a b  c d e", random.Random(0), share=0.6)
    assert (record["prompt"], record["completion"]) == ("a b c", " d e")
    assert restored_text.rest("a", random.Random(0)) is None
    with pytest.raises(ValueError, match="share must lie in"):
        tasks.load("restored_text", share=1.0)
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        tasks.load("restored_text", num_steps=0)


def test_files_are_read_and_bad_ones_named(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text('{"answer": "3+4=<<3+4=7>>7\\n7-2=5"}\n{"other": 1}\n')
    with pytest.raises(readers.DataError, match=r"steps\.jsonl, line 2.*'answer'"):
        tasks.load("restored_text", path=str(path), data_dir=str(tmp_path / "d"))
    with pytest.raises(ValueError, match=r"must be of masked, order, next, middle, rest, not \['hidden'\]"):
        tasks.load("restored_text", kinds=("hidden",))
    labels = tmp_path / "sst2_train.txt.gz"
    labels.write_bytes(gzip.compress(b"2 bad label\n"))
    (tmp_path / "sst2_test.txt.gz").write_bytes(gzip.compress(b"1 fine\n"))
    with pytest.raises(readers.DataError, match=r"sst2_train\.txt\.gz, line 1.*'label'"):
        tasks.load("labelled_text", path=str(tmp_path), data_dir=str(tmp_path / "d"))


def test_all_questions_of_a_file_are_asked(tmp_path):
    """Red before: one in ten of 500 questions was in the test split, and half of these were too long for the limits."""
    words, path = "find all whole numbers whose square divides the sum of".split(), tmp_path / "questions.jsonl"
    rng = random.Random(0)
    questions = [f"{i}: " + " ".join(rng.choices(words, k=rng.randint(8, 150))) + "?" for i in range(60)]
    path.write_text("".join(json.dumps({"question": question}) + "\n" for question in [*questions, "far " * 500]))
    config = partial_prompts.get_config()
    task = tasks.load(**config.task.to_dict() | {"path": str(path), "data_dir": str(tmp_path / "d")})
    asked = rows(task, "test")
    assert sorted(row["prompt"] + row["completion"] for row in asked) == sorted(questions)
    assert task.data_source("test").report["num_too_long"] == 1
    for row in asked:
        assert len(task.tokenizer.encode(row["prompt"], bos=True)) <= max(config.rollout.prompt_buckets)
        assert len(task.tokenizer.encode(row["completion"], eos=True)) <= config.rollout.completion_length


@pytest.mark.slow
def test_real_texts(tmp_path):
    for module, least in ((mr_rlvr, 13_000), (rlpt, 3_500), (cls_rl, 6_900)):
        fields = module.get_config("real").task.to_dict()
        shared_data(fields["path"].partition("shared/data/")[2])
        task = tasks.load(**fields | {"data_dir": str(tmp_path)})
        assert len(task.data_source("train")) > least
        row = task.data_source("test")[0]
        assert "<<" not in row["prompt"] and total(module.get_config("real"), task, row, row["completion"]) >= 1.0


def test_terms_of_the_configs_are_checked():
    for module, args in ((t1_scaling, (None, "plain", "fixed")), (brief_config, (None, "plain")), (rlpt, (None,))):
        for arg in args:
            config = module.get_config(arg)
            spec = {name: term for name, term in config.reward.terms.to_dict().items() if term["fn"] != "task"}
            assert len(terms.load_terms(spec, binding.resolve)) == len(spec)
    arms = [calculation.get_config(arm) for arm in ("inverted", "majority_wrong")]
    for found in (brief_config.get_config(), *arms):
        group = [term for term in found.reward.terms.values() if "of" in term or "correct" in term]
        assert len(group) == 1 and group[0].get("of", group[0].get("correct")) in found.reward.terms
    assert t1_scaling.get_config().algorithm.reference_schedule.fn == "moving_average"
    assert t1_scaling.get_config("fixed").algorithm.reference_schedule.fn == "fixed"
    assert brief_config.get_config("plain").reward.terms.brief.weight == 0.0
