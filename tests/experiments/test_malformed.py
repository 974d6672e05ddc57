"""What a command line, a config, a folder or data can get wrong is refused before anything is compiled or trained.

One table: the program, its arguments, the files that it finds, and the words that the message must hold. Each program's
own entry function runs in this process; the builders of steps, rollouts and environments fail the test if they are
reached. A refusal has a message on standard error, no traceback, and exit status 2.
"""

import contextlib
import copy
import importlib
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from absl import app, flags

from experiments.parts import control_loop, devices, processes, refusals, training
from experiments.parts import flags as program_flags
from experiments.parts import help as program_help
from experiments.parts.run import Run
from rl_jax.models.hf import tensor_files
from rl_jax.training import compilation
from tests.experiments import tiny_folder
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.paths import REPO_ROOT

pytestmark = [
    pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning"),  # ml_collections calls it
    pytest.mark.usefixtures("kept_signals"),
]
CONFIGS = {
    "grpo": "configs/tasks/arithmetic.py:smoke",
    "grpo_async": "configs/grpo_async.py:smoke",
    "ppo": "configs/tasks/arithmetic_ppo.py:smoke",
    "dpo": "configs/preferences/given.py:smoke",
    "online_dpo": "configs/preferences/online.py:smoke",
    "masked_diffusion": "configs/masked_diffusion.py:smoke",
    "sft": "configs/tasks/arithmetic.py:smoke",
    "reward_model": "configs/preferences/reward_models.py:smoke",
    "evaluate": "configs/tasks/arithmetic.py:smoke",
    "best_of_n": "configs/preferences/best_of_n.py:smoke",
    "control.ppo": "configs/control/environments.py:matching,smoke",
    "control.preferences": "configs/control/preferences.py:matching,smoke",
    "control.replay": "configs/control/replay.py:matching,smoke",
    "control.offline": "configs/control/offline.py:matching,smoke",
    "control.asynchronous": "configs/control/asynchronous.py:smoke",
}
TOOLS = {
    "report": "experiments.report.cli",
    "runs": "experiments.tools.runs",
    "sweep": "experiments.sweep.cli",
    "score": "experiments.score.cli",
    "reverify": "experiments.reverify.cli",
    "export": "experiments.export.cli",
    "ablation": "experiments.ablation.cli",
}
SMALL = {  # of the tasks that are read: quick to make
    "configs/tasks/arithmetic.py": ["task.num_train=64", "task.num_test=16"],
}
HF = "configs/tasks/hf.py"
OWN = "configs/task.py:smoke"
NAN = math.nan


class Case(NamedTuple):
    """One line of the table.

    Attributes:
      program: of experiments.
      given: its arguments; "a.b=value" is --config.a.b=value, and without a --config it gets its usual one.
      words: that the message must hold.
      files: name -> content (text, bytes or a JSON value), or a function of the folder that makes it.
    """

    program: str
    given: list[str]
    words: list[str]
    files: dict[str, Any] = {}


def bad(program: str, given: str | list[str], *words: str, **files) -> Case:
    """A Case; `given` may be a single argument. In names of files "__" is a slash, and "_dot_" a dot."""
    names = {name.replace("__", "/").replace("_dot_", "."): content for name, content in files.items()}
    return Case(program, [given] if isinstance(given, str) else given, list(words), names)


def lines(*records: Any) -> str:
    """The text of a file of JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records)


PAIR = {"prompt": "2+2=", "chosen": "4", "rejected": "5"}
OPPOSITE = {"prompt": "2+2=", "chosen": "5", "rejected": "4"}
MANY = lines(*({"prompt": f"{i}+1=", "chosen": f"{i + 1}", "rejected": f"{i}"} for i in range(40)))
PATH = "data.path=pairs.jsonl"
RUN = {
    "config.json": {"name": "a"},
    "run.json": {"algorithm": "grpo", "task": "x", "started": "", "resumed": [], "attempts": []},
    "metrics.jsonl": lines({"step": 0, "reward/mean": 0.5}, {"step": 1, "reward/mean": 0.75}),
}
A_RUN = {f"run/{name}": content for name, content in RUN.items()}


def hf_folder(**changes) -> Callable[[pathlib.Path], None]:
    """Makes a tiny model's folder with other fields of config.json; file.json__field=value changes another file."""

    def make(place: pathlib.Path) -> None:
        shutil.copytree(tiny_model(), place)
        for name, value in changes.items():
            file, _, field = name.rpartition("__")
            path = place / f"{file or 'config'}.json"
            content = json.loads(path.read_text()) if path.exists() else {}
            *groups, last = field.split("_of_")[::-1]
            inner = content
            for group in groups:
                inner = inner[group]
            inner[last] = value
            path.write_text(json.dumps(content))

    return make


def hf_weights(value: float) -> Callable[[pathlib.Path], None]:
    """Makes a tiny model's folder with this value among the weights."""

    def make(place: pathlib.Path) -> None:
        shutil.copytree(tiny_model(), place)
        files = tensor_files.TensorFiles(place)
        arrays = {name: np.array(files.read(name, tuple(map(slice, shape)))) for name, shape in files.shapes.items()}
        arrays["model.norm.weight"][3] = value
        for path in place.glob("*.safetensors"):
            path.unlink()
        sizes = {name: array.nbytes for name, array in arrays.items()}
        tensor_files.save_tensors(place, sizes, iter(arrays.items()), 2**30)

    return make


def pipe(place: pathlib.Path) -> None:
    """Makes a named pipe."""
    os.mkfifo(place)


FOLDER = "model.path=model"


def hf(given: str | list[str], *words: str, make: Callable, program: str = "evaluate") -> Case:
    """A Case of a Hugging Face folder."""
    extra = [given] if isinstance(given, str) else given
    return Case(program, [f"--config={HF}", FOLDER, *extra], list(words), {"model": make})


