"""DR-IRL (arXiv 2503.18991): its judge. Its scale: tests/credit. A run: test_grace.py."""

import copy
import importlib
import types

import jax
import numpy as np
import pytest

from experiments.parts import judges
from experiments.parts.judges import base
from experiments.parts.setup import make_setup
from rl_jax.credit.difficulty import difficulty_scale
from rl_jax.models import heads
from rl_jax.tokenizers import ChatPrompts, Llama2cTokenizer
from tests.experiments import small
from tests.experiments.judge_runs import model_run, save
from tests.experiments.test_judges import LENGTH, judged_rows
from tests.paths import shared_data


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
    options = dict(path=folder, category="kind", categories=("a", "b"), learning_rate=1e-2, separator="=", tau=1e-9)
    judge = judges.demonstrated(setup, **options)
    own, params = base.load_run(setup, folder, "x")
    head = heads.add_reward_head(own.model, params, jax.random.key(config.seed), num_outputs=2)
    pairs = [(p, t) for p, t in zip([*prompts, "1+2=", "30-4="], [*texts, "3", "3"], strict=True)]
    ids = [(tokenizer.encode(p, bos=True), tokenizer.encode(t, eos=True)) for p, t in pairs]
    batch = base.lay_out(ids, tokenizer, LENGTH)
    rewards = np.asarray(heads.make_predict_last(own.model)(head, batch))[np.arange(6), [0, 0, 1, 1, 0, 1]]
    hidden = np.asarray(own.model.apply(params, batch), np.float64)[:, -LENGTH:]
    cuts = [[(0, 2), (2, 4)], [(0, 2)], [(0, 3)], [(0, 2), (2, 4), (4, 6)], [(0, 2)], [(0, 2)]]
    means = [[h[a:b].mean(0) for a, b in cut] for h, cut in zip(hidden, cuts, strict=True)]
    cosine = lambda u, v: u @ v / np.linalg.norm(u) / np.linalg.norm(v)  # noqa: E731
    alike = [np.mean([max(cosine(u, v) for v in means[4 + i // 2]) for u in means[i]]) for i in range(4)]
    gaps = [rewards[4 + i // 2] - rewards[i] for i in range(4)]
    found = judge(rows)
    np.testing.assert_allclose(found.rewards, rewards[:4], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.components["similarity"], alike, rtol=1e-4)
    np.testing.assert_allclose(found.components["gap"], gaps, rtol=1e-3, atol=1e-5)
    by_prompt = [np.mean(np.reshape(x, (2, 2)), 1) for x in (1 - np.array(alike), gaps)]
    scale = difficulty_scale(*by_prompt, np.arange(2), tau=1e-9)
    np.testing.assert_allclose(found.components["difficulty"], np.repeat(scale, 2), rtol=1e-4)
    one = dict(path=folder, learning_rate=1e-2, separator="=")  # one category
    together = judges.demonstrated(setup, **one)(rows)
    of_gaps = np.mean(np.reshape(together.components["gap"], (2, 2)), 1)
    scale = difficulty_scale(by_prompt[0], of_gaps, np.zeros(2))
    assert np.ptp(scale) > 1e-3
    np.testing.assert_allclose(together.components["difficulty"], np.repeat(scale, 2), rtol=1e-4)
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


def test_a_learned_reward_of_another_model_is_refused(tmp_path, monkeypatch):
    module = importlib.import_module("experiments.parts.judges.demonstrated")  # the package has a function of this name
    config = small.config(tmp_path).copy_and_resolve_references().unlock()
    trunk, other = make_setup(config), copy.deepcopy(config)
    other.model.num_layers += 1
    other.judge = dict(irl=dict(fn="demonstrated", path="start"))
    deeper, tokenizer = make_setup(other), types.SimpleNamespace(vocab_size=trunk.task.tokenizer.vocab_size)
    foreign = trunk._replace(task=trunk.task._replace(tokenizer=tokenizer))
    for start, said in ((deeper, "another architecture: model.num_layers is"), (foreign, "another tokenizer")):
        loaded = {"run": (deeper, {}), "start": (start, {})}
        monkeypatch.setattr(module, "load_run", lambda _, folder, what, loaded=loaded: loaded[folder])
        with pytest.raises(ValueError, match=f"the reward of run, trained from start, (is of|has) {said}"):
            module.learned_reward(trunk, trunk, "run")


def laid_out(tokenizer, prompt, completion, sampled):
    """(ids of the sampled row, ids of its prompt's demonstration) as the judge reads them."""
    module = importlib.import_module("experiments.parts.judges.demonstrated")
    setup = types.SimpleNamespace(task=types.SimpleNamespace(tokenizer=tokenizer), model=None)
    batch = base.lay_out([(tokenizer.encode(prompt, bos=True), sampled)], tokenizer, LENGTH)
    mask = np.arange(LENGTH)[None] < len(sampled)
    records = [{"prompt": prompt, "completion": completion, "info": "{}"}]
    rows = types.SimpleNamespace(
        rollout=types.SimpleNamespace(batch=batch, completion_mask=mask), records=records, completions=[completion]
    )
    judge = module._Demonstrated(setup, None, [None], LENGTH, category="", places={})
    batch, mask, *_ = judge._laid_out(rows)
    return [row[-LENGTH:][kept].tolist() for row, kept in zip(np.asarray(batch.tokens), mask, strict=True)]


def test_demonstrations_continue_the_prompt():
    """They begin as the policy's own text does: no dummy space first, EOS once; behind a chat template, too."""
    llama = Llama2cTokenizer(shared_data("models/tok512.bin"))
    for text in (" She", "She", "\n"):
        sampled = llama.encode_continuation(text, eos=True)
        assert laid_out(llama, "Lily ran.", text, sampled) == [sampled] * 2
    start = types.SimpleNamespace(ids=[1])
    for space in ("", " "):  # Mistral's template writes one before an answer
        options = dict(turn_end=lambda: 2, turn_start=lambda space=space: space, start=lambda messages: start)
        sampled = [*llama.encode_continuation(f"{space}She"), 2]
        chats = ChatPrompts(types.SimpleNamespace(tokenizer=llama, **options))
        assert laid_out(chats, "Lily ran.", "She", sampled) == [sampled] * 2


@pytest.mark.slow
def test_each_category_reads_the_reward_that_an_earlier_run_has_learned(tmp_path):
    config = small.config(tmp_path).copy_and_resolve_references().unlock()
    config.rollout.update(completion_length=LENGTH, prompt_buckets=(16,))
    setup = make_setup(config)
    start, infos = model_run(tmp_path / "lm", config, seed=3), [{"kind": "a"}] * 2 + [{"kind": "b"}] * 2
    prompts, texts = ["1+2="] * 2 + ["30-4="] * 2, ["4=5", "7", "26", "2=2=7"]
    rows = judged_rows(setup.task.tokenizer, prompts, texts, infos)
    folders, verdicts = [], []
    for name in ("a", "b"):
        config.judge = dict(irl=dict(fn="demonstrated", path=start, learning_rate=1e-2))
        config.seed = len(folders)
        own = make_setup(config)
        judge = judges.demonstrated(own, path=start, learning_rate=1e-2)
        for _ in range(3):
            judge.learn(rows, None)
        items = {"params": own.init_params(), "judges": {"irl": judge.learner.carried()}}
        folders.append(save(tmp_path / name, own, items, "grpo"))
        verdicts.append(judge(rows).rewards)
    assert np.abs(verdicts[0] - verdicts[1]).max() > 0.05
    options = dict(path=start, category="kind", categories=("a", "b"), models=folders)
    found = judges.demonstrated(setup, **options, retrain_every=0)
    assert found.learner is None
    np.testing.assert_allclose(found(rows).rewards, [*verdicts[0][:2], *verdicts[1][2:]], rtol=1e-5)
    with pytest.raises(ValueError, match="2 models, 2 categories and retrain_every=1"):
        judges.demonstrated(setup, **options)
    with pytest.raises(ValueError, match="must have one judge `demonstrated`"):
        judges.demonstrated(setup, path=start, models=(start,), retrain_every=0)
    with pytest.raises(ValueError, match="separator='==' must be one token"):
        judges.demonstrated(setup, path=start, separator="==")
