"""What is not seen is written out: nothing from a model or a file moves a terminal's cursor or turns a line round."""

import pytest

from rl_jax.core.visible import one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本 🙂\n\tnext", "plain é 日本 🙂\n\tnext"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x00\x07\x08\r\x7f", r"\x00\x07\x08\x0d\x7f"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("a\u202eb\u202ac\u2066d\u2069", r"a\u202eb\u202ac\u2066d\u2069"),
        ("a\u200bb\u200dc\u200e\u2060\ufeff", r"a\u200bb\u200dc\u200e\u2060\ufeff"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\ud800", r"\ud800"),
        ("\U000e0041\U000e0100", r"\U000e0041\U000e0100"),
        ("\xad\u061c\u180e\u3164\ufe01", r"\xad\u061c\u180e\u3164\ufe01"),
    ],
)
def test_what_is_hidden_is_written_out(text, shown):
    assert visible(text) == shown
    assert one_line(text) == shown.replace("\n", r"\n").replace("\t", r"\t")


def test_every_control_and_direction_character_is_covered():
    hidden = [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    assert all(visible(chr(code)).startswith("\\") for code in hidden)
    assert visible("".join(map(chr, range(32, 127)))) == "".join(map(chr, range(32, 127)))
