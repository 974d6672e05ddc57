"""The worlds of configs/agents_rows.py: what defines each paper, held to its equation."""

import asyncio
import itertools
import json
import random

import numpy as np
import pytest

from rl_jax.envs.text import attempts, dual, quests, summaries, workspaces
from rl_jax.envs.text.recorded import segments


def begun(env, info, prompt="x", seed=0):
    env.reset({"prompt": prompt, "info": json.dumps(info)}, seed)
    return env


def told(step):
    return "".join(message["content"] for message in step.messages)


def spoken(env, *words):
    return [env.step(word) for word in words]


# --- tau2 ------------------------------------------------------------------------------------------------------------


def test_both_sides_act_on_one_state_with_tools_of_their_own():
    env = begun(dual.Dual(price=0.0), {"side": "a", "wrong": "la"})
    steps = spoken(env, "?", "!l", "!a", "u?", "u!l", "u!a", "end")
    assert [told(step) for step in steps] == ["l0r1:", "ok:", "?\n", "a0d1:", "?\n", "ok:", ""]
    assert steps[-1].reward == 1 and steps[-1].done
    assert [step.numbers["agent_calls"] for step in steps] == [1, 1, 0, 0, 0, 0, 0]
    assert [step.numbers["user_calls"] for step in steps] == [0, 0, 0, 1, 0, 1, 0]
    env = begun(dual.Dual(price=0.0), {"side": "a", "wrong": "la"})
    assert spoken(env, "!l", "u!a", "!r", "end")[-1].reward == 0  # a needless write broke what worked


def test_the_reward_is_that_of_the_last_state_for_every_way_to_end():
    """All ways to write up to three times: 1 exactly if each wrong switch was flipped an odd number of times."""
    words = ("!l", "!r", "u!a", "u!d")
    for wrong, ways in itertools.product(("l", "ad", "lrd"), itertools.product(words, repeat=3)):
        env = begun(dual.Dual(price=0.0), {"side": "a", "wrong": wrong})
        flipped = {name for name in "lrad" if sum(way[-1] == name for way in ways) % 2}
        assert spoken(env, *ways, "end")[-1].reward == float(flipped == set(wrong))


def test_the_users_side_uses_tools_and_replies():
    env = begun(dual.Dual(side="u", price=0.0), {"side": "u", "wrong": "lad"})
    steps = spoken(env, "?", "=a0d0", "!a", "=ok", "!d", "=ok")
    assert [told(step) for step in steps] == ["a0d0:", "!a:", "ok:", "!d:", "ok:", ""]
    assert steps[-1].reward == 1
    env = begun(dual.Dual(side="u", price=0.0), {"side": "u", "wrong": "a"})
    assert spoken(env, "=a1d1")[-1].reward == 0  # he said what he had not read


def test_a_model_as_the_user_has_the_users_tools_only():
    env, heard = dual.Dual(price=0.0), []
    words = iter(["?", "=a0d1", "!l", "!a", "=ok", "?", "?", "?"])

    async def partner(text):
        heard.append(text)
        return next(words)

    env.partner = partner
    begun(env, {"side": "a", "wrong": "a"})
    steps = [asyncio.run(env.step(word)) for word in ("u?", "u!a", "u?")]
    assert [told(step) for step in steps] == ["a0d1:", "ok:", "?:"]
    assert heard == ["u?:", "a0d1:", "!a:", "?:", "ok:", "?:", "a1d1:", "a1d1:"]
    assert env.step("end").reward == 1


def test_a_careless_user_only_says_so():
    env = begun(dual.Dual(careless=1.0, price=0.0), {"side": "a", "wrong": "a"})
    assert told(env.step("u!a")) == "ok:" and env.state["a"] == 0
    with pytest.raises(ValueError, match="careless=2 from 0 to 1"):
        dual.Dual(careless=2)


# --- iterresearch, hiagent -------------------------------------------------------------------------------------------