CASES = [
    # --- Command lines ---------------------------------------------------------------------------------------------
    bad("grpo", "--config=", "--config=FILE.py is missing"),
    bad("grpo", "--config=configs/tasks/arithmetik.py", "there is no config file", "arithmetic.py"),
    bad("grpo", "--config=configs/tasks", "is a folder"),
    bad("grpo", "--config=pipe.py", "pipe.py is a pipe or a device", pipe_dot_py=pipe),
    bad("grpo", "--config=mine.py:x", "config argument ['x'] is none of smoke", mine_dot_py=(
        "from configs import common\ndef get_config(arg=None):\n    common.parse(arg, ('smoke',))\n"
    )),
    bad("grpo", "--config=configs/tasks/arithmetic.py:smokey", "smokey", "smoke, shuffled"),
    bad("grpo", "--wrokdir=x", "Unknown command line flag", "workdir"),
    bad("grpo", "train.stepz=4", "there is no field config.train.stepz; the nearest is --config.train.steps=4"),
    bad("grpo", "lr=3", "--config.train.optimizer.learning_rate=3"),
    bad("grpo", "train.steps=many", "train.steps", "many"),
    bad("grpo", "train.steps=1.5", "train.steps"),
    bad("grpo", ["--", "train.steps=3"], "unexpected arguments", "--config.train.steps=3"),
    bad("grpo", "reward.terms=x*math", "reward.terms: 'x'", "must be a number"),
    bad("grpo", "reward.terms=math,math", "two terms are named 'math'"),
    bad("grpo", "reward.terms={'a': ", "reward.terms"),
    bad("grpo", ["reward.terms=math", "judge={'math': {'fn': 'contrastive'}}"],
        "judge.math and reward.terms.math have one name"),
    bad("grpo", ["judge={'task': {'fn': 'contrastive'}}"], "judge.task and the task's own reward"),
    bad("grpo", ["--profile=5:3"], "--profile=5:3: give the first and the last step", "--profile=3:5"),
    bad("evaluate", ["--profile=1"], "--profile=1: experiments.evaluate has no training steps"),
    bad("grpo", "log.profile_steps=(3,)", "log.profile_steps", "two steps in order"),
    bad("control.ppo", ["--skip_bad_records"], "--skip_bad_records: this program reads no records"),
    bad("grpo", ["--num_processes=2"], "--num_processes=2 needs --coordinator=HOST:PORT"),
    bad("best_of_n", ["--num_processes=2", "--coordinator=h:1"], "this program runs in one process"),
    bad("grpo", f"--config={CONFIGS['ppo']}", "this config is for experiments.ppo: python -m experiments.ppo"),
    bad("ppo", f"--config={CONFIGS['grpo']}", "this config is for experiments.grpo: python -m experiments.grpo"),
    bad("dpo", f"--config={CONFIGS['online_dpo']}", "this config is for experiments.online_dpo"),
    bad("online_dpo", f"--config={CONFIGS['dpo']}", "this config is for experiments.dpo"),
    bad("reward_model", f"--config={CONFIGS['dpo']}", "this config is for experiments.dpo"),
    bad("best_of_n", f"--config={CONFIGS['grpo']}", "this config is for experiments.grpo"),
    bad("sft", f"--config={CONFIGS['control.ppo']}", "this config is for experiments.control.ppo"),
    bad("evaluate", f"--config={CONFIGS['control.preferences']}", "this config is for experiments.control.preferences"),
    bad("control.ppo", f"--config={CONFIGS['control.preferences']}", "is for experiments.control.preferences"),
    bad("control.preferences", f"--config={CONFIGS['control.ppo']}", "this config is for experiments.control.ppo"),
    bad("control.offline", f"--config={CONFIGS['control.ppo']}", "this config is for experiments.control.ppo"),
    # --- Counts that do not divide ---------------------------------------------------------------------------------
    bad("grpo", ["sample.prompts_per_step=7", "train.minibatches=3"], "(28 rows) must be a multiple", "minibatches=3"),
    bad("grpo", "train.micro_batches=5", "train.micro_batches=5"),
    bad("grpo", "sft.micro_batches=7", "sft.batch_size=128 must be a multiple of sft.micro_batches=7"),
    bad("grpo", ["mesh=data:8", "sample.prompts_per_step=12"], "prompts_per_step=12 rows do not divide over"),
    bad("grpo", ["mesh=data:8", "train.minibatches=8"], "micro_batch=4 rows do not divide over"),
    bad("ppo", "critic.micro_batches=5", "critic.micro_batches=5"),
    bad("ppo", "train.minibatches=3", "train.minibatches=3"),
    bad("dpo", "train.micro_batches=3", "train.batch_size=8 must be a multiple of train.micro_batches=3"),
    bad("dpo", ["mesh=data:8", "eval.batch_size=12"], "eval.batch_size=12 rows do not divide over"),
    bad("online_dpo", "sample.prompts_per_batch=5", "must be a multiple of sample.prompts_per_batch=5"),
    bad("reward_model", "train.micro_batches=3", "train.micro_batches=3"),
    bad("sft", "sft.micro_batches=7", "sft.micro_batches=7"),
    bad("best_of_n", "best_of_n.samples=2", "best_of_n.sizes=(1, 2, 4) must be at most best_of_n.samples=2"),
    bad("best_of_n", ["mesh=data:8"], "best_of_n.batch_size=4 rows do not divide over"),
    bad("control.ppo", "train.minibatches=7", "must be a multiple of train.minibatches=7"),
    bad("control.ppo", "checkpoint.every=6", "checkpoint.every=6 must be a multiple of log_every=4"),
    # --- Names of functions and keywords ---------------------------------------------------------------------------
    bad("grpo", "algorithm.advantage.fn=group_relativ", "algorithm.advantage", "nearest: 'group_relative'"),
    bad("grpo", "algorithm.surrogate.fn=cispo", "cispo takes no keyword", "is replaced as a whole"),
    bad("grpo", "algorithm.aggregate.fn=token_men", "algorithm.aggregate", "token_mean"),
    bad("grpo", "algorithm.kl.fn=k9", "algorithm.kl: rl_jax.losses.kl has no function 'k9'"),
    bad("grpo", "algorithm.shaping.fn=nope:f", "algorithm.shaping", "no module 'nope'"),
    bad("grpo", "train.optimizer.rule.fn=adamv", "train.optimizer.rule", "adamw"),
    bad("grpo", "reward.function=nope", "reward.function", "module:function"),
    bad("grpo", "reward.function=json:dump_s", "json has no 'dump_s'; nearest: 'dumps'"),
    bad("grpo", "algorithm.advantage.fn=prime", "algorithm.advantage='prime' needs"),
    bad("ppo", "critic.loss.fn=clip", "critic.loss", "clipped"),
    bad("ppo", "critic.advantage.fn=gea", "critic.advantage", "gae"),
    bad("dpo", "algorithm.link.fn=logisticc", "algorithm.link", "nearest: 'logistic'"),
    bad("dpo", "data.name=givenn", "unknown preferences 'givenn'"),
    bad("dpo", "data.kind=pair", "pair"),
    bad("online_dpo", "algorithm.pair_selection.fn=x", "algorithm.pair_selection", "best_worst"),
    bad("online_dpo", "sample.data=pairz", "sample.data='pairz'"),
    bad("reward_model", "algorithm.loss.fn=x", "algorithm.loss", "bradley_terry"),
    bad("reward_model", "algorithm.reads=respons", "algorithm.reads='respons' must be 'response', 'steps',"),
    bad("grpo_async", f"--config={CONFIGS['grpo']}", "this config is for experiments.grpo"),
    bad("grpo_async", "flow.order=newest", "flow.order='newest' must be ready, oldest or drop"),
    bad("grpo_async", "flow.in_flight=stop", "flow.in_flight='stop' must be interrupt, drain or keep"),
    bad("grpo_async", "flow.eta=-1", "flow.eta=-1 must be 0 or more"),
    bad("grpo_async", "flow.age=1", "flow.age=1 must be at least eta=2"),
    bad("grpo_async", "rollout.engine.name=lockstep", "rollout.engine.name='lockstep' does not work", "new weights"),
    bad("grpo_async", "algorithm.behavior_weight={'fn': 'none'}", "rows are stale", "behavior_weight.fn=truncated"),
    bad("grpo_async", "judge={'near': {'fn': 'contrastive'}}", "judge.near reads the policy", "use experiments.grpo"),
    bad("grpo_async", ["--num_processes=2", "--coordinator=h:1"], "this program runs in one process"),
    bad("masked_diffusion", f"--config={CONFIGS['grpo']}", "this config is for experiments.grpo"),
    bad("masked_diffusion", "algorithm.objective=ppo", "objective='ppo' must be 'bgpo', 'bgpo_clipped', 'elbo' or"),
    bad("masked_diffusion", "algorithm.masking=all", "algorithm.masking='all' must be 'count' or 'uniform'"),
    bad("masked_diffusion", "denoise.steps=5", "denoise.steps=5 must be a multiple of the 1 blocks and 4 at most"),
    bad("masked_diffusion", "model.causal=True", "model.causal=True must be False"),
    bad("masked_diffusion", "model.checkpoint=x.bin", "model.checkpoint='x.bin' must be ''", "no family"),
    bad("masked_diffusion", "algorithm.prompt_masking=0.1", "algorithm.prompt_masking=0.1 is for diffu_grpo"),
    bad("masked_diffusion", ["algorithm.objective=diffu_grpo"], "algorithm.samples=4 must be 1"),
    bad("masked_diffusion", ["hints.on=True", "hints.low=0.9"], "hints.low=0.9", "high=0.6"),
    bad("masked_diffusion", ["--num_processes=2", "--coordinator=h:1"], "this program runs in one process"),
    bad("sft", f"--config={CONFIGS['masked_diffusion']}", "this config is for experiments.masked_diffusion"),
    bad("best_of_n", "best_of_n.combine.fn=men", "best_of_n.combine", "nearest: 'mean'"),
    bad("control.ppo", "algorithm.surrogate.fn=x", "algorithm.surrogate", "clipped_surrogate"),
    bad("control.ppo", "--config=configs/control/rewards.py:gail,smoke", "algorithm.relabel.demos=RUN/episodes.jsonl"),
    bad("control.ppo", ["--config=configs/control/rewards.py:gail,smoke", "--config.algorithm.relabel.demos=x.jsonl"],
        "there is no file 'x.jsonl'"),
    bad("control.ppo", "network.kind=rnn",
        "network.kind='rnn' must be 'mlp', 'gru', 'transformer', 'denoiser' or 'windows'"),
    bad("control.ppo", "network.distribution=beto", "network.distribution", "beta"),
    bad("control.preferences", "preferences.method=dpo", "preferences.method='dpo' must be"),
    bad("control.preferences", "reward.loss.fn=x", "reward.loss", "bradley_terry"),
    bad("control.offline", "algorithm.fn=iqll", "rl_jax.control.offline has no function 'iqll'", "nearest: 'iql'"),
    bad("control.offline", "algorithm.fn=cql", "cql takes no keyword 'beta'", "is replaced as a whole"),
    # --- Ranges ----------------------------------------------------------------------------------------------------
    bad("grpo", "train.optimizer.learning_rate=-0.001", "learning_rate=-0.001 must be a number above 0"),
    bad("grpo", "train.optimizer.learning_rate=nan", "learning_rate=nan must be a number above 0"),
    bad("grpo", "train.optimizer.b1=1.0", "train.optimizer.b1=1.0 must be from 0 to below 1"),
    bad("grpo", "train.optimizer.eps=-1.0", "optimizer.eps=-1.0 must be 0 or more"),
    bad("grpo", "train.optimizer.weight_decay=nan", "weight_decay=nan must be 0 or more"),
    bad("grpo", "train.max_grad_norm=-1.0", "train.max_grad_norm=-1.0 must be above 0"),
    bad("grpo", "train.max_grad_norm=nan", "train.max_grad_norm=nan must be above 0"),
    bad("grpo", "algorithm.kl_coef=nan", "algorithm.kl_coef=nan must be 0 or more"),
    bad("grpo", "algorithm.reward_kl_coef=-1.0", "algorithm.reward_kl_coef=-1.0 must be 0 or more"),
    bad("grpo", "algorithm.entropy_coef=inf", "algorithm.entropy_coef=inf must be a number"),
    bad("grpo", "algorithm.surrogate.clip_low=-0.5", "clip_low=-0.5 must be from 0 to 1"),
    bad("grpo", "algorithm.surrogate.clip_low=5.0", "clip_low=5.0 must be from 0 to 1"),
    bad("grpo", "algorithm.surrogate.clip_high=nan", "clip_high=nan must be 0 or more"),
    bad("grpo", "train.steps=-3", "train.steps=-3 must be 0 or more"),
    bad("grpo", "train.epochs=0", "train.epochs=0 must be 1 or more"),
    bad("grpo", "train.minibatches=0", "train.minibatches=0 must be 1 or more"),
    bad("grpo", "eval.every=-1", "eval.every=-1 must be 0 (only before and after) or more"),
    bad("grpo", "eval.num_prompts=0", "eval.num_prompts=0 must be 1 or more"),
    bad("grpo", "checkpoint.every=0", "checkpoint.every=0 must be 1 or more"),
    bad("grpo", "checkpoint.keep=0", "checkpoint.keep=0 must be 1 or more"),
    bad("grpo", "checkpoint.best_mode=most", "checkpoint.best_mode='most' must be 'max' or 'min'"),
    bad("grpo", "rollout.temperature=0.0", "rollout.temperature=0.0 must be above 0; for greedy decoding set top_k=1"),
    bad("grpo", "rollout.temperature=nan", "rollout.temperature=nan must be above 0"),
    bad("grpo", "eval.temperature=-1.0", "eval.temperature=-1.0 must be above 0"),
    bad("grpo", "rollout.top_p=1.5", "rollout.top_p=1.5 must be above 0, and 1"),
    bad("grpo", "rollout.top_k=9999", "rollout.top_k=9999 must lie in 0..16"),
    bad("grpo", "eval.top_k=9999", "eval.top_k=9999 must lie in 0..16"),
    bad("grpo", "task.num_train=0", "task.num_train and task.num_test must be at least 1"),
    bad("grpo", [f"--config={OWN}", "task.path=EXAMPLE", "task.test_share=2.0"], ": task.test_share must lie between"),
    bad("grpo", "train.optimizer.decay_steps=0", "optimizer.final_fraction=0.1 does nothing with", "decay_steps=0"),
    bad("grpo", "model.param_dtype=bfloat16", "model.param_dtype='bfloat16' does not train", "model.lora.rank=16"),
    bad("grpo", ["model.lora.rank=4", "model.lora.targets=x"], "model.lora.targets='x' matches no kernel"),
    bad("grpo", "rollout.completion_length=0", "rollout.completion_length=0 must be 1 or more"),
    bad("grpo", "rollout.prompt_buckets=()", "rollout.prompt_buckets=() must be widths"),
    bad("grpo", "rollout.engine.name=vllm", "rollout.engine.name='vllm' must be 'lockstep', 'continuous' or 'openai'"),
    bad("grpo", "rollout.engine.name=openai", "rollout.engine.url is empty"),
    bad("grpo", "rollout.long_prompts=trim", "rollout.long_prompts='trim' must be stop, drop or cut"),
    bad("grpo", "reward.time_limit_s=0.0", "reward.time_limit_s=0.0 must be above 0 seconds"),
    bad("grpo", "reward.num_workers=-1", "reward.num_workers=-1 must be 0 or more"),
    bad("grpo", "packing.mode=dense", "packing.mode='dense' must be 'padded', 'packed' or 'shared_prefix'"),
    bad("grpo", "seed=-1", "seed=-1 must be from 0 to"),
    bad("grpo", "mesh=rows:2", "mesh 'rows:2'", "data"),
    bad("grpo", "rollout.devices=separate", "rollout.devices='separate' needs rollout.mesh"),
    bad("grpo", "rollout.mesh=data:4", "rollout.mesh='data:4' has 4 devices and mesh="),
    bad("grpo", "model.num_kv_heads=3", "model.num_heads=4 must be a multiple of model.num_kv_heads=3"),
    bad("grpo", "model.head_dim=15", "model.head_dim=15 must be even"),
    bad("grpo", "model.attention=ring", "model.attention='ring' needs a context axis", "mesh='' has none"),
    bad(
        "grpo",
        ["model.attention=ring", "mesh=context:7", "rollout.completion_length=8"],
        "rollout.completion_length=8 does not divide over mesh='context:7', for model.attention='ring'",
    ),
    bad("grpo", "model.embed_dim=0", "model.embed_dim=0 must be 1 or more"),
    bad("grpo", "model.rope_theta=0.0", "model.rope_theta=0.0 must be a number above 0"),
    bad("grpo", "model.norm_eps=nan", "model.norm_eps=nan must be a number above 0"),
    bad("grpo", "model.dtype=float8", "model.dtype='float8' must be 'auto', 'float32'"),
    bad("grpo", "algorithm.reference_soup.weight=2.0", "algorithm.reference_soup.weight=2.0 must be from 0 to 1"),
    bad("ppo", "critic.advantage.lam=1.5", "critic.advantage.lam=1.5 must be from 0 to 1"),
    bad("ppo", "critic.optimizer.learning_rate=nan", "critic.optimizer.learning_rate=nan must be"),
    bad("ppo", ["critic.support.low=1.0", "critic.support.high=-1.0"], "critic.support.low=1.0 must be below"),
    bad("dpo", "algorithm.beta=-1.0", "algorithm.beta=-1.0 must be a number above 0"),
    bad("dpo", "algorithm.beta=nan", "algorithm.beta=nan must be a number above 0"),
    bad("dpo", "train.steps=-3", "train.steps=-3 must be 0 or more"),
    bad("dpo", "algorithm.regularizer_coef=nan", "algorithm.regularizer_coef=nan must be 0 or more"),
    bad("dpo", "encode.truncate=right", "encode.truncate='right' must be 'refuse', 'left' or 'drop'"),
    bad("dpo", "data.test_share=2.0", "data.test_share must lie in [0, 1], got 2.0"),
    bad("dpo", "algorithm.reference={'prev': 1.0}", "'prev', which only experiments.online_dpo supports"),
    bad("online_dpo", "algorithm.beta=0.0", "algorithm.beta=0.0 must be a number above 0"),
    bad("online_dpo", "sample.share=1.5", "sample.share=1.5 must be from 0 to 1"),
    bad("online_dpo", "sample.group_size=0", "sample.group_size=0 must be 1 or more"),
    bad("sft", "sft.optimizer.learning_rate=-1.0", "sft.optimizer.learning_rate=-1.0 must be a number above 0"),
    bad("sft", "sft.stop_at=nan", "sft.stop_at=nan must be a pass@1"),
    bad("sft", "sft.eval_every=0", "sft.eval_every=0 must be 1 or more"),
    bad("reward_model", "algorithm.members=0", "algorithm.members=0 must be 1 or more"),
    bad("reward_model", "algorithm.head.layers=0", "algorithm.head.layers=0 must be 1 or more"),
    bad("reward_model", "algorithm.head.activation=relu", "algorithm.head.activation='relu' must be 'none', 'tanh' or"),
    bad("reward_model", ["algorithm.head.layers=2", "algorithm.reads=user"], "algorithm.reads='user' has no such head"),
    bad("reward_model", ["algorithm.members=3", "algorithm.reads=steps"], "only algorithm.reads='response' has sev"),
    bad("best_of_n", "best_of_n.sizes=()", "best_of_n.sizes=() must be counts of 1 or more"),
    bad("best_of_n", "best_of_n.label_noise=1.5", "best_of_n.label_noise=1.5 must be from 0 to 1"),
    bad("evaluate", ["init_from=x", "eval.samples_per_prompt=0"], "eval.samples_per_prompt=0 must be 1 or more"),
    bad("control.ppo", "train.optimizer.learning_rate=nan", "train.optimizer.learning_rate=nan must be"),
    bad("control.ppo", "algorithm.advantage.discount=1.5", "algorithm.advantage.discount=1.5 must be from 0 to 1"),
    bad("control.ppo", "log_every=0", "log_every=0 must be 1 or more"),
    bad("control.ppo", "network.hidden=(0,)", "network.hidden=(0,) must be a tuple of widths"),
    bad("control.ppo", "eval.max_steps=0", "eval.max_steps=0 must be 1 or more"),
    bad("control.ppo", "train.max_grad_norm=-1.0", "train.max_grad_norm=-1.0 must be above 0"),
    bad("control.preferences", "segments.beta=0.0", "segments.beta=0.0 must be above 0"),
    bad("control.preferences", "segments.flip_rate=nan", "segments.flip_rate=nan must be from 0 to 1"),
    bad("control.preferences", "fit.optimizer.learning_rate=-1.0", "fit.optimizer.learning_rate=-1.0 must be"),
    bad("control.preferences", "fit.discount=nan", "fit.discount=nan must be from 0 to 1"),
    bad("control.offline", "dataset.num_envs=0", "dataset.num_envs=0 must be 1 or more"),
    bad("control.offline", "dataset.discount=1.5", "dataset.discount=1.5 must be from 0 to 1"),
    bad("control.offline", "dataset.layout=csv", "dataset.layout='csv' must be 'auto', 'rlds' or 'episodes'"),
    bad("control.offline", "dataset.episode_length=-1", "dataset.episode_length=-1 must be 0 (not known) or more"),
    bad("control.offline", "dataset.last_reward=sum", "dataset.last_reward='sum' must be 'refuse', 'keep' or 'drop'"),
    # --- Fields that do not go together ----------------------------------------------------------------------------
    bad("grpo", "sample.group_size=1", "sample.group_size=1 does not go with algorithm.advantage.fn='group_relative'"),
    bad("grpo", ["sample.group_size=1", "algorithm.advantage={'fn': 'leave_one_out'}"], "'leave_one_out'", ">= 2"),
    bad("grpo", "algorithm.advantage={'fn': 'pass_at_k', 'k': 9}", "sample.group_size=4 does not go with", "pass@9"),
    bad("control.preferences", f"--config={CONFIGS['control.preferences'].replace('matching', 'regret,cartpole')}",
        "finite MDP"),
    bad("control.preferences", "algorithm.normalize_observations=true", "algorithm.normalize_observations", "False"),
    bad("control.replay", f"--config={CONFIGS['control.ppo']}", "this config is for experiments.control.ppo"),
    bad("control.asynchronous", f"--config={CONFIGS['control.ppo']}", "this config is for experiments.control.ppo"),
    bad("control.asynchronous", "actors.kind=fork", "actors.kind='fork' must be 'thread' or 'process'"),
    bad("control.asynchronous", "actors.count=5", "actors.count=5 must be at most 2, the blocks of a group"),
    bad("control.asynchronous", "actors.block=3", "num_envs=8 must be a multiple of actors.block=3 x actors.ring=2"),
    bad("control.asynchronous", "env.name=host/x",
        "env.name='host/x' is no environment that actors can step", "host/shuttle"),
    bad("control.asynchronous", "flow.delay=-1", "flow.delay=-1 must be 0 or more"),
    bad("control.replay", "algorithm.method.fn=ppo", "algorithm.method", "discrete_sac"),
    bad("control.replay", "algorithm.head.fn=histogram", "algorithm.head", "categorical"),
    bad("control.replay", "replay.warmup=0", "replay.warmup=0 must be 1 or more"),
    bad("control.replay", "replay.warmup=512", "must be at least n_step=1", "fit into its 32 slots"),
    bad("control.replay", "replay.capacity=100", "replay.capacity=100 must be a multiple of sample.num_envs=8"),
    bad("control.replay", "algorithm.tau=0.0", "algorithm.tau=0.0 must be above 0"),
    bad("control.replay", "algorithm.priority.exponent=-1.0", "algorithm.priority.exponent=-1.0 must be 0 or more"),
    bad("control.replay", ["--config=configs/control/replay.py:aim,srl,smoke", "algorithm.n_step=3"],
        "algorithm.n_step=3: this method learns a model"),
    bad("control.replay", "env.name=probes/aim", "the actions of probes/aim are real numbers", "td3 or sac"),
    bad("control.ppo", "spread=vmap", "spread='vmap' must be 'jit' or 'pmap'"),
    bad("control.ppo", "mesh=envs:3", "sample.num_envs=16 do not divide over 3 devices"),
    bad("control.ppo", "mesh=rows:2", "mesh 'rows:2'", "seeds:SIZE"),
    bad("control.ppo", "env.name=probes/nothing", "probes", "nothing"),
    bad("control.ppo", "env.name=CartPole", "env.name='CartPole' is none of", "gymnasium/NAME"),
    bad("control.ppo", "env.name=gymnasium/CartPol-v1", "env.name='gymnasium/CartPol-v1'", "gymnasium/CartPole-v1"),
    bad("control.ppo", "env.name=gymnasium/CartPole-v9", "env.name='gymnasium/CartPole-v9'", "gymnasium/CartPole-v1"),
    bad("control.ppo", "env.name=gymnasium/nomodule:X-v0", "there is no module 'nomodule'", "env.name="),
    # --- Folders of runs and files ---------------------------------------------------------------------------------
    bad("grpo", "init_from=nowhere", "init_from=nowhere: no checkpoints there"),
    bad("evaluate", [], "init_from is empty", "--config.init_from=RUN"),
    bad("evaluate", "init_from=nowhere", "init_from=nowhere: no checkpoints there"),
    bad("grpo", "init_from=model", "a model's folder, not that of a run", "--config.model.path=model",
        model=hf_folder()),
    bad("best_of_n", "best_of_n.proxies=nowhere", "nowhere"),
    bad("best_of_n", "judge={'rm': {'fn': 'reward_model', 'path': 'nowhere'}}",
        "judge.rm.path='nowhere' is no folder of a model", "experiments.reward_model"),
    bad("best_of_n", ["judge={'near': {'fn': 'contrastive'}}", "reward.terms=tests.experiments.small:sevens"],
        "best_of_n needs the task's own reward", "leave reward.terms empty"),
    bad("grpo", "--workdir=file.txt", "file.txt", file_dot_txt="taken"),
    bad("grpo", f"--config={HF}", "model.path: give --config.model.path=FOLDER"),
    bad("grpo", [f"--config={HF}", FOLDER], "model", "config.json"),
    bad("grpo", "--config=configs/task.py", "task.path: give --config.task.path=PROMPTS.jsonl"),
    bad("dpo", PATH, "pairs.jsonl: cannot be opened (No such file or directory)"),
    bad("dpo", PATH, "data.path='pairs.jsonl' is a pipe or a device, not a file", pairs_dot_jsonl=pipe),
    bad("dpo", "data.path=folder", "folder/a.jsonl: is a pipe or a device, not a file", folder__a_dot_jsonl=pipe),
    bad("reward_model", "model.checkpoint=w.bin", "model.checkpoint='w.bin' is a pipe or a device", w_dot_bin=pipe),
    bad("evaluate", "init_from=run", "init_from='run' is a pipe or a device", run=pipe),
    bad("dpo", "data.path=folder", "folder", folder=lambda place: place.mkdir()),
    bad("online_dpo", "sample.data=pairs", "sample.pairs.path is empty"),
    # --- Data ------------------------------------------------------------------------------------------------------
    bad("dpo", "data.path=pairs.csv", "pairs.csv: a .csv file is not read here", "*.jsonl", "*.parquet",
        pairs_dot_csv="prompt,chosen,rejected\na,b,c\n"),
    bad("score", ["answers.csv", "--reward=math"], "answers.csv: a .csv file is not read here", "*.jsonl",
        answers_dot_csv="completion\nx\n"),
    bad("dpo", PATH, "of 1 records data.test_share=0.1 puts none in the", pairs_dot_jsonl=lines(PAIR)),
    bad("dpo", [PATH, "data.test_share=0.0"], "jsonl has no split 'test'", "with data.test_share=0.0",
        pairs_dot_jsonl=MANY),
    bad("dpo", PATH, "data.skip_bad_records=True", pairs_dot_jsonl="{\n"),
    bad("dpo", PATH, "no record that can be used", pairs_dot_jsonl=""),
    bad("dpo", PATH, "pairs.jsonl, line 1: not valid JSON", "skip_bad_records", pairs_dot_jsonl="{\n"),
    bad("dpo", PATH, "line 2: expected a JSON object, found list", pairs_dot_jsonl=lines(PAIR, [1])),
    bad("dpo", PATH, "line 1", "the key 'chosen' is there twice",
        pairs_dot_jsonl='{"prompt": "a", "chosen": "b", "chosen": "c", "rejected": "d"}\n'),
    bad("dpo", PATH, "line 2, field 'chosen': contradicts", "pairs.jsonl, line 1", "contradictions=keep",
        pairs_dot_jsonl=lines(PAIR, OPPOSITE)),
    bad("dpo", PATH, "line 1, field 'chosen': missing", pairs_dot_jsonl=lines({"prompt": "a", "rejected": "b"})),
    bad("dpo", PATH, "choosen", pairs_dot_jsonl=lines({"prompt": "a", "choosen": "b", "rejected": "c"})),
    bad("dpo", PATH, "chosen and rejected are identical", pairs_dot_jsonl=lines(PAIR | {"rejected": "4"})),
    bad("dpo", PATH, "field 'label_prob'", pairs_dot_jsonl=lines(PAIR | {"label_prob": 1.5})),
    bad("dpo", PATH, "field 'margin'", pairs_dot_jsonl=lines(PAIR | {"margin": -1})),
    bad("dpo", [PATH, "data.columns={'chosenn': 'x'}"], "pairs have no field 'chosenn'", pairs_dot_jsonl=MANY),
    bad("dpo", [PATH, "data.contradictions=maybe"], "'maybe' is neither 'stop' nor 'keep'", pairs_dot_jsonl=MANY),
    bad("dpo", [PATH, "rollout.prompt_buckets=(4,)"], "pairs.jsonl, line 1: its prompt has 5 tokens",
        "Add a wider one to rollout.prompt_buckets", pairs_dot_jsonl=MANY),
    bad("dpo", [PATH, "rollout.completion_length=1"], "pairs.jsonl, line 11: two of its responses are the same",
        "Raise rollout.completion_length, or pass encode.identical='drop'", pairs_dot_jsonl=MANY),
    bad("reward_model", ["data.path=pairs.jsonl", "--config=configs/preferences/reward_models.py:given,scratch,smoke"],
        "line 2: not valid JSON", pairs_dot_jsonl=lines(PAIR) + "nonsense\n"),
    bad("grpo", [f"--config={OWN}", "task.path=prompts.jsonl"], "prompts.jsonl", prompts_dot_jsonl=""),
    bad("score", ["answers.jsonl", "--reward=tests.experiments.small:sevens"], "field 'completion': no text",
        answers_dot_jsonl=lines({"prompt": "a"})),
    # --- Hugging Face folders: values of their files ---------------------------------------------------------------
    hf([], "field 'rms_norm_eps': nan is not a number above 0", make=hf_folder(rms_norm_eps=NAN)),
    hf([], "field 'rms_norm_eps': -1 is not a number above 0", make=hf_folder(rms_norm_eps=-1)),
    hf([], "field 'rope_theta': 0 is not a number above 0", make=hf_folder(rope_theta_of_rope_parameters=0)),
    hf([], "field 'rope_theta': -5.0 is not a number above 0", make=hf_folder(rope_theta_of_rope_parameters=-5.0)),
    hf([], "field 'hidden_size': 0 is not a positive integer", make=hf_folder(hidden_size=0)),
    hf([], "unknown model_type 'qwen9'", make=hf_folder(model_type="qwen9")),
    hf([], "model.dropout is 0.9", make=hf_folder(tokenizer__dropout_of_model=0.9)),
    hf([], "id is 99999, but the embedding", make=hf_folder(generation_config__eos_token_id=[2, 99999])),
    hf([], "eos_token_id is 'two': it must be a token's id", make=hf_folder(eos_token_id="two")),
    hf([], "id is 40, ", "of ordinary text", make=hf_folder(generation_config__eos_token_id=[2, 40])),
    hf([], "'model.norm.weight' has 1 of 32 values that are nan or inf", make=hf_weights(NAN)),
    hf([], "'model.norm.weight' has 1 of 32 values that are nan or inf", make=hf_weights(math.inf)),
    # --- Tools -----------------------------------------------------------------------------------------------------
    bad("report", "nowhere", "nowhere"),
    Case("report", ["run", "--metric=reward/meen"], ["no run has logged 'reward/meen'; near it: reward/mean"], A_RUN),
    Case("report", ["run", "--port=70000"], ["--port=70000 must be from 0 to 65535"], A_RUN),
    bad("report", [], "RUN_OR_SWEEP"),
    bad("report", "model", "no run at model: the folder holds a model", model=hf_folder()),
    bad("ablation", "rdpo_label_nois", "there is no ablation 'rdpo_label_nois'; near it: rdpo_label_noise"),
    bad("ablation", "--lst", "unknown argument '--lst'"),
    bad("runs", "nowhere", "there is no folder nowhere"),
    Case("runs", ["run", "--metric=reward/meen"], ["no run has logged 'reward/meen'; near it: reward/mean"], A_RUN),
    Case("runs", ["run", "--where=sate=complete"], ["no run has a field 'sate'; near it: state"], A_RUN),
    Case("runs", ["run", "--where=state"], ["'state' is not a condition"], A_RUN),
    bad("sweep", ["--config=configs/tasks/arithmetik.py", "--sweep=lr", "--list"], "there is no config file"),
    bad("sweep", [f"--config={CONFIGS['grpo']}", "--sweep=lrr", "--list"], "has no sweep 'lrr'; near it: lr"),
    bad("sweep", [f"--config={CONFIGS['grpo']}", "--sweep=lr", "train.stepz=1", "--list"], "no field train.stepz"),
    bad(
        "sweep", [f"--config={CONFIGS['grpo']}", "--sweep=lr", "train.minibatches=3", "--print"],
        "point lr=0.0001: ", "must be a multiple of train.minibatches=3",
    ),
    bad("sweep", [f"--config={CONFIGS['grpo']}", "--sweep=lr", "--jobs=0"], "--jobs must be at least 1"),
    bad("sweep", [f"--config={CONFIGS['grpo']}", "--sweep=lr", "--table", "--workdir=x"], "x is no sweep: it has no"),
    bad("sweep", ["--config=configs/common.py", "--list"], "configs/common.py is no config: it has no"),
    bad("score", ["nowhere.jsonl", "--reward=math"], "nowhere.jsonl: cannot be opened"),
    bad("score", ["answers.jsonl", "--reward=sevenz"], "sevenz", answers_dot_jsonl=""),
    bad("score", ["answers.jsonl", "--reward=math", "--workers=-1"], "--workers=-1 must be 0", answers_dot_jsonl=""),
    bad("score", ["answers.jsonl", "--reward=math", "--time_limit_s=0"], "--time_limit_s=0.0 must be above 0"),
    bad("score", ["answers.jsonl", "--reward=math", "--compose=sum"], "rl_jax.rewards.compose has no function 'sum'"),
    bad("score", ["answers.jsonl", "--reward=math", "--out=no/where.jsonl"], "there is no folder no"),
    bad("reverify", "nowhere", "nowhere/config.json"),
    Case("reverify", ["run"], ["samples.jsonl is missing"], A_RUN),
    bad("export", ["nowhere", "--to=out"], "nowhere: has no config.json"),
    Case("export", ["run", "--to=run"], ["run exists and is not empty"], A_RUN),
    Case("export", ["run", "--to=out"], ["run of experiments.control.ppo"],
         A_RUN | {"run/run.json": {"algorithm": "control.ppo"}}),
]  # fmt: skip


