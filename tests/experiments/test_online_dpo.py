"""The pieces of experiments.online_dpo, and the loop itself, in this process and at the smallest size."""

import importlib
import json
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.preferences import online as online_preferences
from experiments import online_dpo
from experiments.parts import preference_steps, references
from experiments.parts import sample_candidates as candidates_of
from experiments.parts.check_config import check
from experiments.parts.clock import Clock
from experiments.parts.preference_data import flat
from experiments.parts.prompts import make_prompts
from experiments.parts.rewards import make_rewards
from experiments.parts.setup import make_setup
from experiments.parts.training import to_mesh
from rl_jax import preferences
from rl_jax.core.binding import bind
from rl_jax.core.types import PreferenceBatch, Rollout, TokenBatch
from rl_jax.data import pipeline
from rl_jax.selection import reference_policy
from rl_jax.tasks.arithmetic import ALPHABET
from rl_jax.training import checkpoint
from tests.experiments import small
from tests.experiments.judge_runs import reward_run
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations  # noqa: F401  fixtures

PROMPTS, SAMPLES, WIDTH, LENGTH = 4, 3, 2, 3


def config(tmp_path, **fields):
    """configs/preferences/online.py on one layer of 32. fields: "train.epochs"=value, dots as __."""
    found = online_preferences.smoke(online_preferences.of(small_of_grpo(tmp_path)))
    found.sft.steps = 0
    found.train.optimizer.update(warmup_steps=0, decay_steps=0, learning_rate=1e-3)
    for name, value in fields.items():
        *groups, last = name.split("__")
        group = found
        for part in groups:
            group = group[part]
        assert last in group, f"no field {name}"
        with group.unlocked():
            group[last] = value
    return found.lock()


def small_of_grpo(tmp_path):
    found = small.config(tmp_path, reward__function=small.reward(small.sevens)).copy_and_resolve_references()
    found.unlock()
    return found


def rows_of(workdir, *names):
    """The metrics.jsonl of a run; without the names that are asked for, all of each row."""
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [[row[name] for name in names] for row in rows if names[0] in row] if names else rows


def candidates(rewards=None):
    """Hand-made candidates: token values say which prompt and which candidate they are of."""
    shape = (PROMPTS, SAMPLES, WIDTH + LENGTH)
    tokens = np.broadcast_to(10 * np.arange(PROMPTS)[:, None, None] + np.arange(SAMPLES)[None, :, None], shape)
    mask = np.arange(LENGTH)[None, None] <= np.arange(SAMPLES)[None, :, None]
    mask = np.broadcast_to(mask, (PROMPTS, SAMPLES, LENGTH))
    rewards = np.array([[0, 1, 2], [5, 3, 4], [1, 1, 1], [0, 0, 2]], np.float32) if rewards is None else rewards
    batch = TokenBatch(tokens.astype(np.int32), np.zeros(shape, np.int32), np.ones(shape, np.int32))
    kinds = np.array([[candidates_of.POLICY, candidates_of.REFERENCE, candidates_of.DATA]])
    origin = np.broadcast_to(kinds, rewards.shape)
    return candidates_of.Candidates(batch, mask, rewards, origin, np.zeros((PROMPTS, 0), np.float32))


def test_choose_takes_each_array_of_the_chosen(tmp_path):
    found = online_dpo.choose(
        config(tmp_path, algorithm__pair_selection=dict(fn="best_worst")),
        candidates(),
        jax.random.key(0),
        {"from_reference", "sampled"},
    )
    np.testing.assert_array_equal(found.batch.tokens[:, :, 0], [[2, 0], [10, 11], [20, 22], [32, 31]])
    np.testing.assert_array_equal(found.completion_mask.sum(axis=2), [[3, 1], [1, 2], [0, 0], [3, 2]])
    np.testing.assert_array_equal(found.rewards, [[2, 0], [5, 3], [1, 1], [2, 0]])
    np.testing.assert_array_equal(found.present, [[True] * 2, [True] * 2, [False] * 2, [True] * 2])  # a tie
    np.testing.assert_array_equal(found.extras["from_reference"][:, 1], [False, True, False, True])
    np.testing.assert_array_equal(found.extras["sampled"][:, 0], [False, True, True, False])