def test_a_workspace_holds_the_question_the_report_and_the_last_result():
    env = begun(workspaces.Research(), {"who": "eli", "far": 2, "facts": 3})
    first, second = env.likes["eli"], env.likes[env.likes["eli"]]
    steps = spoken(env, "eli0;s eli", f"{first}1;s {first}", f"{second}2;a {second}")
    assert [told(step) for step in steps[:2]] == [f"eli2:eli0|s eli>{first}\n", f"eli2:{first}1|s {first}>{second}\n"]
    assert all(step.anew for step in steps[:2]) and steps[-1].reward == 1
    mono = begun(workspaces.Research(markov=False), {"who": "eli", "far": 2, "facts": 3})
    assert told(mono.step("eli0;s eli")) == f"{first}\n" and not mono.rewrites


@pytest.mark.parametrize("world", [workspaces.Research, workspaces.Errands])
def test_what_is_read_stays_small(world):
    """The last turn reads less than with the whole history, and `read` is what the record says."""
    sizes = {}
    for whole in (False, True):
        env = world(**{"markov" if world is workspaces.Research else "compress": not whole})
        prompt, info = next(env.problems(random.Random(3)))
        begun(env, info, prompt)
        at, found, rng = [len(prompt)], [], random.Random(0)
        for _ in range(4 if world is workspaces.Errands else 3):
            found.append(env.step(env.expert(rng)))
            if not found[-1].done:
                at.append(len(told(found[-1])) if found[-1].anew else at[-1] + 1)
        sizes[whole] = found[-1].numbers["read"]
        assert found[0].numbers["read"] == len(prompt)
    assert sizes[False] < sizes[True]


def test_finished_subgoals_leave_their_outcome_and_can_be_recalled():
    chunk = workspaces.Chunk
    done = chunk("gb", (("1", "c"), ("2", "b"), ("+", "ok")))
    assert workspaces.compressed("bd:", [done, chunk("gd", (("1", "c"),))]) == "bd: gb=ok gd1c\n"
    assert workspaces.compressed("bd:", [done, chunk("gd")], (0,)) == "bd: gb1c2b+ok gd\n"
    env = begun(workspaces.Errands(price=0.0), {"task": "bd:", "placed": "cbda"})
    steps = spoken(env, "gb", "2", "+", "gd", "r0", "3", "+")
    assert [told(step) for step in steps] == [
        "bd: gb\n", "b\n", "ok\n", "bd: gb=ok gd\n", "bd: gb2b+ok gd\n", "d\n", ""
    ]  # fmt: skip
    assert [step.anew for step in steps] == [True, False, False, True, True, False, False] and steps[-1].reward == 1
    kept = begun(workspaces.Errands(compress=False), {"task": "bd:", "placed": "cbda"})
    assert not any(step.anew for step in spoken(kept, "gb", "2", "+", "gd"))


def test_the_model_writes_what_is_left_of_a_finished_subgoal():
    """Of what it has just done and nothing else; the summary is all that the later memory has of it."""
    env = begun(summaries.Summaries(price=0.5), {"task": "bd:", "placed": "cbda"})
    words = ("gb", "3", "2", "+", "gd", "3d", "r0", "3", "gd", "+")
    steps = spoken(env, *words)
    assert [told(step) for step in steps] == [
        "bd: gb\n", "d\n", "b\n", "ok\n", "gb3d2b+ok=", "bd: gb=3d gd\n", "bd: gb3d2b+ok gd\n", "d\n",
        "bd: gb=3d gd\n", "",
    ]  # fmt: skip
    assert [step.anew for step in steps] == [True, False, False, False, True, True, True, False, True, False]
    assert [step.reward for step in steps] == [-0.5] * 5 + [0.0] + [-0.5] * 3 + [1.0]  # a summary is free
    assert [step.numbers["summaries"] for step in steps] == [0] * 5 + [1] + [0] * 4
    reads = [step.numbers["read"] for step in steps]
    assert reads[4:7] == [len("bd: gb\n3d\n2b\n+ok\n"), len("gb3d2b+ok="), len("bd: gb=3d gd\n")]
    for bad in ("toolongtokeep", "a b", ""):
        env = begun(summaries.Summaries(), {"task": "bd:", "placed": "cbda"})
        last = spoken(env, "gb", "2", "+", "gd", bad)[-1]
        assert told(last) == "bd: gb= gd\n" and last.numbers["malformed"] == 1


