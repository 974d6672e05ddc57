"""The worlds of text with known optima: what a good player earns against a solver, determinism, and bad input."""

import functools
import gzip
import itertools
import json
import math
import random

import pytest

from configs import agents_worlds, common
from rl_jax.core.binding import bind, resolve
from rl_jax.data.readers import DataError
from rl_jax.envs import text
from rl_jax.envs.text import guessing, kuhn, lists, lookups, maze, recorded, retry, talks, wordle, world
from rl_jax.experience.branching import copy_of
from tests.paths import REPO_ROOT

EVERY = {name: (path, settings) for name, (path, settings, *_) in agents_worlds.WORLDS.items()}
every_world = pytest.mark.parametrize("name", EVERY)
ODD = (
    "",
    "\n",
    "?",
    "9" * 400,
    "é",
    "s",
    "s ",
    "a ",
    "q ",
    "q DROP TABLE pets",
    "=x",
    "in ",
    "over 9",
    "ok ok",
    "-1",
    "²",
)


def make(name):
    path, settings = EVERY[name]
    return bind(dict(fn=f"rl_jax.envs.text.{path}", **settings), text)()


def problems(env, number, seed=0):
    return list(itertools.islice(env.problems(random.Random(seed)), number))


def record(prompt, info):
    return {"prompt": prompt, "info": json.dumps(info)}


def earned(env, problem, say, seed=0):
    """The return of an episode in which `say(env)` says what is said."""
    env.reset(record(*problem), seed)
    total = 0.0
    while True:
        step = env.step(say(env))
        total += step.reward
        if step.done:
            return total


def mean_of_all(env, infos, say):
    return sum(earned(env, ("", info), say) for info in infos) / len(infos)


def expert(env):
    return env.expert(random.Random(0))


# --- All -------------------------------------------------------------------------------------------------------------


@every_world
def test_the_same_record_and_words_give_the_same_episode(name):
    """Also with another instance; all characters are of the world's alphabet; the episode ends at its last turn."""
    letters = set(make(name).ALPHABET)
    for place, problem in enumerate(problems(make(name), 6)):
        rng, seen = random.Random(place), []
        env, said = make(name), []
        assert env.reset(record(*problem), place) == problem[0]
        while not seen or not seen[-1][1].done:
            key = env.state_key()
            said.append(env.expert(rng) if rng.random() < 0.5 else env.novice(rng))
            seen.append((key, env.step(said[-1])))
        other = make(name)
        other.reset(record(*problems(make(name), 1, seed=9)[0]), 7)  # an instance plays one episode after another
        other.step(said[0])
        other.reset(record(*problem), place)
        assert [(other.state_key(), other.step(word)) for word in said] == seen
        told = "".join(m["content"] for _, step in seen for m in step.messages)
        assert set(problem[0] + "".join(said) + told) <= letters
        assert len(seen) <= env.most
        assert len({frozenset(step.numbers) for _, step in seen}) == 1  # the same counts in every step


@every_world
def test_the_first_state_has_a_key(name):
    """Without one, each row's first turn would be a state of its own."""
    env = make(name)
    for problem in problems(env, 2):
        env.reset(record(*problem), 0)
        assert env.state_key()


@every_world
def test_what_makes_no_sense_is_answered(name):
    """No exception, whatever is said, and the episode still ends; nothing of it earns anything."""
    env = make(name)
    for problem in problems(env, 2):
        for said in ODD:
            total = earned(env, problem, lambda _, said=said: said)
            assert math.isfinite(total) and total <= (1 if name in ("kuhn", "user") else 0.5)


@every_world
def test_a_good_player_earns_more_than_a_beginner(name):
    env, rng = make(name), random.Random(1)
    chosen = problems(env, 60)
    good = sum(earned(env, p, expert, seed=k) for k, p in enumerate(chosen))
    poor = sum(earned(env, p, lambda env: env.novice(rng), seed=k) for k, p in enumerate(chosen))
    assert good > poor + 1 or (name in ("judged", "discussed") and good == 0 >= poor)  # it pays for nothing but form