_MODEL: list[pathlib.Path] = []


def tiny_model() -> pathlib.Path:
    """The folder of a tiny model, made once."""
    return _MODEL[0]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """A home in which data sets are prepared once for all cases, and a model's folder."""
    _MODEL[:] = [tiny_folder.qwen3(tmp_path_factory.mktemp("models") / "tiny")]
    before = os.environ.get("HOME")
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    yield
    os.environ["HOME"] = before or ""
    _MODEL.clear()


@pytest.fixture(autouse=True)
def nothing_is_built(monkeypatch, tmp_path):
    """The builders of what is compiled and trained fail the test."""

    def reached(name: str):
        def fail(*_, **__):
            pytest.fail(f"{name} was reached")

        return fail

    monkeypatch.setattr(training, "make_step", reached("a train step"))
    monkeypatch.setattr(Run, "steps", reached("the first step"))
    monkeypatch.setattr(compilation.Ahead, "__call__", reached("a compilation"))
    for program, name in (("evaluate", "make_any_evaluate"), ("best_of_n", "sample")):
        monkeypatch.setattr(importlib.import_module(f"experiments.{program}"), name, reached("a rollout"))
    monkeypatch.setattr(control_loop, "make_recorder", lambda config: None)
    monkeypatch.chdir(tmp_path)


