"""envs/text/site.py: what is read after each turn, with older pages marked only, and what ends an episode."""

import itertools
import json
import random

from rl_jax.envs.text.recorded import segments
from rl_jax.envs.text.site import MARK, Site, simplified

INFO = {
    "wanted": "cat",
    "shelves": ["toys", "pets", "food"],
    "things": {"toys": ["car", "top", "kite"], "pets": ["dog", "cat", "eel"], "food": ["egg", "fig", "jam"]},
    "prices": dict(zip(("car", "top", "kite", "dog", "cat", "eel", "egg", "fig", "jam"), range(9), strict=True)),
}
HOME, PETS, TOYS, CAT = "0toys 1pets 2food\n", "0dog 1cat 2eel\n", "0car 1top 2kite\n", "cat 4\n"


def played(*said, **settings):
    env = Site(**settings)
    env.reset({"prompt": f"cat?{HOME}", "info": json.dumps(INFO)}, 0)
    return [env.step(one) for one in said]


def told(step):
    return "".join(message["content"] for message in step.messages)


def test_older_pages_are_marked_and_own_words_stay():
    """Against the history with every page, in which all but the newest are replaced."""
    said, pages = ["0", "b", "zz", "1", "1"], [HOME, TOYS, HOME, "?\n", PETS, CAT]
    steps = played(*said, "x4", most=8)
    for turn, step in enumerate(steps[:-1]):
        earlier, newest = list(zip(pages, said[: turn + 1], strict=False)), pages[turn + 1]
        whole = "cat?" + "".join(f"{page}{word};" for page, word in earlier)
        for page, _ in earlier:
            whole = whole.replace(page, MARK)
        assert told(step) == whole + newest and step.anew
    assert [step.numbers["malformed"] for step in steps] == [0, 0, 1, 0, 0, 0]
    read = [len(f"cat?{HOME}"), *(len(told(step)) for step in steps[:-1])]
    assert [step.numbers["read"] for step in steps] == read
    assert steps[-1].done and steps[-1].reward == 1 == steps[-1].numbers["correct"]


def test_a_kept_history_adds_the_page_only():
    steps = played("0", "b", "1", "1", "x5", simplify=False, most=8)
    assert [told(step) for step in steps] == [TOYS, HOME, PETS, CAT, ""] and not any(step.anew for step in steps)
    assert steps[-1].done and steps[-1].reward == 0
    reads = [[step.numbers["read"] for step in played("1", "1", "b", "b", simplify=simplify)] for simplify in (0, 1)]
    assert reads[0][0] == reads[1][0] and all(a > b for a, b in zip(reads[0][1:], reads[1][1:], strict=True))


def test_without_an_answer_there_is_no_reward_and_an_expert_needs_three_turns():
    steps = played("0", "b", "0", most=3)
    assert steps[-1].done and steps[-1].reward == 0
    env, rng = Site(), random.Random(0)
    for prompt, info in itertools.islice(env.problems(rng), 20):
        found = segments(env, prompt, info, rng, 1.0)
        assert sum(one.rewards[0] for one in found) == 1 and len(found) == 3 and found[0].first == prompt


def test_the_mark_is_a_choice():
    assert simplified("t:", ["a", "b"], "page", mark="*") == "t:*a;*b;page"
