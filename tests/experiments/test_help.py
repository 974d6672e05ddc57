"""`--help` is one screen for every program; a command line that cannot be run is told what to type instead."""

import importlib.util
import pathlib
import shlex
import subprocess
import sys
import types

import pytest
from absl import flags
from ml_collections import ConfigDict, config_flags

from configs import fields
from experiments.parts import check_config, help_fields, nearest
from experiments.parts import flags as program_flags
from experiments.parts import help as program_help
from experiments.parts.help import explain, help_text, load_config, nearest_field, on_command_line, usual_config
from rl_jax.core.binding import bind
from rl_jax.losses import policy
from tests.paths import REPO_ROOT

pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")  # ml_collections calls it
PROGRAMS = tuple(help_fields.MAIN)
FLAGS_OF_ALL = {"config": "which", "workdir": "where", "compile_cache": "kept", "skip_bad_records": "left out"}
FLAGS_OF_ALL["profile"] = "which steps are traced"
GRPO, PPO = "configs/tasks/arithmetic.py", "configs/tasks/arithmetic_ppo.py"
DPO, ONLINE = "configs/preferences/given.py", "configs/preferences/online.py"
REWARD = "configs/preferences/reward_models.py"
CONTROL = "configs/control/environments.py:cartpole"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(REPO_ROOT)


def doc_of(program: str) -> str:
    """The docstring of a program, as its module has it."""
    text = (REPO_ROOT / "experiments" / f"{program.replace('.', '/')}.py").read_text(encoding="utf-8")
    return text.split('"""')[1]


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_is_one_screen(program):
    doc = doc_of(program)
    config = load_config(usual_config(doc))
    several = dict.fromkeys(program_help.SEVERAL, "")
    text = help_text(doc, config, FLAGS_OF_ALL | several, program=program, source=usual_config(doc))
    lines = text.splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 100
    assert f"python -m experiments.{program} --config={usual_config(doc)}" in text
    assert doc.split(".")[0].split()[0] in lines[0]
    for flag in ("--config=", "--workdir=", "--compile_cache=", "--skip_bad_records", "--coordinator=", "--helpfull"):
        assert flag in text
    shown = [line.split()[0] for line in lines if line[:2] == "  " and line.split()[0] in fields.FIELDS]
    assert len(shown) >= 12 and "seed" in shown
    for name in shown:
        assert fields.summary(name) not in ("", None)
    assert not [line for line in lines if line.endswith("...")], "a first sentence that is too long for its column"


@pytest.mark.parametrize("program", PROGRAMS)
def test_main_fields_are_fields(program):
    names = " ".join(help_fields.MAIN[program]).split()
    assert len(set(names)) == len(names) and set(names) <= set(fields.FIELDS)


def test_help_shows_the_values_of_the_config():
    config = load_config(GRPO)
    config.train.steps = 12345
    config.algorithm.surrogate = dict(fn="cispo", ratio_max=1.5)
    text = help_text(doc_of("grpo"), config, FLAGS_OF_ALL, program="grpo")
    assert " 12345 " in text and "cispo(ratio_max=1.5)" in text and '""' in text
    assert "--coordinator" not in text


def test_help_without_a_config():
    text = help_text(doc_of("grpo"), None, FLAGS_OF_ALL)
    assert "--workdir=FOLDER" in text and "--config=FILE.py --help" in text and "train.steps" not in text


@pytest.mark.parametrize("program", PROGRAMS)
def test_asked_for_help_a_program_exits_with_0(program, monkeypatch, capsys):
    main = types.ModuleType("__main__", doc_of(program))
    main.__spec__ = importlib.util.find_spec(f"experiments.{program}")
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(SystemExit) as stopped:
        program_help.parse_flags_helpfully([f"experiments/{program.replace('.', '/')}.py", "--help"])
    printed = capsys.readouterr().out
    assert stopped.value.code == 0 and len(printed.splitlines()) <= 60
    assert "--fork=FOLDER" in printed and "SIGTERM saves and exits with status 75" in printed
    assert "--skip_bad_records" in printed and "Main fields of configs/" in printed
    assert program_flags.FLAGS["config"].value is None  # nothing was parsed


