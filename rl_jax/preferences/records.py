"""The format of preference records, and all checks of them. Plain Python, no jax.

A record of this package, as a source gives it and `encode` reads it:

    pairs     {"prompt", "responses": [chosen, rejected], "rewards", "label_prob", "margin", "info"}
    rankings  {"prompt", "responses": K >= 2, best first, "rewards": K, not rising, "info"}
    labels    {"prompt", "responses": [completion], "rewards": [1.0 desirable | 0.0 not], "info"}
    steps     {"prompt", "steps": S texts, "labels": S of 1 right | 0 wrong | None unlabelled, "info"}

`prompt` is a text or a chat: messages {"role", "content", ...}, the last of them from the user or a tool. `label_prob`
is the probability that the label of a pair is right (default 1), `margin` by how much the chosen response is better
(default 0). If only an order is given, the rewards are K - 1, .., 1, 0.

A file has one JSON object per line; its fields are the keys of FIELDS (* marks optional ones, which may be null):

    pairs     prompt*, chosen, rejected, label_prob*, margin*, chosen_reward*, rejected_reward*
              Without a prompt, chosen and rejected are whole dialogues; what they share is the prompt (`split_pair`);
              so it is if the prompt is a text which a message of both dialogues repeats.
    rankings  prompt, responses, rewards*
    labels    prompt, completion, label (true or false)
    steps     prompt, steps, and labels (1, 0, true, false, null) or mistake_index (of the first wrong step, counted
              from 0; null if there is none: steps before it are right, those after it unlabelled)

Responses are texts, or in a chat a list of one assistant message. Any other field goes to `info`, unless it differs
from a field above by a letter or so: then it counts as a misspelling and is refused. A list in `info` with as many
entries as there are responses has one per response (`take_responses`).
"""

from collections.abc import Mapping, Sequence

from rl_jax.data.checks import (
    Problem,
    check_chat,
    check_names,
    check_text,
    checked_number,
    kind_of,
    need,
    number,
    refuse_recorded,
    same_text,
    shared,
    typed,
)
from rl_jax.preferences import places

KINDS = ("pairs", "rankings", "labels", "steps")
FIELDS = {
    "pairs": ("prompt", "chosen", "rejected", "label_prob", "margin", "chosen_reward", "rejected_reward"),
    "rankings": ("prompt", "responses", "rewards"),
    "labels": ("prompt", "completion", "label"),
    "steps": ("prompt", "steps", "labels", "mistake_index"),
}
# Null there is as good as no field: a Parquet file has every column in each row.
OPTIONAL = {"pairs": ("prompt", *FIELDS["pairs"][3:]), "rankings": ("rewards",)}


def parse(kind: str, raw: Mapping, *, marker: str | None = None, sort_by_reward: bool = False) -> dict:
    """Converts the JSON object `raw` to a record.

    Args:
      kind: one of KINDS.
      raw: the object.
      marker: for pairs without a prompt, see `split_pair`.
      sort_by_reward: for rankings: sort the responses by reward (stable) instead of refusing another order. What
        `info` holds per response is sorted with them.

    Returns:
      The record.

    Raises:
      Problem: if `raw` is not valid; names the field.
    """
    check_names(raw, FIELDS[kind])
    refuse_recorded(raw)
    raw = {name: value for name, value in raw.items() if value is not None or name not in OPTIONAL.get(kind, ())}
    if kind == "pairs":
        record = _pair(raw, marker)
    elif kind == "rankings":
        record = _ranking(raw)
    elif kind == "labels":
        completion = _response(need(raw, "completion"), "completion", _prompt(raw))
        label = typed(raw, "label", bool)
        record = {"prompt": raw["prompt"], "responses": [completion], "rewards": [float(label)]}
    else:
        record = _steps(raw)
    record |= {"info": {name: value for name, value in raw.items() if name not in FIELDS[kind]}}
    return _best_first(record, sort_by_reward) if kind == "rankings" else record


def take_responses(record: Mapping, chosen: Sequence[int]) -> dict:
    """The record with the responses at `chosen`, in that order, and with what it holds per response.

    Per response are the rewards, `prompts` if there are, and each list in `info` with as many entries as responses.
    `prompt` is then the first of `prompts`.
    """
    count = len(record["responses"])

    def take(value):
        return [value[place] for place in chosen] if isinstance(value, list) and len(value) == count else value

    taken = {name: take(record[name]) for name in ("responses", "rewards", "prompts") if name in record}
    if taken.get("prompts"):
        taken["prompt"] = taken["prompts"][0]
    info = {name: take(value) for name, value in record.get("info", {}).items()}
    return places.copied(record, {**record, **taken, "info": info})


