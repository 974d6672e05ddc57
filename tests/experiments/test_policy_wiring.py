"""What a step asks for, and hands on: experiments.parts.policy, policy_steps and packers, without a model."""

import inspect
import types

import jax
import numpy as np
import pytest

from experiments import grpo, ppo
from experiments.parts import actor_critic, critic_stages, packers, policy, policy_steps
from experiments.parts.actor_critic import LearnerState
from experiments.parts.judging import Judged
from experiments.parts.sample_groups import Collected
from rl_jax.core.types import Packed, PolicyBatch, Rollout, TokenBatch, TokenScores, Turns
from rl_jax.ppo import PPOBatch
from rl_jax.rewards.pool import RewardResult
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import sharding
from tests.experiments.small import config as small_config


@pytest.fixture
def config(tmp_path):
    config = small_config(tmp_path)
    with config.unlocked():
        config.algorithm.measure_kl = False
    return config


# --- What a step needs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({}, False),
        ({"train.epochs": 2}, True),
        ({"train.minibatches": 2}, True),
        ({"algorithm.reward_kl_coef": 0.1}, True),
        ({"algorithm.trackers.reward_kl": {"fn": "adaptive_kl"}}, True),
        ({"foreign": {"demonstrations": {"fn": "always"}}}, True),
    ],
)
def test_when_a_step_needs_its_own_scores(config, fields, needed):
    with config.unlocked():
        for place, value in fields.items():
            *folders, name = place.split(".")
            node = config
            for folder in folders:
                node = node[folder]
            node[name] = value
    assert policy_steps.needs_scores(config) is needed


def test_a_step_model_reads_no_reference(config, monkeypatch):
    """implicit_rewards are then against the policy itself."""

    def advantage(rewards, *, implicit_rewards):
        return implicit_rewards

    monkeypatch.setattr(policy, "make_credit", lambda config: types.SimpleNamespace(advantage=advantage))
    assert policy.needs_ref_log_probs(config)
    monkeypatch.setattr(policy.turn_signals, "step_model_of", lambda config: {"fn": "implicit"})
    assert not policy.needs_ref_log_probs(config)


# --- The scores ------------------------------------------------------------------------------------------------------


def scorer():
    def on_host(params, rows):
        seen.append((params, rows))
        return TokenScores(f"log-probs of {params}", None)

    seen = []
    return seen, types.SimpleNamespace(on_host=on_host)


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("epochs", [1, 2])
def test_rows_are_scored_where_something_reads_it(config, looks, epochs):
    with config.unlocked():
        config.train.epochs = epochs
    rows = TokenBatch(*np.zeros((3, 2, 4), np.int32), routes="recorded")
    seen, programs = scorer()
    scores, reference = policy_steps.score(config, programs, rows, "policy", "reference", looks=looks)
    assert reference is None and (scores is not None) is (looks or epochs > 1)
    assert [params for params, _ in seen] == ["policy"] * (looks or epochs > 1)
    with config.unlocked():
        config.algorithm.kl_coef = 0.1
    seen.clear()
    scores, reference = policy_steps.score(config, programs, rows, "policy", "reference", looks=True)
    assert scores.log_probs == "log-probs of policy" and reference == "log-probs of reference"
    assert [(params, rows.routes) for params, rows in seen] == [("policy", "recorded"), ("reference", None)]
    packed = Packed(*[None] * len(Packed._fields))
    policy_steps.score(config, programs, packed, "policy", "reference", looks=True)
    assert seen[-1] == ("reference", packed)


# --- The arrays ------------------------------------------------------------------------------------------------------


def collected(components=None, turns=None, **more):
    result = RewardResult(np.arange(2.0), components or {}, 0, 0, None)
    judged = Judged(types.SimpleNamespace(turns=turns), [], [], result)
    return Collected(judged, None, {}, **more)


