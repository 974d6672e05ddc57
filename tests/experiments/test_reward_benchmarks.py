"""RewardBench 2 and RewardMATH: their layouts, their tables, and reward models measured on them."""

import json

import numpy as np
import pytest

from configs.preferences import given
from experiments.parts import pair_scores
from experiments.tools import reward_benchmarks
from rl_jax.data import readers
from rl_jax.rewards import benchmark_files, benchmarks
from tests.experiments.judge_runs import reward_run
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.rewards.test_benchmarks import TIES

# As in RewardMATH_direct.json: ten rows per problem, one of them chosen; here two problems of three rows.
MATH = [
    dict(problem="1+1", answer="2", eval_solution=steps, solution_type=kind, subject=subject, problem_id=number)
    for number, subject, kind, steps in (
        (0, "Algebra", "chosen", ["1+1", "=2"]),
        (0, "Algebra", "rejected", ["=3"]),
        (7, "Geometry", "rejected", ["so", "1", "=1"]),
        (0, "Algebra", "rejected", ["=4", "no"]),
        (7, "Geometry", "chosen", ["=2"]),
    )
]


def bench(chosen, rejected, subset, identifier):
    return dict(id=identifier, prompt=f"Q{identifier}", chosen=chosen, rejected=rejected, subset=subset)


BENCH = [
    bench(["a"], ["b", "c", "d"], "Math", "0"),
    bench(["e"], ["f", "g", "h"], "Math", "1"),
    bench(["i"], ["j", "k", "l"], "Safety", "2"),
    bench(["m"], ["n", "o"], "Ties", "ref:0"),
    bench(["p", "q"], ["r", "s"], "Ties", "tied:0"),
]


def write(folder, name, rows, array=False):
    path = folder / name
    path.write_text(json.dumps(rows) if array else "".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_reward_bench_2_is_a_mean_over_subsets_with_ties_apart(tmp_path):
    items = benchmark_files.read_reward_bench_2(write(tmp_path, "bench.jsonl", BENCH))
    assert [len(item.right) for item in items] == [1, 1, 1, 1, 2] and items[4].wrong == [["r"], ["s"]]
    first = TIES[0]
    values = dict(zip("abcdefghijkl", [3, 1, 2, 0, 0, 0, 0, 0, 1, 2, 0, 0], strict=True))
    values |= dict(zip("mnopqrs", [*first[0], *first[1], *first[2], *first[3]], strict=True))

    def score(prompts, responses):
        assert len(prompts) == len(responses) == 19 and prompts[0] == "Q0"
        return np.array([values["".join(steps)] for steps in responses])

    found = benchmark_files.reward_bench_2_table(items, benchmark_files.score_items(items, score))
    ties = benchmarks.reward_bench_ties([first])
    assert found == pytest.approx({"Math": 0.625, "Safety": 0.0, "Ties": ties, "score": (0.625 + ties) / 3})
    with pytest.raises(ValueError, match="expected the ids ref:0 and tied:0, found only .'ref'."):
        benchmark_files.reward_bench_2_table(items[:4], benchmark_files.score_items(items, score)[:4])
    tied = benchmark_files.reward_bench_2_table(items[:1], [(np.ones(1), np.array([1.0, 0, 0]))])
    assert tied["score"] == 0.5
    several = [items[4]._replace(subset="Math")]
    with pytest.raises(ValueError, match="Math: item tied:0 has several right answers"):
        benchmark_files.reward_bench_2_table(several, [(np.ones(2), np.zeros(2))])


def test_reward_math_gathers_its_rows_by_problem(tmp_path):
    items = benchmark_files.read_reward_math(write(tmp_path, "math.json", MATH, array=True))
    assert [item.id for item in items] == ["0", "7"] and items[0].wrong == [["=3"], ["=4", "no"]]
    assert items == benchmark_files.read_reward_math(write(tmp_path, "math.jsonl", MATH))

    def score(prompts, responses):
        return np.array([len(steps) for steps in responses])  # ties of problem 0, problem 7 lost

    found = benchmark_files.reward_math_table(items, benchmark_files.score_items(items, score))
    expected = {"accuracy": 0.0, "accuracy_ties": 0.5, "mrr": 0.5, "Algebra": 0.0, "Geometry": 0.0}
    assert found == pytest.approx(expected)
    right = benchmark_files.reward_math_table(items, [(np.ones(1), np.zeros(2)), (np.ones(1), np.zeros(1))])
    assert right["accuracy"] == right["mrr"] == right["Geometry"] == 1.0


def test_files_of_another_layout_are_refused(tmp_path):
    lacking = [{k: v for k, v in MATH[0].items() if k != "solution_type"}]
    for read, rows, said in (
        (benchmark_files.read_reward_math, lacking, "line 1, field 'solution_type': expected chosen or rejected"),
        (benchmark_files.read_reward_math, [MATH[0] | {"eval_solution": "x"}], "'eval_solution': expected a list"),
        (benchmark_files.read_reward_math, MATH[:1], "problem 0 has no wrong solution"),
        (benchmark_files.read_reward_bench_2, [BENCH[0] | {"chosen": "a"}], "field 'chosen': expected list"),
    ):
        with pytest.raises(readers.DataError, match=said):
            read(write(tmp_path, "x.jsonl", rows))
    with pytest.raises(ValueError, match="19 responses were scored with an array of shape"):
        items = benchmark_files.read_reward_bench_2(write(tmp_path, "y.jsonl", BENCH))
        benchmark_files.score_items(items, lambda prompts, responses: np.zeros(3))


@pytest.mark.slow
def test_models_are_measured_by_whole_texts_and_by_steps(tmp_path, capsys):
    whole = reward_run(tmp_path / "rm", given.PRINTABLE)
    steps = reward_run(tmp_path / "prm", given.PRINTABLE, reads="steps")
    path = write(tmp_path, "math.json", MATH, array=True)
    assert reward_benchmarks.main([whole, steps, f"--rewardmath={path}"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"| | {whole} | {steps} minimum |") and "| mrr | " in said and "| Geometry | " in said
    items = benchmark_files.read_reward_math(path)
    model = pair_scores.load_scorer(steps)[0]
    scores = reward_benchmarks.scorers(model, "x")
    found = {name: benchmark_files.score_items(items, score)[0] for name, score in scores.items()}
    heads = ["1+1", "1+1\n=2"]  # the steps of the right answer, each after those before it
    probs = 1 / (1 + np.exp(-model.score_texts(["1+1"] * 2, heads).astype(np.float64)))
    expected = dict(minimum=probs.min(), product=probs.prod(), mean=probs.mean(), last=probs[1])
    for fn, value in expected.items():
        np.testing.assert_allclose(found[f"x {fn}"][0], value, rtol=1e-4)
    command = [whole, "--generated", "--limit=4", f"--data_dir={tmp_path / 'data'}"]
    assert reward_benchmarks.main(command) == 0 and "| sums | " in capsys.readouterr().out
    assert reward_benchmarks.main([whole, "--rewardbench2=nowhere.jsonl"]) == 2
