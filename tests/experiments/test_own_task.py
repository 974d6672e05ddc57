"""A folder of one's own beside the clone: a model, prompts, pairs, a reward and a task, by the programs as they are."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from absl import flags
from ml_collections import config_flags

from configs import task as own_config
from configs.preferences import best_of_n, given, online, reward_models
from configs.tasks import arithmetic, arithmetic_ppo
from experiments.parts import check_config, judging, own_folder, preference_data, prompt_limits, reward_spec, warm_start
from experiments.parts import setup as setup_part
from experiments.parts.encoding import encode_prompts
from experiments.parts.setup import make_setup
from experiments.sweep import points
from rl_jax.data import readers
from tests.experiments import tiny_folder
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.paths import REPO_ROOT

pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")  # ml_collections calls it
REWARD = """
def brief(prompt, completion, info, *, per_character=0.01):
    return {"reward": 1.0 - per_character * len(completion), "even": float(len(completion) % 2 == 0)}
"""
TASK = """
from rl_jax.tasks import Task
from rl_jax.tokenizers import CharTokenizer

RECORDS = [{"prompt": f"{i}+1=", "completion": str(i + 1), "info": "{}"} for i in range(8)]


def load(*, shift=0):
    return Task("mine", CharTokenizer("0123456789+="), lambda split: RECORDS[shift:], score)


def score(prompt, completion, info):
    return {"reward": float(completion == str(int(prompt[0]) + 1))}