def test_arrays_that_credit_may_ask_for():
    numbers, rewards, keys, calls, branch = (np.full((2, 3), i) for i in range(5))
    turns = Turns(numbers, rewards, keys, counts={"calls": calls}, signals={"branches": branch})
    found = policy.arrays_of(collected(turns=turns, named={"prompt_ids": np.arange(2)}))
    expected = {"turns": numbers, "turn_rewards": rewards, "state_keys": keys, "turn_calls": calls, "branches": branch}
    assert set(found) == {*expected, "prompt_ids"} and all(found[name] is array for name, array in expected.items())
    greedy = collected(named={})._replace(greedy_rewards=1, greedy_lengths=2, greedy_truncated=3)
    assert policy.arrays_of(greedy) == {"greedy_rewards": 1, "greedy_lengths": 2, "greedy_truncated": 3}


def test_components_that_credit_may_ask_for():
    exact, short, hard = np.array([0.0, 1.0]), np.array([2.0, 3.0]), np.array([4.0, 5.0])
    found = policy.arrays_of(collected({"exact": exact, "short": short}))
    assert set(found) == {"components"}
    np.testing.assert_array_equal(found["components"], [[0, 2], [1, 3]])
    terms = {"exact/weighted": exact, "exact": short, "judge/difficulty": hard}
    found = policy.arrays_of(collected(terms))
    assert set(found) == {"components", "difficulty"} and found["difficulty"] is hard
    np.testing.assert_array_equal(found["components"], [[0], [1]])


# --- The credit ------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain_credit(monkeypatch):
    """Steps of `assign` that are not looked at here do nothing; returns what the estimator was given."""
    given, same = {}, lambda first, *_: first

    def assign(*choices, **available):
        given.update(available, rollout=choices[-2 if len(choices) == 3 else -3])
        return BATCH if len(choices) == 3 else (PPOBatch(BATCH, None, None), {})

    for place in (policy, actor_critic):
        monkeypatch.setattr(place.schedules, "in_credit", same)
        monkeypatch.setattr(place.foreign_rows, "with_behavior", same)
        monkeypatch.setattr(place.trackers, "weigh", same)
        monkeypatch.setattr(place.trackers, "known", lambda *_: {"known": 1})
        monkeypatch.setattr(place.turn_signals, "in_loss", lambda objective: {"signal"})
    monkeypatch.setattr(policy.credit, "assign", assign)
    monkeypatch.setattr(policy.credit, "token_rewards", lambda *_, **__: types.SimpleNamespace(rows="earned"))
    monkeypatch.setattr(actor_critic.ppo, "assign", assign)
    monkeypatch.setattr(actor_critic, "make_objective", lambda config: None)
    monkeypatch.setattr(actor_critic, "make_estimator", lambda config: None)
    monkeypatch.setattr(actor_critic.turn_critics, "earned_early", lambda rewards, mask: ("early", rewards, mask))
    return given


OF_EPISODES = {"turns", "turn_rewards", "state_keys", "answer_probs", "prior_answer_probs", "implicit_rewards"}
BATCH = PolicyBatch(None, None, None, "sampled", None, None, extras={"kept": 1})
NAMED = {"turns": "numbers", "signal": "s", "other": "o"}
SCORES = TokenScores(np.float32([[3.0]]), "entropies", "squares")


@pytest.mark.parametrize("epochs", [1, 2])
def test_credit_sees_the_scores_there_are(config, plain_credit, epochs):
    """implicit_rewards are log pi - log pi_ref; with several updates the old log-probs are the policy's own."""
    with config.unlocked():
        config.train.epochs, config.sample.group_size = epochs, 6
    for before, reference in ((None, None), (None, np.float32([[1.0]])), (SCORES, None), (SCORES, np.float32([[1.0]]))):
        batch, earned = policy.make_assign(config)("rollout", None, before, reference, "key", {}, NAMED)
        scored, compared = before is not None, before is not None and reference is not None
        found = [plain_credit[name] for name in ("log_probs", "entropy", "sum_pi_squared")]
        assert found == (list(SCORES) if scored else [None] * 3)
        assert plain_credit["implicit_rewards"] == (2.0 if compared else None)
        assert plain_credit["ref_log_probs"] is reference and plain_credit["rollout"] == "rollout"
        assert {plain_credit[name] for name in ("group_size", "key", "known", "other")} == {6, "key", 1, "o"}
        assert batch.old_log_probs == (SCORES.log_probs if scored and epochs == 2 else "sampled")
        assert batch.extras == {"kept": 1, "signal": "s"} and earned == "earned"