def write(files: dict[str, Any]) -> None:
    """Writes a Case's files."""
    for name, content in files.items():
        place = pathlib.Path(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(place)
        else:
            place.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def arguments_of(case: Case) -> list[str]:
    """The arguments of a program, as typed."""
    result = []
    for text in case.given:
        is_field = case.given[0] != "--" and "=" in text and not text.startswith("-")
        result.append(f"--config.{text}" if is_field else text)
    if case.program in TOOLS:
        return result
    named = next((text.removeprefix("--config=") for text in result if text.startswith("--config=")), None)
    if named is None:
        named = CONFIGS[case.program]
    small = [f"--config.{field}" for field in SMALL.get(named.partition(":")[0], [])]
    rest = [text for text in result if not text.startswith("--config=")]
    return [f"--config={named}" if named else "", *small, *rest][not named :]


def run_program(case: Case, monkeypatch) -> None:
    """Starts a program as `python -m experiments.PROGRAM` does, in this process."""
    argv, module = ["program", *arguments_of(case)], importlib.import_module(f"experiments.{case.program}")
    found = copy_of_flags(argv)
    for user in (program_flags, program_help, processes):
        monkeypatch.setattr(user, "FLAGS", found)
    for user in (program_flags, program_help):
        monkeypatch.setattr(user, "started", lambda: (f"experiments.{case.program}", module.__doc__))
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(app, "run", lambda start, flags_parser: start(flags_parser(sys.argv)))
    monkeypatch.setattr(flags, "mark_flag_as_required", lambda name: None)  # it is, in the copy
    alone = ("best_of_n", "grpo_async", "masked_diffusion")
    program_flags.main(module.run, several_processes=case.program not in alone)


def copy_of_flags(argv: list[str]) -> flags.FlagValues:
    """The programs' flags, not parsed yet."""
    from ml_collections import config_flags

    found = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, "which", flag_values=found, sys_argv=argv)
    for module in ("experiments.parts.flags", "experiments.parts.processes"):
        for flag in flags.FLAGS.flags_by_module_dict()[module]:
            if flag.name != "config":
                found[flag.name] = copy.deepcopy(flag)
    found["compile_cache"].value = ""
    flags.mark_flag_as_required("config", found)
    return found