def test_an_expert_needs_his_summary():
    """Turns until all is fetched: with what he wrote he goes straight to a room that he has seen."""
    turns = {}
    for forgets in (False, True):
        env = begun(summaries.Summaries(most=30), {"task": "bd:", "placed": "cdba"})
        rng, step, turns[forgets] = random.Random(0), None, 0
        while step is None or not step.done:
            step = env.step("ok" if env._next and forgets else env.expert(rng))
            turns[forgets] += 1
        assert step.reward == 1
    assert turns[False] < turns[True]


def test_what_is_malformed_has_been_read_too():
    """The history holds it: `read` of the next turn counts its letters and the answer's."""
    env = begun(workspaces.Errands(compress=False), {"task": "bd:", "placed": "cbda"}, prompt="bd:\n")
    words = ("no such word", "2", "+", "", "3")
    steps, read = spoken(env, *words), 4
    for word, step in zip(words, steps, strict=True):
        assert step.numbers["read"] == read
        read += len(word) + len(told(step))


def test_recorded_episodes_have_a_row_for_each_new_beginning():
    env = workspaces.Errands()
    prompt, info = next(env.problems(random.Random(0)))
    found = segments(env, prompt, info, random.Random(0), 1.0)
    assert found[0].first == prompt and len(found) == 3  # the prompt, and two subgoals
    assert all(len(one.turns) == 2 * len(one.rewards) - 1 for one in found)  # the model begins and ends


# --- agent_rlvr, comas -----------------------------------------------------------------------------------------------


def test_a_failed_attempt_is_made_again_under_guidance():
    info = {"program": "*2+1", "tests": [[3, 7], [5, 11], [1, 3], [9, 19]]}
    hints = {"both": "*+ 5>9", "plan": "*+", "error": "5>9", "none": ""}
    for guidance, hint in hints.items():
        env = begun(attempts.Guided(guidance=guidance), info)
        first, second = spoken(env, "+4", "*2+1")
        assert first.anew and told(first) == f"3>7 5>11:{hint}\n" and first.reward == 0
        assert (first.numbers["guided"], second.numbers["guided"]) == (0, float(bool(hint)))
        assert second.reward == 1 and second.numbers["alone"] == 0
    assert spoken(begun(attempts.Guided(), info), "*2+1")[0].numbers["alone"] == 1
    shown = begun(attempts.Guided(), info | {"tests": [[3, 7], [5, 11], [1, 9]]})
    assert not shown.step("*2+1").done  # right on what it was shown only


def test_programs():
    assert [attempts.run_program(text, 3) for text in ("*2+1", "-4")] == [7, -1]
    assert {attempts.run_program(text, 3) for text in ("", "*", "x2", "+x")} == {None}


def test_each_role_reads_its_own_prompt():
    question = {"question": "7+8=", "answer": "15"}
    steps = spoken(begun(attempts.Judged(), question), "14", "no", "1")
    assert [told(step) for step in steps] == ["e7+8=14?\n", "j7+8=14?no\n", ""]
    assert [step.numbers["role"] for step in steps] == [1, 2, 3]
    assert [step.anew for step in steps] == [True, True, False]
    assert [step.numbers["score"] for step in steps] == [0, 0, 1] and sum(step.reward for step in steps) == 0
    last = spoken(begun(attempts.Judged(), question), "15", "ok", "9")[-1]
    assert last.reward == -1 and last.numbers["score"] == -1  # the judge gave none