@pytest.mark.parametrize("of_turns", [False, True])
@pytest.mark.parametrize("epochs", [1, 2])
def test_ppos_credit_of_turns(config, plain_credit, monkeypatch, of_turns, epochs):
    """Critics of turns read in the loss which turn a token is of; what a turn earns stands on its tokens."""
    monkeypatch.setattr(actor_critic, "has_targets", lambda config: of_turns)
    with config.unlocked():
        config.train.epochs = epochs
    assign = actor_critic.make_assign(config)
    for turns in (None, types.SimpleNamespace(rewards="paid")):
        rollout = Rollout(None, "mask", None, None, None, None, turns=turns)
        batch, _ = assign(rollout, None, "values", SCORES, None, "key", {}, NAMED)
        assert batch.policy.extras == {"kept": 1, "signal": "s"} | ({"turns": "numbers"} if of_turns else {})
        assert plain_credit["rollout"].token_rewards == (None if turns is None else ("early", "paid", "mask"))
        assert batch.policy.old_log_probs == ("sampled" if epochs == 1 else SCORES.log_probs)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, set()),
        ({"flow": {}}, {"versions", "lags"}),
        ({"rollout.window": 3}, {"versions"}),
        ({"judge": {"fn": "process_reward_model"}}, {"step_ends", "step_rewards"}),
        ({"sample.references": 2}, {"reference_rewards"}),
        ({"sample.memory.on": True}, {"best_lengths"}),
        ({"agent": {"branching": {"fn": ""}, "state_rollouts": 0}}, OF_EPISODES),
        ({"agent": {"branching": {"fn": "at_random"}, "state_rollouts": 0}}, OF_EPISODES | {"branches"}),
        ({"agent": {"branching": {"fn": ""}, "state_rollouts": 2}}, OF_EPISODES | {"state_values"}),
    ],
)
def test_what_a_config_supplies(config, fields, names):
    with config.unlocked():
        config.update_from_flattened_dict(fields)
    assert {name for name, (supplied, _) in policy.SUPPLIED_BY.items() if supplied(config)} == names


def test_configs_of_before_there_was_a_choice_score_in_one_part(config):
    assert policy.score_micro_batches(config) == config.score.micro_batches
    with config.unlocked():
        del config.score.micro_batches
    assert policy.score_micro_batches(config) == 1


# --- The programs ----------------------------------------------------------------------------------------------------


def reads(*names):
    """A choice of a config that asks for these arrays."""
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    choice = lambda **asked: None  # noqa: E731
    choice.__signature__ = inspect.Signature(parameters)
    return choice


@pytest.mark.parametrize("asked", [(), ("greedy_rewards",), ("sum_pi_squared",), ("reference_rewards",)])
def test_programs_are_made_where_credit_asks_for_them(config, monkeypatch, asked):
    """Of greedy answers there is one per prompt, by the likeliest token; of references as many as the config says."""
    scorers = []

    def make_scorer(setup, *, sum_pi_squared=False):
        scorers.append(sum_pi_squared)
        return sum_pi_squared

    rule = types.SimpleNamespace(advantage=reads(*asked), shape=reads())
    monkeypatch.setattr(policy, "make_credit", lambda config: rule)
    monkeypatch.setattr(policy, "make_scorer", make_scorer)
    monkeypatch.setattr(policy, "make_loss", lambda setup, score: ("loss of", score))
    monkeypatch.setattr(policy, "make_sampler", lambda setup, prompts, **options: (prompts, options))
    monkeypatch.setattr(policy, "make_trainer", lambda setup, settings, loss_fn, *_, **__: (loss_fn, "state"))
    monkeypatch.setattr(policy.mirror, "with_term", lambda setup, loss_fn, objective: loss_fn)
    monkeypatch.setattr(policy, "jit_score", lambda score, setup: score)
    with config.unlocked():
        config.sample.update(references=5, group_size=3, prompts_per_step=2)
        config.rollout.update(temperature=0.7, completion_length=9)
    tokenizer = types.SimpleNamespace(eos_ids=(4,), pad_id=6)
    setup = types.SimpleNamespace(config=config, rollout=None, task=types.SimpleNamespace(tokenizer=tokenizer))
    programs, state = policy.build(setup, None)
    common = dict(completion_length=9, eos_ids=(4,), pad_id=6)
    drawn = dict(sampling=Sampling(0.7), **common)
    assert programs.generate == (2, dict(group_size=3, **drawn))
    assert programs.greedy == (
        (2, dict(group_size=1, sampling=Sampling(top_k=1), **common)) if "greedy_rewards" in asked else None
    )
    assert programs.references == ((2, dict(group_size=5, **drawn)) if "reference_rewards" in asked else None)
    assert programs.score is ("sum_pi_squared" in asked) and programs.train_step == ("loss of", False)
    assert state == "state"


