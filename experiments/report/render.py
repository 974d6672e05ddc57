"""An episode as an animation, as stills, as a table, and as text for the terminal:

    python -m experiments.report.render RUN --text          # every step of the run's newest recorded episode
    python -m experiments.report.render RUN                 # RUN/episode.svg: the animation alone

A run's episodes.jsonl has one row per episode recorded by experiments.control.ppo. A film is one SVG without a
script: its frames form a column, and a style sheet moves the column past a window frame by frame.
"""

import argparse
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from experiments.parts.episodes import EPISODES, episode_row  # noqa: F401  the row that is drawn here
from experiments.report.charts import short_number
from experiments.report.scenes import HEAD, WIDTH, Scene, scene_of
from rl_jax.core.visible import visible
from rl_jax.runs.logging import read_jsonl, write_atomically

EPISODES_FILE = f"{EPISODES}.jsonl"



MAX_FRAMES = 300
STILLS = 6
HEAD_ROWS, TAIL_ROWS = 60, 12  # shown of a long table
MAX_COLUMNS = 8  # numbers of an observation shown in a table or a line of text
CELLS = "#o.=*+x%@&$~"  # the channels of a board in the terminal



def observations_of(row: Mapping[str, Any]) -> np.ndarray | None:
    """The observations of a row of episodes.jsonl.

    Returns:
      float [T + 1, *shape], nan for values that were not finite; None if observations were not recorded.

    Raises:
      ValueError: if the numbers of observations, rewards and actions do not agree.
    """
    packed = row["observations"]
    if packed is None:
        return None
    shape = tuple(packed["shape"])
    if "bits" in packed:
        rows = [np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8)) for text in packed["bits"]]
        result = np.stack(rows)[:, : math.prod(shape)].astype(float)
    else:
        result = np.array(packed["values"], float)  # None becomes nan
    if len(result) != len(row["rewards"]) + 1 or len(row["actions"]) != len(row["rewards"]):
        raise ValueError(
            f"the episode of step {row['step']} has {len(result)} observations; there must be one more "
            f"than rewards ({len(row['rewards'])}) and actions ({len(row['actions'])})"
        )
    return result.reshape(len(result), *shape)


def summary(row: Mapping[str, Any]) -> str:
    """An episode in words: "500 steps, return 500, time limit"."""
    steps = len(row["rewards"])
    end = "terminated" if row["terminated"] else "time limit" if row["truncated"] else "not ended"
    return f"{steps} step{'s' * (steps != 1)}, return {short_number(_return(row)[-1])}, {end}"


def _return(row: Mapping[str, Any]) -> np.ndarray:
    """The sum of the rewards before each observation: float [T + 1]."""
    return np.concatenate([[0.0], np.cumsum(np.array(row["rewards"], float))])


def action_words(action: Any, names: Sequence[str] = ()) -> str:
    """An action in words: left, 3, torque 0.52, (0.1, -2). names: as in a Scene."""
    if isinstance(action, int):
        return names[action] if action < len(names) else str(action)
    numbers = [short_number(value) for value in np.ravel(np.array(action, float))[:MAX_COLUMNS]]
    return " ".join([*names[:1], numbers[0]]) if len(numbers) == 1 else f"({', '.join(numbers)})"


def scene_for(row: Mapping[str, Any]) -> Scene | None:
    """The scene of an episode's environment; None if it has none or the observations do not fit."""
    observations = observations_of(row)
    if observations is None or not np.isfinite(observations).all():
        return None
    return scene_of(row["env"], observations)


def picked(count: int, scene: Scene) -> list[int]:
    """Indices of the frames shown out of `count`: all, every n-th, or the first ones (see Scene.thins)."""
    if not scene.thins:
        return list(range(min(count, MAX_FRAMES)))
    stride = math.ceil(count / MAX_FRAMES)
    return sorted({*range(0, count, stride), count - 1})


def film(row: Mapping[str, Any], scene: Scene) -> Markup:
    """The animation of an episode: a column of frames behind a window of one frame's size (templates/film.css)."""
    observations, returns = observations_of(row), _return(row)
    places = picked(len(observations), scene)
    frames = []
    for index, t in enumerate(places):
        words = action_words(row["actions"][t], scene.actions) if t < len(row["actions"]) else "end"
        frames.append(
            Markup('<g transform="translate(0 {})"><text x="12" y="16">step {}</text><text x="{}" y="16" '
                   'text-anchor="middle">{}</text><text x="{}" y="16" text-anchor="end">return {}</text>{}</g>').format(
                index * scene.height, t, WIDTH / 2, words, WIDTH - 12, short_number(returns[t]),
                scene.frame(observations[t]))
        )  # fmt: skip
    shots = max(len(places) - 1, 1)
    seconds = (places[-1] - places[0]) / scene.rate / 0.92  # the last frame is held for a while
    style = f"--travel:-{shots * scene.height}px;--shots:{shots};--seconds:{max(seconds, 0.5):.2f}s"
    return Markup(
        '<svg class="film" viewBox="0 0 {} {}" role="img" aria-label="{}" style="{}">{}<g class="reel">{}</g>{}</svg>'
    ).format(WIDTH, scene.height, f"{row['env']}, film: {summary(row)}", style, scene.back, Markup("").join(frames),
             scene.front)  # fmt: skip


def stills(row: Mapping[str, Any], scene: Scene) -> list[dict[str, Any]]:
    """A few frames of an episode, from first to last: {"step", "svg"}.

    They are hidden from screen readers, which read the film's label.
    """
    observations = observations_of(row)
    places = np.unique(np.linspace(0, len(observations) - 1, STILLS).round().astype(int))
    head = Markup('<svg class="film" viewBox="0 {} {} {}" aria-hidden="true">{}{}{}</svg>')
    return [
        {"step": int(t), "svg": head.format(HEAD - 6, WIDTH, scene.height - HEAD + 6, scene.back,
                                            scene.frame(observations[t]), scene.front)}
        for t in places
    ]  # fmt: skip


