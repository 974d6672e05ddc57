"""The short form of --config.reward.terms on a command line: "math,0.2*my_rewards:brief"."""

import ast


def parse_terms(text: str) -> dict[str, dict]:
    """The terms of a short form, "math,0.2*my_rewards:brief", each named after its function; or of a table, "{...}".

    Raises:
      ValueError: if a weight is no number, two terms have one name, or a table cannot be read.
    """
    if text.lstrip().startswith("{"):
        try:
            return dict(ast.literal_eval(text.strip()))
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"reward.terms: {text!r:.200} cannot be read as a table: {error}") from None
    result = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        weight, star, fn = part.rpartition("*")
        try:
            number = float(weight) if star else 1.0
        except ValueError:
            raise ValueError(f"reward.terms: {weight!r} in {part!r} must be a number, as in 0.2*my_rewards:f") from None
        name = fn.strip().rpartition(":")[2].replace(".", "_")
        if name in result:
            raise ValueError(f"reward.terms: two terms are named {name!r}; give names as {{'a': {{'fn': ...}}, ...}}")
        result[name] = {"fn": fn.strip(), "weight": number}
    return result


def expand_terms(arguments: list[str]) -> list[str]:
    """A command line with the short form of --config.reward.terms written out, as absl parses it."""
    flag, result = "--config.reward.terms=", []
    for argument in arguments:
        text = argument.removeprefix(flag)
        if argument.startswith(flag) and not text.lstrip().startswith("{"):
            argument = f"{flag}{parse_terms(text)!r}"
        result.append(argument)
    return result