def test_the_next_round_reads_the_last_discussion():
    env = begun(attempts.Judged(rounds=2), {"question": "7+8=", "answer": "15"})
    steps = spoken(env, "15", "no", "9", "15", "ok", "3")
    assert [told(step) for step in steps[2:]] == ["s7+8=15?no\n", "e7+8=15?\n", "j7+8=15?ok\n", ""]
    assert [step.numbers["score"] for step in steps] == [0, 0, -1, 0, 0, 3]
    assert [step.reward for step in steps] == [0, 0, -1, 0, 0, 0]
    assert [step.done for step in steps] == [False] * 5 + [True]
    assert [step.numbers["correct"] for step in steps] == [0, 0, 0, 1, 0, 0]  # the last solution
    with pytest.raises(ValueError, match="rounds=0 must be at least 1"):
        attempts.Judged(rounds=0)


def test_the_scripted_judge_knows():
    for solution, verdict, score in (("15", "no", 3), ("15", "ok", 3), ("1", "no", 1), ("1", "ok", 2)):
        env = begun(attempts.Judged(judge="scripted", rounds=2), {"question": "7+8=", "answer": "15"})
        steps = spoken(env, solution, verdict, solution, verdict)
        assert [step.numbers["score"] for step in steps] == [0, score, 0, score]
        assert steps[-1].done and told(steps[1]) == f"s7+8={solution}?{verdict}\n"


# --- tool_star, multi_turn_guide -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reward"),
    [
        (("s eli", "c4*7", "=28"), 1.1), (("c4*7", "=28"), 1.0), (("=28",), 1.0), (("s eli", "c4*7", "=27"), 0.0),
        (("s eli", "c4*7", "28"), -1.0), (("s eli", "s eli", "s eli", "s eli"), -1.0),
    ],
)  # fmt: skip
def test_the_bonus_is_for_right_answers_with_both_tools(words, reward):
    env = begun(quests.TwoTools(), {"who": "eli", "plain": False, "number": 4, "times": 7})
    steps = spoken(env, *words)
    assert steps[-1].done and sum(step.reward for step in steps) == pytest.approx(reward)


@pytest.mark.parametrize("quest", [4, 8])
def test_all_densities_pay_a_finished_quest_alike(quest):
    paid = {}
    for density in (0.0, 0.25, 0.5, 1.0):
        env = quests.Quest(rooms=4, objects=6, quest=quest, density=density)
        rewards = [env.pays(n) for n in range(1, quest + 1)]
        assert sum(rewards) == pytest.approx(1) and sum(r > 0 for r in rewards[:-1]) == round(density * (quest - 1))
        paid[density] = rewards
        rng = random.Random(2)
        prompt, info = next(env.problems(rng))
        begun(env, info, prompt)
        steps = [env.step(env.expert(rng)) for _ in range(quest)]
        assert steps[-1].done and [step.reward for step in steps] == pytest.approx(rewards)  # q is the shortest way
    assert paid[0.0][:-1] == [0.0] * (quest - 1) and np.ptp(paid[1.0]) == pytest.approx(0)


@pytest.mark.parametrize("size", [dict(rooms=8, objects=12, quest=4), dict(rooms=2, objects=3, quest=4)])
def test_a_quest_can_be_done_from_anywhere(size):
    """Also after wandering, as long as nothing was taken too early."""
    env, rng = quests.Quest(**size, most=99), random.Random(1)
    for prompt, info in itertools.islice(env.problems(rng), 20):
        begun(env, info, prompt)
        for _ in range(5):
            env.step(f"g{rng.choice(env._exits[env._room])}")
        for _ in range(40):
            step = env.step(env.expert(rng))
            if step.done:
                break
        assert step.numbers["correct"] == 1
