"""experiments.bench.sandbox: a line per backend, or why there is none; how long they take is nobody's business here."""

import sys

import pytest

from experiments.bench import sandbox
from rl_jax.rewards.sandbox import client


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
def test_a_line_per_backend(monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "STARTS", 2)
    sandbox.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(client.MODES)
    assert "of 2" in lines[-1]