# --- Solvers ---------------------------------------------------------------------------------------------------------


def test_halving_is_the_best_way_to_guess_a_number():
    env = make("guess")

    @functools.cache
    def total(low, high, turns):
        """Of the best way, summed over the numbers from low to high."""
        if low > high or turns == 0:
            return 0.0
        wrong = -env.price * (high - low)
        return max(
            1 + wrong + total(low, n - 1, turns - 1) + total(n + 1, high, turns - 1) for n in range(low, high + 1)
        )

    found = mean_of_all(env, [{"hidden": n} for n in range(1, 9)], expert)
    assert found == pytest.approx(total(1, 8, env.most) / 8)
    assert found == pytest.approx(1 - 0.1 * (1 * 0 + 2 * 1 + 4 * 2 + 1 * 3) / 8)  # one by one


def test_the_solver_of_questions_is_exact_and_the_expert_near_it():
    assert guessing.best_value("ab", (), None, price=0.1, most=5) == pytest.approx(0.95)  # a guess, or two
    assert guessing.best_value("ab", (), None, price=0.1, most=1) == pytest.approx(0.45)
    four = guessing.best_value(range(4), range(2), lambda x, bit: x >> bit & 1, price=0.1, most=9)
    assert four == pytest.approx(1 - 0.1 - 0.05)  # one question, then a guess or two
    env = make("questions")
    most = guessing.best_value(tuple(env.items), env.asks(), env.says, price=env.price, most=env.most)
    found = mean_of_all(env, [{"hidden": item} for item in env.items], expert)
    assert most - 0.04 < found <= most + 1e-9


def test_cities_are_told_apart_by_their_questions():
    env = make("city")
    infos = [{"hidden": item} for item in env.items]
    assert len(env.items) == 12 and mean_of_all(env, infos, expert) > 0.8
    assert env.says("Paris", "in France") and not env.says("Paris", "over 9000000") and env.says("Paris", "begins P")
    assert env.says("Paris", "near France") is None


@pytest.mark.parametrize(
    "guess, hidden, told",
    [("speed", "abide", "bbyby"), ("speed", "erase", "ybyyb"), ("speed", "steal", "gbgbb"), ("speed", "crepe", "bygyb"),
     ("allee", "apple", "gybbg"), ("crane", "crane", "ggggg")],
)  # fmt: skip
def test_colours_count_letters_as_often_as_they_are_there(guess, hidden, told):
    assert wordle.colours(guess, hidden) == told


def test_wordle_against_all_ways_to_guess():
    env = wordle.Wordle(number=9)

    @functools.cache
    def total(left, turns):
        if turns == 0 or not left:
            return 0.0
        best = -math.inf
        for guess in env.words:
            parts = {}
            for word in left:
                parts.setdefault(wordle.colours(guess, word), []).append(word)
            value = sum(
                len(part) if told == "ggggg" else -env.price * len(part) + total(tuple(part), turns - 1)
                for told, part in parts.items()
                if told == "ggggg" or len(parts) > 1
            )
            best = max(best, value if len(parts) > 1 or "ggggg" in parts else -math.inf)
        return best

    most = total(tuple(env.words), env.most) / len(env.words)
    found = mean_of_all(env, [{"hidden": word} for word in env.words], expert)
    assert most - 0.05 < found <= most + 1e-9
    lmrl = wordle.Wordle(price=1.0, win=0.0)
    assert earned(lmrl, ("", {"hidden": "crane"}), lambda env: "crane") == 0
    assert earned(lmrl, ("", {"hidden": "crane"}), lambda env: "slate") == -6


