"""Chat templates against transformers' apply_chat_template; turns that keep sampled ids; templates that attack."""

import datetime
import json
import pathlib

import pytest
import transformers

from rl_jax.data import readers
from rl_jax.data.pipeline import encode_sft, response_ids
from rl_jax.preferences.encode import encode_preferences
from rl_jax.tokenizers import ChatPrompts, load_tokenizer, template
from rl_jax.tokenizers.chat import ChatTemplate
from rl_jax.tokenizers.template import ChatTemplateError
from tests.tiny_tokenizers import FAMILIES, MARKED, QWEN3, chatml

USER, ANSWER = {"role": "user", "content": "What is 12 + 30?"}, {"role": "assistant", "content": "It is 42."}
THANKS = {"role": "user", "content": "Thank you! é 🙂"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "<Adds> & 'more'", "parameters": {"a": None}}}]
TURN_END = {"llama3": "<|eot_id|>", "qwen2.5": "<|im_end|>", "gemma": "<end_of_turn>", "mistral": "</s>"}


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Family -> (our chat template, transformers' tokenizer of the same folder)."""
    root, found = tmp_path_factory.mktemp("chats"), {}
    makers = FAMILIES | {"qwen3": lambda f: chatml(f, QWEN3), "marked": lambda f: chatml(f, MARKED)}
    for family, make in makers.items():
        folder = make(root / family)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        found[family] = ChatTemplate.load(folder, load_tokenizer(folder)), theirs
    return found


def texts(chat, ids):
    return "".join(chat.tokenizer.token_text(token) for token in ids)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("family", [*FAMILIES, "qwen3", "marked"])
def test_text_and_ids_are_those_of_transformers(chats, family, prompt):
    chat, theirs = chats[family]
    for messages in ([USER], [USER, ANSWER], [USER, ANSWER, THANKS]):
        fixed = {"date_string": "26 Jul 2024", "add_generation_prompt": prompt}
        text = theirs.apply_chat_template(messages, tokenize=False, **fixed)
        assert chat.render(messages, **fixed) == text
        assert chat.tokenizer.encode(text) == theirs.apply_chat_template(messages, **fixed)["input_ids"]


def test_a_date_that_is_fixed_is_that_of_every_day(chats):
    chat = chats["llama3"][0]
    assert chat.when is None and f"Today: {datetime.datetime.now():%d %b %Y}" in chat.render([USER])
    chat.fix_date(datetime.datetime(2024, 7, 26, 23, 59))
    try:
        assert "Today: 26 Jul 2024\n" in chat.render([USER], add_generation_prompt=True)
        assert "Today: today\n" in chat.render([USER], date_string="today"), "its own argument wins"
    finally:
        chat.fix_date(None)


@pytest.mark.parametrize("family", ["llama3", "qwen2.5"])
def test_tools_and_empty_fields_are_rendered_as_transformers_does(chats, family):
    chat, theirs = chats[family]
    messages = [{"role": "system", "content": " Be <brief>. "}, {**USER, "name": None}, ANSWER]
    messages += [{"role": "tool", "content": "42"}, {"role": "tool", "content": "43"}]
    fixed = {"tools": TOOLS, "date_string": "today", "add_generation_prompt": True}
    assert chat.render(messages, **fixed) == theirs.apply_chat_template(messages, tokenize=False, **fixed)


def test_the_date_is_todays(chats):
    chat, theirs = chats["llama3"]
    assert chat.render([USER]) == theirs.apply_chat_template([USER], tokenize=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_turns_equal_the_whole_chat_where_the_tokens_agree(chats, family):
    chat, _ = chats[family]
    space = " " if family == "mistral" else ""
    (end,) = chat.tokenizer.encode_continuation(TURN_END[family])
    sampled = [*chat.tokenizer.encode_continuation(space + "It is 42."), end]
    conversation = chat.start([USER], date_string="today")
    for _ in range(3):
        conversation = chat.append_turn(conversation, sampled, [THANKS])
    whole = chat.render([USER, *[ANSWER, THANKS] * 3], date_string="today", add_generation_prompt=True)
    assert conversation.ids == chat.tokenizer.encode(whole) and conversation.rewrites == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_ids_are_kept_as_they_are(chats, family):
    chat, _ = chats[family]
    tok = chat.tokenizer
    (end,) = tok.encode_continuation(TURN_END[family])
    letters = [token for letter in " Sat\n" for token in tok.encode_continuation(letter)]  # no merges: not canonical
    assert letters != tok.encode_continuation(" Sat\n")
    start = chat.start([USER])
    for sampled in ([*letters, end], letters, [end], []):
        after = chat.append_turn(start, sampled, [THANKS])
        size = len(start.ids) + len(sampled)
        assert after.ids[:size] == [*start.ids, *sampled]
        ended = end in sampled
        assert texts(chat, after.ids[size:]).count(TURN_END[family]) == (1 if family in ("mistral",) else 2) - ended
        assert after.messages[1] == {"role": "assistant", "content": tok.decode(sampled)}
        again = chat.append_turn(after, sampled, [THANKS])
        assert again.ids[: len(after.ids)] == after.ids and again.rewrites == ()


def test_tools_stay_in_sight_over_the_turns(chats):
    chat, theirs = chats["qwen2.5"]
    conversation = chat.start([USER], tools=TOOLS)
    call = '<tool_call>\n{"name": "add"}\n</tool_call>'
    answers = [{"role": "tool", "content": "42"}, {"role": "tool", "content": "43"}]
    conversation = chat.append_turn(conversation, [*chat.tokenizer.encode(call), 2], answers)
    messages = [USER, {"role": "assistant", "content": call}, *answers]
    whole = theirs.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True)["input_ids"]
    assert conversation.ids == whole and conversation.messages == tuple(messages)


def test_another_eos_than_the_templates_is_kept_and_the_turn_closed(chats):
    chat, _ = chats["qwen2.5"]
    sampled = [*chat.tokenizer.encode("It is 42."), 0]  # <|endoftext|>
    after = chat.append_turn(chat.start([USER]), sampled, [THANKS])
    assert "42.<|endoftext|><|im_end|>\n<|im_start|>user\nThank" in texts(chat, after.ids)


def test_a_response_ends_as_the_template_ends_a_turn(chats):
    """Gemma's tokenizer ends texts with <eos>, its template turns with <end_of_turn>: that is what to train on."""
    for family, end in TURN_END.items():
        chat = chats[family][0]
        prompts = ChatPrompts(chat)
        assert prompts.token_text(prompts.eos_id) == end, family
        for text in ("Yes.", f"Yes.{end}", f"Yes.{end}\n", f"Yes.{chat.tokenizer.token_text(prompts.eos_ids[0])}"):
            assert response_ids(prompts, text) == prompts.encode_continuation("Yes.", eos=True), (family, text)
    silent = ChatTemplate("{% for m in messages %}{{ m['content'] }}{% endfor %}", chat.tokenizer)
    refusing = ChatTemplate("{{ raise_exception('no') }}", chat.tokenizer)
    assert silent.turn_end() is None and refusing.turn_end() is None
    assert ChatPrompts(silent).eos_id == chat.tokenizer.eos_id


def test_a_response_begins_as_the_template_begins_it(chats):
    """Mistral's writes a space before an answer, which models of it expect; the others' ids are as they were."""
    for family, (chat, _) in chats.items():
        if family == "marked":  # its template has no generation prompt of its own
            continue
        prompts = ChatPrompts(chat, texts=False)
        start = {"mistral": " ", "qwen3": "<think>\n\n</think>\n\n"}.get(family, "")
        assert chat.turn_start() == start, family
        ids = prompts.encode([USER]) + response_ids(prompts, "It is 42.", [USER])
        if family != "qwen3":  # whether to think is the model's choice
            assert chat.tokenizer.encode(chat.render([USER, ANSWER]))[: len(ids)] == ids, family
        assert response_ids(prompts, " It is 42.", [USER]) == prompts.encode_continuation(" It is 42.", eos=True)
        as_it_is = prompts.encode_continuation("It is 42.", eos=True)
        assert (response_ids(prompts, "It is 42.", [USER]) == as_it_is) == (family != "mistral"), family
        for sampled_or_plain in (None, "1+1?", {"ids": [1, 2]}):
            assert response_ids(prompts, "It is 42.", sampled_or_plain) == as_it_is, family
        assert response_ids(prompts, "", [USER]) == [prompts.eos_id], "nothing stays nothing"
        assert chat.turn_start(enable_thinking=False) == ("" if family == "qwen3" else start)
    mistral = ChatPrompts(chats["mistral"][0])
    rows = encode_sft(mistral, [{"prompt": "1+1?", "completion": "2"}], completion_length=8)
    record = {"prompt": "1+1?", "responses": ["2", "3"], "rewards": [1.0, 0.0]}
    pairs, _ = encode_preferences(mistral, [record], prompt_buckets=(64,), completion_length=8)
    wanted = mistral.encode_continuation(" 2", eos=True)
    for row in (rows["tokens"][0], pairs["tokens"][0, 0]):
        assert row[-8:][: len(wanted)].tolist() == wanted
    turns = encode_sft(mistral, [{"prompt": "1+1?", "turns": ["2", "ok", "4"]}], completion_length=16)
    sampled = mistral.encode_continuation("2", eos=True)
    assert turns["tokens"][0, -16:][: len(sampled)].tolist() == sampled, "an episode is as it was recorded"


def test_stripped_thinking_is_refused_or_reported(chats):
    chat, theirs = chats["qwen3"]
    thought = "<think>\nSum.\n</think>\n\nIt is 42."
    sampled = [*chat.tokenizer.encode(thought), 2]
    start = chat.start([USER])
    with pytest.raises(ChatTemplateError, match=r"rewrites earlier turns: .*it was .*<think>.*now it is"):
        chat.append_turn(start, sampled, [THANKS])
    kept = chat.append_turn(start, sampled, [THANKS], on_rewrite="keep")
    assert kept.ids[: len(start.ids) + len(sampled)] == start.ids + sampled
    assert texts(chat, kept.ids[len(start.ids) :]).startswith(thought + "<|im_end|>\n<|im_start|>user\nThank you!")
    assert len(kept.rewrites) == 1
    again = chat.append_turn(kept, [*chat.tokenizer.encode("Bye."), 2], [THANKS], on_rewrite="keep")
    assert again.ids[: len(kept.ids)] == kept.ids and len(again.rewrites) == 2
    # Tool answers do not strip it: Qwen3 keeps the thinking since the last question.
    tool = chat.append_turn(start, sampled, [{"role": "tool", "content": "42"}])
    whole = theirs.apply_chat_template([*tool.messages], add_generation_prompt=True)["input_ids"]
    assert tool.ids == whole and tool.rewrites == ()
    # Empty thinking, which the prompt for the last turn has and the history does not.
    start = chat.start([USER], enable_thinking=False)
    with pytest.raises(ChatTemplateError, match="rewrites"):
        chat.append_turn(start, [2], [THANKS])
    with pytest.raises(ValueError, match="neither 'refuse' nor 'keep'"):
        chat.append_turn(start, [2], [THANKS], on_rewrite="ignore")


def test_where_the_template_is_found(tmp_path):
    folder = chatml(tmp_path, template=[{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}])
    tok = load_tokenizer(folder)
    chat = ChatTemplate.load(folder, tok)
    assert chat.render([USER]) == "D" and chat.render([USER], tools=TOOLS) == "T"
    (folder / "chat_template.jinja").write_text("J")  # wins
    assert ChatTemplate.load(folder, tok).render([USER], tools=TOOLS) == "J"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("A")
    assert ChatTemplate.load(folder, tok).render([USER], tools=TOOLS) == "A"
    base = chatml(tmp_path / "base", template=None)
    with pytest.raises(readers.DataError, match="no chat template: neither"):
        ChatTemplate.load(base, tok)
    with pytest.raises(ChatTemplateError, match="no template named 'default', only: tool_use"):
        ChatTemplate({"tool_use": "T"}, tok).render([USER])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ ''.__class__ }}", "'__class__' of a str"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "'__class__' of a list"),
        ("{{ messages | attr('__class__') }}", "'__class__' of a list"),
        ("{{ messages['__class__'] }}", "'__class__' of a list"),
        ("{{ raise_exception.__globals__ }}", "'__globals__' of a function"),
        ("{{ '{0.__class__.__init__}'.format(messages) }}", "'__class__' of a list"),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "sets '__class__' on a namespace"),
        ("{{ namespace(_x=1) }}", "sets '_x' on a namespace"),
        ("{{ messages.append(1) }}", "'append' of a list"),
        ("{{ dict.fromkeys('ab') }}", "UndefinedError"),
        ("{% import 'os' as os %}", "line 1: a chat template may not load other files"),
        ("{% from 'os' import system %}", "may not load other files"),
        ("{% include '/etc/passwd' %}", "may not load other files"),
        ("{% for i in range(10**9) %}x{% endfor %}", "OverflowError: Range too big"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 200000 it"),
        ("{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}", "macros call each other without end"),
        ("{% for i in range(2000) %}{{ 'x' * 9999 }}{% endfor %}", "writes more than 10000000 characters"),
        ("{{ 'x' * 10**12 }}", "repeats something to more than"),
        ("{{ 10 ** 99999 }}", "integer of more than 4096 bits"),
        ("{% for m in messages %}", "line 1: Unexpected end of template"),
        ("{{ messages[5].content }}", "UndefinedError"),
        ("{{ raise_exception('only users') }}", "refuses these messages: only users"),
    ],
)
def test_attacks_and_errors_are_refused(source, message):
    with pytest.raises(ChatTemplateError, match=r"^some/file.*" + message.replace("(", r"\(").replace("*", r"\*")):
        template.SandboxedTemplate(source, path="some/file").render([USER])


def test_loop_controls_and_plain_data():
    program = template.SandboxedTemplate(
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.x | tojson }}{% endfor %}", path="p"
    )
    assert program.render([{"x": {"b": "<é>", "a": 1}}, {"x": 2}]) == '{"b": "<é>", "a": 1}'
    with pytest.raises(TypeError, match="plain data, not a PosixPath"):
        program.render([{"x": pathlib.Path("x")}])
    assert json.loads(program.render([{"x": [1, None, 2.5, (True,)]}])) == [1, None, 2.5, [True]]
