"""Verifiers of Countdown and Sudoku. A completion may search first: its answer is its last <answer> or line.

Text is parsed, never evaluated; sizes are bounded (rl_jax.rewards.game24).
"""

from collections.abc import Sequence

from rl_jax.rewards import extract, game24, parsing

BOX = {4: 2, 9: 3}  # size of a grid -> size of its boxes
MAX_COMPLETION = 100_000  # characters


def countdown(prompt: str, completion: str, info: dict, *, formed: float = 0.1) -> dict[str, float]:
    """1 for an expression of info's numbers, each once, that is exactly its target; `formed` for another expression.

    Source: TinyZero's reward (0, .1, 1) with exact fractions instead of a tolerance of 1e-5. TinyZero pays .1 for any
    <answer> that is wrong, whatever it says; here `formed` needs an expression of the right numbers, each once.

    Args:
      prompt: unused.
      completion: the expression, in the last <answer>...</answer> or else in the last line, behind a search if there
        is one; a box may hold it, and "= TARGET" may follow it.
      info: has "numbers" and "target".
      formed: for an expression of the right numbers that misses the target.

    Raises:
      ValueError: if info has no numbers or no target.
    """
    numbers, target = info.get("numbers"), info.get("target")
    if not isinstance(numbers, list) or not numbers or type(target) is not int:
        raise ValueError(f"info['numbers'] and info['target'] must be integers, found {numbers!r:.60} and {target!r}")
    said = said_last(completion).rpartition(":")[2]
    text, _, value = game24.tidy(said).partition("=")
    try:
        expression = game24.parse(text)
    except game24.ExpressionError:
        return {"reward": 0.0, "correct": 0.0, "formed": 0.0}
    uses = sorted(expression.numbers) == sorted(numbers) and (not value or value.strip() == str(target))
    correct = float(uses and expression.value == target)
    return {"reward": correct or formed * uses, "correct": correct, "formed": float(uses)}


def sudoku(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """1 for a full grid that keeps the clues and the rules; rows are joined by "/", as in "1234/3412/2143/4321".

    The grid is found as the expression of `countdown` is.

    Raises:
      ValueError: if info["grid"] is no puzzle: rows of digits and dots, joined by "/".
    """
    clues = read_grid(str(info.get("grid")), blanks=True)
    if clues is None:
        raise ValueError(f"info['grid'] must be a puzzle such as '1..4/..1./2.../...1', found {info.get('grid')!r:.60}")
    grid = read_grid(said_last(completion), blanks=False)
    if grid is None or len(grid) != len(clues):
        return {"reward": 0.0, "correct": 0.0, "formed": 0.0, "rules": 0.0}
    kept = all(a in (0, b) for given, row in zip(clues, grid, strict=True) for a, b in zip(given, row, strict=True))
    rules = follows_rules(grid)
    correct = float(kept and rules)
    return {"reward": correct, "correct": correct, "formed": 1.0, "rules": float(rules)}


def said_last(text: str) -> str:
    """The last line of the last <answer>...</answer>, else of what follows the thought; what its box holds, if any."""
    line = parsing.answer(text[-MAX_COMPLETION:]).rpartition("\n")[2].strip()
    inside = extract.boxed(line)
    return inside[0].strip() if len(inside) == 1 else line


def read_grid(text: str, *, blanks: bool) -> list[list[int]] | None:
    """Rows of a 4x4 or 9x9 grid, 0 for a blank; None for another text."""
    rows = text.split("/")
    size = len(rows)
    allowed = "123456789"[:size] + "." * blanks
    if size not in BOX or any(len(row) != size or set(row) - set(allowed) for row in rows):
        return None
    return [[int(cell) if cell != "." else 0 for cell in row] for row in rows]


def follows_rules(grid: Sequence[Sequence[int]]) -> bool:
    """Whether every row, column and box of a full grid has each digit once."""
    size, box = len(grid), BOX[len(grid)]
    digits = set(range(1, size + 1))
    columns = [list(column) for column in zip(*grid, strict=True)]
    boxes = [
        [grid[i][j] for i in range(r, r + box) for j in range(c, c + box)]
        for r in range(0, size, box)
        for c in range(0, size, box)
    ]
    return all(set(group) == digits for group in [*map(list, grid), *columns, *boxes])
