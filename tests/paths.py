"""Where tests find the repository and the shared data that lies next to it."""

import os
from pathlib import Path

import pytest

REPO_ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = REPO_ROOT.parent / "shared" / "data"


def shared_data(relative: str) -> Path:
    """The path of a file of ../shared/data. Missing, it skips the test, and fails it where the variable CI is set."""
    path = SHARED_DATA / relative
    if not path.exists():
        reason = f"{path} is not here: clone next to a copy of shared/ to run this test"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path
