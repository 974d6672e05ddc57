"""RLHF: PPO on a reward model, its critic from that model, the pretraining term."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import ppo_common
from configs.preferences import process_rewards, rlhf
from experiments import best_of_n, dpo, ppo, reward_model
from experiments.parts import check_config, critics, pretraining
from experiments.parts import policy as policy_parts
from experiments.parts.judges.trained import load_reward_model
from experiments.parts.setup import make_setup
from experiments.tools import over_optimization
from rl_jax import grpo, preferences, sft
from rl_jax.core.types import PolicyBatch, TokenBatch
from rl_jax.credit import ensembles
from rl_jax.losses import aggregate
from rl_jax.models.heads import NAME, make_predict, make_predict_last
from rl_jax.tasks.arithmetic import ALPHABET
from rl_jax.training.scoring import make_score
from rl_jax.training.step import merge
from tests.experiments import small
from tests.experiments.judge_runs import model_run, reward_run
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config


def with_critic(config, **critic):
    return ppo_common.with_critic(config.copy_and_resolve_references().unlock(), **critic).lock()


def metrics_of(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


# --- The pretraining term --------------------------------------------------------------------------------------------


def task(count):
    """A task of `count` demonstrations."""
    tokenizer = make_tokenizer()
    records = [{"prompt": f"{i}+{i}=", "completion": str(2 * i)[:2], "info": "{}"} for i in range(count)]
    return types.SimpleNamespace(tokenizer=tokenizer, data_source=lambda split: records)


def make_tokenizer():
    from rl_jax.tokenizers import CharTokenizer

    return CharTokenizer(ALPHABET)


def test_each_epoch_reads_every_record_once_and_depends_on_the_step_alone(tmp_path):
    config = small_config(tmp_path, algorithm__ptx=dict(coef=0.5, split="sft_train"))
    setup = types.SimpleNamespace(config=config, task=task(6))
    read = [r["prompt"] for step in (1, 2, 3) for r in pretraining.records_of(setup, step, 4)]
    assert len(set(read[:6])) == len(set(read[6:])) == 6 and read[:6] != read[6:]
    assert [r["prompt"] for r in pretraining.records_of(setup, 2, 4)] == read[4:8]


@pytest.mark.slow
def test_the_term_is_a_mean_of_its_own_over_the_whole_update(tmp_path):
    """L = L_policy + coef * mean NLL, for any number of micro-batches and any aggregate."""
    config = small_config(tmp_path, algorithm__ptx=dict(coef=0.5, split="sft_train"))
    setup = make_setup(config)
    params, rows, length = setup.init_params(), 4, config.rollout.completion_length
    records = pretraining.records_of(setup, 1, rows)
    rng = np.random.default_rng(0)
    ids = rng.integers(3, 10, (rows, 8 + length)).astype(np.int32)
    ones = np.ones_like(ids)
    tokens = TokenBatch(ids, np.cumsum(ones, axis=1, dtype=np.int32) - 1, ones)
    mask = np.arange(length)[None, :] < np.array([1, 4, 2, 3])[:, None]
    numbers = rng.normal(size=(3, *mask.shape)).astype(np.float32)
    batch = PolicyBatch(tokens, mask, numbers[0], None, numbers[1], None, extras={"batch_rows": np.full(rows, 4.0)})
    attached = pretraining.attach(setup, batch, 1)
    assert pretraining.attach(types.SimpleNamespace(config=small_config(tmp_path)), batch, 1) is batch
    add = pretraining.make_term(setup)
    score = jax.jit(make_score(setup.model, completion_length=length))
    demonstrations, demonstrated = pretraining.encode_sft(setup, records)
    expected = sft.loss(score(params, demonstrations), demonstrated)[0].value()
    for fn in (aggregate.token_mean, aggregate.seq_mean_token_mean):
        objective = grpo.Objective(kl_coef=0.0, aggregate=fn)
        whole = pretraining.weigh(config, objective, attached)

        @jax.jit
        def loss(params, part, objective=objective):
            return add(params, part, *grpo.loss(score(params, part.batch), part, objective))

        parts = [jax.tree.map(lambda x, i=i: jnp.asarray(x)[i::2], whole) for i in range(2)]
        found = [loss(params, part) for part in parts]
        total = merge(*(mean for mean, _ in found))
        metrics = merge(*(measured["ptx/loss"] for _, measured in found))
        plain = grpo.loss(score(params, batch.batch), jax.tree.map(jnp.asarray, batch), objective)[0].value()
        np.testing.assert_allclose(total.value(), plain + 0.5 * expected, rtol=1e-5)
        np.testing.assert_allclose(metrics.value(), expected, rtol=1e-5)


# --- The critic of a reward model ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_critic_starts_as_the_reward_model(tmp_path):
    config = with_critic(small_config(tmp_path), init_from=reward_run(tmp_path / "rm", ALPHABET))
    setup = make_setup(config)
    params, length = setup.init_params(), config.rollout.completion_length
    critic, _ = critics.start(setup, params, num_outputs=1)
    ids = np.random.default_rng(0).integers(3, 10, (2, 8 + length)).astype(np.int32)
    ones = np.ones_like(ids)
    batch = TokenBatch(ids, np.cumsum(ones, axis=1, dtype=np.int32) - 1, ones)
    values = make_predict(setup.model, completion_length=length)(critic, batch)[:, -1, 0]
    judge = critics.load_head(critics.pathlib.Path(config.critic.init_from))
    np.testing.assert_allclose(values, make_predict_last(judge[0].model)(judge[1], batch)[:, 0], rtol=1e-4, atol=1e-5)
    # A categorical head starts at 0; a policy's run gives the trunk.
    many, _ = critics.start(setup, params, num_outputs=11)
    assert not many[NAME]["kernel"].any() and many[NAME]["kernel"].shape[1] == 11
    other = with_critic(small_config(tmp_path), init_from=model_run(tmp_path / "lm", setup.config, seed=7))
    trunk, _ = critics.start(setup._replace(config=other), params, num_outputs=1)
    embed = jax.tree.leaves(make_setup(small_config(tmp_path, seed=7)).init_params())[0]
    np.testing.assert_array_equal(jax.tree.leaves({k: v for k, v in trunk.items() if k != NAME})[0], embed)
    for settings, error, said in (
        (dict(init_from="nowhere"), FileNotFoundError, "critic.init_from='nowhere' is no run"),
        (dict(init_from=config.critic.init_from, shared=True), ValueError, "critic.shared: its trunk is the policy's"),
    ):
        wrong = setup._replace(config=with_critic(small_config(tmp_path), **settings))
        with pytest.raises(error, match=said):
            critics.start(wrong, params, num_outputs=1)


@pytest.mark.slow
def test_a_head_of_two_layers_is_a_judge_and_becomes_a_critics(tmp_path):
    """And a run that was recorded before heads had layers is read as one with a linear head."""
    folders = [tmp_path / name for name in ("old", "deep")]
    reward_run(folders[0], ALPHABET), reward_run(folders[1], ALPHABET, layers=2)
    recorded = json.loads((folders[0] / "config.json").read_text())
    assert recorded["algorithm"].pop("head") == {"layers": 1, "activation": "silu"}
    (folders[0] / "config.json").write_text(json.dumps(recorded))
    prompts, answers, found = ["1+2=", "3+4="], ["3", "8"], []
    for folder in folders:
        config = with_critic(small_config(tmp_path), init_from=str(folder))
        setup, judge = make_setup(config), load_reward_model(folder)
        critic, shardings = critics.start(setup, setup.init_params(), num_outputs=1)
        assert jax.tree.structure(critic) == jax.tree.structure(shardings)
        rows = jax.tree.map(jnp.asarray, judge.encode(prompts, answers))
        ends = rows.tokens.shape[1] - 1 - np.argmax(np.asarray(rows.segment_ids != 0)[:, ::-1], axis=1)
        values = make_predict(setup.model, completion_length=8)(critic, rows)
        start = rows.tokens.shape[1] - 8 - 1  # the column of the first value
        found.append(judge.score_texts(prompts, answers))
        np.testing.assert_allclose(values[np.arange(2), ends - start, 0], found[-1], rtol=1e-4, atol=1e-4)
    assert "silu" in critic[NAME] and np.abs(found[0] - found[1]).max() > 0.01


def test_a_standardised_head_gives_the_rewards_that_are_trained_on():
    rng = np.random.default_rng(0)
    hidden, head = rng.normal(size=(5, 3)), dict(kernel=rng.normal(size=(3, 2)), bias=np.array([4.0, -1.0]))
    moments = dict(means=[2.0, -3.0], stds=[0.5, 0.0])
    rewards = hidden @ head["kernel"] + head["bias"]
    found = critics.standardized(head, moments)
    expected = ensembles.standardized(jnp.asarray(rewards), *(jnp.asarray(moments[name]) for name in ("means", "stds")))
    np.testing.assert_allclose(hidden @ np.asarray(found["kernel"]) + np.asarray(found["bias"]), expected, rtol=1e-4)


def test_the_members_of_an_ensemble_are_of_one_scale():
    """Bradley-Terry does not say what 0 is: unstandardised, the worst of five would be that of the lowest offset."""
    for words in ("reward_model", "short,reward_model", "smoke,reward_model"):
        assert rlhf.get_config(words).algorithm.standardize


def test_the_rows_that_are_trained_on_are_drawn_by_their_rewards(tmp_path):
    config = small_config(tmp_path, algorithm__row_selection=dict(fn="best_worst"), sample__group_size=4)
    rewards = np.array([0, 1, 2, 3, 5, 4, 5, 5], np.float32)
    mask = np.ones((8, 2), bool)
    batch = PolicyBatch(np.arange(8), mask, rewards[:, None] * mask, None, rewards, None, extras={})
    marked = policy_parts.with_row_selection(config, batch, jnp.asarray(rewards), jax.random.key(0))
    (part,) = policy_parts.minibatches(config, marked, jax.random.key(1))
    chosen = np.asarray(part.behavior_log_probs)
    assert set(chosen[:4]) <= {0.0, 3.0} and set(chosen[4:]) <= {4.0, 5.0} and len(chosen) == 8
    np.testing.assert_array_equal(part.advantages[:, 0], chosen)
    plain = small_config(tmp_path)
    assert policy_parts.with_row_selection(plain, batch, rewards, jax.random.key(0)) is batch


def test_pretraining_is_off_by_default(tmp_path):
    config = small_config(tmp_path)
    assert config.algorithm.ptx.coef == 0.0 and ppo_common.critic().init_from == ""
    part = policy_parts._whole(PolicyBatch(*[np.ones((2, 2), bool)] * 2, *[np.zeros((2, 2))] * 4, extras={}))
    assert pretraining.weigh(config, grpo.Objective(), part) is part


# --- configs/preferences/rlhf.py -------------------------------------------------------------------------------------


def staged(tmp_path, words):
    """A smoke config on one layer."""
    config = rlhf.get_config(f"{words},smoke")
    config.model.update(embed_dim=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64)
    config.task.data_dir = str(tmp_path / "data")
    config.sft.update(steps=min(config.sft.steps, 2), batch_size=8)
    config.reward.num_workers = 0
    config.reward.function = small.reward(small.even_length)  # five updates teach no mood
    config.log.update(progress=False, tensorboard=False)
    if "data_dir" in config.get("data", {}):
        config.data.data_dir = str(tmp_path / "data")
    if config.program in ("ppo", "grpo"):
        config.train.steps = 1
        config.sample.update(prompts_per_step=4, group_size=4)
        config.eval.update(num_prompts=4, batch_size=4)
    return config


@pytest.mark.slow
def test_each_stage_reads_what_the_one_before_has_written(tmp_path, monkeypatch):
    """And the last one is PPO with everything: a judge that reads ids and learns, one of tokens, a critic from the
    first, KL in the reward, the pretraining term; and it resumes."""
    monkeypatch.chdir(tmp_path)
    stages = ((best_of_n, "candidates"), (reward_model, "reward_model"), (dpo, "dpo"), (ppo, "ppo,pf,rto"))
    for program, words in stages:
        config = staged(tmp_path, words)
        if program is ppo:
            config.train.update(steps=2, minibatches=2)
            config.checkpoint.every, config.algorithm.reward_kl_coef = 1, 0.05
            config.judge.proxy = config.judge.proxy.to_dict() | dict(retrain_every=1, learning_rate=1e-3)
        program.run(config, tmp_path / "runs" / config.name)
    whole, parts = tmp_path / "runs" / "smoke_rlhf_ppo_pf_rto", tmp_path / "parts"
    rows = metrics_of(whole)
    assert rows[0]["eval/task"] == rows[0]["eval/task"] and "eval/proxy" in rows[0]
    for row in rows[1:]:
        assert row["reward/mean"] == row["reward/proxy"] != row["reward/task"] and 0 <= row["reward/task"] <= 1
        assert row["reward/tokens"] != 0, "the DPO run has moved away from its start"
        assert 1.0 < row["ptx/loss"] < 5.0 and np.isfinite(row["value/loss"]) and row["kl/k1"] == row["kl/k1"]
        assert row["judge/proxy/loss"] > 0
    assert len(rows) == 3 and "eval/task" in rows[-1]
    assert small.cut_off(whole, parts) == 1  # the second step again
    ppo.run(config, parts)
    assert metrics_of(parts)[-1] == rows[-1]


@pytest.mark.parametrize("module", [rlhf, process_rewards])
def test_what_a_method_asks_for_is_supplied_by_its_config(module):
    for method in (None, *module.METHODS):
        config = module.get_config(method)
        check_config.check(config)
        policy_parts.check_choices(config)
        assert json.loads(config.to_json_best_effort()), "config.json can be written"
        if method == "tulu3":
            assert config.critic.init_from == "runs/process_reward_model" and not config.judge
            # allenai/open-instruct, docs/tulu3.md: --penalty_reward_value -10.0 --beta 0.05
            assert config.algorithm.shaping.reward == -10.0 and config.algorithm.reward_kl_coef == 0.05
        for spec in config.judge.values():
            assert "runs/" in str(spec.path)
    with pytest.raises(ValueError, match="choose one stage"):
        process_rewards.get_config("prime,otb")


def test_totals_are_steps_that_the_policy_writes(tmp_path):
    config = process_rewards.get_config("reward_model")
    config.data.update(data_dir=str(tmp_path))
    found = preferences.load(**config.data.to_dict() | {"name": "generated", "num_prompts": 20})
    source = found.data_source("train")
    arrays, counts = preferences.encode_steps(
        make_tokenizer(),
        [source[i] for i in range(len(source))],
        prompt_buckets=(24,),
        completion_length=48,
        separator=config.encode.separator,
    )
    assert counts["num_steps_cut"] == 0 and counts["num_kept"] == len(source)
    first = arrays["tokens"][0][arrays["segment_ids"][0] > 0].tolist()
    assert make_tokenizer().decode(first).endswith("=".join(source[0]["steps"]) + "=")


def test_a_method_is_of_a_policy():
    with pytest.raises(ValueError, match="par: methods are of the stages ppo and grpo"):
        rlhf.get_config("par,reward_model")
    with pytest.raises(ValueError, match="choose one stage, not 2: grpo, ppo"):
        rlhf.get_config("grpo,ppo")
    five = rlhf.get_config("ensemble").judge.proxy
    assert len(five.path) == 5 and five.combine.fn == "worst_case"
    chosen = rlhf.get_config("best_of_n,ensemble").best_of_n
    assert len(chosen.proxies.split(",")) == 5 and chosen.combine.fn == "worst_case"
    with pytest.raises(ValueError, match="par: methods are of the stages ppo and grpo"):
        rlhf.get_config("best_of_n,par")


def test_over_optimisation_is_the_gold_reward_that_is_lost(tmp_path, capsys):
    rows = [{"step": 0, "eval/reward": 0.0, "eval/task": 0.5}, {"step": 1, "reward/mean": 1.0}]
    rows += [{"step": s, "kl/k1": 0.1 * s, "eval/reward": float(s), "eval/task": g} for s, g in ((2, 0.75), (4, 0.25))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    points = over_optimization.points_of(tmp_path)
    assert [point.step for point in points] == [0, 2, 4] and over_optimization.lost(points) == 0.5
    assert "| a | 4 | 0.400 | 4.000 | 0.250 | 0.500 |\n" in over_optimization.table({"a": points})
    assert over_optimization.correlations({"a": points}).endswith("| a | -0.50 | - | - |\n")
    more = [*points, *(over_optimization.Point(s, 0.0, float(s), 0.1 / s) for s in (6, 8))]
    assert over_optimization.correlations({"b": more}).endswith("| b | -0.90 | - | -1.00 |\n")
    twin = tmp_path / "seed1" / tmp_path.name  # another folder of the same name, with an evaluation that has no value
    twin.mkdir(parents=True)
    rows[2] |= {"eval/task": None}
    (twin / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    over_optimization.main([str(tmp_path), str(twin)])
    said = capsys.readouterr().out
    assert f"/{tmp_path.name} | 2 | 0.200 | 2.000 | 0.750 |" in said and f"| seed1/{tmp_path.name} | 4 |" in said
    assert f"| seed1/{tmp_path.name} | 2 |" not in said
    rows[3] |= {"kl/k1": None}  # a KL that was not finite is not 0
    (twin / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    points = over_optimization.points_of(twin)
    assert "| a | 0 | 0.000 |" in (said := over_optimization.table({"a": points})) and "| a | 4 | nan |" in said
    with pytest.raises(ValueError, match="nowhere: no row .* give a run with config.judge"):
        over_optimization.points_of(tmp_path / "nowhere")


@pytest.mark.parametrize("asked, expected", [(None, True), (False, False)])
def test_a_critic_is_standardised_where_its_judge_is(tmp_path, asked, expected):
    folder = tmp_path / "rm"
    folder.mkdir()
    own = types.SimpleNamespace(config=rlhf.get_config("reward_model"))
    spec = dict(fn="reward_model", path=str(folder)) | ({} if asked is None else {"standardize": asked})
    setup = types.SimpleNamespace(config=ConfigDict({"judge": {"proxy": spec}}))
    assert not critics._is_standardized(setup, folder, own)  # a model of steps has no moments
    (folder / "rewards.json").write_text("{}")
    assert critics._is_standardized(setup, folder, own) is expected


def test_raw_and_standardised_rewards_are_not_asked_for_together():
    for words in ("ensemble,par", "rto,brme"):
        with pytest.raises(ValueError, match="par and rto take raw rewards"):
            rlhf.get_config(words)
    assert rlhf.get_config("par").judge.proxy.standardize is False
    assert rlhf.get_config("par").algorithm.reward_kl_coef == 0.02