@pytest.mark.parametrize("shared", [False, True])
def test_ppos_programs_are_the_policys_and_the_critics(config, monkeypatch, shared):
    own = policy.PolicyPrograms("generate", "score", "train_step", "assign", references="references")
    trained = []

    def make_trainer(setup, settings, loss_fn, params, trackers=()):
        trained.append((settings.micro_batches, params, trackers))
        return "step", "trained"

    objective = types.SimpleNamespace(pairs=2, num_outputs=lambda: 1)
    everywhere = sharding.replicated(sharding.make_mesh(sharding.parse_mesh("data:1"), jax.devices()[:1]))
    monkeypatch.setattr(actor_critic, "make_objective", lambda config: objective)
    monkeypatch.setattr(actor_critic, "make_assign", lambda config: lambda *_: None)
    monkeypatch.setattr(actor_critic.critics, "start", lambda *_, **__: ("critic's params", everywhere))
    monkeypatch.setattr(actor_critic.critics, "make_loss", lambda *_: "loss")
    monkeypatch.setattr(actor_critic.critics, "slow_copy", lambda critic, *_: ("follow", f"slow {critic}"))
    state = types.SimpleNamespace(trackers="trackers")
    monkeypatch.setattr(actor_critic.policy_parts, "build", lambda *_: (own, state))
    monkeypatch.setattr(actor_critic, "make_trainer", make_trainer)
    monkeypatch.setattr(actor_critic.players, "with_player", lambda setup, programs: programs)
    with config.unlocked():
        config.critic = dict(shared=shared, micro_batches=7)
        config.train.micro_batches = 5
    setup = types.SimpleNamespace(config=config, mesh=everywhere.mesh, model=None, attached=None, merged=None)
    programs, learner = actor_critic.build(setup, None)
    assert (programs.generate, programs.score, programs.references) == ("generate", "score", "references")
    assert programs.follow == "follow" and programs.greedy is None
    if shared:
        assert learner == LearnerState("trained", None, "slow None")
        assert (programs.policy_step, programs.critic_step) == ("step", None)
        assert trained == [(5, "critic's params", "trackers")]
    else:
        assert learner == LearnerState(state, "trained", "slow trained")
        assert (programs.policy_step, programs.critic_step) == ("train_step", "step")
        assert trained == [(7, "critic's params", ())]


# --- The sizes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, None),  # 4 prompts of 4 over 2 devices
        ({"sample.prompts_per_step": 3}, "prompts_per_step=3"),
        ({"train.micro_batches": 4, "train.minibatches": 4}, "micro_batch=1"),
        ({"train.micro_batches": 4, "train.minibatches": 2}, None),
        ({"train.micro_batches": 16}, "micro_batch=1"),
        ({"score.micro_batches": 8}, None),
        ({"score.micro_batches": 16}, "part of score.micro_batches=1"),
        ({"more": 8}, None),
        ({"more": 16}, "named=1"),
    ],
)
def test_sizes_that_do_not_divide_are_named(config, fields, said, monkeypatch):
    fields = {"sample.prompts_per_step": 4, "sample.group_size": 4} | fields
    more = {"named": fields.pop("more")} if "more" in fields else {}
    with config.unlocked():
        for place, value in fields.items():
            folder, name = place.split(".")
            config[folder][name] = value
    monkeypatch.setattr(policy, "check_choices", lambda config: None)
    monkeypatch.setattr(policy, "need_reward", lambda setup: None)
    monkeypatch.setattr(policy.check_groups, "check", lambda config: None)
    setup = types.SimpleNamespace(config=config, mesh=types.SimpleNamespace(shape={"data": 2}))
    if said is None:
        policy.check_sizes(setup, **more)
    else:
        with pytest.raises(ValueError, match=f"^{said} rows do not divide"):
            policy.check_sizes(setup, **more)


