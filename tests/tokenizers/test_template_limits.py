"""What a chat template may use is counted in steps and bytes: many attacks here took seconds or gigabytes before."""

import pytest

from rl_jax.tokenizers import template_limits as limits
from rl_jax.tokenizers.chat import ChatTemplate
from rl_jax.tokenizers.template import ChatTemplateError, SandboxedTemplate

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello <b>"}]
LOOP = "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x | length }}"

BIG = "{% set x = 'x' * 9000000 %}"
MANY = "{% for i in range(99999) %}STEP{% endfor %}"


def render(source, messages=MESSAGES, **variables):
    return SandboxedTemplate(source, path="file").render(messages, **variables)


ATTACKS = {
    "doubling by ~": LOOP.replace("STEP", "ns.x ~ ns.x"),
    "doubling by +": LOOP.replace("STEP", "ns.x + ns.x"),
    "doubling by *": LOOP.replace("STEP", "ns.x * 2"),
    "doubling by join": LOOP.replace("STEP", "[ns.x, ns.x] | join"),
    "doubling by str.join": LOOP.replace("STEP", "ns.x.join([ns.x, ns.x])"),
    "doubling by replace": LOOP.replace("STEP", "ns.x.replace('a', 'aa')"),
    "doubling by the filter": LOOP.replace("STEP", "ns.x | replace('', ns.x)"),
    "doubling by format": LOOP.replace("STEP", "'{0}{0}'.format(ns.x)"),
    "doubling by %": LOOP.replace("STEP", "'%s%s' % (ns.x, ns.x)"),
    "doubling by a block": LOOP.replace(
        "{% set ns.x = STEP %}", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"
    ),
    "lists of lists": LOOP.replace("STEP", "[ns.x, ns.x, ns.x]").replace("| length", ""),
    "tuples as keys": LOOP.replace("STEP", "(ns.x, ns.x)").replace("ns.x | length", "{ns.x: 1}"),
    "deep lists": LOOP.replace("range(99)", "range(199)").replace("STEP", "[ns.x]").replace("| length", ""),
    "lists added": LOOP.replace("'ab'", "[1]").replace("STEP", "ns.x + ns.x"),
    "center": "{{ 'x'.center(999999999) }}",
    "center, a filter": "{{ 'x' | center(999999999) }}",
    "ljust": "{{ 'x'.ljust(999999999) }}",
    "rjust": "{{ 'x'.rjust(999999999) }}",
    "zfill": "{{ 'x'.zfill(999999999) }}",
    "expandtabs": "{{ '\t'.expandtabs(999999999) }}",
    "format width": "{{ '{:999999999}'.format(1) }}",
    "format width by value": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "format precision": "{{ '{:.999999999f}'.format(1.5) }}",
    "format_map": "{{ '{x:999999999}'.format_map({'x': 1}) }}",
    "% width": "{{ '%999999999d' % 1 }}",
    "% width by value": "{{ '%*d' % (999999999, 1) }}",
    "% filter": "{{ '%999999999d' | format(1) }}",
    "indent": "{{ 'x\ny' | indent(999999999) }}",
    "tojson indent": "{{ messages | tojson(indent=999999999) }}",
    "batch": "{{ [1] | batch(999999999, 'x') | list }}",
    "slice": "{{ [1] | slice(999999999) | list }}",
    "round": "{{ 1.5 | round(999999999) }}",
    "sum of lists": "{{ [[1], [2]] | sum(start=[]) }}",
    "to_bytes": "{{ (1).to_bytes(999999999, 'big') }}",
    "from_bytes": "{{ (1).from_bytes('x'.encode('utf-8')) }}",
    "translate": "{{ 'aaa'.translate({97: 'x' * 999}) }}",
    "int of hex": "{{ ('f' * 99999) | int(0, 16) }}",
    "huge in a loop": BIG + MANY.replace("STEP", "{% if x.upper() == 'y' %}{% endif %}"),
    "compared in a loop": BIG + "{% set y = x ~ 'y' %}" + MANY.replace("STEP", "{% if x == y %}{% endif %}"),
    "searched in a loop": BIG + MANY.replace("STEP", "{% if 'y' in x %}{% endif %}"),
    "searched backwards": BIG + "{{ x.rfind('y' + 'x' * 900000) }}",
    "cut in a loop": BIG + MANY.replace("STEP", "{% set y = x[1:] %}"),
    "stripped of many": "{{ ('x' * 900000).strip('yz' * 9000) }}",
    "mapped in a loop": "{% for i in range(9999) %}{% set y = range(99999) | map('string') | list %}{% endfor %}",
    "a long body": "{% for i in range(99999) %}" + "{% set y = 1 %}" * 2000 + "{% endfor %}",
    "urlize": "{{ 'x' | urlize }}",
    "pprint": "{{ messages | pprint }}",
    "blocks in blocks": "{% if x %}" * 300 + "{% endif %}" * 300,
    "brackets": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "a source too long": "x" * (limits.MAX_SOURCE + 1),
}


