"""Tools that score pairs by finished runs: preference strengths (2401.06080) and implicit rewards (2409.03650)."""

import json

import jax
import numpy as np
import pytest

from configs.preferences import given
from experiments.parts import pair_scores
from experiments.parts.setup import make_setup
from experiments.tools import (
    implicit_rewards,
    preference_strength,
    reward_consistency,
    reward_probe,
    split_pairs,
    token_credit,
)
from rl_jax import preferences
from rl_jax.credit import ensembles
from rl_jax.preferences import contrast, strength
from rl_jax.training.scoring import make_score
from tests.experiments.judge_runs import SMALL, reward_run, save
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

PAIRS = [("1+2=", "3", "4"), ("2+2=", "4", "5"), ("9-3=", "6", "66"), ("8-1=", "7", "1"), ("5+5=", "10", "9")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pairs")


@pytest.fixture(scope="module")
def pairs(folder):
    path = folder / "pairs.jsonl"
    rows = [{"prompt": p, "chosen": w, "rejected": y} for p, w, y in PAIRS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def models(folder):
    return [reward_run(folder / f"rm_{seed}", given.PRINTABLE, seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def dpo_run(folder):
    """A run of experiments.dpo that has moved away from its start."""
    config = given.get_config("smoke")
    config.model.update(**SMALL)
    config.rollout.update(completion_length=8, prompt_buckets=(16,))
    config.log.update(progress=False, tensorboard=False)
    config.sft.steps = 0
    setup = make_setup(config)
    params = jax.tree.map(lambda x: 1.5 * x, setup.init_params())
    return save(folder / "dpo", setup, {"params": params}, "dpo"), setup, params


def read(folder, pairs, split="all"):
    return pair_scores.read_pairs("jsonl", str(pairs), split, data_dir=str(folder / "data"))


# --- Strength --------------------------------------------------------------------------------------------------------


def test_the_strength_is_a_mean_over_models_and_decides_labels_and_margins():
    gaps = np.array([[2.0, -1.0, 0.5, -3.0, 0.0], [1.0, 0.5, 0.5, -1.0, 0.0]])
    mu, deviation = strength.strengths(gaps)
    np.testing.assert_allclose(mu, [1.5, -0.25, 0.5, -2.0, 0.0])
    np.testing.assert_allclose(deviation, [0.5, 0.75, 0.0, 1.0, 0.0])
    assert strength.flipped(mu).tolist() == [False, True, False, True, False]
    assert strength.flipped(mu, flip="lowest", share=0.2).tolist() == [False, False, False, True, False]
    assert not strength.flipped(mu, flip="none").any() and strength.flipped(mu, flip="lowest", share=1.0).all()
    records = [{"prompt": p, "responses": [w, y]} for p, w, y in PAIRS]
    rows = strength.relabel(records, gaps)
    assert [row["chosen"] for row in rows] == ["3", "5", "6", "1", "10"]
    np.testing.assert_allclose([row["strength"] for row in rows], np.abs(mu))
    np.testing.assert_allclose([row["label_prob"] for row in rows], 1 / (1 + np.exp(-np.abs(mu))))
    kept = strength.relabel(records, gaps, flip="none")
    np.testing.assert_allclose([row["margin"] for row in kept], np.maximum(mu, 0))
    np.testing.assert_allclose([row["label_prob"] for row in kept], 1 / (1 + np.exp(-mu)))
    alone = strength.relabel(records, gaps[:1], flip="none")
    assert all(row["strength_std"] == 0 for row in alone)
    for bad, said in ((dict(flip="all"), "flip='all' is none of"), (dict(share=2.0), "share=2.0 must be in")):
        with pytest.raises(ValueError, match=said):
            strength.flipped(mu, **bad)
    with pytest.raises(ValueError, match="5 gaps for 2 pairs"):
        strength.relabel(records[:2], gaps)
    with pytest.raises(ValueError, match="gaps of .models, pairs."):
        strength.strengths(gaps[0])


def test_models_that_know_better_than_the_labels_mend_them():
    """Thirty percent of the labels are wrong; ten noisy models are each right on most pairs."""
    rng = np.random.default_rng(0)
    wrong = rng.random(400) < 0.3
    truth = np.where(wrong, -1.0, 1.0) * rng.uniform(0.5, 2, 400)
    gaps = truth + rng.normal(0, 1.5, (10, 400))
    mended = strength.flipped(gaps.mean(axis=0))
    assert np.mean(mended == wrong) > 0.95 > 0.8 > np.mean((gaps[0] < 0) == wrong)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_the_command_writes_what_a_reward_model_trains_on(folder, pairs, models, capsys):
    out = folder / "strong.jsonl"
    command = [*models, f"--path={pairs}", f"--out={out}", f"--data_dir={folder / 'data'}"]
    assert preference_strength.main(command) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    gaps = np.stack([pair_scores.gaps(pair_scores.load_scorer(run)[0], read(folder, pairs)) for run in models])
    records = read(folder, pairs)
    assert sorted(r["prompt"] for r in rows) == sorted(p for p, _, _ in PAIRS)
    np.testing.assert_allclose([r["strength"] for r in rows], np.abs(gaps.mean(axis=0)), rtol=1e-5)
    turned = [r["flipped"] for r in rows]
    assert (
        turned == (gaps.mean(axis=0) < 0).tolist()
        and f"5 pairs, 2 models, {sum(turned)} turned" in capsys.readouterr().out
    )
    assert [r["chosen"] for r in rows] == [x["responses"][t] for x, t in zip(records, turned, strict=True)]
    data = preferences.load("jsonl", path=str(out), kind="pairs", test_share=0.0, data_dir=str(folder / "data"))
    source = data.data_source("train")
    assert [source[i]["margin"] for i in range(5)] == pytest.approx([r["margin"] for r in rows])
    assert preference_strength.main(command) == 2
    assert "is there already" in capsys.readouterr().err


# --- Implicit rewards ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_implicit_reward_is_the_log_ratio_to_the_start(folder, pairs, dpo_run):
    path, setup, params = dpo_run
    model, kind = pair_scores.load_scorer(path)
    records = read(folder, pairs)
    found = pair_scores.gaps(model, records)
    score, tokenizer, expected = jax.jit(make_score(setup.model, completion_length=8)), setup.task.tokenizer, []
    start = setup.init_params()
    for record in records:
        sums = []
        for text in record["responses"]:
            arrays, _ = preferences.encode_labels(
                tokenizer,
                [{"prompt": record["prompt"], "responses": [text], "rewards": [0.0], "info": {}}],
                prompt_buckets=(16,),
                completion_length=8,
            )
            rows = preferences.rows_of(arrays)
            batch = type(model.encode([""], [""]))(rows["tokens"], rows["positions"], rows["segment_ids"])
            mask = rows["segment_ids"][0, -8:] != 0
            gap = np.asarray(score(params, batch).log_probs - score(start, batch).log_probs)[0]
            sums.append(setup.config.algorithm.beta * gap[mask].sum())
        expected.append(sums[0] - sums[1])
    assert kind == "implicit" and np.ptp(expected) > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_table_has_a_row_per_run(folder, pairs, models, dpo_run):
    sets = [
        ("own", read(folder, pairs)),
        ("turned", [r | {"responses": r["responses"][::-1]} for r in read(folder, pairs)]),
    ]
    rows = implicit_rewards.measure([dpo_run[0], models[0]], sets)
    assert [row.kind for row in rows] == ["implicit", "explicit"]
    for row in rows:
        assert sum(row.accuracies) == pytest.approx(1.0) and row.drop() == pytest.approx(2 * row.accuracies[0] - 1)
    text = implicit_rewards.table(rows, ["own", "turned"])
    assert text.startswith("| run | reward | own | turned | drop |\n") and f"| {models[0]} | explicit | " in text
    assert implicit_rewards.Row("x", "explicit", [0.5]).drop() == 0.0


def test_other_runs_are_refused(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match="nowhere has no config.json: give the workdir"):
        pair_scores.load_scorer("nowhere")
    (tmp_path / "config.json").write_text(json.dumps({"program": "grpo"}))
    with pytest.raises(ValueError, match="is a run of grpo; give runs of reward_model, dpo, online_dpo"):
        pair_scores.load_scorer(tmp_path)
    assert implicit_rewards.main([str(tmp_path), "--data=jsonl=nowhere.jsonl"]) == 2
    assert "implicit_rewards: " in capsys.readouterr().err


# --- Credit of tokens ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_credits_add_up_to_the_implicit_reward_and_are_printed(folder, pairs, models, dpo_run, capsys):
    path, model = dpo_run[0], pair_scores.load_scorer(dpo_run[0])[0]
    records = read(folder, pairs)
    prompts, responses = [r["prompt"] for r in records], [r["responses"][0] for r in records]
    found = token_credit.credits_of(model, prompts, responses)
    np.testing.assert_allclose([row.gain for row in found], model.score_texts(prompts, responses), rtol=1e-3, atol=1e-5)
    for row, response in zip(found, responses, strict=True):
        assert "".join(row.pieces[:-1]) == response and sum(row.credits) == pytest.approx(row.gain, rel=1e-3, abs=1e-5)
        assert row.credits[row.worst()] == min(row.credits)
    command = [path, f"--path={pairs}", f"--data_dir={folder / 'data'}", "--limit=2", "--beams=2"]
    assert token_credit.main(command) == 0
    said = capsys.readouterr().out
    assert said.count("prompt: ") == 2 and said.count("<- lowest") == 4 and said.count("\nbeam -") == 4
    assert token_credit.main([models[0], f"--path={pairs}"]) == 2
    assert "is a reward model with a head" in capsys.readouterr().err


# --- Consistency, and easy and hard pairs ----------------------------------------------------------------------------


@pytest.mark.slow
def test_contrasts_are_scored_and_written(folder, models, capsys):
    path, out = folder / "contrasts.jsonl", folder / "more.jsonl"
    texts = [("a b c", "x", "n"), ("a b d", "y", "n"), ("k", "z", "n")]
    path.write_text("".join(json.dumps({"prompt": p, "chosen": w, "rejected": n}) + "\n" for p, w, n in texts))
    command = [*models, f"--path={path}", f"--augment={out}", f"--data_dir={folder / 'data'}"]
    assert reward_consistency.main(command) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 contrasts\n| run | response | instruction |") and said.count("\n| /") == 2
    assert len(out.read_text().splitlines()) == 2
    model = pair_scores.load_scorer(models[0])[0]
    one = contrast.Contrast(("a b c", "a b d"), ("x", "y"))
    found = reward_consistency.rewards_of(model, [one])[0]
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        expected = model.score_texts([one.prompts[i]], [one.responses[j]])[0]
        np.testing.assert_allclose(found[i, j], expected, rtol=1e-4, atol=1e-5)
    more = [models[0], f"--path={path}", f"--data_dir={folder / 'data'}", "--embed", "--at_least=-1", "--at_most=1"]
    assert reward_consistency.main([*more, "--fuse", f"--convex={folder / 'convex.jsonl'}"]) == 0
    assert f"| {models[0]} fused | " in capsys.readouterr().out
    rows = [json.loads(line) for line in (folder / "convex.jsonl").read_text().splitlines()]
    assert {row["prompt"] for row in rows} == {"a b c", "a b d", "k"} and {row["rejected"] for row in rows} == {"n"}
    assert reward_consistency.main([*command, "--at_least=0.9"]) == 2
    assert "no two prompts share 90%" in capsys.readouterr().err


def test_embeddings_are_made_only_for_what_reads_them(monkeypatch, capsys):
    """Red before: each call read the first model twice, and --embed without a contrast spoke of words."""
    records = [{"prompt": p, "responses": [w, "n"]} for p, w in (("a b c", "x"), ("a b d", "y"), ("k", "z"))]
    model, made = RewardsOfLengths(), []
    monkeypatch.setattr(pair_scores, "read_pairs", lambda *_, **__: records)
    monkeypatch.setattr(pair_scores, "load_scorer", lambda run: (model, "explicit"))
    embed = lambda prompts, _: np.array([[len(p), p.count("b"), ord(p[-1])] for p in prompts], float)  # noqa: E731
    monkeypatch.setattr(reward_consistency, "make_embed", lambda run, _: made.append(run) or embed)
    assert reward_consistency.main(["run", "other"]) == 0 and made == []
    assert capsys.readouterr().out.startswith("1 contrasts\n")
    assert reward_consistency.main(["run", "other", "--fuse"]) == 0 and made == ["run"]
    assert reward_consistency.main(["run", "--embed", "--at_least=1.5", "--at_most=2"]) == 2
    said = capsys.readouterr().err
    assert "no two prompts have embeddings with a cosine of 1.5 to 2.0: lower --at_least or raise --at_most" in said


class RewardsOfLengths:
    """A model whose reward is the length of both texts."""

    def score_texts(self, prompts, responses):
        return np.array([len(p) + len(r) for p, r in zip(prompts, responses, strict=True)], np.float32)


class LeastOfTwo:
    """Two members, the length of a response and 10 less it, of which the one with the lowest mean counts."""

    def score_texts(self, prompts, responses):
        length = np.array([len(text) for text in responses], np.float32)
        return np.asarray(ensembles.max_min(np.stack([length, 10 - length], axis=1)))


def test_both_responses_of_a_pair_are_scored_by_the_same_member():
    """Red before: each side was a call of its own, so the member with the lowest mean was another for the second."""
    records = [{"prompt": "p", "responses": ["a" * 8, "b" * 2]}, {"prompt": "q", "responses": ["c" * 7, "d"]}]
    np.testing.assert_array_equal(pair_scores.gaps(LeastOfTwo(), records), [6, 6])


@pytest.mark.slow
def test_probes_of_a_run_are_printed(folder, models, capsys):
    command = [models[0], "--data=generated", "--labels=grades,length", "--limit=30", f"--data_dir={folder / 'data'}"]
    assert reward_probe.main(command) == 0
    said = capsys.readouterr().out
    assert said.count(f"| {models[0]} | ") == 2 and "| length | " in said
    assert reward_probe.main([*command, "--labels=taste"]) == 2
    assert "has no number per response in 'taste'; --labels: length, grades" in capsys.readouterr().err


def test_pairs_are_split_by_their_gap():
    records = [{"prompt": p, "responses": [w, y]} for p, w, y in PAIRS]
    gaps = np.array([2.0, 0.5, -3.0, 1.0, 1.5])
    easy, hard = split_pairs.split(records, gaps, 1.0)
    assert [row["prompt"] for row in easy] == ["1+2=", "5+5="] and easy[0]["rejected"] == "4"
    assert [row["completion"] for row in hard] == ["4", "6", "7"] and hard[1]["gap"] == -3.0
    assert split_pairs.split(records, gaps, -np.inf)[1] == [] == split_pairs.split(records, gaps, np.inf)[0]


@pytest.mark.slow
def test_the_split_is_written_once(folder, pairs, models, capsys):
    files = [f"--easy={folder / 'easy.jsonl'}", f"--hard={folder / 'hard.jsonl'}"]
    command = [models[0], f"--path={pairs}", "--gamma=0", *files, f"--data_dir={folder / 'data'}"]
    assert split_pairs.main(command) == 0
    gaps = pair_scores.gaps(pair_scores.load_scorer(models[0])[0], read(folder, pairs))
    assert f"{(gaps > 0).sum()} easy pairs, {(gaps <= 0).sum()} hard prompts" in capsys.readouterr().out
    assert split_pairs.main(command) == 2


def test_a_prompt_of_each_response_stands_above_it():
    first, second = (token_credit.Credited(prompt, ["x"], [1.0], 1.0) for prompt in ("a", "b"))
    for prompts, pair in ((["'a'"], (first, first)), (["'a'", "'b'"], (first, second))):
        shown = token_credit.shown(*pair)
        assert [line.removeprefix("prompt: ") for line in shown if line.startswith("prompt")] == prompts
        assert shown[0] == "prompt: 'a'" and shown.index("rejected: gain +1.0000") == 2 + len(prompts)
