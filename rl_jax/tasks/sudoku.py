"""Sudoku of 4x4: "1..4/..1./2.../...1\\n" -> the full grid, or with the search written out, one guess a line.

    direct: "1234/3412/2143/4321".
    search: depth-first, "a2=2" for row a, column 2; a cell named again was taken back. The last line is the grid.

Every puzzle has exactly one solution. Source: arXiv 2504.07052, with 9x9.
"""

import json
import random
from collections.abc import Iterator

from rl_jax.rewards import puzzles
from rl_jax.tasks import base, hold_out, made_problems
from rl_jax.tokenizers import CharTokenizer

ALPHABET = "123456789./abcdefghi=\n"

Grid = list[list[int]]


def candidates(grid: Grid, i: int, j: int) -> list[int]:
    """Digits that no row, column or box of the cell has."""
    size, box = len(grid), puzzles.BOX[len(grid)]
    r, c = i - i % box, j - j % box
    used = {*grid[i], *(row[j] for row in grid), *(x for row in grid[r : r + box] for x in row[c : c + box])}
    return [n for n in range(1, size + 1) if n not in used]


def solve(grid: Grid, lines: list[str] | None = None) -> Iterator[Grid]:
    """Every solution, depth first from the first blank; `lines` collects the guesses."""
    blank = next(((i, j) for i, row in enumerate(grid) for j, n in enumerate(row) if n == 0), None)
    if blank is None:
        yield [list(row) for row in grid]
        return
    i, j = blank
    for n in candidates(grid, i, j):
        if lines is not None:
            lines.append(f"{chr(ord('a') + i)}{j + 1}={n}")
        grid[i][j] = n
        yield from solve(grid, lines)
        grid[i][j] = 0


def is_unique(grid: Grid) -> bool:
    """Whether there is exactly one solution."""
    found = solve([list(row) for row in grid])
    return next(found, None) is not None and next(found, None) is None


def text_of(grid: Grid) -> str:
    """Rows joined by "/", dots for blanks."""
    return "/".join("".join(str(n) if n else "." for n in row) for row in grid)


def draw(rng: random.Random, full: list[Grid], blanks: tuple[int, int]) -> tuple[str, str]:
    """(puzzle with one solution, its solution)."""
    solution = rng.choice(full)
    grid, wanted = [list(row) for row in solution], rng.randint(*blanks)
    cells = [(i, j) for i in range(len(grid)) for j in range(len(grid))]
    rng.shuffle(cells)
    for i, j in cells:
        if wanted == 0:
            break
        kept, grid[i][j] = grid[i][j], 0
        if is_unique(grid):
            wanted -= 1
        else:
            grid[i][j] = kept
    return text_of(grid) + "\n", text_of(solution)


def load(
    *,
    blanks: tuple[int, int] = (4, 9),
    trace: bool = False,
    max_completion: int = 100,
    num_problems: int = 4_000,
    seed: int = 0,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """Sudoku of 4x4.

    Args:
      blanks: (fewest, most) blanks; fewer where the solution would not be unique.
      trace: whether demonstrations show the search.
      max_completion: longest demonstration, in characters; puzzles with a longer one are left out of the SFT records.
      num_problems: distinct puzzles, of which one in ten is held out.
      seed: of the puzzles.
      data_dir: where the prepared dataset is stored.

    Raises:
      ValueError: if `blanks` is out of its range, or there are too few distinct puzzles.
    """
    blanks = (int(blanks[0]), int(blanks[1]))
    if not 1 <= blanks[0] <= blanks[1] <= 12:
        raise ValueError(f"blanks must be (fewest, most) from 1 to 12, got {blanks}")
    arguments = {"blanks": list(blanks), "trace": bool(trace), "max_completion": int(max_completion)}
    arguments |= {"num_problems": int(num_problems), "seed": int(seed)}

    def record(prompt, solution):
        if trace:
            lines: list[str] = []
            grid = puzzles.read_grid(prompt.strip(), blanks=True)
            next(solve(grid, lines))
            solution = "\n".join([*lines, solution])
        return {"prompt": prompt, "completion": solution, "info": json.dumps({"grid": prompt.strip()})}

    def make():
        full = list(solve([[0] * 4 for _ in range(4)]))
        drawn = made_problems.distinct(lambda rng: draw(rng, full, blanks), count=num_problems, seed=seed)
        splits = hold_out.by_prompt(record(*row) for row in drawn)
        splits["sft_train"] = [row for row in splits["train"] if len(row["completion"]) <= max_completion]
        return splits, {"num_without_demonstration": len(splits["train"]) - len(splits["sft_train"])}

    code = [__file__, puzzles.__file__, hold_out.__file__, made_problems.__file__]
    sources = base.record_splits("sudoku", make, arguments=arguments, code=code, data_dir=data_dir)
    return base.Task("sudoku", CharTokenizer(ALPHABET), sources, puzzles.sudoku)