def test_an_expert_replaces_steps_that_are_not_his():
    env = maze.Guided(size=4, seed=3, patches=1)
    problem = ("", {"start": (0, 0), "goal": (3, 3)})
    assert earned(env, problem, expert) == pytest.approx(1.0)
    env.reset(record(*problem), 0)
    far = env._near[(0, 0)]
    step = env.step("?")
    assert step.numbers["patched"] == 1 and step.reward == 0 and step.messages[0]["content"][1] == "!"
    assert env._near[env.place] == far - 1  # he went on
    assert env.step(expert(env)).reward == pytest.approx(1 / far)
    end = env.step("?")
    assert end.done and end.numbers == {"correct": 0.0, "malformed": 1.0, "patched": 1.0}


def test_the_shortest_way_through_the_maze():
    env = maze.Maze(size=4, seed=3)
    everywhere = {place: maze.distances(env.opened, place) for place in env.opened}
    assert all(len(near) == 16 for near in everywhere.values())  # nothing is shut off
    for goal, near in everywhere.items():  # value iteration agrees with the search
        steps = dict.fromkeys(near, math.inf) | {goal: 0}
        for _ in near:
            for place in near:
                if place != goal:
                    steps[place] = 1 + min(steps[maze._next(place, move)] for move in env.opened[place])
        assert steps == near
    for start, goal in (((0, 0), (3, 3)), ((1, 2), (1, 3))):
        far = everywhere[goal][start]
        assert earned(env, ("", {"start": start, "goal": goal}), expert) == pytest.approx(1 - env.price * (far - 1))
    env.reset(record("", {"start": (0, 0), "goal": (3, 3)}), 0)
    shut = next(move for move in "udlr" if move not in env.opened[(0, 0)])
    assert env.step(shut).numbers["walls"] == 1 and env.state_key() == "0.0"


@pytest.mark.parametrize(
    "answers, reward",
    [("4", 1.0), ("1 2 4", 0.25), ("1 1 4", 0.25 - 0.5 / 3), ("1 1 1 1 1", -0.4), ("1 2 3 5 6", 0.0)],
)
def test_try_again_as_in_its_code(answers, reward):
    """The rewards measured on lichengliu03/unary-feedback."""
    said = iter(answers.split())
    assert earned(retry.Retry(), ("", {"answer": "4"}), lambda env: next(said)) == pytest.approx(reward)


def test_who_never_repeats_solves_half_and_who_does_a_tenth():
    """Of a hidden digit with five tries; without decay and penalty the return is the share solved."""
    env = retry.Retry(answers=10, decay=1.0, repetition=0.0)
    infos = [{"answer": str(n)} for n in range(10)]
    assert mean_of_all(env, infos, lambda env: str(env.turn)) == pytest.approx(0.5)
    assert mean_of_all(env, infos, lambda env: "3") == pytest.approx(0.1)
    cut = retry.Retry()
    cut.reset(record("", {"answer": "4"}), 0)
    cut.step("1"), cut.step(" 1 ")
    assert cut.cut() == pytest.approx(-0.25)  # a limit ended it
    empty = iter(["", "4"])
    assert earned(cut, ("", {"answer": "4"}), lambda env: next(empty)) == pytest.approx(0.5 - 0.1)


def test_what_a_trial_gains_adds_up_to_the_last_ones_return():
    env = retry.Improvement(length=3, most=5)
    said = iter(["aab", "aaa", "aab", "aba"])
    assert earned(env, ("", {"hidden": "aba"}), lambda env: next(said)) == pytest.approx(1.0)
    env.reset(record("", {"hidden": "aba"}), 0)
    assert [env.step("aab").reward for _ in range(4)] == pytest.approx([1 / 3, 0, 0, 0])  # nothing new, nothing earned
    assert set(env.consistent()) == {"aba", "baa", "bbb"}
    infos = [{"hidden": "".join(word)} for word in itertools.product("ab", repeat=3)]
    assert mean_of_all(env, infos, expert) == 1.0