"""
# What a user sets: the files, their columns, the folder, the reward. The rest makes it small.
FILES = ["task.path=prompts.jsonl", "task.prompt=question", "task.answer=solution", "task.source=kind"]
FILES += ["task.test_share=0.4"]
FOLDER = ["model.path=qwen", "model.chat=True", "model.template={'enable_thinking': False}"]
SMALL = (
    "train.steps=2 train.micro_batches=1 rollout.completion_length=8 rollout.prompt_buckets=(48,) "
    "eval.every=2 eval.num_prompts=4 eval.batch_size=4 checkpoint.every=2 score.chunk=8 "
    "log.tensorboard=False log.progress=False"
).split()
POLICY = (
    "sample.prompts_per_step=4 train.minibatches=1 train.optimizer.learning_rate=0.01 train.optimizer.warmup_steps=0 "
    "reward.time_limit_s=60.0"
).split()


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The user's folder; modules in it have names that no other test has."""
    folder = tmp_path_factory.mktemp("mine")
    tiny_folder.qwen3(folder / "qwen")
    prompts = [
        {"question": f"What is {i} + 1?", "solution": i + 1, "kind": "hard" if i % 2 else "easy"} for i in range(24)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    pairs = [
        {"question": [{"role": "user", "content": f"{i} + 1?"}], "good": str(i + 1), "bad": f"{i + 2}."}
        for i in range(40)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    (folder / "rewards_of_mine.py").write_text(REWARD)
    (folder / "task_of_mine.py").write_text(TASK)
    return folder


@pytest.fixture
def inside(mine, monkeypatch):
    """The test is in the folder, as `python -m` is when it is started there."""
    monkeypatch.chdir(mine)
    monkeypatch.syspath_prepend(mine)  # not setattr: it would end the sharing of programs
    return mine


def parsed(config, fields):
    """The config as a program gets it from its command line, checked."""
    values, arguments = flags.FlagValues(), ["program", f"--config={config}", *(f"--config.{x}" for x in fields)]
    own_folder.of_command_line(arguments)
    arguments = reward_spec.expand_terms(arguments)
    config_flags.DEFINE_config_file("config", None, flag_values=values, sys_argv=arguments)
    values(arguments)
    check_config.check(values.config)
    return values.config


def run(program, config, fields, workdir, *further):
    """A program in this process, from its command line's arguments."""
    return importlib.import_module(f"experiments.{program}").run(parsed(config, [*fields, *SMALL, *further]), workdir)


def metrics(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_prompts_a_model_and_a_reward_of_ones_own(inside, tmp_path):
    """GRPO, its evaluation, PPO, DPO and a reward model. tests/experiments/test_own_folder.py starts processes."""
    data = f"data_dir={tmp_path / 'data'}"
    terms = "reward.terms=rewards_of_mine:brief,0.5*task"
    here = [*FILES, f"task.{data}", *FOLDER, terms, *POLICY]
    run("grpo", "configs/task.py", [*here, "sample.group_size=4", "reward.num_workers=1"], Path("runs/grpo"))
    shared = [*here, "reward.num_workers=0"]
    rows = metrics(inside / "runs" / "grpo")
    assert rows[1]["grad_norm"] > 0 and {"reward/brief", "reward/brief/even", "reward/task"} <= set(rows[1])
    assert {"eval/reward/source/easy", "eval/reward/source/hard", "eval/pass@1/source/easy"} <= set(rows[-1])
    assert {name for row in rows for name in row} >= {"reward/source/easy", "reward/source/hard"}
    assert (inside / "runs" / "grpo" / "hf" / "model.safetensors").exists()
    samples = [json.loads(line) for line in (inside / "runs" / "grpo" / "samples.jsonl").read_text().splitlines()]
    assert samples[0]["prompt"].startswith("What is ") and set(samples[0]["info"]) == {"kind", "answer", "source"}

    evaluated = run("evaluate", "configs/task.py", [*shared, "init_from=runs/grpo"], tmp_path / "evaluate")
    last = {name: value for name, value in rows[-1].items() if name.startswith("eval/")}
    assert evaluated == pytest.approx({name: last[name] for name in evaluated})
    # Groups of GRPO's size, and no evaluation: PPO samples by GRPO's program.
    fields = [*shared, "sample.group_size=4", "critic.micro_batches=1", "critic.warmup_steps=0"]
    run("ppo", "configs/task.py:ppo", fields, tmp_path / "ppo", "eval.every=0")
    assert {"value/loss", "reward/brief", "reward/source/easy"} <= set().union(*metrics(tmp_path / "ppo"))

    columns = "data.columns={'prompt': 'question', 'chosen': 'good', 'rejected': 'bad'}"
    pairs = ["data.path=pairs.jsonl", columns, f"data.{data}", FOLDER[0], "train.batch_size=4"]
    run("dpo", "configs/preferences/given.py:pretrained", pairs, tmp_path / "dpo")
    assert metrics(tmp_path / "dpo")[-1]["eval/loss"] > 0
    config = "configs/preferences/reward_models.py:given,pretrained"
    run("reward_model", config, pairs, tmp_path / "reward_model")
    assert "held_out" in json.loads((tmp_path / "reward_model" / "evaluation.json").read_text())


CONFIGS = {
    "grpo": arithmetic.get_config,
    "ppo": arithmetic_ppo.get_config,
    "sft": arithmetic.get_config,
    "evaluate": own_config.get_config,
    "dpo": given.get_config,
    "reward_model": reward_models.get_config,
    "online_dpo": online.get_config,
    "best_of_n": best_of_n.get_config,
}


@pytest.mark.parametrize("program", CONFIGS)
def test_every_program_takes_a_task_and_a_reward_by_import_path(inside, program):
    """The setup that each program begins with, from its own config."""
    config = CONFIGS[program]("smoke")
    config.task = dict(name="task_of_mine:load", shift=2)
    with config.unlocked():
        config.reward.function = "rewards_of_mine:brief"
    found = make_setup(config)
    assert found.task.name == "mine" and len(found.task.data_source("train")) == 6
    assert found.task.reward_fn.__module__ == "rewards_of_mine"
    assert found.model.vocab_size == 15


def test_fields_of_another_task_are_said_to_be_in_the_way(inside):
    config = arithmetic.get_config("smoke")
    config.task.name = "task_of_mine:load"
    with pytest.raises(ValueError, match=r"takes no data_dir.*--config.task=\"{'name': 'task_of_mine:load'}\" with"):
        make_setup(config)


def test_a_config_of_the_clone_is_found_from_anywhere(inside):
    arguments = ["program", "--config=configs/task.py:smoke", "--config.seed=1"]
    own_folder.of_command_line(arguments)
    assert arguments == ["program", f"--config={REPO_ROOT}/configs/task.py:smoke", "--config.seed=1"]
    arguments = ["program", "--config", "nowhere.py"]
    own_folder.of_command_line(arguments)
    assert arguments == ["program", "--config", "nowhere.py"]


def small(inside, tmp_path, **rollout):
    """A config on bytes, with the folder's prompts."""
    config = own_config.get_config("smoke")
    config.task.update(path="prompts.jsonl", prompt="question", answer="solution", data_dir=str(tmp_path / "data"))
    config.rollout.update(rollout)
    return config


def test_prompts_over_the_widest_bucket_stop_are_dropped_or_cut(inside, tmp_path, capsys):
    """ "What is 9 + 1?" has 15 tokens with its BOS, two digits one more."""
    limits = dict(prompt_buckets=(15,))
    stopped = make_setup(small(inside, tmp_path, **limits))
    with pytest.raises(readers.DataError, match=r"over 15 .*longest 16.: the .*first is .*prompts.jsonl, line \d+, 16"):
        stopped.task.data_source("train")
    dropped = make_setup(small(inside, tmp_path, long_prompts="drop", **limits)).task.data_source("train")
    every = make_setup(small(inside, tmp_path, prompt_buckets=(16,))).task.data_source("train")
    texts = [dropped[i]["prompt"] for i in range(len(dropped))]
    assert texts == [every[i]["prompt"] for i in range(len(every)) if len(every[i]["prompt"]) == 14] and texts
    assert dropped.num_skipped == len(every) - len(dropped) > 0 and dropped.report == every.report
    said = capsys.readouterr().out
    assert said.count("rollout.long_prompts=drop") == 1 and f"{dropped.num_skipped} of {len(every)} prompts" in said
    setup = make_setup(small(inside, tmp_path, long_prompts="cut", **limits))
    assert len(setup.task.data_source("train")) == len(every)
    tokens, mask = encode_prompts(setup, [{"prompt": "What is 10 + 1?"}, {"prompt": "1?"}])
    assert tokens.shape == (2, 15) and mask.sum(axis=1).tolist() == [15, 3]
    assert tokens[0, 0] == setup.task.tokenizer.bos_id
    assert setup.task.tokenizer.decode(tokens[0].tolist()) == "hat is 10 + 1?"
    with pytest.raises(readers.DataError, match="so that none is left: add a wider bucket"):
        make_setup(small(inside, tmp_path, long_prompts="drop", prompt_buckets=(4,))).task.data_source("test")
    with pytest.raises(ValueError, match="rollout.long_prompts='trim' is none of stop, drop, cut"):
        prompt_limits.limited(small(inside, tmp_path, long_prompts="trim"), stopped.task)


def test_training_prompts_of_the_test_file_are_said_once(inside, tmp_path, capsys):
    config = small(inside, tmp_path)
    config.task.test_path = "prompts.jsonl"
    task = make_setup(config).task
    count = len(task.data_source("train"))
    task.data_source("test")
    task.data_source("train")
    said = f"{count} of {count} training records have a prompt of the test file"
    assert capsys.readouterr().out.count(said) == 1
    config.task.test_path = ""
    make_setup(config).task.data_source("train")
    assert "training records" not in capsys.readouterr().out


def test_the_templates_arguments_and_chats(inside, tmp_path):
    config = parsed("configs/task.py:smoke", [*FILES, f"task.data_dir={tmp_path}", *FOLDER])
    setup = make_setup(config)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1?"}]

    def written(**record):
        tokenizer = setup.task.tokenizer
        return tokenizer.decode(tokenizer.encode(prompt_limits.prompt_of(record), bos=True), keep_special=True)

    empty = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert written(prompt="1?") == "<|im_start|>user\n1?<|im_end|>\n" + empty
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1?<|im_end|>\n" + empty
    assert written(prompt="1?", messages=chat) == expected
    config.model.chat = False
    with config.unlocked():
        del config.model.template.enable_thinking
    setup = make_setup(config)
    assert written(prompt="1?") == "1?"  # a text stays one; a chat is one
    assert written(prompt="1?", messages=chat[1:]) == "<|im_start|>user\n1?<|im_end|>\n<|im_start|>assistant\n"


def test_what_is_missing_is_said_before_anything_is_loaded(inside, tmp_path):
    with pytest.raises(ValueError, match=r"task.path: give --config.task.path=PROMPTS.jsonl, a JSON object") as found:
        check_config.check(own_config.get_config())
    assert "model.path: give --config.model.path=FOLDER" in str(found.value) and "task.py:scratch" in str(found.value)
    (tmp_path / "unjudged.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    config = small(inside, tmp_path)
    config.task.update(path=str(tmp_path / "unjudged.jsonl"), prompt="prompt", answer="answer")
    for program in ("grpo", "evaluate"):
        said = r"'records' has no reward of its own: no record has .*config.task.answer=COLUMN .*, or name one of yours"
        with pytest.raises(ValueError, match=said):
            importlib.import_module(f"experiments.{program}").run(config, tmp_path / program)


def test_means_are_kept_apart_by_source():
    records = [{"source": "a"}, {"source": "b"}, {}, {"source": "a"}]
    found = judging.by_source(records, {"reward": np.float32([1, 2, 30, 4]), "pass@1": np.float32([0, 1, 1, 1])})
    wanted = {"reward/source/a": 2.5, "reward/source/b": 2.0, "pass@1/source/a": 0.5, "pass@1/source/b": 1.0}
    assert found == wanted and judging.by_source([{}], {"reward": np.float32([1])}) == {}


@pytest.mark.slow
def test_preferences_are_prompts_for_sft_and_evaluation(inside, tmp_path):
    """sft and evaluate on a config of dpo: the chosen responses, the prompts."""
    config = given.get_config("smoke")
    columns = dict(prompt="question", chosen="good", rejected="bad")
    config.data.update(path="pairs.jsonl", columns=columns, data_dir=str(tmp_path))
    config.model.path = "qwen"
    setup = preference_data.with_data(make_setup(config))
    record = setup.task.data_source("sft_train")[0]
    number = int(record["prompt"].removeprefix("User: ").split()[0])
    assert record["completion"] == str(number + 1) and record["messages"][0]["content"] == f"{number} + 1?"
    test = setup.task.data_source("test")
    assert len(test) > 0 and test.num_skipped == 0 and json.loads(test[0]["info"])["messages"] == test[0]["messages"]
    tokens = encode_prompts(setup, [record])[0][0].tolist()
    chat = f"<|im_start|>user\n{number} + 1?<|im_end|>\n<|im_start|>assistant\n"
    assert setup.task.tokenizer.decode(tokens, keep_special=True).endswith(chat)
    plain = arithmetic.get_config("smoke")
    plain.task.update(data_dir=str(tmp_path), num_train=100, num_test=20)
    setup = make_setup(plain)
    assert preference_data.with_data(setup) is setup


def test_files_of_the_hub_among_others(inside, tmp_path, monkeypatch):
    there = (inside / "prompts.jsonl").resolve()
    asked = []
    monkeypatch.setattr(setup_part.hub, "local_folder", lambda path, **_: asked.append(path) or str(there))
    config = small(inside, tmp_path)
    config.task.path = "a=hf://datasets/org/name@main/x.jsonl,b=prompts.jsonl"
    sources = make_setup(config).task.data_source("train").report["sources"]["train"]
    assert set(sources) == {"a", "b"} and asked == ["hf://datasets/org/name@main/x.jsonl"]


def test_dtype_auto_is_bfloat16_on_an_accelerator(monkeypatch):
    fields = own_config.get_config("lora").model
    assert fields.dtype == "auto" and setup_part.policies_of(fields)["dtype"] == "float32"  # the tests run on a CPU
    monkeypatch.setattr(setup_part.jax, "default_backend", lambda: "gpu")
    assert setup_part.policies_of(fields)["dtype"] == "bfloat16"
    assert setup_part.policies_of(fields.to_dict() | {"dtype": "float32"})["dtype"] == "float32"


def test_sweeps_find_a_config_of_the_clone(inside):
    assert points.load_config("configs/task.py:smoke").task.path == "EXAMPLE"


def test_a_rate_for_scratch_on_a_pretrained_model_is_said():
    config = given.get_config()
    assert warm_start.harmful_rate(config) == ""
    config.model.path = "qwen"
    said = "sft.optimizer.learning_rate=0.001 is for a model from scratch: qwen would forget"
    assert said in warm_start.harmful_rate(config)
    config.sft.optimizer.learning_rate = 1e-5
    assert warm_start.harmful_rate(config) == "" == warm_start.harmful_rate(own_config.get_config())
