"""experiments.parts.turn_signals: what credit over turns asks for, made by a player of a tiny model."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import play_groups, players, policy, turn_entropies, turn_signals
from experiments.parts.sampler import Attaching
from experiments.parts.setup import make_setup
from experiments.tools.flat_episodes import Echo, config_of
from rl_jax.core.types import TokenBatch, TokenScores
from rl_jax.experience import trajectory as t
from rl_jax.experience.episodes import Environments, play
from rl_jax.tokenizers.dialogue import dialogue_of
from rl_jax.training.scoring import make_score
from tests.experience.test_episodes import LIMITS, TOKENIZER, Asker, Parrot

TREES, CRITICS, SHAPING = (f"rl_jax.advantages.turn_{name}" for name in ("trees", "critics", "shaping"))


class Pays(Echo):
    """One for each of three turns; the right answer is "ab"."""

    def __init__(self):
        super().__init__(most=3)

    def step(self, said):
        return super().step(said)._replace(reward=1.0)

    def right_answer(self):
        return "ab"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(setup, player, params, records, trajectories of two prompts, their rows)."""
    config = config_of(tmp_path_factory.mktemp("signals"), turns=3)
    config.agent.env = dict(fn="tests.experiments.test_turn_signals:Pays")
    config.agent.update(branching=dict(fn="at_random"), roots=2, rounds=2)
    config.agent.state_rollouts = 2
    config.sample.update(prompts_per_step=2, group_size=4)
    config.algorithm.advantage = dict(fn=f"{TREES}:tree_grpo")
    players.check(config)
    setup = make_setup(config)
    player, params = players.Player(setup, 8), setup.init_params()
    records = [{"prompt": "a", "info": "{}", "id": str(n)} for n in range(2)]
    played = player.play(params, records, jax.random.key(0), group_size=4, training=True)
    return setup, player, params, records, played, play_groups.rows_of(setup, played)


@pytest.mark.slow
def test_a_group_of_branches_shares_what_its_signal_says(run):
    setup, player, params, records, played, rollout = run
    assert [(x.group, x.sample) for x in played] == [divmod(n, 4) for n in range(8)]
    assert any(x.parent >= 0 for x in played) and all(x.parent < 0 for x in played if x.sample < 2)
    signals = turn_signals.Signals(setup, player)(params, records, played, rollout, jax.random.key(1)).turns.signals
    numbers = signals["branches"]
    assert set(signals) == {"branches"} and (numbers >= 0).sum() == (rollout.turns.numbers >= 0).sum()
    for row, x in enumerate(played):
        if x.parent >= 0:
            like = played[row - x.sample + x.parent]
            for turn in range(len(x.turns)):
                same = (
                    numbers[row][rollout.turns.numbers[row] == turn][0]
                    == (
                        numbers[row - x.sample + x.parent][rollout.turns.numbers[row - x.sample + x.parent] == turn][:1]
                    )
                )
                assert bool(same.all()) == (turn < x.shared) or turn >= len(like.turns)
                if turn < x.shared:
                    np.testing.assert_array_equal(x.sampled()[turn].ids, like.sampled()[turn].ids)
    score = jax.jit(make_score(setup.model, completion_length=rollout.completion_mask.shape[1]))
    scored = np.asarray(score(params, rollout.batch).log_probs)
    mask = rollout.completion_mask
    np.testing.assert_allclose(scored[mask], rollout.sampled_log_probs[mask], atol=1e-4)  # branches are on-policy
    again = player.play(params, records, jax.random.key(0), group_size=4, training=True)
    assert [x.ids().tolist() for x in again] == [x.ids().tolist() for x in played]
    plain = player.play(params, records, jax.random.key(0), group_size=4)  # as evaluations play
    assert all(x.parent < 0 for x in plain)
    assert [plain[n].ids().tolist() for n in (0, 1, 4, 5)] == [played[n].ids().tolist() for n in (0, 1, 4, 5)]