@pytest.mark.parametrize("persona", sorted(talks.PERSONAS))
def test_the_best_talk_with_a_user(persona):
    def score(said):
        said = iter(said)
        return earned(talks.User(most=4), ("", {"persona": persona}), lambda env: next(said))

    everything = [score(said) for said in itertools.product("vasj", repeat=4)]
    assert earned(talks.User(most=4), ("", {"persona": persona}), expert) == pytest.approx(max(everything))
    assert max(everything) > 0.75 and min(everything) < 0.3
    assert score(["x", "v", "v", "v"]) == 0  # the format is violated


def test_a_doctor_asks_what_tells_most():
    env = make("doctor")
    names = sorted(talks.DISEASES)

    @functools.cache
    def total(left, turns):
        """Without the information's reward, which only depends on the end: log 7 in all once one disease is left."""
        guess = 1.0 if left else 0.0
        best = guess
        if turns > 1:
            for ask in talks.SYMPTOMS:
                parts = [tuple(n for n in left if (ask in talks.DISEASES[n]) == has) for has in (True, False)]
                if all(parts):
                    told = sum(len(p) * 0.3 * math.log(len(left) / len(p)) / math.log(7) for p in parts)
                    best = max(best, told - env.price * len(left) + sum(total(p, turns - 1) for p in parts))
        return best

    most = total(tuple(names), env.most) / 7
    found = mean_of_all(env, [{"hidden": name} for name in names], expert)
    assert most - 0.03 < found <= most + 1e-9
    env.reset(record("", {"hidden": "flu"}), 0)
    assert env.step("f").numbers["information"] > 0.2 and env.step("f").numbers["information"] == 0


@pytest.mark.parametrize("price", [0.01, 0.05, 0.2])
def test_the_best_deal_against_all_ways_to_bargain(price):
    for start, floor in ((22, 11), (20, 19), (24, 15)):
        env = talks.Negotiation(price=price, most=4)
        problem = ("", {"start": start, "floor": floor})
        found = []
        for plan in itertools.product(("ok", "0", "take"), repeat=4):
            said = iter(plan)
            found.append(earned(env, problem, lambda env, said=said: _offer(env, next(said))))
        assert earned(env, problem, expert) == pytest.approx(max(found))


def _offer(env, plan):
    return str(env._next()) if plan == "take" else plan


def test_a_search_costs_a_turn_and_may_be_off():
    env = make("search")
    for prompt, info in problems(env, 8):
        hops = 2 if prompt.startswith("friend") else 1
        assert earned(env, (prompt, info), expert) == pytest.approx(1 - env.price * hops)
    env.reset(record(prompt, info | {"search": False}), 0)
    assert env.step(f"s {info['who']} has").messages[0]["content"] == "off\n"
    env.reset(record(prompt, info), 0)
    assert env.step("s nobody").messages[0]["content"] == "none\n" and env.step("s").numbers["malformed"] == 1


def test_every_question_is_solved_by_what_was_read():
    """Also "friend of eli?" where gus likes eli; the expert says no name that it has not read, after a beginner too."""
    env, rng = lookups.Search(), random.Random(0)
    for facts, who in itertools.product(range(60), lookups.PEOPLE):
        info = {"who": who, "far": True, "facts": facts}

        def read(said, env=env):
            return env.step(said).messages[0]["content"].split()

        env.reset(record("", info), 0)
        friend = read(f"s {who} likes")[-1]
        pet = read(f"s {friend} has")[-1]
        last = env.step(f"a {pet}")
        assert last.numbers["correct"] == 1 and last.reward == 1, (facts, who)
        for novice in (False, True):
            env.reset(record("", info), 0)
            seen, total = {who}, 0.0
            if novice:
                step = env.step(f"s {rng.choice(lookups.PEOPLE)}")
                seen |= set(step.messages[0]["content"].split())
            while True:
                said = env.expert(rng)
                assert set(said.split()) & {*lookups.PEOPLE, *lookups.PETS} <= seen, (facts, who, said)
                step = env.step(said)
                total += step.reward
                if step.done:
                    break
                seen |= set(step.messages[0]["content"].split())
            assert step.numbers["correct"] == 1 and total >= 1 - 2 * env.price - 1e-9
            assert novice or total == pytest.approx(1 - 2 * env.price)


