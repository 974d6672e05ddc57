"""Scripted speakers in place of language models, for rl_jax.envs.guidance; one's own is a function to Speakers.

camp      the large model knows plain words only; the adapter says what a rare one means
crafter   Craftax-Classic: the large model names up to three sub-goals that a player lacks; the adapter asks for one
          at a time while the player does not follow them
"""

import re
from collections.abc import Callable

import numpy as np

from rl_jax.envs.guidance import Speakers
from rl_jax.envs.worlds import camp as needs

STATUS, SCORE, SEES = (
    re.compile(f"{name}: <(.*?)>") for name in ("Player status", "comprehension score", "Player sees")
)

# Craftax-Classic's symbolic observation: a view of 7 by 9 places, for each the kinds of blocks and creatures.
VIEW = (7, 9)
BLOCKS = "invalid,outside,grass,water,stone,tree,wood,path,coal,iron,diamond,table,furnace,sand,lava,plant,ripe plant"
KINDS = (*BLOCKS.split(","), "zombie", "cow", "skeleton", "arrow")
ITEMS = "wood,stone,coal,iron,diamond,sapling,wood pickaxe,stone pickaxe,iron pickaxe,wood sword,stone sword,iron sword"
HELD = (*ITEMS.split(","), "health", "food", "drink", "energy")
TOOLS = tuple(f"make {stuff} {tool}" for tool in ("pickaxe", "sword") for stuff in ("wood", "stone", "iron"))
DEEDS = ("noop", "move left", "move right", "move up", "move down", "do", "sleep")
DEEDS += ("place stone", "place table", "place furnace", "place plant", *TOOLS)
# sub-goal -> (what must be seen or "", what must be held, what it is for: nothing to do once that is held).
RECIPES = {
    "drink water": ("water", {}, ("drink", 6)),
    "eat cow": ("cow", {}, ("food", 6)),
    "sleep": ("", {}, ("energy", 4)),
    "attack zombie": ("zombie", {"health": 5}, None),
    "attack skeleton": ("skeleton", {"health": 5}, None),
    "make iron pickaxe": ("furnace", {"wood": 1, "coal": 1, "iron": 1}, ("iron pickaxe", 1)),
    "make iron sword": ("furnace", {"wood": 1, "coal": 1, "iron": 1}, ("iron sword", 1)),
    "make stone pickaxe": ("table", {"wood": 1, "stone": 1}, ("stone pickaxe", 1)),
    "make stone sword": ("table", {"wood": 1, "stone": 1}, ("stone sword", 1)),
    "make wood pickaxe": ("table", {"wood": 1}, ("wood pickaxe", 1)),
    "make wood sword": ("table", {"wood": 1}, ("wood sword", 1)),
    "mine diamond": ("diamond", {"iron pickaxe": 1}, ("diamond", 1)),
    "mine iron": ("iron", {"stone pickaxe": 1}, ("iron", 2)),
    "mine coal": ("coal", {"wood pickaxe": 1}, ("coal", 2)),
    "mine stone": ("stone", {"wood pickaxe": 1}, ("stone", 5)),
    "place furnace": ("table", {"stone": 1}, None),
    "place table": ("", {"wood": 4}, None),
    "chop tree": ("tree", {}, ("wood", 5)),
    "eat plant": ("ripe plant", {}, ("food", 9)),
    "place plant": ("grass", {"sapling": 1}, None),
    "collect sapling": ("grass", {}, ("sapling", 1)),
    "place stone": ("", {"stone": 5}, None),
}


def found(pattern: re.Pattern, text: str) -> str:
    """What the pattern's group is in a text; "" if it does not occur."""
    match = pattern.search(text)
    return match.group(1) if match else ""


def camp(*, adapter: str | Callable | None = "translated") -> Speakers:
    """Of probes/camp. adapter: "translated", None, or one's own function (prompt) -> analysis."""
    return Speakers(
        deeds=needs.DEEDS,
        goals=(*needs.DEEDS, "chop tree", "mine stone"),
        describe=lambda observation: ("a tent", needs.status(observation)),
        adapter=_chosen(adapter, {"translated": _translated}),
        decide=_sensible,
    )


def _chosen(adapter, known: dict[str, Callable]) -> Callable | None:
    if adapter is None or callable(adapter):
        return adapter
    if adapter not in known:
        raise ValueError(f"env.guide: adapter={adapter!r} is none of {', '.join(known)}, None or a function")
    return known[adapter]


def _translated(prompt: str) -> str:
    """The adapter of the camp."""
    status = found(STATUS, prompt)
    return next((f"{rare} means {plain}" for plain, rare in needs.WORDS if rare == status), f"the player is {status}")


def _sensible(prompt: str) -> str:
    """The large model of the camp: it knows plain words, and lets the player sleep otherwise."""
    words = set(re.findall(r"\w+", found(STATUS, prompt) + " " + prompt.partition("Analysis:")[2]))
    met = [deed for deed, (plain, _) in zip(needs.DEEDS, needs.WORDS, strict=True) if plain in words]
    return f"The player should {(met or ['sleep'])[0]}."


def crafter(*, adapter: str | Callable | None = "by_score", threshold: float = 0.5) -> Speakers:
    """Of craftax/Craftax-Classic-Symbolic-v1.

    Args:
      adapter: "by_score", None, or one's own function (prompt) -> analysis.
      threshold: "by_score": the comprehension score below which one goal at a time is asked for.
    """

    def by_score(prompt: str) -> str:
        follows = float(found(SCORE, prompt) or 0.0) >= threshold
        return "the player follows the sub-goals" if follows else "the player needs one sub-goal at a time"

    return Speakers(DEEDS, tuple(RECIPES), described, _chosen(adapter, {"by_score": by_score}), _lacking)


def described(observation: np.ndarray) -> tuple[str, str]:
    """(the kinds of blocks and creatures in view, what is held and the state of the body), of Craftax-Classic."""
    size = VIEW[0] * VIEW[1] * len(KINDS)
    kinds = observation[:size].reshape(*VIEW, len(KINDS)).max(axis=(0, 1)) > 0.5
    held = np.rint(10.0 * observation[size : size + len(HELD)]).astype(int)
    seen = [name for name, on in zip(KINDS, kinds, strict=True) if on and name not in ("invalid", "outside")]
    return ", ".join(seen), ", ".join(f"{n} {name}" for n, name in zip(held, HELD, strict=True) if n > 0)


def _lacking(prompt: str) -> str:
    """The large model of Crafter: the first sub-goals that can be done and that give what is lacking."""
    seen = set(found(SEES, prompt).split(", "))
    held = {name: int(n) for n, name in re.findall(r"(\d+) ([a-z ]+)", found(STATUS, prompt))}
    able = [
        goal
        for goal, (place, needed, wanted) in RECIPES.items()
        if (not place or place in seen)
        and all(held.get(name, 0) >= n for name, n in needed.items())
        and (wanted is None or held.get(wanted[0], 0) < wanted[1])
    ]
    return ", ".join((able or ["chop tree"])[: 1 if "one sub-goal at a time" in prompt else 3])