# --- The packing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "group", "completion", "prompt", "expected"),
    [
        ("shared_prefix", 3, 4, 8, 20),  # a group
        ("shared_prefix", 8, 4, 4, 20),  # half of a group
        ("packed", 3, 4, 8, 0),
    ],
)
def test_a_packed_row_has_room_for_groups_or_equal_parts_of_them(config, mode, group, completion, prompt, expected):
    with config.unlocked():
        config.packing.mode, config.sample.group_size = mode, group
        config.rollout.completion_length = completion
    packer = packers.RolloutPacker(types.SimpleNamespace(config=config, mesh=types.SimpleNamespace(shape={})))
    rows = TokenBatch(*np.zeros((3, 2, prompt + completion), np.int32))
    assert packer._row_length(rows) == expected and not packer.padded


def test_padded_rows_stay_as_they_are(config):
    with config.unlocked():
        config.packing.mode = "padded"
    packer = packers.RolloutPacker(types.SimpleNamespace(config=config, mesh=types.SimpleNamespace(shape={})))
    batch = PolicyBatch("rows", np.ones((2, 3), bool), None, None, None, None)
    rollout = types.SimpleNamespace(batch="rows", completion_mask=None)
    assert packer.to_train(batch) is batch and packer.metrics(batch) == {} and packer.to_score(rollout) == "rows"


def test_what_is_packed_and_in_how_many_parts(config, monkeypatch):
    """Rows keep to their advantages; a minibatch has the parts of the train step, a rollout those of the scorer."""
    calls = []

    def pack(tokens, mask, **options):
        calls.append(options)
        return ("packed", tokens.tokens[:, 0].tolist())

    monkeypatch.setattr(packers.packing, "pack", pack)
    monkeypatch.setattr(packers.packing, "arrange", lambda tokens, mask, **options: np.array([2, 0, 3, 1]))
    with config.unlocked():
        config.packing.update(mode="packed", row_length=0, min_rows=5)
        config.train.micro_batches, config.score.micro_batches = 2, 4
    packer = packers.RolloutPacker(types.SimpleNamespace(config=config, mesh=types.SimpleNamespace(shape={"data": 2})))
    rows = TokenBatch(*np.arange(3 * 4 * 5, dtype=np.int32).reshape(3, 4, 5))
    batch = PolicyBatch(rows, np.ones((4, 3), bool), np.arange(4.0), np.arange(4.0), np.arange(4.0), None)
    for whole in (batch, PPOBatch(batch, np.arange(4.0), np.arange(4.0))):
        found = packer.to_train(whole)
        own = found if isinstance(found, PolicyBatch) else found.policy
        assert own.batch == ("packed", [10, 0, 15, 5])
        np.testing.assert_array_equal(own.advantages, [2, 0, 3, 1])
    packer.to_train(batch, micro_batches=3)
    packer.to_score(types.SimpleNamespace(batch=rows, completion_mask=batch.completion_mask))
    parts = [(options["num_parts"], options["num_micro_batches"]) for options in calls]
    assert parts == [(4, 2), (4, 2), (6, 3), (8, 4)]
    assert all(not options["share_prefix"] and options["min_rows"] == 5 for options in calls)
    assert jax.tree.leaves(packers.SHARE_PREFIX) == [False, True] and packers.SHARE_PREFIX["shared_prefix"]


def test_an_unknown_packing_lists_the_known_ones(config):
    with config.unlocked():
        config.packing.mode = "folded"
    setup = types.SimpleNamespace(config=config, mesh=types.SimpleNamespace(shape={}))
    with pytest.raises(ValueError, match="packing.mode='folded' is none of padded, packed, shared_prefix"):
        packers.RolloutPacker(setup)