def test_without_a_search_only_what_stays_the_same_is_known():
    """Fresh facts are guessed, one of six right; those of all episodes are known by heart."""
    fresh, same = lookups.Search(tool=False), lookups.Search(tool=False, fresh=False)
    rng = random.Random(0)
    shares = [
        sum(earned(env, p, lambda env: env.expert(rng)) for p in problems(env, 300)) / 300 for env in (fresh, same)
    ]
    assert shares[0] == pytest.approx(1 / 6, abs=0.07) and shares[1] == 1
    last = lookups.Search(most=2)  # no room for the second search: it guesses
    last.reset(record("", {"who": "eli", "far": True, "facts": 0}), 0)
    last.step("s eli likes")
    assert last.expert(rng).startswith("a ")


def test_a_database_answers_and_cannot_be_written():
    env = make("database")
    prompt, info = problems(env, 1)[0]
    assert earned(env, (prompt, info), expert) == 1.0
    env.reset(record(prompt, info), 0)
    assert env.step("q SELECT name, age FROM pets").messages[0]["content"] == "ann,1|bob,4|cid,7|...\n"
    assert env.step("q DELETE FROM pets").messages[0]["content"] == "error\n"
    assert env.step("q SELECT count(*) FROM pets").messages[0]["content"] == "10\n"
    assert env.state_key().count("|") == 2


def test_a_database_answers_in_its_alphabet_whatever_a_query_makes():
    env = make("database")
    env.reset(record(*problems(env, 1)[0]), 0)
    text = env.step("q SELECT char(64, 97), x'00', char(233)").messages[0]["content"]
    assert text == "?a,b'?x00',?\n" and set(text) <= set(env.ALPHABET)


def test_a_copy_of_a_database_goes_on_alone():
    """Episodes that branch: the same rows, and what is asked of one is not in the other's state."""
    env = make("database")
    env.reset(record(*problems(env, 1)[0]), 0)
    env.step("q SELECT name FROM pets")
    other = copy_of(env)
    key = env.state_key()
    assert other.state_key() == key and other.turn == 1
    assert other.step("q SELECT count(*) FROM pets").messages[0]["content"] == "10\n"
    assert env.state_key() == key != other.state_key() and env.turn == 1
    assert env.step(expert(env)).reward == other.step(expert(other)).reward == 1


def test_the_cheapest_model_that_knows():
    env = lookups.Router()
    assert [env.cost_score(cost) for cost in (1.0, 2.5, 4.0, 9.0)] == [1.0, 0.5, 0.0, 0.0]
    for level in (2, 5, 8):
        problem = ("", {"level": level, "answer": 7})
        found = []
        for plan in itertools.product("abc=!", repeat=3):
            said = iter([{"=": "=7", "!": "=8"}.get(word, word) for word in plan] + ["=7"])
            try:
                found.append(earned(env, problem, lambda env, said=said: next(said)))
            except StopIteration:
                continue
        honest = max(0.7 + 0.3 * env.cost_score(price**0.5) for skill, price in env.MODELS.values() if skill >= level)
        assert earned(env, problem, expert) == pytest.approx(honest)
        assert max(found) == pytest.approx(1.0)  # who knows the answer asks nobody: the prompt does not tell it
    assert earned(env, problem, lambda env: "7") == -1  # the format
    assert env.cut() == -1  # no answer before a limit