@pytest.mark.slow
def test_values_of_states_are_mean_returns_of_fresh_episodes(run):
    """A turn pays 1 and there are three, so V is what is left, unless an episode is cut off."""
    setup, player, params, records, played, rollout = run
    player.play(params, records, jax.random.key(0), group_size=4, training=True)
    values = player.state_values(params, records, played, jax.random.key(2))
    for x, found in zip(played, values, strict=True):
        assert len(found) == len(x.turns)
        assert all(value <= 3 - turn for turn, value in enumerate(found))
    assert np.mean([value == 3 - turn for found in values for turn, value in enumerate(found)]) > 0.8
    for row, x in enumerate(played):
        if x.parent >= 0:
            like = values[row - x.sample + x.parent]
            assert values[row][: x.shared + 1] == like[: x.shared + 1]  # the same states
    placed = turn_signals.on_last_tokens(rollout.turns.numbers, values)
    assert placed[0][rollout.turns.numbers[0] == 0].tolist()[-1] == np.float32(values[0][0])
    assert not placed[0][rollout.turns.numbers[0] == 0][:-1].any()


@pytest.mark.slow
def test_the_entropies_of_tokens_are_the_models_and_none_are_made_unasked(run):
    """Against p log p of the logits, over an episode's tokens as one plain row."""
    setup, _, params, _, played, _ = run
    assert turn_entropies.reader(setup) is None
    config = setup.config.copy_and_resolve_references().unlock()
    config.agent.branching = dict(fn="by_entropy", measure="entropy")
    found = turn_entropies.reader(setup._replace(config=config))(params, played)
    config.model.lora.update(rank=2, targets="layers/q")  # adapters that are new change nothing
    lora = make_setup(config)
    with_adapters = lora.init_params() | {"base": params}
    attaching = Attaching(lora, lambda params: params)
    teller = SimpleNamespace(_entropies=turn_entropies.reader(lora), _params=attaching, _asked=frozenset())
    (told,) = players.Player._told(teller, with_adapters, [played], [{}])
    for ours, plain in zip(told["entropies"], found, strict=True):
        for x, y in zip(ours, plain, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5)
    one, width = played[0], 64
    ids = np.concatenate([span.ids for span in one.segments[0]])
    row = np.zeros((1, width), np.int32)
    row[0, : len(ids)] = ids
    ones = jnp.asarray(np.arange(width)[None] < len(ids), jnp.int32)
    batch = TokenBatch(row, np.arange(width, dtype=np.int32)[None], ones)
    logits = np.asarray(jax.jit(lambda p, b: setup.model.unembed(p, setup.model.apply(p, b)))(params, batch))[0]
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    entropy, place, turn = -(probs * np.log(probs)).sum(-1), 0, 0
    for span in one.segments[0]:
        if span.kind == "sampled":
            expected = entropy[place - 1 : place - 1 + len(span.ids)]
            np.testing.assert_allclose(found[0][turn], expected, rtol=1e-4)
            turn += 1
        place += len(span.ids)
    assert turn == len(one.turns) and [len(x) for x in found] == [len(x.turns) for x in played]


@pytest.mark.slow
def test_the_right_answers_probability_is_the_models(run):
    setup, player, params, records, played, rollout = run
    assert player.answers(played) == ["ab"] * 8
    priors, after = turn_signals.Signals(setup, player)._answer_probs(params, played)
    answer = setup.task.tokenizer.encode_continuation("ab", eos=True)
    width = rollout.batch.tokens.shape[1] + len(answer)

    @jax.jit
    def log_probs_of(ids):  # one width for all contexts, compiled once: what stands behind changes nothing
        batch = rollout.batch._replace(tokens=ids, positions=jnp.arange(width)[None], segment_ids=jnp.ones_like(ids))
        return jax.nn.log_softmax(setup.model.unembed(params, setup.model.apply(params, batch))[0])

    for row in (0, 3):
        for turn, context in turn_signals.contexts(played[row]):
            ids = [*context, *answer]
            ids = jnp.asarray([*ids, *[0] * (width - len(ids))])[None]
            log_probs = log_probs_of(ids)[len(context) - 1 :]
            expected = np.exp(np.mean([log_probs[i, token] for i, token in enumerate(answer)]))
            found = priors[row] if turn < 0 else after[row][turn]
            np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert all(0 < prior < 1 for prior in priors)


def implicit(rewards, *, implicit_rewards, group_size):
    """An advantage that shows what it was given."""
    return implicit_rewards


