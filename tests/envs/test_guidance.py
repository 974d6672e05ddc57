"""rl_jax/envs/guidance.py and speakers.py: when goals are asked for, what is said, and what the policy then reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs import guidance, speakers
from rl_jax.envs.worlds import camp
from rl_jax.rollout.envs import steps
from rl_jax.runs.logging import read_jsonl
from rl_jax.tasks import records
from tests.rollout.test_env_steps import Plain

QUICK = {"xla_backend_optimization_level": 0}
INTERVAL, PERIODS, STEPS = 3, 8, 13


def by_hand(deeds, goals, texts):
    """u of lists of deeds and goals, by counting words."""
    vocabulary = sorted({word for text in texts for word in text.split()})
    d, g = (np.array([" ".join(said).split().count(word) for word in vocabulary], float) for said in (deeds, goals))
    size = np.linalg.norm(d) * np.linalg.norm(g)
    return 1 / (1 + np.exp(-10 * ((d @ g / size if size else 0.0) - 0.1)))


def test_understanding_is_its_equation():
    rng = np.random.default_rng(0)
    deeds, goals = rng.normal(size=(2, 5, 4)).astype(np.float32)
    deeds[0] = 0.0  # nothing was done
    goals[1] = 3.0 * deeds[1]
    found = guidance.understanding(deeds, goals)
    sizes = np.linalg.norm(deeds[1:], axis=1) * np.linalg.norm(goals[1:], axis=1)
    cosines = np.append(0.0, (deeds[1:] * goals[1:]).sum(1) / sizes)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-10 * (cosines - 0.1))), rtol=1e-4)
    assert found[1] > 0.999 and abs(found[0] - 0.2689) < 1e-3
    assert guidance.understanding(goals, goals, steepness=1.0, middle=1.0)[1] == pytest.approx(0.5)


def test_goals_are_named_by_their_longest_names():
    goals = ("chop grass", "chop grass with wood pickaxe", "sleep")
    assert guidance.named("Now chop grass with wood pickaxe.", goals).tolist() == [False, True, False]
    assert guidance.named("sleep, chop grass", goals).tolist() == [True, False, True]
    assert not guidance.named("", goals).any()


def test_who_is_asked_when_and_what_the_policy_reads():
    """A rollout of two worlds over the end of an episode against a loop over the same observations and deeds."""
    asked = []

    def decide(prompt):
        asked.append(prompt)
        return speakers._sensible(prompt)

    said = speakers.camp()._replace(decide=decide)
    plain = envs.load_vector("probes/camp", 2, every=2, periods=PERIODS)
    env = guidance.guided(plain, said, interval=INTERVAL)
    table = jnp.asarray(np.random.default_rng(0).integers(0, 4, (PERIODS, 2)), jnp.int32)

    law = Plain()._replace(to_env=lambda actions: actions.astype(jnp.int32))

    def policy(worlds):
        return table[worlds.episode_length, jnp.arange(2)], ()

    def whole(key):
        worlds, same = steps.start(env, key), steps.start(plain, key)
        found, own = (
            steps.collect(policy, law, *pair, key, num_steps=STEPS) for pair in ((env, worlds), (plain, same))
        )
        return worlds.state, found, own[1]

    compiled = jax.jit(whole, compiler_options=QUICK)
    first, (worlds, rows, metrics), own = jax.device_get(compiled(jax.random.key(0)))
    np.testing.assert_array_equal(rows.observations[..., :6], own.observations)
    np.testing.assert_array_equal(rows.next_observations[..., :6], own.next_observations)
    np.testing.assert_array_equal(rows.rewards, own.rewards)

    texts = (*said.deeds, *said.goals)
    vocabulary = sorted({word for text in texts for word in text.split()})
    told, prompts = [], []
    for b in range(2):
        goals, deeds, last = [], [], ""
        for t in range(STEPS + 1):
            age = t % PERIODS
            if age == 0:
                goals, deeds, last = [], [], ""
            if age % INTERVAL == 0:
                score, seen = by_hand(deeds, goals, texts), own.observations[b, t] if t < STEPS else None
                if seen is None:
                    break
                context = f"Past action: <{last}>. Past sub-goals: <{', '.join(goals)}>."
                prompts.append(f"Player status: <{camp.status(seen)}>. {context}")
                need = int(np.argmax(seen[:4]))
                goals, deeds = [said.goals[need]], []  # the adapter translates, so it is always the right one
            if t == STEPS:
                break
            words = np.array([" ".join(goals).split().count(word) for word in vocabulary], float)
            np.testing.assert_allclose(rows.observations[b, t, 6:], words / np.linalg.norm(words), rtol=1e-5)
            np.testing.assert_allclose(rows.next_observations[b, t, 6:], rows.observations[b, t, 6:], rtol=1e-5)
            last = said.deeds[int(table[age, b])]
            deeds.append(last)
            told.append((b, t, score))
    for said_once in prompts:
        matching = [prompt for prompt in asked if said_once in prompt]
        assert matching and all(
            "Analysis: <" in prompt and f"<{', '.join(said.goals)}>" in prompt for prompt in matching
        )
    assert len(asked) == len(prompts) + 2 * (STEPS % PERIODS % INTERVAL == 0)
    # The score after step t is that of the question at t + 1, or the one before.
    scores = {(b, t): score for b, t, score in told}
    known = [scores[b, t + 1] for b in range(2) for t in range(STEPS - 1)]
    latest = worlds.state.score.sum()
    np.testing.assert_allclose(metrics["episode/understood"].total, sum(known) + latest, rtol=1e-4)
    assert metrics["episode/understood"].count == 2 * STEPS and (first.score < 0.27).all()


def stepped(env, state, seed):
    drawn = jax.tree.map(lambda x: x[0], env.ahead(jax.random.key(seed), 1))
    return env.step(state, jnp.zeros(env.num_envs, jnp.int32), drawn)[0]


def test_what_the_adapter_said_is_recorded_for_fine_tuning(tmp_path):
    file = tmp_path / "said.jsonl"
    plain = envs.load_vector("probes/camp", 20)
    env = guidance.guided(plain, speakers.camp(), interval=1, record=str(file))
    silent = guidance.guided(plain, speakers.camp(adapter=None), interval=1, record=str(file))
    for each in (env, silent):
        state = stepped(each, each.reset(jax.random.key(0))[0], 1)
    learned = records.load(path=str(file), data_dir=str(tmp_path)).data_source("sft_train")
    pairs = {(learned[i]["prompt"], learned[i]["completion"]) for i in range(len(learned))}
    needs = [word for words in camp.WORDS for word in words]
    assert {prompt.partition("status: <")[2].partition(">")[0] for prompt, _ in pairs} <= set(needs)
    assert ("parched means thirsty" in dict(pairs).values()) == any("<parched>" in prompt for prompt, _ in pairs)
    rows = read_jsonl(file)
    assert [row["world"] for row in rows] == list(range(20)) and {row["turn"] for row in rows} == {1}
    assert all(f"comprehension score: <{row['score']:.3f}>." in row["prompt"] for row in rows)
    assert len(file.read_text().splitlines()) == 20 == len(state.score)


def test_a_run_that_is_started_again_records_what_an_uninterrupted_one_does(tmp_path):
    """Its environments are reset again, and turns after its checkpoint are repeated: their numbers are the same."""
    plain = envs.load_vector("probes/camp", 2)
    found = []
    for name, restarts in (("whole", 0), ("halves", 1)):
        file = tmp_path / name
        env = guidance.guided(plain, speakers.camp(), interval=1, record=str(file))
        saved = stepped(env, env.reset(jax.random.key(0))[0], 1)
        stepped(env, saved, 2)
        for _ in range(restarts):
            env.reset(jax.random.key(0))
            stepped(env, saved, 2)
        rows = read_jsonl(file)
        assert len(rows) == 4 + 2 * restarts
        found.append({(row["world"], row["turn"]): row for row in rows})
    assert found[0] == found[1] and list(found[0]) == [(0, 1), (1, 1), (0, 2), (1, 2)]


def test_the_camps_speakers():
    said, alone = speakers.camp(), speakers.camp(adapter=None)
    for need, (plain, rare) in enumerate(camp.WORDS):
        for word in (plain, rare):
            prompt = f"Player status: <{word}>."
            text = said.decide(f"{prompt} Analysis: <{said.adapter(prompt)}>.")
            assert guidance.named(text, said.goals).tolist() == [i == need for i in range(6)]
        assert "sleep" in alone.decide(f"Player status: <{rare}>.") and alone.adapter is None
    with pytest.raises(ValueError, match="adapter='guess' is none of translated, None"):
        speakers.camp(adapter="guess")


def test_crafters_words_and_common_sense():
    view = np.zeros((7, 9, 21), np.float32)
    view[..., 2] = 1.0
    view[0, 0, 5] = view[3, 4, 11] = view[1, 1, 18] = 1.0
    held = np.zeros(22, np.float32)
    held[[0, 12, 13, 14, 15]] = (0.2, 0.9, 0.4, 0.9, 0.9)
    sees, status = speakers.described(np.concatenate([view.ravel(), held]))
    assert sees == "grass, tree, table, cow" and status == "2 wood, 9 health, 4 food, 9 drink, 9 energy"
    said = speakers.crafter()
    assert len(said.deeds) == 17 and len(said.goals) == 22
    prompt = f"Player sees: <{sees}>. Player status: <{status}>."
    assert said.decide(prompt) == "eat cow, make wood pickaxe, make wood sword"
    low, high = (said.adapter(f"Player's comprehension score: <{score}>.") for score in (0.269, 0.9))
    assert said.decide(f"{prompt} Analysis: <{low}>.") == "eat cow"
    assert said.decide(f"{prompt} Analysis: <{high}>.") == said.decide(prompt)
    assert said.decide("Player sees: <sand>. Player status: <9 food, 9 drink, 9 energy>.") == "chop tree"


@pytest.mark.parametrize(
    ("name", "interval", "message"),
    [
        ("probes/matching", 4, "4 deeds are no names of the actions"),
        ("probes/camp", 0, "interval=0 must be 1 or more"),
    ],
)
def test_refusals(name, interval, message):
    with pytest.raises(ValueError, match=message):
        guidance.guided(envs.load_vector(name, 1), speakers.camp(), interval=interval)