def test_the_returns_and_the_score_of_lmrl_gym():
    """-1 a step, -4 for what is no step, 0 at the goal; 0, 50 and 100 for the lowest, the mean and the best."""
    env = maze.Maze(size=4, seed=3, price=1.0, invalid=3.0, win=0.0)
    problem = ("", {"start": (0, 0), "goal": (3, 3)})
    far = maze.distances(env.opened, (3, 3))[(0, 0)]
    assert earned(env, problem, expert) == -(far - 1)
    said = iter(["jump"])
    assert earned(env, problem, lambda env: next(said, None) or expert(env)) == -4 - (far - 1)
    twenty = guessing.TwentyQuestions(price=1.0, win=0.0)
    assert earned(twenty, ("", {"hidden": "owl"}), lambda env: "owl") == 0
    scores = [world.normalized_score(s, low=-101, mean=-83, high=-6.84) for s in (-101, -92, -83, -6.84)]
    assert scores == pytest.approx([0, 25, 50, 100])
    with pytest.raises(ValueError, match="must rise"):
        world.normalized_score(0, low=0, mean=0, high=1)


def test_geoquery_through_the_database(tmp_path):
    folder = REPO_ROOT / common.DATA / "sql"
    if not (folder / "geography.json.gz").is_file():
        pytest.skip("GeoQuery is not here: python -m experiments.tools.fetch_data sql")
    entry = json.loads(gzip.decompress((folder / "geography.json.gz").read_bytes()))[0]
    sentence = entry["sentences"][0]
    query = entry["sql"][0].rstrip(" ;")
    for name, value in sentence["variables"].items():
        query = query.replace(name, value)
    info = {"database": str(folder / "geography.sqlite.gz"), "query": query}
    env = make("database")
    assert earned(env, ("", info), expert) == 1.0
    assert earned(env, ("", info), lambda env: "a SELECT 1") == 0.0


# --- Poker -----------------------------------------------------------------------------------------------------------


def test_the_value_of_kuhn_poker():
    for alpha in (0.0, 0.2, 1 / 3):
        policy = kuhn.equilibrium(alpha)
        assert kuhn.value(policy) == pytest.approx(-1 / 18)
        assert kuhn.best_response(policy, 0) == pytest.approx(-1 / 18)
        assert kuhn.best_response(policy, 1) == pytest.approx(1 / 18)
    assert kuhn.best_response(kuhn.uniform(), 0) == pytest.approx(0.5)
    assert kuhn.best_response(kuhn.uniform(), 1) == pytest.approx(5 / 12)


def test_regret_matching_comes_to_the_equilibrium():
    found = kuhn.regret_matching(300)
    assert kuhn.value(found) == pytest.approx(-1 / 18, abs=0.01)
    assert kuhn.best_response(found, 0) + kuhn.best_response(found, 1) < 0.05  # what both could still gain


def test_hands_against_the_equilibrium_have_its_value():
    env = kuhn.Kuhn(seat=0)
    hands = problems(env, 4_000)
    rng = random.Random(0)
    mean = sum(earned(env, p, lambda env: env.expert(rng), seed=k) for k, p in enumerate(hands)) / len(hands)
    assert mean == pytest.approx(-1 / 18, abs=0.06)
    with pytest.raises(ValueError, match="opponent='shark' must be of equilibrium, uniform"):
        kuhn.Kuhn(opponent="shark")


# --- Tasks and lists -------------------------------------------------------------------------------------------------


def test_recorded_episodes_are_a_task(tmp_path):
    task = recorded.load(
        world="rl_jax.envs.text.maze:Maze", settings=dict(size=3), num_train=6, num_test=3, data_dir=str(tmp_path)
    )
    warm, test = task.data_source("sft_train"), task.data_source("test")
    assert (len(warm), len(task.data_source("train")), len(test)) == (6, 6, 3)
    for k in range(6):
        turns = json.loads(warm[k]["info"])["recorded_turns"]
        assert len(turns) % 2 and warm[k]["completion"] == turns[-1]  # the model begins and ends
        task.tokenizer.encode(warm[k]["prompt"] + "".join(turns))
        env = maze.Maze(size=3)
        env.reset(warm[k], 0)
        steps = [env.step(said) for said in turns[::2]]
        assert [m["content"] for step in steps for m in step.messages] == turns[1::2]
    with pytest.raises(ValueError, match="is no class of rl_jax.envs.text.world.World"):
        recorded.load(world="rl_jax.envs.text.one_answer:OneAnswer")
    with pytest.raises(ValueError, match="expert_share=2 in"):
        recorded.load(world="rl_jax.envs.text.maze:Maze", expert_share=2)