@pytest.mark.parametrize(
    ("config", "name", "value", "said"),
    [
        (GRPO, "grpo.lr", "1e-5", "--config.train.optimizer.learning_rate=1e-5 (now 0.0003; peak learning rate"),
        (GRPO, "train.lr", "1e-5", "--config.train.optimizer.learning_rate=1e-5"),
        (GRPO, "learning_rate", None, "--config.train.optimizer.learning_rate=VALUE"),
        (GRPO, "sft.lr", "1", "--config.sft.optimizer.learning_rate=1"),
        (GRPO, "grpo.optimizer.learning_rate", "1", "--config.train.optimizer.learning_rate=1"),
        (GRPO, "grpo.kl_coef", "0.1", "--config.algorithm.kl_coef=0.1 (now 0.0; weight of the KL in the loss)"),
        (GRPO, "grpo.kl", "k1", "--config.algorithm.kl.fn=k1"),
        (GRPO, "grpo.selection.fn", "high", "--config.algorithm.token_selection.fn=high"),
        (GRPO, "grpo.surrogate.clip_high", "0.3", "--config.algorithm.surrogate.clip_high=0.3"),
        (GRPO, "grpo.steps", "4", "--config.train.steps=4"),
        (GRPO, "trian.steps", "4", "--config.train.steps=4"),
        (GRPO, "train.stepz", "4", "--config.train.steps=4"),
        (GRPO, "algorithm.group_sise", "4", "--config.sample.group_size=4 (now 8; completions per prompt)"),
        (GRPO, "num_generations", "4", "--config.sample.group_size=4"),
        (GRPO, "batch_size", "4", "--config.sample.prompts_per_step=4"),
        (GRPO, "max_steps", "4", "--config.train.steps=4"),
        (GRPO, "lr_scheduler_type", "linear", "--config.train.optimizer.decay=linear"),
        (GRPO, "optim", "lion", "--config.train.optimizer.rule.fn=lion"),
        (GRPO, "stop_sequences", "x", "--config.rollout.stop_strings=x"),
        (GRPO, "num_completions_to_print", "3", "--config.log.print_completions=3"),
        (GRPO, "beta", "0.1", "--config.algorithm.kl_coef=0.1"),
        (GRPO, "epsilon", "0.1", "algorithm.surrogate.clip_high"),
        (GRPO, "algorithm.surrogate.clip_hi", "0.3", "--config.algorithm.surrogate.clip_high=0.3 (now 0.2)"),
        (GRPO, "algorithm.surogate.fn", "cispo", "--config.algorithm.surrogate.fn=cispo"),
        (GRPO, "algoritm", "x", "the group config.algorithm, which has "),
        (GRPO, "task.digit", "2", "--config.task.digits=2"),
        (GRPO, "train.steps.x", "2", "config.train.steps is a value, 200, not a group"),
        (GRPO, "qqqq", "2", "Its groups and fields: algorithm, "),
        (DPO, "dpo.beta", "1", "--config.algorithm.beta=1"),
        (REWARD, "data.path", "a.jsonl", "--config=configs/preferences/reward_models.py:given; in another config: "),
        (REWARD, "data.path", "a.jsonl", "--config.data=\"{'name': 'given', 'data_dir': "),
        (REWARD, "data.nonsense", "1", "config.data has annotators, "),
        (DPO, "dpo.epochs", "1", "--config.train.data_epochs=1"),
        (DPO, "loss_type", "square", "--config.algorithm.link.fn=square"),
        (ONLINE, "online.selection", "best_worst", "--config.algorithm.pair_selection.fn=best_worst"),
        (CONTROL, "lr", "1", "--config.train.optimizer.learning_rate=1"),
        (CONTROL, "gamma", "0.9", "--config.algorithm.advantage.discount=0.9"),
        (CONTROL, "total_timesteps", "9", "--config.train.total_steps=9"),
        (PPO, "critic_lr", "1", "--config.critic.optimizer.learning_rate=1"),
        (PPO, "vf_coef", "1", "--config.critic.value_coef=1"),
        (PPO, "algorithm.advantage.fn", "vtrace", "--config.critic.advantage.fn=vtrace"),
    ],
)
def test_nearest_field(config, name, value, said):
    text = nearest_field(load_config(config), name, value)
    assert text.startswith(f"there is no field config.{name}") and "\n" not in text
    assert said in text


