"""rl_jax/runs/parquet.py: columns are those that pyarrow makes of the same values, without its import of pandas."""

import math
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from rl_jax.runs import parquet
from tests.paths import REPO_ROOT


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([True, None, False] * 5, "bool", None),
        ([1, None, -(2**62)] * 5, "int64", None),
        ([2**70, 1], "double", [2.0**70, 1.0]),
        ([1, 2.5, None, math.inf], "double", None),
        ([None, None], "double", None),
        (["é☃", "", None, "a" * 100], "string", None),
        (["\ud800", [1, 2], {"x": 1.0}, math.nan], "string", ["?", "[1, 2]", '{"x": 1.0}', "nan"]),
    ],
)
def test_a_column(values, kind, expected):
    found = parquet._column(values)
    found.validate(full=True)
    assert str(found.type) == kind and found.equals(pyarrow.array(expected or values, found.type, from_pandas=False))


def test_nan_is_a_number_and_not_missing(tmp_path):
    parquet.write_parquet(tmp_path / "x.parquet", [{"a": math.nan}, {"a": None}, {"b": 1}])
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    assert table.column("a").null_count == 2 and math.isnan(table.column("a")[0].as_py())
    assert table.column("b").to_pylist() == [None, None, 1]


def test_pandas_is_not_imported(tmp_path):
    """It is half of what the shortest run costs."""
    rows = [{"a": 1, "b": 1.5, "c": "x", "d": True}]
    code = f"""import sys
from rl_jax.runs import parquet
parquet.write_parquet({str(tmp_path / "x.parquet")!r}, {rows})
sys.exit("pandas" in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code], cwd=REPO_ROOT, timeout=300).returncode == 0
