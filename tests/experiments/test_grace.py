"""GRACE (arXiv 2510.04506): similarities by loops, triples, the judge; and a run with the judge of DR-IRL beside."""

import itertools
import json
import types

import numpy as np
import pytest

from configs.tasks import dr_irl, grace
from experiments.parts import async_check, judges
from experiments.parts.judges import embedding, table
from experiments.parts.rewards import Rewards
from rl_jax import tasks
from rl_jax.rewards import embeddings
from tests.experiments.judge_runs import model_run
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.experiments.test_configs_started import started, with_few_records, without_evaluation  # noqa: F401

N, G, D = 3, 4, 5


def cosine(x, y):
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def by_loops(m, q, n=None):
    """grace.py's two reward functions, row by row."""
    found = {name: np.zeros((N, G)) for name in ("positive", "negative", "clustering", "cross")}
    for g, i in itertools.product(range(N), range(G)):
        found["positive"][g, i] = cosine(q[g, i], m[g, i])
        found["clustering"][g, i] = np.mean([cosine(m[g, i], m[g, j]) for j in range(G) if j != i])
        others = [h for h in range(N) if h != g]
        if n is None:
            found["cross"][g, i] = -np.mean([cosine(m[g, i], q[h, 0]) for h in others])
        else:
            found["negative"][g, i] = -cosine(q[g, 0], n[g, 0])
            found["cross"][g, i] = -np.mean([max(cosine(q[g, i], row) for row in m[h]) for h in others])
    return found


def test_the_similarities_are_those_of_the_released_code():
    m, q, n = np.random.default_rng(0).normal(size=(3, N, G, D))
    for negatives in (n, None):
        found, expected = embeddings.contrasts(m, q, negatives), by_loops(m, q, negatives)
        for name, values in expected.items():
            np.testing.assert_allclose(getattr(found, name), values, rtol=1e-5, atol=1e-6)
        total = embeddings.contrastive(found, temperature=0.5, clustering_weight=0.3, cross_weight=0.7)
        weighted = 0.3 * expected["clustering"] + 0.7 * expected["cross"]
        np.testing.assert_allclose(total, 2 * (expected["positive"] + expected["negative"] + weighted), rtol=1e-5)
    plain = embeddings.contrastive(embeddings.contrasts(m, q), temperature=1.0, clustering_weight=0, cross_weight=0)
    np.testing.assert_allclose(plain, by_loops(m, q)["positive"], rtol=1e-5)  # the cosine with the query
    alone = embeddings.contrasts(m[:1, :1], q[:1, :1], n[:1, :1])
    assert alone.clustering == 0 and alone.cross == 0
    with pytest.raises(ValueError, match=r"shapes \(3, 4, 5\), \(3, 4, 4\)"):
        embeddings.contrasts(m, q[:, :, :4])


def test_a_triple_means_the_same_twice_and_something_else(tmp_path):
    of = dict(name="arithmetic", num_operands=(3, 4), digits=1, num_train=30, num_test=5, data_dir=str(tmp_path))
    task = tasks.load("rl_jax.tasks.text_triples:load", of=of)
    source, plain = task.data_source("train"), tasks.load(**of).data_source("train")
    assert len(source) == 90 and len(task.data_source("sft_train")) == 30
    for triple in range(30):
        texts = [source[3 * triple + place] for place in range(3)]
        infos = [json.loads(text["info"]) for text in texts]
        assert [info["role"] for info in infos] == ["query", "positive", "negative"]
        assert {info["triple"] for info in infos} == {triple} and texts[0]["prompt"] == plain[triple]["prompt"]
        assert infos[0]["answer"] == infos[1]["answer"] != infos[2]["answer"]
        terms = [sorted(text["prompt"].replace("-", "+-").removesuffix("=").split("+")) for text in texts]
        assert terms[0] == terms[1] and len(set(terms[0]) ^ set(terms[2])) in (1, 2)
        for text, info in zip(texts, infos, strict=True):
            assert task.reward_fn(text["prompt"], text["completion"], info)["reward"] == 1.0