@pytest.mark.parametrize(
    ("config", "arguments", "name", "expected"),
    [
        (GRPO, ["--config.algorithm.surrogate.fn=cispo"], "algorithm.surrogate.ratio_max", dict(fn="cispo")),
        (GRPO, [], "algorithm.advantage.ddof", dict(fn="group_relative")),
        (GRPO, [], "algorithm.surrogate.dual_clip", dict(fn="dual_clip", clip_low=0.2, clip_high=0.2)),
        (GRPO, [], "grpo.advantage.ddof", dict(fn="group_relative")),
        (CONTROL, [], "env.fresh_starts", None),
    ],
)
def test_a_group_with_fn_is_replaced_as_a_whole(config, arguments, name, expected):
    """What is advised can be typed: it gives the function with its old keywords and the new one."""
    argv = [f"--config={config}", *arguments, f"--config.{name}=3"]
    text, overrides = on_command_line(["program", *argv])
    said = nearest_field(load_config(text), name, "3", overrides)
    advised = next(word for word in shlex.split(said) if word.startswith("--config."))
    parsed = parse([argv[0], advised])
    group = name.rpartition(".")[0].replace("grpo", "algorithm")
    key = name.rpartition(".")[2]
    before = check_config.get(load_config(config), group).to_dict()
    assert check_config.get(parsed, group).to_dict() == (before if expected is None else expected) | {key: 3}


def test_an_open_group_is_repeated_with_what_the_command_line_sets():
    given = {"env.name": "gymnasium/CartPole-v1", "env.mode": "async", "train.total_steps": "9"}
    said = nearest_field(load_config(CONTROL), "env.mode", "async", given)
    assert "'name': 'gymnasium/CartPole-v1', 'mode': 'async'}" in said and "gymnax" not in said and "'9'" not in said


def test_a_keyword_names_the_functions_that_take_it():
    said = nearest_field(load_config(GRPO), "algorithm.surrogate.ratio_max", "1.28")
    assert "of rl_jax.losses.policy" in said and "cispo" in said and "'ratio_max': 1.28}\"" in said
    advised = next(word for word in shlex.split(said) if word.startswith("--config."))
    bind(parse([f"--config={GRPO}", advised]).algorithm.surrogate.to_dict(), policy)
    said = nearest_field(load_config(GRPO), "algorithm.surrogate.nonsense", "1")
    assert "No function of rl_jax.losses.policy has a keyword nonsense; clipped_surrogate takes clip_low" in said


def test_other_names_lead_to_fields():
    """No entry of the tables is left over: each names fields, or keywords that a shipped config has."""
    known = {name for config in (GRPO, PPO, DPO, ONLINE, CONTROL) for name in nearest._names(load_config(config))}
    known |= set(fields.FIELDS)
    for name, ends in nearest.OTHER_NAMES.items():
        for end in ends.split():
            assert any(f".{field}".endswith(f".{end}") for field in known), f"{name} -> {end}"
    assert set(nearest.RENAMED.values()) <= known


def flags_of(arguments: list[str]) -> flags.FlagValues:
    """The flags of a program, of which these are the arguments, not parsed yet."""
    found = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, "which", flag_values=found, sys_argv=["program", *arguments])
    flags.DEFINE_string("workdir", None, "where", flag_values=found)
    flags.mark_flag_as_required("config", found)
    return found


