"""DR-IRL (arXiv 2503.18991): its scale and its judge. The loss: test_reward_model.py. A run: test_grace.py."""

import jax
import numpy as np
import pytest

from experiments.parts import judges
from experiments.parts.judges import base
from experiments.parts.setup import make_setup
from rl_jax.credit.difficulty import difficulty_scale
from rl_jax.models import heads
from tests.experiments import small
from tests.experiments.judge_runs import model_run
from tests.experiments.test_judges import LENGTH, judged_rows


def test_the_scale_of_difficulty():
    alike, gaps = np.array([0.9, 0.1, 0.5]), np.array([2.0, -1.0, 0.5])
    by_hand = []
    for i in range(3):
        data = 1 / (1 + np.exp(-2 * alike[i])) / np.mean([1 / (1 + np.exp(-2 * x)) for x in alike])
        model = 1 / (1 + np.exp(3 * gaps[i])) / np.mean([1 / (1 + np.exp(3 * x)) for x in gaps])
        by_hand.append(data * model)
    np.testing.assert_allclose(difficulty_scale(alike, gaps, data_coef=2.0, model_coef=3.0), by_hand, rtol=1e-6)
    np.testing.assert_array_equal(difficulty_scale(alike, gaps, data_coef=0.0, model_coef=0.0), 1.0)  # GRPO
    assert np.isfinite(difficulty_scale(alike, np.array([1e6, -1e6, 0.0]))).all()
    with pytest.raises(ValueError, match=r"shapes \(3,\) and \(2,\) must be one"):
        difficulty_scale(alike, gaps[:2])


@pytest.mark.slow
def test_the_judge_learns_what_sets_demonstrations_apart(tmp_path):
    """Rewards, likeness and scale by hand for two prompts of two categories; then learning opens the gap."""
    config = small.config(tmp_path).copy_and_resolve_references().unlock()
    config.rollout.update(completion_length=LENGTH, prompt_buckets=(16,))
    setup = make_setup(config)
    folder, tokenizer = model_run(tmp_path / "lm", config, seed=3), setup.task.tokenizer
    infos = [{"kind": "a"}] * 2 + [{"kind": "b"}] * 2
    prompts, texts = ["1+2="] * 2 + ["30-4="] * 2, ["4=5", "7", "26", "2=2=7"]
    rows = judged_rows(tokenizer, prompts, texts, infos)  # every record's completion is "3"
    options = dict(path=folder, category="kind", categories=("a", "b"), learning_rate=1e-2)
    judge = judges.demonstrated(setup, **options)
    own, params = base.load_run(setup, folder, "x")
    head = heads.add_reward_head(own.model, params, jax.random.key(config.seed), num_outputs=2)
    pairs = [(p, t) for p, t in zip([*prompts, "1+2=", "30-4="], [*texts, "3", "3"], strict=True)]
    ids = [(tokenizer.encode(p, bos=True), tokenizer.encode(t, eos=True)) for p, t in pairs]
    batch = base.lay_out(ids, tokenizer, LENGTH)
    rewards = np.asarray(heads.make_predict_last(own.model)(head, batch))[np.arange(6), [0, 0, 1, 1, 0, 1]]
    hidden = np.asarray(own.model.apply(params, batch), np.float64)[:, -LENGTH:]
    means = np.stack([h[: len(t)].mean(0) for h, (_, t) in zip(hidden, ids, strict=True)])
    cosine = lambda i, j: means[i] @ means[j] / np.linalg.norm(means[i]) / np.linalg.norm(means[j])  # noqa: E731
    alike, gaps = [cosine(i, 4 + i // 2) for i in range(4)], [rewards[4 + i // 2] - rewards[i] for i in range(4)]
    found = judge(rows)
    np.testing.assert_allclose(found.rewards, rewards[:4], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.components["similarity"], alike, rtol=1e-4)
    np.testing.assert_allclose(found.components["gap"], gaps, rtol=1e-3, atol=1e-5)
    scale = difficulty_scale(np.mean(np.reshape(alike, (2, 2)), 1), np.mean(np.reshape(gaps, (2, 2)), 1))
    np.testing.assert_allclose(found.components["difficulty"], np.repeat(scale, 2), rtol=1e-4)
    learned = [judge.learn(rows, None)["gap"] for _ in range(8)]
    np.testing.assert_allclose(learned[0], np.mean(gaps), rtol=1e-3, atol=1e-5)
    assert learned[-1] > learned[0] + 0.5 and np.all(judge(rows).components["gap"] > found.components["gap"])
    with pytest.raises(ValueError, match="kind='c' of a record is none of a, b"):
        judge(judged_rows(tokenizer, prompts, texts, [{"kind": "c"}] * 4))
    rows.records[2]["completion"] = ""
    with pytest.raises(ValueError, match="prompt '30-4=' has an empty field"):
        judge(rows)
    with pytest.raises(ValueError, match=r"category='' and categories=\('a',\) go together"):
        judges.demonstrated(setup, path=folder, categories=("a",))