def test_a_setting_that_is_a_text_is_no_file(tmp_path):
    (tmp_path / "words").write_text("crate")
    settings = {"prompt": "x" * 300, "who": "~nobodyhere/x", "odd": "a\0b", "n": 3, "paths": [str(tmp_path / "words")]}
    assert recorded.files_of(settings) == [tmp_path / "words"]


def test_a_changed_list_of_words_is_read_anew(tmp_path):
    words = tmp_path / "words.txt"

    def hidden():
        task = recorded.load(
            world="rl_jax.envs.text.wordle:Wordle", settings=dict(path=str(words)), num_train=1, num_test=1,
            data_dir=str(tmp_path / "data"),
        )  # fmt: skip
        return json.loads(task.data_source("train")[0]["info"])["hidden"]

    for word in ("crane", "plumb"):
        words.write_text(f"{word}\n")
        assert hidden() == word
    assert recorded.files_of(dict(a="", b=3, c=("x", str(words)), d=str(tmp_path))) == [words]


def test_the_code_of_a_world_is_that_of_its_bases_too(tmp_path, monkeypatch):
    """A changed base class, or a list that it imports, is another dataset."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "world_lists.py").write_text("WORDS = ('a',)\n")
    (tmp_path / "world_base.py").write_text(
        "import world_lists\nfrom rl_jax.envs.text.wordle import Wordle\n\n\nclass Base(Wordle):\n    pass\n"
    )
    (tmp_path / "world_mine.py").write_text("import world_base\n\n\nclass Mine(world_base.Base):\n    pass\n")
    code = [path.removeprefix(f"{tmp_path}/") for path in recorded.code_of(resolve("world_mine:Mine"))]
    assert [path for path in code if path.startswith("world_")] == ["world_base.py", "world_lists.py", "world_mine.py"]
    here = {path.rpartition("/")[2] for path in code if "rl_jax/envs/text/" in path}
    assert {"lists.py", "wordle.py", "world.py", "recorded.py", "lookups.py"} <= here
    assert any(path.endswith("rewards/sql.py") for path in recorded.code_of(lookups.Database))
    assert not [path for path in code if path.endswith(("random.py", "collections/__init__.py"))]


def test_published_lists():
    words = REPO_ROOT / common.DATA / "games/wordle_official_400.txt.gz"
    if not words.is_file():
        pytest.skip("the published lists are not here: python -m experiments.tools.fetch_data games")
    env = wordle.Wordle(path=str(words), guesses=str(words.with_name("wordle_official_guess.txt.gz")))
    assert len(env.words) > 400 and earned(env, ("", {"hidden": "solar"}), expert) > 0.3
    city = guessing.GuessCity(path=str(words.with_name("guess_city_global_cities.txt.gz")))
    assert len(city.items) == 100 and earned(city, ("", {"hidden": "Lima"}), expert) > 0.3


def test_lists_of_another_form_are_refused(tmp_path):
    bad = tmp_path / "words.txt"
    bad.write_text("crane\nCrate\n")
    with pytest.raises(DataError, match="line 2: 'Crate' is no word of 5 letters"):
        lists.read_words(str(bad))
    bad.write_text("Rank City\n1; Paris; France\n")
    with pytest.raises(DataError, match="line 2: .* is not RANK; CITY; COUNTRY; PEOPLE"):
        lists.read_cities(str(bad))
    with pytest.raises(DataError, match="is missing; see experiments.tools.fetch_data games"):
        lists.read_words(str(tmp_path / "none.txt"))
    assert len(set(lists.WORDS)) == len(lists.WORDS) and {len(word) for word in lists.WORDS} == {5}
    assert len(set(lists.ANIMALS.values())) == len(lists.ANIMALS)  # no two animals are alike