# --- The updates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [grpo, ppo])
def test_a_run_that_is_complete_compiles_nothing_ahead(config, program):
    def compile_ahead(*arguments):
        asked.append(arguments[0])

    asked, key = [], jax.random.key(0)
    collect, packer = types.SimpleNamespace(compile_ahead=compile_ahead), types.SimpleNamespace(padded=True)
    state = types.SimpleNamespace(params=None, rng=key, step=0, policy=types.SimpleNamespace(rng=key, step=0))
    state.policy_params = lambda: None
    for done in (True, False):
        loop = types.SimpleNamespace(done=done, ahead="ahead")
        program.compile_ahead(loop, types.SimpleNamespace(config=config), None, packer, collect, state)
        assert asked == ["ahead"] * (not done)


@pytest.mark.parametrize("only", [critic_stages.BOTH, critic_stages.POLICY, critic_stages.CRITIC])
@pytest.mark.parametrize(
    ("padded", "shared", "micro_batches"), [(True, False, 4), (False, True, 4), (False, False, 2), (False, False, 4)]
)
def test_the_critic_has_its_own_epochs_and_parts(config, only, padded, shared, micro_batches, monkeypatch):
    """Its further epochs come first; packed rows of its own are made where it is apart and has other micro-batches."""
    packed, updated, checked, followed = [], [], [], []

    def to_train(part, count=None):
        packed.append(count)
        return part, count

    def update(learner, rows, of_critic, *, only):
        updated.append((of_critic[1], only))
        return (
            learner,
            None if only == critic_stages.CRITIC else {"loss": np.float32(1.0)},
            {"value_loss": np.float32(2.0)},
        )

    with config.unlocked():
        config.critic = dict(epochs=3, shared=shared, micro_batches=micro_batches)
        config.train.update(micro_batches=2, minibatches=2)
    monkeypatch.setattr(ppo.critic_stages, "learner_of", lambda settings, step: only)
    monkeypatch.setattr(ppo.turn_replay, "train", lambda loop, setup, programs, learner, batch, key: (learner, []))
    monkeypatch.setattr(ppo, "to_mesh", lambda setup, rows: rows)
    loop = types.SimpleNamespace(step=1, check_finite=lambda state, *_, **fields: checked.append((state, fields)))
    packer = types.SimpleNamespace(padded=padded, to_train=to_train, metrics=lambda rows: {"packing/occupancy": 0.5})
    programs = types.SimpleNamespace(update=update, follow=lambda target, params: followed.append(params) or "followed")
    learner = LearnerState("policy", types.SimpleNamespace(params="critic's"), "target")
    rows = np.ones((4, 3), bool)
    batch = PPOBatch(PolicyBatch(rows, rows, rows * 1.0, None, rows * 1.0, None, extras={}), rows * 1.0, rows * 1.0)
    setup = types.SimpleNamespace(config=config)
    found, policy_updates, critic_updates, metrics = ppo.update(
        loop, setup, programs, packer, learner, [batch], jax.random.key(0)
    )
    first = 0 if only == critic_stages.POLICY else 2 * 2  # two more epochs of two minibatches
    alike = padded or shared or micro_batches == 2
    assert updated[:first] == [(micro_batches, critic_stages.CRITIC)] * first
    assert updated[first:] == [(None if alike else micro_batches, only)] * 2
    assert packed[first:] == ([None] if alike else [None, micro_batches]) * 2
    assert len(policy_updates) == (0 if only == critic_stages.CRITIC else 2) and len(critic_updates) == first + 2
    assert [fields for state, fields in checked[first:] if state == "policy"] == [
        dict(counts=only != critic_stages.CRITIC)
    ] * 2
    apart = [fields["head"] for state, fields in checked if state != "policy"]
    assert len(apart) == first + 2 and not any(apart), "a critic's own params have no head that is unused"
    counted = [fields["counts"] for state, fields in checked[first:] if state != "policy"]
    assert counted == [only != critic_stages.POLICY] * 2
    assert found.target == "followed" and followed == ["critic's"] and metrics == {"packing/occupancy": 0.5}
