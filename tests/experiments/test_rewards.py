"""experiments/parts/rewards.py: terms composed into one reward, logged by name; in GRPO and on a command line."""

import json

import numpy as np
import pytest

from experiments import grpo
from experiments.parts.failures import Failures, first_failure
from experiments.parts.judging import by_source, joined_columns, judge
from experiments.parts.policy import components_of
from experiments.parts.reward_spec import expand_terms, parse_terms
from experiments.parts.rewards import Rows, make_rewards
from experiments.parts.sample_groups import _differ
from experiments.parts.setup import make_setup
from experiments.report.run_page import with_first_error
from experiments.reverify.cli import main as reverify_main
from experiments.score.cli import main as score_main
from rl_jax.core.types import Rollout, TokenBatch
from rl_jax.rewards.pool import RewardResult
from rl_jax.runs.run_record import write_run_record
from tests.experiments import small
from tests.experiments.small import config as small_config


def twice(completions, *, terms, lengths, truncated):
    """A group term: the group's best `sevens`, for all."""
    return [max(terms["sevens"])] * len(completions)


def by_length(completions):
    """A group term that fails for a group with an empty completion."""
    return [1 / len(text) for text in completions]


def first_ids(prompts, completions, completion_ids, **kwargs):
    """A group term with TRL's parameters."""
    return [float(sum(ids)) for ids in completion_ids]


def raises(prompt, completion, info):
    raise KeyError("answer")


def raises_on_sevens(prompt, completion, info):
    return 1 / (completion.count("7") == 0)


TERMS = {
    "sevens": {"fn": small.reward(small.sevens), "weight": 2.0},
    "best": {"fn": f"{__name__}:twice", "weight": 0.5},
    "even": {"fn": small.reward(small.even_length), "weight": 0.0},
}


def rows(completions, size):
    lengths = np.array([len(text) for text in completions])
    mask = np.arange(4) < lengths[:, None]
    rollout = Rollout(None, mask, None, None, np.ones(len(mask), bool), np.zeros(len(mask), bool))
    return Rows(rollout, [{"prompt": "1=", "info": "{}"}] * len(completions), completions, size)


def scored(tmp_path, completions, size=2, **fields):
    config = small_config(tmp_path, **fields)
    with make_rewards(make_setup(config)) as score:
        return score(rows(completions, size))


def test_terms_are_summed_by_weight_and_kept_by_name(tmp_path):
    found = scored(tmp_path, ["77", "1", "", "7"], reward__terms=TERMS)
    assert found.rewards.tolist() == [5.0, 1.0, 0.5, 2.5]
    assert found.components["best"].tolist() == [2, 2, 1, 1] and found.components["even"].tolist() == [1, 0, 1, 0]
    assert found.components["sevens/weighted"].tolist() == [4, 0, 0, 2]


def test_another_composition_and_the_tasks_own_reward(tmp_path):
    terms = {"own": {"fn": "task"}, "sevens": {"fn": small.reward(small.sevens)}}
    fields = dict(reward__terms=terms, reward__compose=dict(fn="product"))
    found = scored(tmp_path, ["7", "3"], reward__function=small.reward(small.has_a_seven), **fields)
    assert found.rewards.tolist() == [1.0, 0.0]


def test_a_group_function_is_no_reward_function(tmp_path):
    with pytest.raises(ValueError, match="reward.function: .*by_length scores all completions of a prompt: name it in"):
        scored(tmp_path, ["7", "3"], reward__function=f"{__name__}:by_length")


def test_rows_that_fail_get_the_failure_reward(tmp_path):
    terms = {"mine": {"fn": f"{__name__}:raises_on_sevens"}}
    found = scored(tmp_path, ["7", "3"], reward__terms=terms, reward__failure_reward=-1.0)
    assert found.rewards.tolist() == [-1.0, 1.0] and found.num_errors == 1


