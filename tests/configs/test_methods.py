"""Every file of configs/methods: what it says, what it builds, that it learns; and the table made from all of them."""

import functools
import importlib
import json
import pathlib
import re
import runpy
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools import methods
from rl_jax import token_weights
from rl_jax.core.binding import needs
from rl_jax.core.masked import zero_masked
from rl_jax.core.types import Rollout, TokenBatch, TokenScores
from rl_jax.testing import probes
from rl_jax.testing.batches import ragged_batch
from tests.paths import REPO_ROOT
from tests.probes import of_config

KEYS = methods.keys()
FAMILY = methods.FAMILIES["online"]
FOLDER = REPO_ROOT / "configs" / "methods"
GROUP = 8
every_method = pytest.mark.parametrize("key", KEYS)


def text_of(key: str) -> str:
    return (FOLDER / f"{key}.py").read_text(encoding="utf-8")


def has_critic(config) -> bool:
    return "critic" in config


# What the files say.


def test_there_is_one_file_a_method():
    assert len(KEYS) == len(set(KEYS)) >= 45
    assert sorted(KEYS) == sorted(p.stem for p in FOLDER.glob("*.py") if p.stem not in ("__init__", "_start"))


@every_method
def test_a_file_is_short_and_says_what_it_is(key):
    text = text_of(key)
    assert 10 <= len(text.splitlines()) <= 25
    said = methods.read_docstring(methods.module_of(key).__doc__)
    assert re.search(r"arXiv \d{4}\.\d{5}|\b(19|20)\d\d\b", said.source), "neither an arXiv id nor a year"
    assert re.search(r"[=<>]", said.equation)
    runs = "ppo" if has_critic(methods.load(key)) else "grpo"
    assert said.command == f"python -m experiments.{runs} --config=configs/methods/{key}.py"


@every_method
def test_a_method_about_stale_samples_says_that_the_program_has_none(key):
    """The sampler of grpo and ppo has the newest weights: a correction for another policy has nothing to correct."""
    fns = [fn for fn in methods.bound_functions(methods.load(key)).values() if "behavior_log_probs" in needs(fn)]
    said = " ".join(methods.module_of(key).__doc__.split())
    assert ("has the newest weights: " in said and " up to numerics" in said) == bool(fns), fns


@pytest.mark.parametrize(
    "text",
    ["Name: Source.\n\n    a = b\n\n    python -m x", "Name\n\n    a = b\n\nDeparts from GRPO: x.\n\n    python -m x"],
    ids=["no departure", "no source"],
)
def test_a_docstring_that_says_too_little_is_refused(text):
    with pytest.raises(ValueError, match="Departs from GRPO"):
        methods.read_docstring(text)


# What they build.


@every_method
@pytest.mark.parametrize("arg", ["", "smoke", "game24", "stories_sentiment", "game24,smoke"])
def test_a_method_starts_from_any_task(key, arg):
    config = methods.load(key, arg)
    task = next((word for word in ("game24", "stories_sentiment") if word in arg), "arithmetic")
    assert config.name == f"{key}_{task}" + "_smoke" * ("smoke" in arg)
    plain = methods.load(FAMILY.baseline, arg)
    assert config.train.steps == plain.train.steps
    for name in ("prompts_per_step", "group_size"):
        assert config.sample[name] == plain.sample[name], "batch sizes are the task's"
    rows = config.sample.prompts_per_step * config.sample.group_size
    assert rows % (config.train.minibatches * config.train.micro_batches) == 0


@pytest.mark.parametrize(
    "path, minibatches",
    [
        ("configs/preferences/judged.py:reasoned", 2),
        ("configs/tasks/evol_rl.py", 8),
        ("configs/prompts/spo_single.py", 8),
        ("configs/agents_rows.py:iterresearch", 2),
        ("configs/agents_worlds.py:maze,oprl", 2),
    ],
)
def test_a_clip_that_a_paper_is_named_for_can_act(path, minibatches):
    """With one update a batch every ratio is 1. The schedule counts updates, so it is as much longer."""
    file, _, arg = path.partition(":")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    config, smoke = (module.get_config(",".join(filter(None, (arg, more)))) for more in ("", "smoke"))
    assert config.train.minibatches == smoke.train.minibatches == minibatches and config.train.epochs == 1
    assert config.train.optimizer.warmup_steps >= 10 * minibatches
    assert smoke.sample.prompts_per_step * smoke.sample.group_size % minibatches == 0