def prompt_of(record: Mapping, place: int) -> str | list:
    """What the response at `place` answers: its own of `prompts` if there are, else `prompt`."""
    return record["prompts"][place] if "prompts" in record else record["prompt"]


def split_pair(chosen: str, rejected: str, marker: str | None = None) -> tuple[str, str, str]:
    """Splits two dialogues that begin alike into (prompt, chosen, rejected).

    Args:
      chosen: whole dialogue.
      rejected: whole dialogue.
      marker: the text that opens a response ("\\n\\nAssistant:"). The prompt of a side goes up to and including its
        last marker, and both sides must have the same prompt. None: the prompt is the longest shared beginning, without
        trailing spaces (TRL's extract_prompt) and, unlike in TRL, without the beginning of a word that the two sides
        complete differently.

    Returns:
      (prompt, chosen, rejected).

    Raises:
      Problem: if they share no prompt.
    """
    if marker is not None:
        prompts = []
        for name, text in (("chosen", chosen), ("rejected", rejected)):
            head, separator, _ = text.rpartition(marker)
            if not separator:
                raise Problem(f"lacks the marker {marker!r}, after which the response begins", name)
            prompts.append(head + marker)
        if prompts[0] != prompts[1]:
            raise Problem(f"the two sides do not share a prompt up to the last {marker!r}: {_differ(*prompts)}")
        return prompts[0], chosen[len(prompts[0]) :], rejected[len(prompts[1]) :]
    if chosen == rejected:
        raise Problem("chosen and rejected are identical")
    end = shared(chosen, rejected)
    while end and chosen[end - 1].isalnum() and any(side[end : end + 1].isalnum() for side in (chosen, rejected)):
        end -= 1
    # The space goes to the responses: "The" after a prompt is another token than " The".
    while end and chosen[end - 1] == " ":
        end -= 1
    if not chosen[:end].strip():
        raise Problem("there is no 'prompt', and chosen and rejected share no beginning that could be the prompt")
    return chosen[:end], chosen[end:], rejected[end:]


def _pair(raw: Mapping, marker: str | None) -> dict:
    if "prompt" in raw and not _repeats(raw):
        prompt = _prompt(raw)
        sides = [need(raw, name) for name in ("chosen", "rejected")]
    else:
        prompt, *sides = _implicit(need(raw, "chosen"), need(raw, "rejected"), marker)
    chosen, rejected = (_response(side, name, prompt) for side, name in zip(sides, ("chosen", "rejected"), strict=True))
    if chosen == rejected:
        raise Problem("chosen and rejected are identical", "rejected")
    if same_text(chosen, rejected):
        raise Problem("chosen and rejected are identical up to whitespace", "rejected")
    label_prob, margin = (number(raw, name, default) for name, default in (("label_prob", 1.0), ("margin", 0.0)))
    if not 0 <= label_prob <= 1:
        raise Problem(f"expected a probability in [0, 1], found {label_prob}", "label_prob")
    if margin < 0:
        raise Problem(f"expected 0 or more, by how much the chosen response is better, found {margin}", "margin")
    rewards = [1.0, 0.0]
    if "chosen_reward" in raw or "rejected_reward" in raw:
        rewards = [number(raw, name) for name in ("chosen_reward", "rejected_reward")]
        if rewards[0] == rewards[1]:
            raise Problem(f"a tie: both rewards are {rewards[0]}", "rejected_reward")
        if rewards[0] < rewards[1]:
            raise Problem(f"the rejected response has the higher reward, {rewards[1]} > {rewards[0]}", "chosen_reward")
    return {
        "prompt": prompt,
        "responses": [chosen, rejected],
        "rewards": rewards,
        "label_prob": label_prob,
        "margin": margin,
    }


def _repeats(raw: Mapping) -> bool:
    """Whether the prompt is a text that both sides, which are whole dialogues, begin with (UltraFeedback, Tulu 3)."""
    sides = [raw.get(name) for name in ("chosen", "rejected")]
    if not isinstance(raw["prompt"], str) or not all(isinstance(side, list) and len(side) > 1 for side in sides):
        return False
    said = [[turn.get("content") for turn in side[:-1] if isinstance(turn, Mapping)] for side in sides]
    return all(raw["prompt"] in texts for texts in said)


def _implicit(chosen, rejected, marker: str | None):
    if isinstance(chosen, str) and isinstance(rejected, str):
        return split_pair(check_text(chosen, "chosen"), check_text(rejected, "rejected"), marker)
    for name, side in (("chosen", chosen), ("rejected", rejected)):
        if not isinstance(side, list) or not side:
            raise Problem(f"expected a dialogue, text on both sides or messages on both, found {kind_of(side)}", name)
    if chosen[:-1] != rejected[:-1]:
        place = shared(chosen[:-1], rejected[:-1])
        raise Problem(f"the two sides do not share a prompt: message {place} differs, before the last one")
    if len(chosen) == 1:
        raise Problem("there is no 'prompt', and no message comes before the response", "chosen")
    return check_chat(chosen[:-1], "chosen"), chosen[-1:], rejected[-1:]