def test_a_group_term_that_fails_is_counted_row_by_row(tmp_path):
    terms = {"mine": {"fn": f"{__name__}:raises_on_sevens"}, "group": {"fn": f"{__name__}:by_length"}}
    fields = dict(reward__terms=terms, reward__failure_reward=-1.0)
    found = scored(tmp_path, ["3", "13", "7", "3", "", "3"], **fields)
    assert found.rewards.tolist() == [2.0, 1.5, -1.0, 2.0, -1.0, -1.0]
    assert found.num_errors == 3 and found.failed.tolist() == [False, False, True, False, True, True]
    assert "'mine'" in found.first_error  # of the first row that failed
    first = scored(tmp_path, ["", "3", "7", "3"], **fields)
    assert "'group'" in first.first_error and first_failure(first, ["a", "b", "c", "d"], list("abcd")).prompt == "a"


def test_a_group_term_can_ask_for_what_trl_passes(tmp_path):
    config = small_config(tmp_path, reward__terms={"ids": {"fn": f"{__name__}:first_ids"}})
    tokens = np.arange(12, dtype=np.int32).reshape(2, 6)
    before = rows(["aa", "bbb"], 2)
    batch = TokenBatch(tokens, None, None)
    with make_rewards(make_setup(config)) as score:
        found = score(before._replace(rollout=before.rollout._replace(batch=batch)))
        assert found.rewards.tolist() == [2 + 3, 8 + 9 + 10]  # the last 4 columns are the completion's
        with pytest.raises(ValueError, match="asks for completion_ids; there are completions"):
            score(before)  # read from samples.jsonl: no tokens


def test_a_batch_without_a_component_counts_as_zeros():
    """All rows of an evaluation's last batch failed: its mean is over all rows, and each source finds its own."""
    names = (None,) * 2
    first = RewardResult(np.float32([1, 0, 1]), {"correct": np.float32([1, 0, 1])}, 0, 0, *names)
    last = RewardResult(np.float32([0, 0]), {}, 2, 0, *names)
    columns = joined_columns([first, last, RewardResult(np.float32([1]), {"new": np.float32([1])}, 0, 0, *names)])
    assert {name: column.tolist() for name, column in columns.items()} == {
        "reward": [1, 0, 1, 0, 0, 1], "correct": [1, 0, 1, 0, 0, 0], "new": [0, 0, 0, 0, 0, 1],
    }  # fmt: skip
    records = [{"source": source} for source in "aabbab"]
    assert by_source(records, {"x": columns["correct"]}) == {"x/source/a": 1 / 3, "x/source/b": 1 / 3}


def test_a_failed_row_gives_a_group_no_spread():
    """Else one late verifier would make a group of right answers worth a step of dynamic sampling."""
    rewards, failed = np.float32([1, 1, 0, 1, 0, 0, 0, 0]), np.array([0, 0, 1, 0, 0, 0, 1, 1], bool)
    result = RewardResult(rewards, {}, 0, 3, None, failed)
    assert not _differ(result, 4).any() and not _differ(result, 2).any()
    assert _differ(result._replace(failed=None), 4).tolist() == [True, False]
    assert _differ(result._replace(failed=np.roll(failed, 1)), 4).tolist() == [True, False]
    assert (_differ(result, 1) == ~failed).all(), "a group of one"


@pytest.mark.slow
def test_a_reward_that_always_fails_stops_the_run(tmp_path):
    config = small_config(tmp_path, train__steps=1, reward__terms={"mine": {"fn": f"{__name__}:raises"}})
    with pytest.raises(RuntimeError, match="failed on all 16 completions.*KeyError: 'answer'"):
        grpo.run(config, tmp_path / "run")


def test_components_are_the_terms_that_count():
    """An advantage of components (GDPO) sees each term times its weight, and neither its parts nor what is logged."""
    columns = {"a": [1.0], "a/part": [5.0], "a/weighted": [0.5], "task": [3.0], "task/weighted": [0.0]}
    result = RewardResult(None, {name: np.float32(column) for name, column in columns.items()}, 0, 0, None)
    assert np.stack(components_of(result)).tolist() == [[0.5], [0.0]]
    result = RewardResult(None, {"correct": np.float32([1.0])}, 0, 0, None)  # the task's own reward
    assert np.stack(components_of(result)).tolist() == [[1.0]]