@every_method
def test_the_learning_rate_falls_over_the_whole_run(key):
    config = methods.load(key)
    updates = config.train.epochs * config.train.minibatches
    assert config.train.optimizer.warmup_steps + config.train.optimizer.decay_steps == updates * config.train.steps


@every_method
def test_an_unknown_word_is_refused(key):
    with pytest.raises(ValueError, match="'smokee'.*arithmetic.*smoke"):
        methods.load(key, "smokee")


def test_two_tasks_are_refused():
    with pytest.raises(ValueError, match="one task, not 2: arithmetic, game24"):
        methods.load("grpo", "game24,arithmetic")


def test_no_two_methods_are_the_same():
    said = {}
    for key in KEYS:
        config = methods.load(key)
        with config.unlocked():
            del config["name"]
        said.setdefault(config.to_json_best_effort(sort_keys=True), []).append(key)
    assert [keys for keys in said.values() if len(keys) > 1] == []


@every_method
def test_every_keyword_is_one_that_the_function_has(key):
    """Binding refuses a misspelt function or keyword; a misspelt field of the config is one that the start has not."""
    config, start = methods.load(key), methods.load("ppo" if has_critic(methods.load(key)) else "grpo")
    assert set(methods.settings(config, FAMILY)) == set(methods.settings(start, FAMILY))
    for slot, fn in methods.bound_functions(config).items():
        assert callable(fn), slot


# That they learn.

STEPS = 30  # most methods gain .7 in them, the slowest, riskpo, .38
GAIN = 0.3  # in the probability of a right answer, which starts at .23
# It learns from groups with one right answer alone, so it stops where most have two: its aim is one right answer of 8.
LESS = {"passk_best": 0.15}
# The probe's policy is less sure of its tokens than a language model, 1.1 nats at first.
FOR_THE_PROBE = {"gtpo": {"algorithm.advantage.threshold": 2.0}}


def probe_of(key: str) -> probes.Probe:
    """The probe that trains by a method's own config."""
    config = methods.load(key)
    for path, value in FOR_THE_PROBE.get(key, {}).items():
        config.update_from_flattened_dict({path: value})
    return of_config(config)


def identity(choice):
    """The same for two choices that compute the same: what is bound to which function, or a number."""
    if isinstance(choice, functools.partial):
        return choice.func, choice.args, tuple(sorted(choice.keywords.items()))
    return choice


COMPILED = {}


@functools.cache
def made(key: str) -> tuple[probes.Probe, probes.Programs]:
    """A method's probe and its programs, which methods with the same loss or the same credit share."""
    probe = probe_of(key)
    programs = probes.make_programs(probe)
    if probe.critic is not None or jax.tree.leaves(probe.memory.init()):
        return probe, programs
    loss = tuple(identity(choice) for choice in probe.policy)
    credit = tuple(identity(choice) for choice in probe.credit)
    carried = tuple(sorted(probe.memory.known({}).items())), probe.training.minibatches
    assign = COMPILED.setdefault(("assign", credit, carried), programs.assign)
    return probe, probes.Programs(assign, COMPILED.setdefault(("gradient", loss), programs.gradient))


NAN_BEHIND = 1  # of the three batches that run side by side, the one with nan behind the mask