def run_tool(case: Case, monkeypatch) -> None:
    """Starts a tool as its __main__ does, in this process."""
    monkeypatch.setattr(sys, "argv", [case.program, *arguments_of(case)])
    raise SystemExit(importlib.import_module(TOOLS[case.program]).main(arguments_of(case)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.program} {' '.join(case.given)}"[:80])
def test_it_is_refused(case, monkeypatch, capsys):
    write(case.files)
    with pytest.raises(SystemExit) as stopped:
        (run_tool if case.program in TOOLS else run_program)(case, monkeypatch)
    printed = capsys.readouterr().err
    assert stopped.value.code == 2, printed
    assert "Traceback" not in printed
    for word in case.words:
        assert word in printed


def test_the_table_has_every_program():
    assert {case.program for case in CASES} == set(CONFIGS) | set(TOOLS) and len(CASES) >= 120


# --- What is a refusal, and what is a bug -----------------------------------------------------------------------------


def test_a_bug_keeps_its_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for error in (lambda: int("x"), lambda: {}["x"], lambda: json.loads("{"), lambda: np.zeros(3).reshape(2)):
        with pytest.raises((ValueError, KeyError)), refusals.refusing("program"):
            error()


def test_an_error_in_a_step_keeps_its_traceback():
    error = ValueError("x")
    with contextlib.suppress(ValueError):
        refusals_like(error)
    assert refusals.is_refusal(error)
    error.add_note("This was in step 3 of runs/a")
    assert not refusals.is_refusal(error)


def refusals_like(error: Exception) -> None:
    """Raises the error in the project's own code."""
    exec(compile("raise error", str(REPO_ROOT / "experiments" / "made_up.py"), "exec"), {"error": error})


def test_a_missing_device_is_named():
    def find():
        raise RuntimeError("Unable to initialize backend 'cuda': no such backend. More.")

    with pytest.raises(ValueError, match="JAX_PLATFORMS=cuda: jax cannot start on such a device here") as raised:
        devices.check("cuda", find)
    assert "pip install -e '.[cuda]'" in str(raised.value)
    devices.check("cpu", find)
    devices.check("", find)


def started(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """experiments.grpo as a user starts it."""
    command = [sys.executable, "-m", "experiments.grpo", f"--config={CONFIGS['grpo']}", *arguments]
    environment = os.environ | variables
    return subprocess.run(command, cwd=REPO_ROOT, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        ([], {"JAX_PLATFORMS": "cuda"}, "JAX_PLATFORMS=cuda: jax cannot start on such a device here"),
    ],
)
def test_a_program_that_is_started_refuses(arguments, variables, said, tmp_path):
    done = started(f"--workdir={tmp_path / 'run'}", *arguments, **variables)
    assert done.returncode == 2 and done.stderr.startswith(f"experiments.grpo: {said}")
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()