def test_a_few_rows_may_all_fail(tmp_path):
    setup = make_setup(small_config(tmp_path, reward__terms={"mine": {"fn": f"{__name__}:raises"}}))
    with make_rewards(setup) as score:
        for count in (2, 8):
            drawn = rows(["7"] * count, 1)
            tokens = np.zeros((count, 4), np.int32)
            rollout = drawn.rollout._replace(batch=TokenBatch(tokens, tokens, tokens))
            if count == 2:
                assert judge(setup, score, rollout, drawn.records).result.num_errors == 2
            else:
                with pytest.raises(RuntimeError, match="failed on all 8"):
                    judge(setup, score, rollout, drawn.records)
            zeros = rollout._replace(completion_mask=np.zeros_like(rollout.completion_mask))  # to compile ahead
            assert judge(setup, score, zeros, drawn.records).result.num_errors == count


def result_of(failed, message="KeyError: 'a'"):
    return RewardResult(np.zeros(len(failed)), {}, 0, sum(failed), message, np.array(failed, bool))


def test_the_first_failure_is_shown_once_and_recorded(tmp_path, capsys):
    """It was counted and never shown: a run with a broken reward looked like one whose policy is always wrong."""
    settings = small_config(tmp_path).reward
    write_run_record(tmp_path / "run", config={"seed": 0}, command="grpo", task="t", algorithm="grpo")
    result, failures = result_of([False, True], "ValueError: \x1b[2J"), Failures()
    first = first_failure(result, ["p", "2+\x07"], ["fine", "x" * 1000])
    for _ in range(2):
        failures.see(result, first, settings)
    printed = capsys.readouterr().err
    assert printed.count("could not be scored (1 of 2") == 1 and "ValueError: \\x1b[2J" in printed
    assert "prompt: 2+\\x07\n" in printed and "x" * 400 + "... (1000 characters)" in printed
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "ValueError" in record["attempts"][-1]["first_reward_error"]
    health = [
        {"metric": "reward/errors", "status": "warning", "advice": "Mend it."},
        {"metric": "loss", "status": "ok"},
    ]
    shown = with_first_error(health, record)
    assert "The first: ValueError" in shown[0]["advice"] and shown[1] == health[1]
    of_online_dpo = with_first_error([health[1], {**health[0], "status": "not logged"}], record)
    assert [row["status"] for row in of_online_dpo] == ["warning", "ok"]
    assert with_first_error(health, {"attempts": [None]}) == health == with_first_error(health, None)


def test_small_batches_that_all_fail_stop_the_run_as_well(tmp_path):
    settings, failures = small_config(tmp_path).reward, Failures()
    for count in (3, 3, 3):
        failures.see(result_of([True] * count), None, settings)
    failures.see(result_of([True, False]), None, settings)  # one that works: counted from here
    for count in (3, 3, 3):
        failures.see(result_of([True] * count), None, settings)
    with pytest.raises(RuntimeError, match="failed on all 12 completions of the last 4 batches"):
        failures.see(result_of([True] * 3), None, settings)
    with settings.unlocked():
        settings.all_failed = "count"
    failures.see(result_of([True] * 30), None, settings)


@pytest.mark.slow
def test_grpo_on_terms(tmp_path):
    config = small_config(tmp_path, train__steps=2, reward__terms=TERMS)
    grpo.run(config, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "reward/mean" in line][-1]
    weighted = [last[f"reward/{name}/weighted"] for name in TERMS]
    assert last["reward/mean"] == pytest.approx(sum(weighted)) and "eval/sevens" in lines[-1]
    assert last["reward/sevens/weighted"] == pytest.approx(2 * last["reward/sevens"])


def test_the_short_form_of_a_command_line():
    assert parse_terms("math, 0.2*my_rewards:brief") == {
        "math": {"fn": "math", "weight": 1.0},
        "brief": {"fn": "my_rewards:brief", "weight": 0.2},
    }
    given = ["prog", "--config=x", "--config.reward.terms=a:f", "--config.reward.terms={'b': {'fn': 'a:g'}}"]
    assert expand_terms(given)[2:] == ["--config.reward.terms={'f': {'fn': 'a:f', 'weight': 1.0}}", given[3]]
    with pytest.raises(ValueError, match="'x' in 'x\\*a:f' must be a number"):
        parse_terms("x*a:f")
    with pytest.raises(ValueError, match="two terms are named 'f'"):
        parse_terms("a:f,b:f")