@pytest.mark.slow
def test_implicit_rewards_are_log_ratios_to_the_reference(run):
    setup, *_, rollout = run
    config = setup.config.copy_and_resolve_references()
    config.algorithm.advantage = dict(fn="tests.experiments.test_turn_signals:implicit")
    assert policy.needs_ref_log_probs(config) and policy.make_credit(config).needs_scores()
    policy.check_choices(config)
    shape = rollout.completion_mask.shape
    now, reference = (np.random.default_rng(seed).normal(size=shape).astype(np.float32) for seed in (0, 1))
    batch, _ = policy.make_assign(config)(
        rollout, np.zeros(8, np.float32), TokenScores(now, now), reference, jax.random.key(0), {}, {}
    )
    mask = rollout.completion_mask
    np.testing.assert_allclose(np.asarray(batch.advantages)[mask], (now - reference)[mask], rtol=1e-6)


def test_contexts_end_with_answers_of_the_environment():
    spans = (t.prompt([1, 2]), t.sampled([3], [-1.0]), t.given("observation", [4]), t.sampled([5], [-1.0]))
    later = (t.prompt([1, 2, 5]), t.given("observation", [6]), t.sampled([7], [-1.0]))
    found = [(turn, ids.tolist()) for turn, ids in turn_signals.contexts(t.Trajectory("p", 0, 0, (spans, later)))]
    assert found == [(-1, [1, 2]), (0, [1, 2, 3, 4]), (1, [1, 2, 5, 6])]
    silent = (t.prompt([1, 2]), t.sampled([3], [-1.0]), t.sampled([5], [-1.0]))  # the environment said nothing
    found = [(turn, ids.tolist()) for turn, ids in turn_signals.contexts(t.Trajectory("p", 0, 0, (silent,)))]
    assert found == [(-1, [1, 2]), (0, [1, 2, 3])]


class Seeded(Asker):
    """Its prompt is drawn from the seed; the episodes that say `bad` in a turn fail there."""

    bad, at = "", 0

    def reset(self, record, seed):
        super().reset(record, seed)
        return f"{seed % 10}?"

    def step(self, said):
        if self.turn == self.at and said.startswith(self.bad or "?"):
            raise OSError("no server")
        return super().step(said)


class Parroted(players.Player):
    """A Player whose sampler needs no model."""

    def __init__(self, config):
        self.envs, self._config, self._slots = Environments(Seeded), config, 100
        self._choose = self._moments = self._judged = None
        self._asked = frozenset()

    def _run(self, params, asks, key, kept, *, keep=True):
        return play(asks, self.envs, dialogue_of(TOKENIZER), Parrot(), LIMITS, saved=kept, keep=keep)


@pytest.mark.parametrize(("bad", "at"), [("", 0), ("a", 0), ("e", 2)])  # nothing fails, row 0 at once, and later
def test_values_of_states_without_failed_rows(tmp_path, monkeypatch, bad, at):
    config = config_of(tmp_path)
    config.agent.state_rollouts = 2
    monkeypatch.setattr(Seeded, "bad", bad)
    monkeypatch.setattr(Seeded, "at", at)
    player, records = Parroted(config), [{"id": "p0", "prompt": ""}, {"id": "p1", "prompt": ""}]
    played = player.play(None, records, jax.random.key(0), group_size=2, training=True)
    assert [x.status for x in played] == ["error" if bad else "done", "done", "done", "done"]
    values = player.state_values(None, records, played, jax.random.key(1))
    assert values[1:] == [[3.0, 2.0, 1.0]] * 3 and len(values[0]) == len(played[0].turns)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(branching=dict(fn="at_random"), roots=8), "agent.roots=8 must be at least 1 and less"),
        (dict(branching=dict(fn="at_random"), rounds=0), "agent.rounds=0 must be 1 or more"),
        (dict(branching=dict(fn="at_rando")), "agent.branching: .*nearest: 'at_random'"),
        (dict(branching=dict(fn="by_entropy", tau=1)), "takes no keyword 'tau'"),
        (dict(state_rollouts=-1), "agent.state_rollouts=-1 must be 0"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, fields, message):
    config = config_of(tmp_path)
    config.sample.group_size = 8
    config.agent.update(fields)
    with pytest.raises(ValueError, match=message):
        players.check(config)


def test_rounds_split_the_group(tmp_path):
    config = config_of(tmp_path)
    config.sample.group_size = 8
    for roots, rounds, shares in ((4, 2, [4, 2, 2]), (5, 2, [5, 1, 2]), (7, 3, [7, 1])):
        config.agent.update(branching=dict(fn="at_random"), roots=roots, rounds=rounds)
        assert turn_signals.shares(config) == shares
