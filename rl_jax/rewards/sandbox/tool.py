"""A Python tool for agents: code in, text out, in the sandbox. A model's mistake is text, too."""

from rl_jax.rewards.sandbox import start
from rl_jax.rewards.sandbox.protocol import Limits

MAX_CHARS = 2_000
ENDINGS = {
    "cpu": "it took over {cpu_s:g} s of CPU and was ended",
    "wall": "it took over {wall_s:g} s and was ended",
    "output": "it printed over {output_kb} KiB and was ended",
    "killed": "it was ended by signal {signal}",
}


def python_tool(
    code: str,
    *,
    sandbox: str = "",
    cpu_s: float = 2.0,
    wall_s: float = 20.0,
    memory_mb: int = 512,
    max_chars: int = MAX_CHARS,
) -> str:
    """Runs a Python program in the sandbox and returns what it printed, and its error.

    Nothing stays from call to call. An error of the program is text, for the model to read; a text longer than
    `max_chars` loses its middle, and says so.

    Args:
      code: the program; without a print, and if it is one expression, its value is printed.
      sandbox: a backend of start.make; "": the first that holds.
      cpu_s: seconds of CPU.
      wall_s: seconds of the clock.
      memory_mb: MiB.
      max_chars: of the text.

    Raises:
      SandboxError: if there is no sandbox, or it failed: not the model's fault.
    """
    limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mb=memory_mb, output_kb=64)
    result = start.kept(sandbox).run({"main.py": _shown(code)}, limits=limits)
    text = (result.stdout + result.stderr).decode("utf-8", "replace").strip()
    if result.status in ENDINGS:
        text = f"{text}\n{ENDINGS[result.status].format(**limits._asdict(), signal=-result.exit)}".strip()
    if len(text) > max_chars:
        half = max_chars // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[len(text) - half :]}"
    return text or "(no output)"


def _shown(code: str) -> str:
    """The code; one that is a single expression prints its value unless it is None."""
    try:
        compile(code.strip(), "main.py", "eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    return f"_ = ({code.strip()}\n)\nif _ is not None:\n    print(_)\n"