@pytest.fixture
def answers(tmp_path):
    lines = [
        {"question": "q", "completion": "77", "note": 1},
        {"question": "q", "completion": "", "note": 2},
        {"question": "r", "completion": "7", "note": 3},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_recorded_answers_are_scored_without_a_model(answers, tmp_path, capsys):
    reward = {name: TERMS[name] for name in ("sevens", "best")}
    out = tmp_path / "out.jsonl"
    assert score_main([str(answers), f"--reward={reward}", "--prompt=question", "--workers=0", f"--out={out}"]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["reward"] for row in rows] == [5.0, 1.0, 2.5] and rows[2]["info"] == {"note": 3}
    assert "3 answers" in capsys.readouterr().out


def test_score_names_a_missing_column_and_a_bad_reward(answers):
    with pytest.raises(SystemExit, match="answers.jsonl, line 1, field 'prompt': no text"):
        score_main([str(answers), f"--reward={small.reward(small.sevens)}"])
    with pytest.raises(SystemExit, match="'sevens' is unknown"):
        score_main([str(answers), "--reward=sevens"])
    with pytest.raises(SystemExit, match="first_ids asks for completion_ids; there are"):
        score_main([str(answers), f"--reward={__name__}:first_ids", "--prompt=question", "--workers=0"])


def test_score_refuses_what_it_would_misread_or_replace(answers, tmp_path):
    reward = f"--reward={small.reward(small.sevens)}"
    before = answers.read_text()
    with pytest.raises(SystemExit, match="answers.jsonl is there already: name another file, or remove it"):
        score_main([str(answers), reward, "--prompt=question", "--workers=0", f"--out={answers}"])
    assert answers.read_text() == before
    path = tmp_path / "typed.jsonl"
    for fields, said in (
        ({"length": "short"}, "field 'length': must be the answer's tokens, a whole number of 0 or more, got 'short'"),
        ({"length": None}, "field 'length': must be .* got None; a column that means something else"),
        ({"length": True}, "field 'length': must be"),
        ({"truncated": "false"}, "field 'truncated': must be true or false, got 'false'"),
    ):
        row = {"prompt": "q", "completion": "7"}
        path.write_text(json.dumps(row | {"length": 1, "truncated": True}) + "\n" + json.dumps(row | fields))
        with pytest.raises(SystemExit, match=f"typed.jsonl, line 2, {said}"):
            score_main([str(path), reward, "--workers=0"])


def test_reverify_refuses_what_it_cannot_compare(tmp_path, capsys):
    """Rewards that judges or an environment gave, unless terms are given; groups of which samples are missing."""
    row = {"prompt": "1=", "completion": "77", "info": {}, "step": 0, "split": "train", "truncated": False}
    (tmp_path / "samples.jsonl").write_text(json.dumps(row | {"reward": 2.0}) + "\n")
    config = small_config(tmp_path, reward__function=small.reward(small.sevens))
    for group, said in (("judge", "judges gave the rewards"), ("agent", "an environment gave the rewards")):
        (tmp_path / "config.json").write_text(json.dumps(config.to_dict() | {group: {"x": {"fn": "y"}}}))
        with pytest.raises(SystemExit, match=f"{said} of this run .*--reward=math"):
            reverify_main([str(tmp_path)])
        assert reverify_main([str(tmp_path), f"--reward={small.reward(small.sevens)}"]) == 0
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(SystemExit, match="nothing to compare: no group is complete") as refused:
        reverify_main([str(tmp_path), f"--reward={dict(best=TERMS['best'])}"])
    assert refused.value.code == 2


def test_reverify_lists_what_a_changed_verifier_says(tmp_path, capsys):
    config = small_config(tmp_path, reward__function=small.reward(small.sevens))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(config.to_json())
    row = {"prompt": "1=", "completion": "77", "info": {}, "step": 0, "split": "train", "truncated": False}
    (run / "samples.jsonl").write_text(json.dumps(row | {"reward": 2.0}) + "\n" + json.dumps(row | {"reward": 1.0}))
    assert reverify_main([str(run)]) == 1
    assert "1 -> 2" in (out := capsys.readouterr().out) and "1 of 2 rewards changed" in out
    assert reverify_main([str(run), f"--reward={small.reward(small.has_a_seven)}"]) == 1
    assert "1 of 2 rewards changed" in capsys.readouterr().out
    (run / "samples.jsonl").unlink()
    with pytest.raises(SystemExit, match="samples.jsonl is missing"):
        reverify_main([str(run)])