def ragged_seen() -> probes.Seen:
    """Three ragged batches of rewards 0 and 1, off-policy, of two that are the same but behind the mask; numpy.

    The last row was cut off. The second group has a single right answer; some methods learn from such groups only.
    """
    rows = probes.GROUPS * GROUP
    batch = ragged_batch(3, rows=rows, length=probes.LENGTH)
    mask, cut = batch.mask, np.arange(rows) == rows - 1
    sampled = batch.old_log_probs + 0.1 * np.sin(batch.ref_log_probs * 20).astype(np.float32)
    first = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0] + [0.0, 0.0, 1.0] + [0.0] * 5
    rewards = np.tile(np.asarray(first, np.float32), rows // len(first))
    components = np.stack([rewards, np.tile(np.asarray([1.0, 1.0, 0.0, 1.0], np.float32), rows // 4)], axis=1)
    greedy = np.tile(np.repeat(np.asarray([0.0, 1.0], np.float32), GROUP), rows // (2 * GROUP))

    def three(x, hidden=False):
        return np.stack([np.where(mask, x, np.nan) if hidden and i == NAN_BEHIND else x for i in range(3)])

    columns = np.concatenate([np.repeat(probes.PROMPTS, GROUP)[:, None], np.zeros(mask.shape, int)], axis=1)
    blank = np.zeros_like(columns)
    tokens = TokenBatch(*(three(x.astype(np.int32)) for x in (columns, blank, blank)))
    rollout = Rollout(tokens, three(mask), *[three(sampled, True)] * 2, three(~cut), three(cut))
    scores = TokenScores(three(batch.old_log_probs, True), three(np.abs(batch.advantages), True))
    reference = three(batch.ref_log_probs, True)
    return probes.Seen(rollout, three(rewards), three(components), scores, reference, three(greedy))


def one_step(key: str):
    """(loss, gradient [R, T], mask) of the first update of the assembled method: clean, with nan behind the mask."""
    (probe, programs), seen = made(key), ragged_seen()
    carried = jax.tree.map(lambda x: np.stack([x] * 3), probe.memory.init())
    outputs = None
    if probe.critic is not None:
        shape = (*seen.rewards.shape, probes.LENGTH + 1, probe.critic.num_outputs())
        values = 0.3 + 0.1 * np.sin(np.arange(np.prod(shape[1:]), dtype=np.float32))
        outputs = np.broadcast_to(values.reshape(shape[1:]), shape)
    keys = np.stack([jax.random.key_data(jax.random.key(0))] * 3)
    batch = jax.tree.map(np.asarray, programs.assign(seen, outputs, carried, keys)[0])
    if probe.critic is not None:
        assert np.isfinite(batch.returns).all()
    rows = probes.GROUPS * GROUP // probe.training.minibatches
    part, mask = jax.tree.map(lambda x: x[:, :rows], (batch, seen.rollout.completion_mask))
    log_probs = ragged_batch(3, rows=len(seen.rewards[0]), length=probes.LENGTH).log_probs[:rows]
    hidden = np.where(mask | (np.arange(3) != NAN_BEHIND)[:, None, None], log_probs, np.nan)
    given = {"policy": TokenScores(hidden, seen.scores.entropy[:, :rows])}
    if probe.critic is not None:
        given["critic"] = outputs[:, :rows, :-1]
    gradient, metrics = programs.gradient(given, part)["policy"]
    value = np.asarray(metrics["loss"].value())
    return [(value[i], np.asarray(gradient.log_probs)[i], mask[i]) for i in (0, NAN_BEHIND)]


@pytest.mark.slow
@every_method
def test_one_step_is_finite_and_does_not_look_behind_the_mask(key):
    """By the programs that train the probe: nothing is compiled for it."""
    (value, gradient, mask), (poisoned_value, poisoned, _) = one_step(key)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 1e-4
    np.testing.assert_array_equal(poisoned_value, value)
    np.testing.assert_array_equal(poisoned, gradient)
    np.testing.assert_array_equal(zero_masked(gradient, ~mask), 0)


@pytest.mark.slow
@every_method
def test_learns(key):
    probe, programs = made(key)
    outcome = probes.train(probe, steps=STEPS, programs=programs)
    assert np.all(outcome.gain() > LESS.get(key, GAIN)), outcome


def flipped(probe: probes.Probe) -> probes.Probe:
    """Advantages with the wrong sign."""

    def advantage(rewards, *, group_size):
        return -probe.credit.advantage(rewards, group_size=group_size)

    return probe._replace(credit=probe.credit._replace(advantage=advantage))


def shuffled(probe: probes.Probe) -> probes.Probe:
    """Advantages of other rows."""

    def advantage(rewards, *, group_size, log_probs):
        key = jax.random.key(jax.lax.bitcast_convert_type(jnp.nansum(log_probs), jnp.int32))
        return jax.random.permutation(key, probe.credit.advantage(rewards, group_size=group_size))

    return probe._replace(credit=probe.credit._replace(advantage=advantage))


def detached(probe: probes.Probe) -> probes.Probe:
    """A ratio without a gradient: nothing but the KL is left of the loss."""

    def surrogate(log_probs, *rest):
        return probe.policy.surrogate(jax.lax.stop_gradient(log_probs), *rest)

    return probe._replace(policy=probe.policy._replace(surrogate=surrogate))


def unsampled(probe: probes.Probe) -> probes.Probe:
    """The wrong tokens' log-probs: those of the row before."""

    def surrogate(log_probs, *rest):
        return probe.policy.surrogate(jnp.roll(log_probs, 1, axis=0), *rest)

    return probe._replace(policy=probe.policy._replace(surrogate=surrogate))


FAULTS = [*(("grpo", fault) for fault in (flipped, shuffled, detached, unsampled)), ("dr_grpo", shuffled)]
FAULTS += [("gspo", flipped), ("ppo", detached), ("ppo", unsampled)]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "fault"), FAULTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_broken_method_does_not_learn(key, fault):
    outcome = probes.train(fault(probe_of(key)), steps=STEPS)
    assert np.all(outcome.gain() < min(LESS.values())), outcome


@pytest.mark.slow
def test_the_probe_is_ragged_and_off_policy():
    rollout = probes.sample(probes.start(), jax.random.key(0))
    lengths = np.asarray(rollout.completion_mask.sum(axis=1))
    assert set(lengths) == set(range(1, probes.LENGTH + 1))
    assert 0 < np.mean(rollout.truncated) < 0.5
    mask = np.asarray(rollout.completion_mask)
    gap = (probes.score(probes.start(), rollout.batch).log_probs - rollout.sampled_log_probs)[mask]
    assert 0.02 < np.std(gap) < 0.2
    assert np.isnan(rollout.sampled_log_probs[~mask]).all()
    rewards, components = probes.judge(rollout)
    assert set(np.asarray(rewards)) == {0.0, 1.0} and components.shape == (len(rewards), 2)


def test_the_probe_measures_what_it_samples():
    draws = [probes.judge(probes.sample(probes.start(), jax.random.key(i)))[0].mean() for i in range(100)]
    np.testing.assert_allclose(np.mean(draws), probes.accuracy(probes.start()), atol=0.02)


@pytest.mark.slow
def test_dynamic_sampling_puts_groups_with_a_spread_first():
    hard = probes.start() * 0.7

    def idle(dynamic):
        rollouts = [probes.collect(hard, jax.random.key(i), dynamic=dynamic) for i in range(5)]
        return np.mean([np.ptp(probes.judge(r)[0].reshape(-1, probes.GROUP_SIZE), axis=1) == 0 for r in rollouts])

    assert idle(True) < idle(False) / 2


# The table.


@functools.cache
def rows() -> list[methods.Method]:
    return [methods.method(key) for key in KEYS]


@pytest.mark.slow
def test_the_table_has_every_method_and_each_has_a_test():
    assert [row.key for row in rows()] == KEYS and KEYS[0] == "grpo"
    for row in rows():
        assert f"tests/configs/test_methods.py[{row.key}]" in row.tests
        for fn in methods.own_functions(row.key):
            held = [file for file, said in methods.test_files().items() if said.has(fn) and "methods" not in file]
            assert held, f"no test names {fn.__module__}.{fn.__name__} of {row.key}"
        for name in row.tests:
            assert (REPO_ROOT / name.partition("[")[0]).exists()
        assert bool(row.changes) == (row.key != "grpo")


@pytest.mark.slow
def test_the_table_has_every_preference_method_and_each_function_has_a_test():
    family = methods.FAMILIES["preference"]
    for key in methods.keys("preference"):
        row = methods.method(key)
        assert f"{family.test}[{key}]" in row.tests and row.family == "preference"
        assert bool(row.changes) == (key != "dpo")
        for fn in methods.own_functions(key):
            if fn.__name__ in ("uniform", "identity"):  # they return ones, and what they are given
                continue
            held = [file for file, said in methods.test_files().items() if said.has(fn) and "methods" not in file]
            assert held, f"no test names {fn.__module__}.{fn.__name__} of {key}"


def test_the_changes_are_the_difference_of_two_configs():
    row = methods.method("luspo")
    assert row.changes == {
        "surrogate": "gspo(clip_high=0.0025, clip_low=0.002)",
        "kl_coef": "0",
        "aggregate": "seq_mean_token_sum",
    }
    empty = {"seq_mean_token_sum": {"count_empty_rows": False}}
    assert row.defaults == {"gspo": {"clip_low": 3e-4, "clip_high": 4e-4}} | empty
    assert "tests/losses/test_aggregate.py" in row.tests and row.papers == ["2602.05261"]
    critic = methods.method("ppo").changes
    assert critic["critic.loss"].startswith("clipped(") and critic["train.epochs"] == "4"
    assert not [name for name in critic if "optimizer" in name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from rl_jax import token_weights\ntoken_weights.truncated(mask)", True),
        ("from rl_jax.token_weights import truncated as cut\ncut(mask)", True),
        ("from rl_jax.token_weights import behavior\ngetattr(behavior, 'truncated')", True),
        ("import numpy as np\nrollout.truncated", False),
        ("from rl_jax import token_weights\nrollout.truncated", False),
        ("row = {'truncated': 1}", False),
        ("from rl_jax import token_weights_of\ntoken_weights_of.truncated", False),
    ],
)
def test_which_tests_name_a_function(text, expected):
    """Names are short and may be others' too: Rollout has a field `truncated`."""
    assert methods.Named.of(methods.ast.parse(text)).has(token_weights.truncated) is expected


def test_an_ablation_is_found(monkeypatch):
    monkeypatch.setattr(methods, "ablated", lambda: {"configs/methods/gspo.py": ["configs/papers/x.py"]})
    assert methods.method("gspo").ablations == ["configs/papers/x.py"]
    assert methods.method("cispo").ablations == []


def test_arms_of_ablations_are_read():
    assert "configs/papers/spurious_rewards.py" in methods.ablated()["configs/tasks/arithmetic.py"]


@pytest.mark.slow
def test_all_the_forms_say_the_same(tmp_path, monkeypatch):
    """In this process, where the tests' files are read already."""
    paths = {name: tmp_path / f"methods.{name}" for name in ("html", "markdown", "json")}
    monkeypatch.setattr(sys, "argv", ["methods", *(f"--{name}={path}" for name, path in paths.items())])
    monkeypatch.chdir(REPO_ROOT)
    methods.main()
    written = json.loads(paths["json"].read_text())
    assert [entry["key"] for entry in written] == methods.all_keys()
    assert written[0].keys() == set(methods.Method._fields)
    page, plain = paths["html"].read_text(), paths["markdown"].read_text()
    for key in methods.all_keys():
        assert f'<section id="{key}">' in page and f"## {key}\n" in plain
    for family in methods.FAMILIES.values():
        title = f"{len(methods.keys(family.name))} {family.name} methods"
        assert f"<h2>{title}</h2>" in page and f"## {title}\n" in plain
        assert f"against {family.baseline.upper()}" in plain
    assert "1[w &lt;= 2]" in page and "1[w <= 2]" in plain
    assert "<script" not in page and "http-equiv" in page


@pytest.mark.parametrize("width", [80, 160])
def test_the_terminal_shows_the_table_and_a_page(width, capsys):
    console = methods.Console(width=width)
    console.print(methods.terminal(*methods.tables(rows()[:3])[0]))
    console.print(methods.page(rows()[1]))
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= width
    assert rows()[1].key in shown and "Departs from GRPO" in shown and "3 online methods" in shown


def test_a_method_that_is_not_there_is_refused(monkeypatch, capsys):
    """As users start it, but in this process."""
    monkeypatch.setattr(sys, "argv", ["methods", "--method=grpoo"])
    monkeypatch.delitem(sys.modules, methods.__name__)  # it is run anew, under the name of a program
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(methods.__name__, run_name="__main__")
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and "invalid choice: 'grpoo'" in said and "gspo" in said


def test_paths_are_files():
    assert pathlib.Path(FAMILY.folder) == FOLDER