def test_choose_gives_win_rates_as_rewards(tmp_path):
    settings = config(
        tmp_path, algorithm__candidate_value=dict(fn="win_rate"), algorithm__pair_selection=dict(fn="best_worst")
    )
    found = online_dpo.choose(settings, candidates(), jax.random.key(0), set())
    sigma = 1 / (1 + np.exp(-np.array([1.0, 2.0])))
    np.testing.assert_allclose(found.rewards[0], [(0.5 + sigma.sum()) / 3, (2.5 - sigma.sum()) / 3], rtol=1e-6)
    assert found.extras == {}


def test_several_lists_of_a_prompt_stay_together(tmp_path):
    rewards = np.arange(16, dtype=np.float32).reshape(4, 4)
    wide = candidates()
    wide = wide._replace(
        batch=TokenBatch(*(np.concatenate([x, x[:, :1]], axis=1) for x in wide.batch[:3])),
        completion_mask=np.concatenate([wide.completion_mask, wide.completion_mask[:, :1]], axis=1),
        rewards=rewards,
        origin=np.zeros((4, 4), np.int32),
    )
    settings = config(tmp_path, algorithm__pair_selection=dict(fn="rejection_sampled", num_samples=4, beta=0.5))
    found = online_dpo.choose(settings, wide, jax.random.key(0), set())
    assert found.rewards.shape == (8, 2)
    np.testing.assert_array_equal(found.rewards // 4, np.repeat(np.arange(4.0), 2)[:, None] * np.ones((1, 2)))
    np.testing.assert_array_equal(found.batch.tokens[:, 0, 0] // 10, np.repeat(np.arange(4), 2))


def test_labelled_responses_are_rows_of_their_own(tmp_path):
    selection = dict(fn="best_worst", ties="first")
    anchored = dict(fn="anchored", anchor=0.0)
    settings = config(
        tmp_path, algorithm__responses=1, algorithm__pair_selection=selection, algorithm__compare=anchored
    )
    found = online_dpo.choose(settings, candidates(), jax.random.key(0), set())
    np.testing.assert_array_equal(found.batch.tokens[:, 0, 0], [2, 10, 20, 32, 0, 11, 22, 31])
    np.testing.assert_array_equal(found.rewards[:, 0], [1, 1, 1, 1, 0, 0, 0, 0])


@pytest.mark.parametrize("name", ["nash_md", "nash_md_token"])
def test_win_rates_do_not_become_labels(tmp_path, name):
    """Nash-MD with several samples per prompt: lists of their win rates, or an error that says how, at the start."""
    settings = importlib.import_module(f"configs.methods.preferences.{name}").get_config("smoke").lock()
    given = candidates()._replace(opponents=np.ones((PROMPTS, 1), np.float32))
    with pytest.raises(ValueError, match="gives lists of 3: set algorithm.responses=3"):
        online_dpo.choose(settings, given, jax.random.key(0), set())
    with settings.unlocked():
        settings.algorithm.responses = 3
    found = online_dpo.choose(settings, given, jax.random.key(0), set())
    expected = 1 / (1 + np.exp(1 - np.sort(given.rewards, axis=1)[:, ::-1]))
    np.testing.assert_allclose(found.rewards, expected, rtol=1e-6)


def test_lists_of_another_length_are_refused_before_anything_is_sampled(tmp_path):
    found = config(tmp_path, sample__group_size=4, algorithm__pair_selection=dict(fn="ranking"))
    with pytest.raises(ValueError, match="gives lists of 4: set algorithm.responses=4"):
        online_dpo.check_config(make_setup(found))
    with found.unlocked():
        found.algorithm.responses = 6
        found.sample.update(data="completion", opponents=dict(samples=1, share=1.0, candidates=True))
    online_dpo.check_config(make_setup(found))


def test_shuffled_labels_are_compared_with_other_prompts(tmp_path):
    """KTO: no response of the same prompt, wherever the shuffle puts it."""
    owners = np.tile(np.arange(8)[:, None, None], (1, 2, 4))
    tokens, there = TokenBatch(owners, owners * 0, owners * 0 + 1), np.ones((8, 2), bool)
    batch = online_dpo.labelled(PreferenceBatch(tokens, np.ones((8, 2, 2), bool), there, np.zeros((8, 2))))
    settings = config(tmp_path, train__batch_size=4, train__epochs=20)
    for part in online_dpo.minibatches(settings, batch, jax.random.key(0)):
        rows = {name: getattr(part.batch, name) for name in ("tokens", "positions", "segment_ids")}
        rows |= {"completion_mask": part.completion_mask, "present": part.present}
        found = preferences.mismatched({name: np.asarray(x) for name, x in rows.items()})
        assert found["present"].all() and (found["tokens"][:, 0, 0] != found["tokens"][:, 0, -1]).all()


def test_lists_of_another_length_are_refused(tmp_path):
    settings = config(tmp_path, algorithm__pair_selection=dict(fn="ranking"))
    with pytest.raises(ValueError, match="gives lists of 3: set algorithm.responses=3, not 2"):
        online_dpo.choose(settings, candidates(), jax.random.key(0), set())


def test_join_pads_prompts_on_the_left():
    part = candidates()
    padded = (np.pad(x, ((0, 0), (0, 0), (2, 0)), constant_values=7) for x in part.batch[:3])
    wide = part._replace(batch=TokenBatch(*padded))
    found = candidates_of.join([part, wide], pad_id=9)
    assert found.batch.tokens.shape == (8, SAMPLES, WIDTH + LENGTH + 2) and found.rewards.shape == (8, SAMPLES)
    assert (found.batch.tokens[:4, :, :2] == 9).all() and (found.batch.segment_ids[:4, :, :2] == 0).all()
    np.testing.assert_array_equal(found.batch.tokens[:4, :, 2:], part.batch.tokens)
    np.testing.assert_array_equal(found.batch.tokens[4:], wide.batch.tokens)


def test_minibatches_deal_every_list_out_once_an_epoch(tmp_path):
    settings = config(tmp_path, train__batch_size=2, train__epochs=3)
    batch = PreferenceBatch(None, None, np.ones((6, 2), bool), np.arange(12.0).reshape(6, 2))
    found = [part.rewards[:, 0].tolist() for part in online_dpo.minibatches(settings, batch, jax.random.key(1))]
    epochs = [sum(found[i : i + 3], []) for i in (0, 3, 6)]
    assert all(sorted(epoch) == [0, 2, 4, 6, 8, 10] for epoch in epochs) and len({tuple(e) for e in epochs}) > 1
    whole = list(online_dpo.minibatches(config(tmp_path, train__batch_size=6), batch, jax.random.key(1)))
    assert len(whole) == 1 and (whole[0].rewards == batch.rewards).all()
    with pytest.raises(ValueError, match="6 lists do not divide into updates of train.batch_size=4"):
        list(online_dpo.minibatches(config(tmp_path, train__batch_size=4), batch, jax.random.key(1)))


def test_bad_sizes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="prompts_per_step=8 is no multiple of prompts_per_batch=3"):
        online_dpo.check_config(make_setup(config(tmp_path, sample__prompts_per_batch=3)))


class Drawn:
    """A set-up, its params, and what one step draws and chooses."""

    def __init__(self, settings):
        self.setup = make_setup(settings)
        self.params = self.setup.init_params()
        self.other = jax.tree.map(lambda x: 1.5 * x, self.params)
        self.source = self.setup.task.data_source("sft_train" if settings.sample.data else "train")
        prompts = make_prompts(self.setup, self.source, batch_size=settings.sample.prompts_per_batch)
        self.records = [self.source[i] for i in range(1)]
        with make_rewards(self.setup) as score:
            draw = candidates_of.Source(self.setup, candidates_of.make_judge(self.setup, score), prompts)
            self.candidates, self.judged = draw(self.params, self.other, jax.random.key(5), Clock())


@pytest.mark.slow
def test_candidates_of_the_policy_and_of_the_reference(tmp_path):
    settings = config(
        tmp_path,
        sample__group_size=2,
        sample__opponents=dict(samples=1, share=1.0, candidates=True),
        sample__missing_eos_penalty=10.0,
        sample__prompts_per_step=16,
    )
    drawn = Drawn(settings)
    found = drawn.candidates
    assert found.rewards.shape == (16, 3) and found.opponents.shape == (16, 1)
    np.testing.assert_array_equal(found.origin, [[candidates_of.POLICY] * 2 + [candidates_of.REFERENCE]] * 16)
    np.testing.assert_array_equal(found.rewards[:, 2:], found.opponents)
    # The rewards are those of the texts that stand there, less the penalty where no EOS does.
    length, tokenizer = settings.rollout.completion_length, drawn.setup.task.tokenizer
    for tokens, mask, reward in zip(
        found.batch.tokens[..., -length:].reshape(-1, length),
        found.completion_mask.reshape(-1, length),
        found.rewards.ravel(),
        strict=True,
    ):
        ids = tokens[mask].tolist()
        assert reward == tokenizer.decode(ids).count("7") - 10.0 * (ids[-1] not in tokenizer.eos_ids)
    prompts = found.batch.tokens[..., :-length]
    np.testing.assert_array_equal(prompts, np.broadcast_to(prompts[:, :1], prompts.shape))
    assert len({tuple(p) for p in prompts[:, 0].tolist()}) > 8


def test_a_judge_judges_in_place_of_the_verifier(tmp_path):
    drawn = Drawn(config(tmp_path, judge={"length": {"fn": "tests.experiments.test_judge_table:lengths"}}))
    expected = [len(text) for text in drawn.judged.completions]
    np.testing.assert_array_equal(drawn.candidates.rewards.ravel(), expected)
    assert drawn.judged.result.components["task"].tolist() == [t.count("7") for t in drawn.judged.completions]


@pytest.mark.slow
def test_the_first_reference_may_be_a_soup(tmp_path, monkeypatch):
    settings = config(tmp_path, algorithm__reference_soup=dict(init_from="other", weight=0.25))
    setup = make_setup(settings)
    params = setup.init_params()
    monkeypatch.setattr(references, "load_params", lambda setup, workdir: jax.tree.map(lambda x: x + 4.0, params))
    for found, leaf in zip(*map(jax.tree.leaves, (references.first(setup, params), params)), strict=True):
        np.testing.assert_allclose(found, leaf + 1.0, atol=1e-5)
    assert references.first(make_setup(config(tmp_path)), params) is params


def test_unknown_data_are_refused(tmp_path):
    with pytest.raises(ValueError, match="sample.data='pair' is none of"):
        online_dpo.make_source(config(tmp_path, sample__data="pair"))


@pytest.mark.slow
def test_opponents_may_only_be_compared_with(tmp_path):
    drawn = Drawn(config(tmp_path, sample__opponents=dict(samples=3, share=0.5, candidates=False)))
    assert drawn.candidates.rewards.shape == (8, 2) and drawn.candidates.opponents.shape == (8, 3)
    assert (drawn.candidates.origin == candidates_of.POLICY).all()


def test_the_records_own_completion_is_the_last_candidate(tmp_path):
    settings = config(tmp_path, sample__data="completion", algorithm__pair_selection=dict(fn="data_first"))
    drawn = Drawn(settings)
    found, length = drawn.candidates, settings.rollout.completion_length
    assert found.rewards.shape == (8, 3)
    prompts = found.batch.tokens[..., :-length]
    np.testing.assert_array_equal(prompts, np.broadcast_to(prompts[:, :1], prompts.shape))
    np.testing.assert_array_equal(
        found.batch.positions[..., :-length], np.broadcast_to(found.batch.positions[:, :1, :-length], prompts.shape)
    )
    decode = drawn.setup.task.tokenizer.decode
    known = {record["prompt"]: record["completion"] for record in (drawn.source[i] for i in range(len(drawn.source)))}
    for row, mask in zip(found.batch.tokens[:, 2], found.completion_mask[:, 2], strict=True):
        prompt = decode(row[:-length].tolist())
        assert known[prompt].startswith(decode(row[-length:][mask].tolist()))
    chosen = online_dpo.choose(settings, found, jax.random.key(0), set())
    np.testing.assert_array_equal(chosen.batch.tokens[:, 0], found.batch.tokens[:, 2])


@pytest.mark.slow
def test_references_are_scored_by_their_own_params(tmp_path):
    drawn = Drawn(config(tmp_path))
    setup = drawn.setup
    programs, _ = preference_steps.build(setup, jax.tree.map(jnp.copy, drawn.params))
    batch = online_dpo.choose(setup.config, drawn.candidates, jax.random.key(0), set())
    found = online_dpo.with_references(setup, programs, batch, {"ref": 0.3, "prev": 0.7}, drawn.other, drawn.params)
    rows = to_mesh(setup, flat(batch.batch))
    for scores, params in ((found.ref_log_probs, drawn.other), (found.prev_log_probs, drawn.params)):
        expected = programs.score(params, rows).log_probs.reshape(scores.shape)
        np.testing.assert_allclose(scores, expected, atol=1e-6)
    assert np.abs(found.ref_log_probs - found.prev_log_probs).max() > 0.1
    none = online_dpo.with_references(setup, programs, batch, {}, drawn.other, drawn.params)
    assert none.ref_log_probs is None and none.prev_log_probs is None


@pytest.mark.slow
def test_identical_data_give_identical_losses_offline_and_online(tmp_path):
    """[236]: pairs that were sampled and judged train as the same pairs do when they come as texts with an order."""
    setup = make_setup(config(tmp_path))
    source, tokenizer = setup.task.data_source("train"), setup.task.tokenizer
    length, texts = setup.config.rollout.completion_length, [["7", "12"], ["345", "6"], ["1234", "77"], ["8", "9"]] * 2
    rewards = np.array([[1, 0], [0, 1], [2, 3], [1, 0]] * 2, np.float32)

    def sample(policy, reference, tokens, prompt_mask, key):
        """The texts as the sampler would have given them; "1234" is as long as a completion may be."""
        ids = [tokenizer.encode(text, bos=False) + list(tokenizer.eos_ids[:1]) for pair in texts for text in pair]
        mask = np.arange(length)[None] < np.array([[len(row)] for row in ids])
        completions = np.array([(row + [tokenizer.pad_id] * length)[:length] for row in ids], np.int32)
        prompts = np.repeat(tokens, 2, axis=0), np.repeat(prompt_mask, 2, axis=0)
        segments = np.concatenate([prompts[1], mask], axis=1).astype(np.int32)
        positions = np.maximum(segments.cumsum(axis=1) - 1, 0) * segments
        rows = TokenBatch(np.concatenate([prompts[0], completions], axis=1), positions, segments)
        finished, zeros = np.array([len(row) <= length for row in ids]), np.zeros(mask.shape, np.float32)
        return Rollout(rows, mask, zeros, zeros, finished, ~finished)

    rows = iter(rewards.ravel().tolist())
    judged = setup._replace(task=setup.task._replace(reward_fn=lambda *args: {"reward": next(rows)}))
    prompts = make_prompts(setup, source, batch_size=8)
    records = next(pipeline.train_iterator(source, batch_size=8, seed=0))
    # Not by `monkeypatch`, which ends the sharing of programs: no program reads this.
    drawer = mock.patch.object(candidates_of, "make_drawer", lambda *args, **kwargs: sample)
    with make_rewards(judged) as score, drawer:
        drawn, _ = candidates_of.Source(judged, score, prompts)(None, None, jax.random.key(0), Clock())
    online = online_dpo.choose(setup.config, drawn, jax.random.key(0), set())
    ordered = [
        {"prompt": record["prompt"], "responses": pair if r[0] > r[1] else pair[::-1], "rewards": [max(r), min(r)]}
        for record, pair, r in zip(records, texts, rewards.tolist(), strict=True)
    ]
    arrays, _ = preferences.encode_preferences(
        tokenizer, ordered, prompt_buckets=setup.config.rollout.prompt_buckets, completion_length=length, responses=2
    )
    offline = PreferenceBatch(
        TokenBatch(arrays["tokens"], arrays["positions"], arrays["segment_ids"]),
        arrays["completion_mask"],
        arrays["present"],
        arrays["rewards"],
    )
    jax.tree.map(np.testing.assert_array_equal, offline, online._replace(extras={}))
    params, reference = setup.init_params(), jax.tree.map(lambda x: 1.1 * x, setup.init_params())
    programs, state = preference_steps.build(setup, params)
    losses = []
    for found in (offline, online):
        found = online_dpo.with_references(setup, programs, found, {"ref": 1.0}, reference, state.params)
        copied = jax.tree.map(jnp.copy, state)
        losses.append(jax.device_get(programs.train_step(copied, to_mesh(setup, found), reference)[1]))
    assert losses[0] == losses[1] and losses[0]["grad_norm"] > 0 and losses[0]["log_ratio"] != 0


# Each turns on several things that others do not, so that each way through the program is gone once. What a single slot
# computes is held by tests/recipes/test_dpo.py and tests/selection.
RUNS = {
    "inpo": dict(
        train__epochs=2,
        train__batch_size=4,
        sample__group_size=4,
        algorithm__pair_selection=dict(fn="best_worst"),
        algorithm__beta=1.0,
        algorithm__link=dict(fn="square"),
        algorithm__reference=dict(ref=1 / 3, prev=2 / 3),
        algorithm__reference_schedule=dict(fn="extrapolated", rate=0.3),
    ),
    # RSO's two lists of a prompt, with XPO's candidates of the reference and its optimism.
    "rso": dict(
        sample__group_size=4,
        sample__opponents=dict(samples=2, share=1.0, candidates=True),
        algorithm__pair_selection=dict(fn="rejection_sampled", num_samples=4),
        algorithm__link=dict(fn="hinge"),
        algorithm__regularizer=dict(fn="optimism"),
        algorithm__regularizer_coef=1e-2,
    ),
    # KTO's labelled responses, with SPIN's data.
    "kto": dict(
        sample__data="completion",
        algorithm__pair_selection=dict(fn="data_first"),
        algorithm__responses=1,
        algorithm__compare=dict(fn="anchored"),
        algorithm__link=dict(fn="saturating"),
        algorithm__batch_stats=dict(fn="kto_anchor"),
        algorithm__reference_schedule=dict(fn="per_iteration", every=2),
    ),
    "nash_md": dict(
        train__epochs=2,
        sample__opponents=dict(samples=2, share=0.25, candidates=False),
        algorithm__candidate_value=dict(fn="win_rate_against"),
        algorithm__pair_selection=dict(fn="ranking"),
        algorithm__compare=dict(fn="nash_md"),
        algorithm__reference_schedule=dict(fn="moving_average", rate=0.5),
        train__optimizer__eps=1e-3,  # another split of the rows is compared with it
    ),
    "egpo": dict(
        sample__share=1.0,
        sample__opponents=dict(samples=1, share=0.0, candidates=False),
        algorithm__extragradient=True,
        algorithm__candidate_value=dict(fn="win_rate_against"),
        algorithm__beta=1.0,
        algorithm__link=dict(fn="square", target=0.0),
        algorithm__offset=dict(fn="reward_gap", eta=2.0),
    ),
}
RESUMED = ("inpo", "kto")


@pytest.fixture
def run(tmp_path, kept_signals):  # noqa: F811
    """run(name, **fields) -> workdir of a whole run."""

    def of(name, workdir=None, **fields):
        workdir = workdir or tmp_path / name
        online_dpo.run(
            config(tmp_path, **(RUNS.get(name, {}) | dict(checkpoint__every=4, eval__every=4) | fields)), workdir
        )
        return workdir

    return of


@pytest.fixture
def whole(tmp_path_factory, kept_signals):  # noqa: F811
    """whole(name) -> workdir of a whole run of RUNS, which is made once."""

    def of(name):
        folder = tmp_path_factory.getbasetemp() / "whole_online_dpo"
        if not (folder / name / "final.json").exists():
            saves = 2 if name in RESUMED else 4
            fields = dict(checkpoint__every=saves, eval__every=4)
            online_dpo.run(config(folder, **RUNS[name], **fields), folder / name)
        return folder / name

    return of


@pytest.mark.slow
@pytest.mark.usefixtures("no_evaluations")
def test_hypo_trains_on_given_pairs_and_its_own_samples(run, tmp_path):
    path = tmp_path / "pairs.jsonl"
    pairs = [{"prompt": f"{i}+{i}=", "chosen": f"{2 * i}", "rejected": "0"} for i in range(1, 10)] * 10
    records = [pair | {"prompt": f"{place % 7}{pair['prompt']}"} for place, pair in enumerate(pairs)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    workdir = run(
        "pairs",
        sample__data="pairs",
        sample__pairs=dict(name="jsonl", path=str(path), data_dir=str(tmp_path / "data")),
        sample__group_size=1,
        algorithm__pair_selection=dict(fn="given_pair"),
        algorithm__responses=3,
        algorithm__compare=dict(fn="first_pair"),
        algorithm__regularizer=dict(fn="online_kl"),
        algorithm__regularizer_coef=0.1,
    )
    rows = rows_of(workdir)
    assert len(rows) == 5 and all(row["grad_norm"] > 1e-3 for row in rows[1:])
    # Nobody judges: 1 and 0 of each pair, and 1 of a sample, which so counts as no worse than the chosen response.
    np.testing.assert_allclose([row["reward/mean"] for row in rows[1:]], 2 / 3, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_each_kind_of_run_trains(whole, tmp_path, name):
    workdir = whole(name)
    rows = rows_of(workdir)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    for row in rows[1:]:
        assert np.isfinite(row["loss"]) and row["nonfinite/skipped"] == 0 and 0 <= row["selection/kept"] <= 1
    assert max(row["grad_norm"] for row in rows[1:]) > 1e-6
    assert len({row["reward/mean"] for row in rows[1:]}) > 1 or name == "kto"
    first, policy, ref = (jax.tree.leaves(tree) for tree in restored(workdir, config(tmp_path, **RUNS[name])))
    schedule = RUNS[name].get("algorithm__reference_schedule", {"fn": "fixed"})["fn"]
    for then, now, compared in zip(first, policy, ref, strict=True):
        if schedule == "moving_average":
            assert (compared != now).any() and (compared != then).any()
        else:  # of 4 steps, the last one ends an iteration
            np.testing.assert_array_equal(compared, then if schedule == "fixed" else now)


def restored(workdir, settings):
    """(the params before a run, those at its end, its reference at its end)."""
    setup = make_setup(settings)
    params = setup.init_params()
    schedule = bind(settings.algorithm.reference_schedule.to_dict(), reference_policy)
    like = {"params": params, "references": reference_policy.start(schedule, params)}
    with checkpoint.Checkpointer(workdir / "checkpoints", every=1) as found:
        items, _ = found.restore(like)
    return params, items["params"], items["references"].ref


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_a_run_that_was_cut_off_resumes_bit_for_bit(whole, tmp_path, capsys, name):
    undisturbed, part = whole(name), tmp_path / "part"
    assert small.cut_off(undisturbed, part) == 2
    fields = dict(checkpoint__every=2, eval__every=4, log__progress=True)
    online_dpo.run(config(undisturbed.parent, **RUNS[name], **fields), part)
    assert "resumes from step 2" in capsys.readouterr().out
    assert json.loads((part / "final.json").read_text()) == json.loads((undisturbed / "final.json").read_text())
    assert rows_of(part) == rows_of(undisturbed)


@pytest.mark.slow
@pytest.mark.usefixtures("no_evaluations")
def test_packed_rows_on_a_mesh_change_nothing(run, whole, tmp_path):
    """Nor do micro-batches: one run with all three."""
    columns = ("loss", "reward/mean", "rewards/margin", "grad_norm")
    fields = dict(mesh="data:2,fsdp:2", packing__mode="shared_prefix", train__micro_batches=2)
    packed, alone = rows_of(run("nash_md", **fields), *columns), rows_of(whole("nash_md"), *columns)
    np.testing.assert_allclose(packed, alone, rtol=1e-3, atol=1e-5)
    assert min(abs(row[2]) for row in alone) > 1e-4, "nothing moved, so nothing was compared"


@pytest.mark.slow
def test_online_dpo_learns_what_the_verifier_wants(run):
    workdir = run(
        "pairs",
        train__steps=30,
        train__batch_size=32,
        sample__prompts_per_step=32,
        sample__prompts_per_batch=32,
        sample__group_size=4,
        algorithm__pair_selection=dict(fn="best_worst"),
        train__optimizer__learning_rate=3e-3,
        eval__every=30,
        checkpoint__every=30,
    )
    first, last = rows_of(workdir, "eval/reward")
    assert last[0] > first[0] + 0.5


# --- Judges that learn -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_a_judge_learns_once_per_step_and_is_in_the_checkpoint(tmp_path):
    judge = {"rm": dict(fn="reward_model", path=reward_run(tmp_path / "rm", ALPHABET), retrain_every=2)}
    fields = dict(judge=judge, train__steps=2, checkpoint__every=2, eval__every=0)
    fields |= dict(sample__prompts_per_batch=4)  # two batches per step: they are learned from together
    online_dpo.run(config(tmp_path, **fields), tmp_path / "run")
    first, second = [row for row in rows_of(tmp_path / "run") if "loss" in row]
    assert "judge/rm/loss" not in first and second["judge/rm/loss"] > 0
    assert list((tmp_path / "run" / "checkpoints" / "2").glob("*judges*")), "Run.carry restores it (test_rlhf.py)"


def test_a_judge_that_nothing_teaches_is_refused(tmp_path):
    judge = {"rm": dict(fn="reward_model", path="RUN", retrain_every=1)}
    check(config(tmp_path, judge=judge))
    for fields, why in (
        (dict(program="best_of_n"), "experiments.best_of_n trains no judge"),
        (dict(sample__data="pairs", sample__pairs__path="PAIRS"), "sample.data='pairs' judges nothing"),
    ):
        with pytest.raises(ValueError, match=f"judge.rm.retrain_every=1: {why}; leave it at 0"):
            check(config(tmp_path, judge=judge, **fields))
