"""Conversations with tools in eight chat templates: ids only grow, and are those of `renderers` where it has them.

    pip install -r requirements-agents.txt; pytest tests/tokenizers/test_renderers.py -rs

`renderers` (PyPI) writes the templates of published models by hand, token by token, and extends what was sampled
without rendering it again (bridge_to_next_turn). It is compared on tokenizers with the family's special tokens.
"""

import json
import random

import pytest

from rl_jax.tokenizers import ChatPrompts, ChatTemplate, load_tokenizer
from rl_jax.tokenizers.dialogue import dialogue_of
from tests import tiny_tokenizers
from tests.tokenizers.test_dialogue import CHATML

# As published with Qwen3, without the parts that render tool calls of earlier assistants, which nobody renders here.
QWEN3 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' }}{{- message.content }}{{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""  # noqa: E501
KIMI = r"""{%- for message in messages -%}
    {%- if loop.first and messages[0]['role'] != 'system' -%}
        {{- '<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>' }}
        {{- '\n' }}
    {%- endif -%}
    {{- '<|im_' + message['role'] + '|>' + message['role'] + '<|im_middle|>' + message['content'] + '<|im_end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' }}{%- endif -%}"""
QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>"]
QWEN_TOKENS += ["</tool_response>", "<think>", "</think>"]
KIMI_TOKENS = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"]
KIMI_TOKENS += [
    f"<|tool_call{name}|>" for name in ("s_section_begin", "s_section_end", "_begin", "_argument_begin", "_end")
]
KIMI_TOKENS += ["<|endoftext|>", "[PAD]", "[UNK]"]


def with_tokens(tokens, template, end="<|im_end|>"):
    return lambda folder: tiny_tokenizers.write(
        folder, tiny_tokenizers.byte_level(tokens), {"eos_token": end, "pad_token": tokens[0]}, template=template
    )


# family -> (its folder, the role of what comes back, the class of renderers or None)
FAMILIES = {
    "llama3": (tiny_tokenizers.llama3, "tool", "Llama3Renderer"),
    "qwen2.5": (tiny_tokenizers.chatml, "tool", None),
    "qwen3": (with_tokens(QWEN_TOKENS, QWEN3), "tool", "Qwen3Renderer"),
    "gemma": (tiny_tokenizers.gemma, "user", None),
    "mistral": (tiny_tokenizers.mistral, "user", None),
    "marked": (lambda folder: tiny_tokenizers.chatml(folder, tiny_tokenizers.MARKED), "tool", None),
    "chatml": (with_tokens(QWEN_TOKENS[:3], CHATML), "tool", None),
    "kimi": (with_tokens(KIMI_TOKENS, KIMI), "user", "KimiK2Renderer"),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "The sum of two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        },
    }
]
WORDS = [
    "cat",
    "12",
    " + ",
    "30?",
    "\n",
    "It is",
    " 42.",
    "é",
    "{}",
    '"a": 1',
    "  ",
    "Hello there!",
    "</x>",
    "\n\n",
    "🙂",
]


def text(dice, low=1, high=6):
    return "".join(dice.choice(WORDS) for _ in range(dice.randint(low, high)))


def conversation(seed, role):
    """(the question, turns of (what is said, what comes back)); some turns call the tool."""
    dice, turns = random.Random(seed), []
    for _ in range(dice.randint(1, 5)):
        said = text(dice)
        if dice.random() < 0.5:
            said += f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': {'a': dice.randrange(99)}})}\n</tool_call>"
        number = dice.randint(1, 2) if role == "tool" else 1
        turns.append((said, [{"role": role, "content": text(dice) or "ok"} for _ in range(number)]))
    return f"What is {text(dice)}", turns


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Family -> (our tokenizer, our dialogues, the folder)."""
    root, found = tmp_path_factory.mktemp("families"), {}
    for family, (make, _, _) in FAMILIES.items():
        folder = make(root / family)
        tokenizer = load_tokenizer(folder)
        found[family] = tokenizer, dialogue_of(ChatPrompts(ChatTemplate.load(folder, tokenizer)), TOOLS), folder
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_only_grow_and_nothing_sampled_is_encoded_again(folders, family):
    """Twelve random conversations: each turn's tokens, also some that no text encodes to, stay as they were sampled."""
    tokenizer, dialogues, _ = folders[family]
    for seed in range(12):
        question, turns = conversation(seed, FAMILIES[family][1])
        talk, dice = dialogues.start(question), random.Random(seed)
        ids = list(talk.ids)
        for said, answers in turns:
            sampled = tokenizer.encode_continuation(said)
            dice.shuffle(sampled)  # a model may say what no encoder would
            sampled.append(tokenizer.eos_id)
            talk, new = talk.answer(sampled, answers)
            assert talk.conversation.ids[: len(ids) + len(sampled)] == [*ids, *sampled]
            ids += [*sampled, *new]
            assert talk.conversation.ids == ids and new


@pytest.mark.parametrize("family", [family for family in FAMILIES if FAMILIES[family][2]])
def test_they_are_the_ids_of_renderers(folders, family):
    """The prompt where the tiny template has the published beginning; what follows each turn in all of them."""
    renderers = pytest.importorskip("renderers")
    transformers = pytest.importorskip("transformers")
    tokenizer, dialogues, folder = folders[family]
    theirs = getattr(renderers, FAMILIES[family][2])(transformers.AutoTokenizer.from_pretrained(folder))
    compared = 0
    for seed in range(12):
        question, turns = conversation(seed, FAMILIES[family][1])
        if family == "kimi":
            dialogues = dialogues._replace(tools=None)
        talk = dialogues.start(question)
        if family != "llama3":  # whose tiny template writes another system message
            tools = TOOLS if dialogues.tools else None
            assert talk.ids == theirs.render_ids(
                [{"role": "user", "content": question}], tools=tools, add_generation_prompt=True
            )
        ids = list(talk.ids)
        for said, answers in turns:
            sampled = [*tokenizer.encode_continuation(said), tokenizer.eos_id]
            bridged = theirs.bridge_to_next_turn(ids, sampled, answers, tools=TOOLS)
            talk, new = talk.answer(sampled, answers)
            ids += [*sampled, *new]
            if bridged is not None:
                assert list(bridged.token_ids) == ids, tokenizer.decode(ids[-80:], keep_special=True)
                compared += 1
    assert compared >= 12