def table(row: Mapping[str, Any], scene: Scene | None, *, whole: bool = False) -> dict[str, Any]:
    """The steps of an episode.

    Args:
      row: of episodes.jsonl.
      scene: names the features and actions.
      whole: if False, one None replaces the middle rows of a long episode.

    Returns:
      {"head", "rows" of text, "total" number of steps}.
    """
    observations, returns = observations_of(row), _return(row)
    features = _features(observations, scene)
    lines: list[list[str] | None] = []
    for t in range(len(row["rewards"])):
        words = action_words(row["actions"][t], scene.actions if scene else ())
        numbers = [] if observations is None else np.ravel(observations[t])[: len(features)]
        reward = row["rewards"][t]
        lines.append([str(t), *map(_number, numbers), words, _number(reward), short_number(returns[t + 1])])
    if not whole and len(lines) > HEAD_ROWS + TAIL_ROWS + 1:
        lines[HEAD_ROWS:-TAIL_ROWS] = [None]
    return {"head": ["step", *features, "action", "reward", "return"], "rows": lines, "total": len(row["rewards"])}


def _number(value: float | None) -> str:
    return "n/a" if value is None or not math.isfinite(value) else f"{value + 0.0:.3g}"  # -0 is 0


def _features(observations: np.ndarray | None, scene: Scene | None) -> Sequence[str]:
    """The names of the observation's numbers that a table shows; none for a board."""
    if observations is None or observations.ndim != 2:
        return ()
    if scene is not None:
        return scene.features
    size = observations.shape[1]
    return [f"observation {i}" if size > 1 else "observation" for i in range(min(size, MAX_COLUMNS))]


def section(row: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the report shows of an episode."""
    scene = scene_for(row)
    result = {"step": row["step"], "env": row["env"], "summary": summary(row), "table": table(row, scene)}
    if scene is None:
        return result | {"film": None, "stills": [], "said": ""}
    count, shown = len(row["rewards"]) + 1, picked(len(row["rewards"]) + 1, scene)
    said = ""
    if len(shown) < count:
        stride = shown[1] - shown[0]
        said = f"one state in {stride} is shown" if scene.thins else f"the first {len(shown)} states are shown"
    return result | {"film": film(row, scene), "stills": stills(row, scene), "said": said}


def as_text(row: Mapping[str, Any]) -> str:
    """An episode for the terminal: one line per step, or the board of every step."""
    scene, observations = scene_for(row), observations_of(row)
    lines = [f"{row['env']} after {row['step']} updates: {summary(row)}"]
    if observations is not None and observations.ndim == 4 and scene is not None:
        lines.append(", ".join(f"{CELLS[c]} {name}" for c, name in enumerate(scene.features)))
        for t, board in enumerate(observations):
            words = action_words(row["actions"][t], scene.actions) if t < len(row["actions"]) else "end"
            reward = f", reward {_number(row['rewards'][t - 1])}" if t else ""
            lines += ["", f"step {t}{reward}: {words}", *_board(board)]
        return "\n".join(lines)
    result = table(row, scene, whole=True)
    rows = [result["head"], *result["rows"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        lines.append("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))
    return "\n".join(lines)


def _board(board: np.ndarray) -> list[str]:
    """The cells of a board [H, W, C] as characters, each for the cell's first channel that is on."""
    first = np.where(board.any(axis=-1), board.argmax(axis=-1), -1)
    return [f"|{''.join(' ' if c < 0 else CELLS[c] for c in line)}|" for line in first]


def picture(row: Mapping[str, Any]) -> str:
    """The film as a file of its own, with its style sheet.

    Raises:
      ValueError: if the environment has no scene.
    """
    scene = scene_for(row)
    if scene is None:
        raise ValueError(
            f"{row['env']} has no picture: print the steps with --text, or add a scene to experiments/report/scenes.py"
        )
    folder = Path(__file__).with_name("templates")
    styles = "".join((folder / name).read_text(encoding="utf-8") for name in ("colours.css", "film.css"))
    styles += "svg.film{background:var(--bg)}"
    styles += "@media (prefers-reduced-motion:no-preference){.reel{animation-play-state:running}}"
    head, rest = str(film(row, scene)).split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{styles}</style>{rest}\n'


def load_episodes(workdir: Path) -> list[dict[str, Any]]:
    """The rows of a run's episodes.jsonl.

    Raises:
      FileNotFoundError: if there are none.
      ValueError: if the file is damaged.
    """
    path = workdir / EPISODES_FILE
    rows = read_jsonl(path) if path.exists() else []
    if not rows:
        raise FileNotFoundError(f"no episode under {workdir}: name a --workdir of experiments.control.ppo")
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.report.render", description="Show a recorded episode.")
    parser.add_argument("run", type=Path, metavar="RUN", help="the --workdir of experiments.control.ppo")
    parser.add_argument("--text", action="store_true", help="print the steps instead of writing RUN/episode.svg")
    parsed = parser.parse_args(arguments)
    try:
        row = load_episodes(parsed.run)[-1]
        if parsed.text:
            print(visible(as_text(row)))
        else:
            write_atomically(parsed.run / "episode.svg", picture(row).encode())
            print(parsed.run / "episode.svg")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, for example `head`, has ended; write nothing more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError) as error:
        sys.exit(f"render: {error}")


if __name__ == "__main__":
    main()
