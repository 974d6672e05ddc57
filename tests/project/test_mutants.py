"""The tests can fail: each fault below is put into rl_jax, and the test named for it has to go red.

A fault is one string replaced by another; the string has to occur exactly once, so that a rewrite of the code says
here which mutant lost its place. tests/README.md has the table.

One process (`python -m tests.project.test_mutants`) imports what the tests import, rl_jax excepted, and forks for every
fault: a child pays for rl_jax and its test only. The fault is in the import hook of the child; no file is changed.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutation import plan, world
from tests.paths import REPO_ROOT

pytestmark = pytest.mark.slow
LIMIT_S = 1800.0


class Mutant(NamedTuple):
    """`old` -> `new` in `file` of rl_jax; `test` is what notices, a node id below tests/."""

    fault: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = [
    Mutant(
        "clip sign",
        "losses/policy/clipped.py",
        "jnp.maximum(-advantages * ratio, -advantages * clipped)",
        "jnp.minimum(-advantages * ratio, -advantages * clipped)",
        "losses/test_policy.py::test_every_side_of_an_asymmetric_clip",
    ),
    Mutant(
        "clip bounds exchanged",
        "losses/policy/clipped.py",
        "jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)",
        "jnp.clip(ratio, 1.0 - clip_high, 1.0 + clip_low)",
        "losses/test_policy.py::test_every_side_of_an_asymmetric_clip",
    ),
    Mutant(
        "mask applied after exp only (ratio)",
        "losses/policy/base.py",
        "return zero_masked(log_probs, mask) - jax.lax.stop_gradient(zero_masked(old_log_probs, mask))",
        "return log_probs - jax.lax.stop_gradient(old_log_probs)",
        "recipes/test_laws.py::test_contents_of_the_padding_change_nothing[grpo]",
    ),
    Mutant(
        "mask applied after exp only (KL)",
        "losses/kl.py",
        "return zero_masked(log_probs, mask) - jax.lax.stop_gradient(zero_masked(ref_log_probs, mask))",
        "return log_probs - jax.lax.stop_gradient(ref_log_probs)",
        "recipes/test_laws.py::test_contents_of_the_padding_change_nothing[grpo]",
    ),
    Mutant(
        "mean over padding (all tokens)",
        "core/masked.py",
        "return Mean(jnp.sum(zero_masked(x, mask), dtype=dtype), jnp.sum(mask, dtype=dtype))",
        "return Mean(jnp.sum(zero_masked(x, mask), dtype=dtype), jnp.asarray(x.size, dtype))",
        "recipes/test_laws.py::test_width_of_the_padding_changes_nothing[clipped_surrogate/token_mean]",
    ),
    Mutant(
        "mean over padding (rows)",
        "core/masked.py",
        "return masked_sum(x, mask, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)",
        "return masked_sum(x, mask, axis=1) / x.shape[1]",
        "recipes/test_laws.py::test_width_of_the_padding_changes_nothing[grpo]",
    ),
    Mutant(
        "mean over padding (empty rows counted)",
        "losses/aggregate.py",
        "return jnp.sum(jnp.any(mask, axis=1) | count_empty_rows, dtype=sum_dtype(per_token))",
        "return jnp.asarray(mask.shape[0], sum_dtype(per_token))",
        "recipes/test_laws.py::test_rows_without_a_token_change_nothing[grpo]",
    ),
    Mutant(
        "Dr. GRPO divides by the padded width",
        "losses/aggregate.py",
        "_total(zero_masked(per_token, mask)) / max_length",
        "_total(zero_masked(per_token, mask)) / mask.shape[1]",
        "losses/test_aggregate.py::test_padded_width_is_not_a_constant_of_any_mode",
    ),
    Mutant(
        "wrong std ddof (group)",
        "advantages/groups.py",
        "/ (group_size - ddof))",
        "/ group_size)",
        "advantages/test_advantages.py::test_published_numbers",
    ),
    Mutant(
        "wrong std ddof (whitening)",
        "core/masked.py",
        "divisor = jnp.sum(mask, dtype=sum_dtype(x)) - ddof",
        "divisor = jnp.sum(mask, dtype=sum_dtype(x))",
        "core/test_masked.py::test_variance_and_whitening_match_the_loops",
    ),
    Mutant(
        "missing stop-gradient (old log-probs)",
        "losses/policy/base.py",
        "- jax.lax.stop_gradient(zero_masked(old_log_probs, mask))",
        "- zero_masked(old_log_probs, mask)",
        "recipes/test_laws.py::test_nothing_flows_into_the_data[grpo]",
    ),
    Mutant(
        "missing stop-gradient (advantages)",
        "losses/policy/clipped.py",
        "advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))",
        "advantages = zero_masked(advantages, mask)",
        "recipes/test_laws.py::test_nothing_flows_into_the_data[grpo]",
    ),
    Mutant(
        "missing stop-gradient (reference)",
        "losses/kl.py",
        "- jax.lax.stop_gradient(zero_masked(ref_log_probs, mask))",
        "- zero_masked(ref_log_probs, mask)",
        "recipes/test_laws.py::test_nothing_flows_into_the_data[grpo]",
    ),
    Mutant(
        "KV-cache off by one (column written)",
        "rollout/lm/engine.py",
        "cache, prompt_length + step, prompt_columns",
        "cache, prompt_length + step + 1, prompt_columns",
        "rollout/test_engine.py::test_greedy_tokens_equal_a_loop_without_a_cache[tiny]",
    ),
    Mutant(
        "KV-cache off by one (columns visible)",
        "models/transformer/decoding.py",
        "visible[:, None] & (back >= 0)",
        "visible[:, None] & (back > 0)",
        "rollout/test_engine.py::test_greedy_tokens_equal_a_loop_without_a_cache[tiny]",
    ),
    Mutant(
        "KV-cache off by one (positions)",
        "rollout/lm/engine.py",
        "prompt_lengths + step, cache",
        "prompt_lengths + step + 1, cache",
        "rollout/test_engine.py::test_sampler_and_scorer_agree[plain-tiny]",
    ),
    Mutant(
        "draw takes a token of mass 0 at u = 0",
        "rollout/lm/sampling.py",
        "cumulative > threshold[:, None]",
        "cumulative >= threshold[:, None]",
        "rollout/test_sampling.py::test_a_token_without_mass_is_never_drawn[512]",
    ),
    Mutant(
        "missing causal mask",
        "models/transformer/attention.py",
        "seen &= jnp.tril(jnp.ones((length, length), bool))[None]",
        "pass",
        "models/test_transformer.py::test_no_position_sees_a_later_one",
    ),
    Mutant(
        "missing segment mask",
        "models/transformer/attention.py",
        "seen = segments[:, :, None] == segments[:, None, :]",
        "seen = jnp.ones((*segments.shape, length), bool)",
        "models/test_transformer.py::test_packed_rows_equal_separate_rows",
    ),
    Mutant(
        "temperature not applied in scoring",
        "training/scoring.py",
        "sampled_log_softmax(logits, sampling)",
        "sampled_log_softmax(logits, sampling._replace(temperature=1.0))",
        "training/test_scoring.py::test_temperature_and_entropy_against_numpy",
    ),
    Mutant(
        "divided by the micro-batches once more",
        "training/step.py",
        "0.0, g / divisor)",
        "0.0, g / divisor / num_micro_batches)",
        "training/test_train.py::test_one_division_whatever_the_micro_batches[2]",
    ),
]


# --- The process that forks ------------------------------------------------------------------------------------------


class _Seen:
    """A pytest plugin: the tests that failed, and what else went wrong."""

    def __init__(self):
        self.failed, self.errors = [], []

    def pytest_collectreport(self, report):
        if report.failed:
            self.errors.append(report.nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            (self.failed if report.when == "call" else self.errors).append(report.nodeid)


def _run(folder: Path, tests: list[str], mutant: Mutant | None) -> dict:
    """pytest in a forked child. -> its exit code, the tests that failed, the errors, the modules that it imported."""
    before, seen = set(sys.modules), _Seen()
    if mutant is not None:
        place = REPO_ROOT / "rl_jax" / mutant.file
        source = place.read_text().replace(mutant.old, mutant.new)
        sys.meta_path.insert(0, world._Finder(lambda path: path.resolve() == place, lambda path: source))
    plan.use_cache(folder / "xla", write=mutant is None)
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    code = pytest.main([*options, *(f"tests/{test}" for test in tests)], plugins=[seen])
    modules = [name for name in sys.modules if name not in before]
    return {"code": int(code), "failed": seen.failed, "errors": seen.errors, "modules": modules}


def _forked(folder: Path, name: str, tests: list[str], mutant: Mutant | None = None) -> dict:
    log = plan.log_of(folder, "run", name.replace(" ", "-"))
    child = world.Child(lambda: _run(folder, tests, mutant), log, LIMIT_S)
    while (answer := child.poll()) is None:
        time.sleep(0.01)
    return answer | {"log": log.read_text()[-6000:]}


def _serve(folder: Path):
    """Answers a line of JSON for the run without a fault, and one for each fault that is named on a line."""
    from tests import mutate

    (folder / "logs").mkdir()
    mutate._warm()
    clean = _forked(folder, "clean", sorted({mutant.test for mutant in MUTANTS}))
    print(json.dumps(clean), flush=True)
    plan.preload(REPO_ROOT, folder, {"clean": {"modules": clean.get("modules", [])}})
    mutants = {mutant.fault: mutant for mutant in MUTANTS}
    for line in sys.stdin:
        mutant = mutants[line.rstrip("\n")]
        print(json.dumps(_forked(folder, mutant.fault, [mutant.test], mutant)), flush=True)


# --- The tests -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(fault -> its answer, the answer of the run without one)."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    environment |= {"PYTHONPATH": str(REPO_ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "tests.project.test_mutants", str(tmp_path_factory.mktemp("mutants"))]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, cwd=REPO_ROOT, env=environment, **pipes) as process:

        def ask(fault: str) -> dict:
            process.stdin.write(f"{fault}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask, json.loads(process.stdout.readline())
        process.stdin.close()


def test_without_a_fault_they_pass(server):
    _, clean = server
    assert clean.get("code") == 0, clean


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.fault for mutant in MUTANTS])
def test_the_fault_is_noticed(mutant, server):
    count = (REPO_ROOT / "rl_jax" / mutant.file).read_text().count(mutant.old)
    assert count == 1, f"{mutant.file} has {count} x {mutant.old!r}: update MUTANTS"
    answer = server[0](mutant.fault)
    # 1 is "a test failed"; a fault that breaks the import or the collection would be 2 to 5 and proves nothing.
    assert answer.get("code") == 1 and answer["failed"] and not answer["errors"], (
        f"{mutant.test} did not notice: {mutant.fault}\n{answer.get('log', answer)}"
    )


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