@pytest.mark.parametrize("case", ATTACKS)
def test_attacks_are_refused(case, monkeypatch):
    monkeypatch.setattr(limits, "MAX_WORK", limits.MAX_WORK // 4)  # soon enough for a test
    with pytest.raises(ChatTemplateError, match="^file"):
        render(ATTACKS[case])


def test_a_sum_of_lists_and_a_namespace_in_itself_are_not_written_out():
    loop = "{% set ns = namespace(x=1) %}{% for i in range(90) %}{% set ns.x = namespace(a=ns.x, b=ns.x) %}{% endfor %}"
    assert render(loop + "{{ ns.x }}") == "<Namespace>"


def test_values_that_are_no_text_or_too_deep_are_named():
    for source in (None, 7, ["x"], {"default": 7}):
        with pytest.raises(ChatTemplateError, match=r"^tokenizer_config.json: the chat template is a \w+, not a text"):
            ChatTemplate(source, None, path="tokenizer_config.json")
    deep = []
    for _ in range(50_000):
        deep = [deep]
    with pytest.raises(ChatTemplateError, match="^file: messages or variables are nested too deep"):
        render("{{ x }}", x=deep)
    while deep:  # or Python frees it by recursion
        deep = deep[0]


def test_memory_errors_are_named(monkeypatch):
    program = SandboxedTemplate("{{ messages[0].content | upper }}", path="file")

    def fail(self, value):
        raise MemoryError

    monkeypatch.setattr(limits.Meter, "made", fail)
    with pytest.raises(ChatTemplateError, match="^file: it takes more memory than there is"):
        program.render(MESSAGES)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' ~ 1 ~ none ~ 'b' }}", "a1Noneb"),
        ("{{ 'Hi' in messages[0].content }}{{ 'x' not in 'y' }}{{ 1 < 2 <= 2 }}{{ 1 == 2 }}", "TrueTrueTrueFalse"),
        ("{{ messages[1:][0].role }}{{ messages[::-1][0].role }}{{ 'abc'[1:] }}", "assistantassistantbc"),
        ("{{ [1, 2 + 1, 'x'] }}{{ (1, i) }}{{ {'a': i} }}", "[1, 3, 'x'](1, 5){'a': 5}"),
        ("{% for k, v in {'a': 1, 'b': i}.items() %}{{ k }}{{ v }}{% endfor %}", "a1b5"),
        ("{{ '%s is %03d and %.1f' % ('x', 7, 1.25) }}{{ '%s' | format(i) }}", "x is 007 and 1.25"),
        ("{{ '{:>4}|{}|{a!r}'.format(1, 2, a='q') }}", "   1|2|'q'"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user, assistant"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ [3, 1, 2] | sort | join }}{{ [1, 2] | sum }}{{ [1, 1] | unique | list }}{{ [3, 4] | max }}", "1233[1]4"),
        (
            "{{ ' x '.strip() }}{{ 'a,b'.split(',') }}{{ 'a-b'.rsplit('-', 1)[-1] }}{{ 'x'.rjust(3) }}",
            "x['a', 'b']b  x",
        ),
        ("{{ 'aXa'.replace('X', 'yy') }}{{ 'a'|replace('a', 'b') }}{{ '-'.join(['a', 'b']) }}", "ayyaba-b"),
        ("{{ {'b': 1, 'a': [1]} | tojson(indent=2) | length }}{{ '1.5' | float + 1 }}{{ '7' | int }}", "322.57"),
        ("{{ 'a\nb' | indent(2) }}{{ x | default('d') }}{{ undefined_name }}{{ 'a' | upper }}", "a\n  bdA"),
        ("{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, b=3) }}", "1213"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ x | length }}{{ '<' | e }}", "a12&lt;"),
        (
            "{{ messages is iterable }}{{ 'x' is string }}{{ i is divisibleby(5) }}{{ 'a' is in 'abc' }}",
            "TrueTrueTrueTrue",
        ),
        (
            "{{ (['a'] + ['b']) | length }}{{ 'ab' * 2 }}{{ 2 ** 10 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 - 3 }}",
            "2abab102433-1",
        ),
        ("{{ [[1, 2], [3]] | batch(1) | list }}{{ strftime_now('%Y') | length }}", "[[[1, 2]], [[3]]]4"),
        ("{{ messages[0].get('x', 'none') }}{{ messages[0].keys() | list }}", "none['role', 'content']"),
        (
            "{{ 'abc'.startswith(('a', 'b')) }}{{ 'A'.isupper() }}{{ 'ab'.find('b') }}{{ (1.0).is_integer() }}",
            "TrueTrue1True",
        ),
    ],
)
def test_what_templates_use_still_works(source, text):
    assert render(source, i=5) == text


def test_a_long_chat_is_within_the_limits():
    """2,000 messages of 2,000 characters, with the loops, filters and lists that published templates have."""
    messages = [
        {"role": "user", "content": "word " * 400},
        {"role": "assistant", "content": "<think>a</think> b " * 100},
    ]
    source = (
        "{% set ns = namespace(kept=[], last=0) %}{% set rest = messages[1:] %}"
        "{% for m in rest %}{% set ns.kept = ns.kept + [m] %}{% if m.role == 'user' and not 'x' in m.content %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in ns.kept %}{{ '<|' ~ m['role'] ~ '|>\n' + m.content.split('</think>')[-1] | trim + '<|end|>' }}"
        "{% if loop.index0 > ns.last - 1 %}{{ m.content.strip() }}{% endif %}{% endfor %}"
    )
    assert len(render(source, messages * 200)) > 100_000