def parse(arguments: list[str]) -> ConfigDict:
    """The config of a command line, by ml_collections alone. Raises what it raises."""
    found = flags_of(arguments)
    found(["program", *arguments])
    return found.config


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([f"--config={GRPO}", "--config.grpo.lr=3"], "--config.train.optimizer.learning_rate=3"),
        ([f"--config={GRPO}", "--config.model.embed_dimm", "32"], "--config.model.embed_dim=32"),
        ([f"--config={GRPO}", "--noconfig.log.progres"], "--config.log.progress"),
        ([f"--config={GRPO}", "--config.train.steps=abc"], "--config.train.steps=abc: invalid literal for int"),
        ([f"--config={GRPO}", "--config.algorithm.mask_truncated=maybe"], "--config.algorithm.mask_truncated=maybe"),
        ([f"--config={GRPO}:smokee"], f"--config={GRPO}:smokee: config argument ['smokee'] is none of smoke, shuffled"),
        (["--config.train.steps=3", f"--config={GRPO}"], "before a value for --config"),
        ([f"--config={GRPO}", "--wrkdir=x"], "Did you mean: workdir? --help lists the flags"),
        (["--config=configs/tasks/arithmetik.py", "--config.seed=1"], "the nearest is configs/tasks/arithmetic.py"),
        (["--config=configs/gspo.py", "--config.seed=1"], "the nearest is configs/methods/gspo.py"),
        (["--config=configs/tasks", "--config.seed=1"], "configs/tasks is a folder"),
        (["--config.seed=1"], f"--config=FILE.py is missing, as in --config={GRPO}"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_explain(arguments, said):
    found = None
    try:
        parse(arguments)
    except Exception as error:  # of ml_collections, whose dicts raise many kinds
        found = error
    text = explain(found, ["program", *arguments], doc_of("grpo"))
    assert said in text and "\n" not in text and "Traceback" not in text


def test_every_missing_field_is_told_of():
    argv = ["program", f"--config={GRPO}", "--config.grpo.lr=3", "--config.seed=1", "--config.grpo.kl_coef=.1"]
    lines = explain(KeyError("grpo"), argv).splitlines()
    assert len(lines) == 2 and "learning_rate" in lines[0] and "algorithm.kl_coef" in lines[1]


def test_a_mistake_in_a_config_file_keeps_its_traceback(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def get_config():\n    return nonsense\n")
    assert explain(NameError("nonsense"), ["program", f"--config={path}"]) is None
    path.write_text("import pathlib\ndef get_config():\n    return pathlib.Path('nowhere.txt').read_text()\n")
    assert "nowhere.txt" in explain(OSError(), ["program", f"--config={path}"])


def test_an_error_of_the_program_is_not_explained():
    assert explain(KeyError("x"), ["program", f"--config={GRPO}", "--config.seed=1"]) is None


def test_on_command_line(tmp_path):
    file = tmp_path / "flags.txt"
    file.write_text("--config.seed=4\n")
    argv = ["program", "-config", "a.py:x", "--config.train.steps", "3", "--noconfig.log.progress", "--workdir=w"]
    argv += [f"--flagfile={file}", "--config.mesh=data:2", "--", "--config.name=later"]
    text, overrides = on_command_line(argv)
    assert text == "a.py:x"
    assert overrides == {"train.steps": "3", "log.progress": None, "seed": "4", "mesh": "data:2"}


def test_other_program():
    argv = ["grpo.py", "--config=configs/methods/ppo.py:smoke", "--workdir=a b"]
    config = load_config("configs/methods/ppo.py:smoke")
    said = program_help.other_program("experiments.grpo", config, argv)
    assert said == (
        "this config is for experiments.ppo: python -m experiments.ppo --config=configs/methods/ppo.py:smoke "
        "'--workdir=a b'"
    )
    for name in ("experiments.ppo", "experiments.sft", "experiments.evaluate", "experiments.plan", "my_fork"):
        assert program_help.other_program(name, config, argv) is None
    control = load_config(CONTROL)
    assert "experiments.control.ppo" in program_help.other_program("experiments.sft", control, argv)
    assert program_help.other_program("experiments.grpo", ConfigDict(), argv) is None
    moved = program_help.other_program("experiments.grpo", ConfigDict({"program": "control_ppo"}), argv)
    assert moved == "config.program='control_ppo': experiments has no such program; nearest: 'control.ppo'"
    argv = ["ppo.py", "--config=configs/task.py:lora", "--config.seed=1"]  # a file with a word for this program
    said = program_help.other_program("experiments.ppo", load_config("configs/task.py:lora"), argv)
    assert said.endswith("--config.seed=1, or for experiments.ppo: --config=configs/task.py:ppo,lora")


def test_nearest_config_file_is_found_beside_it(tmp_path):
    (tmp_path / "my_config.py").touch()
    assert program_help.no_config_file(str(tmp_path / "my_confg.py")).endswith(str(tmp_path / "my_config.py"))
    assert program_help.no_config_file("nowhere/zzz.py") == "there is no config file nowhere/zzz.py"


def started(*arguments: str) -> subprocess.CompletedProcess:
    """experiments.grpo, started as a user does."""
    command = [sys.executable, "-m", "experiments.grpo", *arguments]
    return subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_help_of_a_program_that_is_started():
    done = started("--config=configs/tasks/arithmetic.py:smoke", "--config.train.steps=77", "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert "Main fields of configs/tasks/arithmetic.py:smoke" in done.stdout and " 77 " in done.stdout
    assert len(done.stdout.splitlines()) <= 60 and "--num_processes=N" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([f"--config={GRPO}", "--config.grpo.lr=3"], "--config.train.optimizer.learning_rate=3"),
        ([f"--config={GRPO}", "--config.train.minibatches=3"], "must be a multiple of train.minibatches=3"),
        ([f"--config={GRPO}", "--config.train.steps=-3"], "train.steps=-3 must be 0 or more"),
        ([f"--config={GRPO}", "train.steps=3"], "['train.steps=3']; a field is set by --config.train.steps=3"),
        ([f"--config={GRPO}", "steps"], "unexpected arguments: ['steps']"),
        ([f"--config={PPO}"], f"this config is for experiments.ppo: python -m experiments.ppo --config={PPO}"),
        (["--config=configs/tasks/hf.py"], "model.path: give --config.model.path=FOLDER"),
        (["--config=configs/arithmetic.py"], "the nearest is configs/tasks/arithmetic.py"),
        ([], f"--config=FILE.py is missing, as in --config={GRPO}"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) and value else "",
)
def test_what_cannot_be_run_ends_the_program_with_a_line(arguments, said, monkeypatch):
    monkeypatch.setattr(program_help, "FLAGS", flags_of(arguments))
    monkeypatch.setattr(program_help, "started", lambda: ("experiments.grpo", doc_of("grpo")))
    with pytest.raises(SystemExit) as stopped:
        program_help.parse_flags_helpfully(["program", *arguments])
    text = str(stopped.value)
    assert stopped.value.code == 2 and text.startswith("experiments.grpo: ") and said in text
    assert "\n" not in text


def test_what_can_be_run_is_parsed(monkeypatch):
    arguments = [f"--config={GRPO}:smoke", "--config.train.steps=3", "--workdir=w"]
    monkeypatch.setattr(program_help, "FLAGS", found := flags_of(arguments))
    monkeypatch.setattr(program_help, "started", lambda: ("experiments.grpo", doc_of("grpo")))
    assert program_help.parse_flags_helpfully(["program", *arguments]) == ["program"]
    assert found.config.train.steps == 3 and found.workdir == "w"


def test_a_bug_in_a_config_is_raised(monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text("def get_config():\n    return nonsense\n")
    arguments = [f"--config={tmp_path / 'mine.py'}"]
    monkeypatch.setattr(program_help, "FLAGS", flags_of(arguments))
    with pytest.raises(NameError, match="nonsense"):
        program_help.parse_flags_helpfully(["program", *arguments])


@pytest.mark.slow
def test_a_program_that_is_started_says_it_without_a_traceback(tmp_path):
    folder = tmp_path / "run"
    arguments = ["--config.train.minibatches=3", "--config.algorithm.advantage.fn=group_relativ"]
    done = started("--config=configs/tasks/arithmetic.py:smoke", f"--workdir={folder}", *arguments)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.startswith("experiments.grpo: algorithm.advantage: rl_jax.advantages has no function 'group_rel")
    assert len(done.stderr.splitlines()) == 2 and "train.minibatches=3" in done.stderr and not folder.exists()


def test_the_screen_names_a_file_that_exists():
    assert (REPO_ROOT / "configs" / "fields.py").is_file() and pathlib.Path(program_help.ROOT) == REPO_ROOT


def test_a_plan_needs_no_data(monkeypatch):
    """The sets that a config names may not be here yet; a program that reads them is refused."""

    class Flags:
        config = None

        def __call__(self, argv):
            return argv

    def missing(config):
        raise ValueError("missing data files: task.path=x")

    replaced = {"FLAGS": Flags(), "other_program": lambda *_: None, "_check_config_file": lambda _: None}
    for name, value in replaced.items():
        monkeypatch.setattr(program_help, name, value)
    monkeypatch.setattr(program_help.check_config, "check", lambda config: None)
    monkeypatch.setattr(program_help.real_data, "check", missing)
    assert program_help._parsed("experiments.plan", "", ["plan"]) == ["plan"]
    with pytest.raises(SystemExit):
        program_help._parsed("experiments.grpo", "", ["grpo"])