def _ranking(raw: Mapping) -> dict:
    prompt, given = _prompt(raw), typed(raw, "responses", list)
    if len(given) < 2:
        raise Problem(f"a ranking has two responses or more, found {len(given)}", "responses")
    responses = [_response(item, f"responses[{place}]", prompt) for place, item in enumerate(given)]
    seen: dict[tuple, int] = {}
    for place, response in enumerate(responses):
        first = seen.setdefault(tuple(response.split()), place)
        if first != place:
            raise Problem(f"the same as responses[{first}] (up to whitespace)", f"responses[{place}]")
    rewards = [float(place) for place in reversed(range(len(responses)))]
    if "rewards" in raw:
        values = typed(raw, "rewards", list)
        if len(values) != len(responses):
            raise Problem(f"{len(values)} rewards, but {len(responses)} responses", "rewards")
        rewards = [checked_number(value, f"rewards[{place}]") for place, value in enumerate(values)]
        if min(rewards) == max(rewards):
            raise Problem(f"a tie of all: every reward is {rewards[0]}, so nothing is ranked", "rewards")
    return {"prompt": prompt, "responses": responses, "rewards": rewards}


def _best_first(record: dict, sort_by_reward: bool) -> dict:
    """The ranking with the best response first: sorted, or refused in another order."""
    rewards = record["rewards"]
    if sort_by_reward:
        return take_responses(record, sorted(range(len(rewards)), key=lambda place: -rewards[place]))
    for place in range(1, len(rewards)):
        if rewards[place] > rewards[place - 1]:
            raise Problem(
                f"{rewards[place]} is above the {rewards[place - 1]} before it, but the best response must come "
                "first: reorder them, or pass sort_by_reward=True",
                f"rewards[{place}]",
            )
    return record


def _steps(raw: Mapping) -> dict:
    prompt, steps = _prompt(raw), typed(raw, "steps", list)
    if not steps:
        raise Problem("no steps", "steps")
    for place, step in enumerate(steps):
        check_text(step, f"steps[{place}]")
    if ("labels" in raw) == ("mistake_index" in raw):
        raise Problem("give either labels or mistake_index, not both", "labels")
    if "labels" in raw:
        labels = typed(raw, "labels", list)
        if len(labels) != len(steps):
            raise Problem(f"{len(labels)} labels, but {len(steps)} steps", "labels")
        for place, label in enumerate(labels):
            if label is not None and (not isinstance(label, (bool, int)) or label not in (0, 1)):
                raise Problem(f"expected 1, 0 or null, found {label!r:.40}", f"labels[{place}]")
        labels = [None if label is None else int(label) for label in labels]
        if all(label is None for label in labels):
            raise Problem("no step has a label", "labels")
    else:
        mistake = raw["mistake_index"]
        if mistake is None:
            labels = [1] * len(steps)
        else:
            if isinstance(mistake, bool) or not isinstance(mistake, int):
                raise Problem(f"expected an integer or null, found {kind_of(mistake)}", "mistake_index")
            if not 0 <= mistake < len(steps):
                raise Problem(f"{mistake} is outside of the steps, 0..{len(steps) - 1}", "mistake_index")
            labels = [1] * mistake + [0] + [None] * (len(steps) - mistake - 1)
    return {"prompt": prompt, "steps": list(steps), "labels": labels}


def _prompt(raw: Mapping):
    prompt = need(raw, "prompt")
    return check_text(prompt, "prompt") if isinstance(prompt, str) else check_chat(prompt)


def _response(value, field: str, prompt) -> str:
    """The text of a response; in a chat it may be a list of one assistant message."""
    if not isinstance(value, list):
        return check_text(value, field)
    if isinstance(prompt, str):
        raise Problem(
            "a list of messages after a prompt that is a text: leave 'prompt' out if both sides hold "
            "the whole dialogue, or give the prompt as messages, too",
            field,
        )
    if len(value) != 1 or not isinstance(value[0], dict) or value[0].get("role") != "assistant":
        raise Problem("expected a text or one message of the assistant's", field)
    return check_text(value[0].get("content"), f"{field}[0].content")


def _differ(left: str, right: str) -> str:
    place = shared(left, right)
    shown = slice(max(place - 10, 0), place + 20)
    return f"from character {place} on, {left[shown]!r} against {right[shown]!r}"