def test_the_judge_rewards_positives_alone(monkeypatch):
    """The rows in another order than the triples': embeddings by row, rewards at the positives' places."""
    rng, said = np.random.default_rng(1), {}
    names = [(triple, role) for triple in (7, 2) for role in ("negative", "query", "positive") for _ in range(G)]
    hidden = rng.normal(size=(len(names), D))

    def in_batches(setup, read, params, rows, size):
        said["params"] = params
        return hidden

    monkeypatch.setattr(embedding, "in_batches", in_batches)
    monkeypatch.setattr(embedding, "token_rows", lambda *_: types.SimpleNamespace(segment_ids=np.ones((1, 1))))
    model = types.SimpleNamespace(apply=None)
    setup = types.SimpleNamespace(model=model, attached=None, merged=None, task=types.SimpleNamespace(tokenizer=None))
    judge = judges.contrastive(setup, temperature=0.2)
    cut = np.zeros(len(names), bool)
    cut[[2 * G, 0]] = True  # a positive's and a negative's row
    records = [{"prompt": "", "info": json.dumps({"triple": triple, "role": role})} for triple, role in names]
    rows = types.SimpleNamespace(records=records, rollout=types.SimpleNamespace(truncated=cut))
    with pytest.raises(ValueError, match="reads the policy of the step, which only experiments.grpo shows it"):
        judge(rows)
    judge.see("the newest")
    found = judge(rows)
    assert said["params"] == "the newest"
    groups = hidden.reshape(2, 3, G, D)
    expected = embeddings.contrastive(embeddings.contrasts(groups[:, 2], groups[:, 1], groups[:, 0]), temperature=0.2)
    expected[0, 0] = -1.0
    np.testing.assert_allclose(found.rewards.reshape(2, 3, G)[:, 2], expected, rtol=1e-6)
    assert not found.rewards.reshape(2, 3, G)[:, :2].any()
    near = [cosine(q, m) > cosine(q, n) for n, q, m in groups.transpose(0, 2, 1, 3).reshape(-1, 3, D)]
    np.testing.assert_allclose(found.components["ranked"], np.mean(near), rtol=1e-6)
    rows.records = records[1:]
    with pytest.raises(ValueError, match="needs whole triples in each batch"):
        judge(rows)
    rows.records = [{"prompt": "", "info": "{}"}]
    with pytest.raises(ValueError, match="the info of a record has role and triple"):
        judge(rows)


def test_an_asynchronous_run_refuses_a_judge_of_ones_own_that_reads_the_policy():
    of_run = table.Judges.__new__(table.Judges)
    of_run.by_name = {"own": types.SimpleNamespace(see=print), "blind": types.SimpleNamespace()}
    scorer = Rewards.__new__(Rewards)
    scorer._judges = of_run
    with pytest.raises(ValueError, match="^judge.own reads the policy that sampled.*or use experiments.grpo$"):
        async_check.check_judges(scorer)
    scorer._judges = None
    assert async_check.check_judges(scorer) is scorer


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_run_with_the_judge_of_dr_irl_beside(tmp_path):
    config, other = grace.get_config("smoke"), dr_irl.get_config("together,smoke")
    with_few_records(config, tmp_path)
    path = model_run(tmp_path / "start", config.copy_and_resolve_references())
    with config.unlocked():
        config.judge.irl = dict(other.judge.irl.to_dict(), path=path, categories=(4,))
        config.algorithm.token_weight = other.algorithm.token_weight
    row, samples = started(config, tmp_path, prompts=6, completion_length=8, prompt_buckets=(24,))
    assert row["reward/mean"] == pytest.approx(row["reward/irl"] + row["reward/near"], rel=1e-4)
    assert row["reward/near"] != 0 and np.isfinite(row["judge/irl/gap"]) and "reward/task" in row
    near = {role: [s["terms"]["near"] for s in samples if s["info"]["role"] == role] for role in ("query", "positive")}
    assert not any(near["query"]) and any(near["positive"])
    scales = {(sample["info"]["triple"], sample["prompt"], sample["terms"]["irl/difficulty"]) for sample in samples}
    assert len(scales) == 6 and len({scale for *_, scale in scales}) > 1
