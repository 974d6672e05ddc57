"""LMRL-Gym's offline baselines (arXiv 2311.18232): BC, filtered BC, MC returns and ILQL on a world's recorded episodes.

    python -m experiments.tools.offline_agents --world=lmrl_maze --workdir=runs/offline_maze
    python -m experiments.tools.offline_agents --world=wordle --methods=bc,ilql --workdir=runs/offline_wordle
    python -m experiments.tools.offline_agents --world=lmrl_maze,smoke --workdir=runs/smoke   # tiny sizes

--world is a word of configs/agents_worlds.py, whose episodes are half a beginner's. All methods read the same ones:

    bc            clones all of them: the warm start of experiments.agents
    filtered_bc   clones the share --top with the highest returns
    mc            Q of each token from the returns (rl_jax.losses.token_values), on a copy of bc's model
    ilql          Q and V by implicit Q-learning, the same way; a target network follows by --target_rate

The last two play log pi_bc + beta min_k Q_k. Q of words that the data lack begins at 0, above all returns below 0; only
CQL's term lowers it. LMRL-Gym weighs it .1 or .01, and 0 in its maze, where it ranks the four legal moves. The table
has the mean return on held-out problems, and LMRL-Gym's score: 0 is the data's lowest return, 50 its mean, 100 the
expert's mean. WORKDIR has a folder per method; what is there is not trained again, and refused if its options or its
world were others. Training asks the world nothing.
"""

import argparse
import functools
import json
import pathlib
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from configs import agents_worlds
from experiments.parts import origin, players, processes, stops
from experiments.parts.encoding import encode_sft
from experiments.parts.play_groups import make_episode_evaluate
from experiments.parts.setup import Setup, load_params, make_setup
from experiments.parts.warm_start import fine_tune, sft_run, warm_start
from rl_jax.core.types import Params, TokenBatch
from rl_jax.envs.text.recorded import segments
from rl_jax.envs.text.world import normalized_score
from rl_jax.experience.episodes import probing
from rl_jax.experience.prompt import info_of
from rl_jax.losses import token_values
from rl_jax.losses.aggregate import token_mean
from rl_jax.models.perturbed import add_token_values, make_perturbed, make_token_values
from rl_jax.runs.logging import write_atomically
from rl_jax.tasks.base import RecordSource
from rl_jax.training import checkpoint

VALUES = ("steps", "batch_size", "learning_rate", "discount", "conservative", "beta")
# Methods, and the options that each reads.
METHODS = {"bc": (), "filtered_bc": ("top",), "mc": VALUES, "ilql": (*VALUES, "expectile", "target_rate")}
CRITICS = {"mc": 1, "ilql": 2}


class Best(RecordSource):
    """Some of the recorded episodes."""

    def __init__(self, source: RecordSource, places: Sequence[int]):
        """places: of the source's records."""
        super().__init__(source, name=source.name, split=source.split, report=source.report)
        self._places = list(places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict[str, str]:
        return self._data[self._places[index]]


def returns_of(source: RecordSource) -> np.ndarray:
    """float [N], the return of each recorded episode."""
    return np.asarray([sum(info_of(source[index])["turn_rewards"]) for index in range(len(source))])


def expert_return(setup: Setup, problems: int) -> float:
    """The mean return of the world's own expert on held-out problems."""
    rng, source = random.Random(0), setup.task.data_source("test")
    records = [source[index] for index in range(min(problems, len(source)))]
    with probing(players.environment_of(setup.config)()) as env:
        played = [segments(env, record["prompt"], info_of(record), rng, 1.0) for record in records]
    return float(np.mean([sum(sum(one.rewards) for one in episode) for episode in played]))


def token_rewards(mask: np.ndarray, records: Sequence[dict]) -> np.ndarray:
    """float32 [B, C]: what each turn earned, on its last token.

    Args:
      mask: bool [B, C], the model's tokens; an environment speaks between two turns.
      records: B recorded episodes.

    Raises:
      ValueError: if a row does not hold all turns of its episode.
    """
    rewards, ends = np.zeros(mask.shape, np.float32), mask & ~np.pad(mask[:, 1:], ((0, 0), (0, 1)))
    for row, record in enumerate(records):
        earned = info_of(record)["turn_rewards"]
        if ends[row].sum() != len(earned) or mask[row, -1]:
            raise ValueError(f"an episode of {len(earned)} turns does not fit {mask.shape[1]} tokens: {record}")
        rewards[row, ends[row]] = earned
    return rewards


def make_loss(setup: Setup, method: str, options: argparse.Namespace) -> Callable:
    """loss(params, target params, (TokenBatch, mask, rewards)) -> Mean, of `mc` or `ilql`."""
    read = make_token_values(setup.model, completion_length=setup.config.rollout.completion_length)

    def loss(params: Params, target: Params, batch: tuple):
        tokens, mask, rewards = batch
        actions = tokens.tokens[:, -mask.shape[1] :]
        q, values = read(params, tokens)
        if method == "mc":
            returns = token_values.returns_to_go(rewards, mask, discount=options.discount)
            lost = token_values.monte_carlo(q, actions, returns, mask, conservative=options.conservative)
            return token_mean(lost, mask)
        slow = jnp.take_along_axis(read(target, tokens)[0], actions[None, :, :, None], axis=3)[..., 0]
        after = token_values.next_values(values[:, :-1], jnp.zeros(len(mask)), mask)  # every recorded episode has ended
        lost = token_values.ilql(
            q, actions, values[:, :-1], after, slow, rewards, mask,
            discount=options.discount, expectile=options.expectile, conservative=options.conservative,
        )  # fmt: skip
        return token_mean(lost, mask)

    return loss


def learn_values(
    setup: Setup, policy: Params, method: str, options: argparse.Namespace
) -> tuple[Params, list[float]] | None:
    """(what decodes: mc's values, ilql's target network; the loss of each step), None after a signal."""
    config = setup.config
    copy = jax.tree.map(jnp.copy, policy)
    params = add_token_values(setup.model, copy, jax.random.key(config.seed), critics=CRITICS[method])
    optimizer = optax.adamw(options.learning_rate, b1=0.9, b2=0.95, weight_decay=0.0)
    loss = make_loss(setup, method, options)

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params, target, state, batch):
        value, gradient = jax.value_and_grad(lambda p: loss(p, target, batch).value())(params)
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, target, options.target_rate), state, value

    source = setup.task.data_source("sft_train")
    batches = processes.own_batches(setup.mesh, source, batch_size=options.batch_size, seed=config.seed)
    target, state, losses = jax.tree.map(jnp.copy, params), optimizer.init(params), []
    for _ in range(options.steps):
        if stops.shared().received:  # nothing of it is kept, so its end is not waited for
            return None
        records = next(batches)
        tokens, mask = encode_sft(setup, records)
        batch = (TokenBatch(tokens.tokens, tokens.positions, tokens.segment_ids), mask, token_rewards(mask, records))
        params, target, state, value = step(params, target, state, batch)
        losses.append(float(value))
    if not np.isfinite(losses[-1]):
        raise FloatingPointError(f"{method}: the loss of step {len(losses)} is {losses[-1]}: lower --learning_rate")
    return (target if method == "ilql" else params), losses


def played(setup: Setup, params: Params) -> dict[str, float]:
    """The metrics of held-out episodes, as experiments.agents evaluates them."""
    settings = setup.config.eval
    player = players.Player(setup, settings.batch_size * settings.samples_per_prompt, settings)
    try:
        return make_episode_evaluate(setup, None, player)(params)[0]
    finally:
        player.close()


def stage(setup: Setup, policy: Params, method: str, workdir: pathlib.Path, options: argparse.Namespace) -> dict | None:
    """Trains and plays one method. Returns its metrics, of an earlier call if they are there; None after a signal.

    Raises:
      ChangedError: if it was trained with other options or another config; names each.
    """
    folder = workdir / method
    found = folder / "result.json"
    settings = setup.config.to_dict() | {f"--{name}": getattr(options, name) for name in METHODS[method]}
    origin.keep(folder / "settings.json", settings, made=found.is_file() or origin.begun(folder))
    if found.is_file():
        return json.loads(found.read_text())
    if stops.shared().received:
        return None
    more: dict[str, Any] = {}
    if method == "bc":
        metrics = played(setup, policy)
    elif method == "filtered_bc":
        source = setup.task.data_source("sft_train")
        returns = returns_of(source)
        chosen = np.argsort(-returns, kind="stable")[: max(int(options.top * len(returns)), 1)]
        best = Best(source, sorted(chosen.tolist()))
        sources = lambda split: best if split == "sft_train" else setup.task.data_source(split)  # noqa: E731
        fewer = setup._replace(task=setup.task._replace(data_source=sources))
        if not fine_tune(fewer, sft_run(setup.config, folder)):
            return None
        more = {"episodes": len(best), "lowest_return": float(returns[chosen].min())}
        metrics = played(setup, load_params(setup, folder))
    else:
        if (learned := learn_values(setup, policy, method, options)) is None:
            return None
        values, losses = learned
        with checkpoint.Checkpointer(folder / "checkpoints", every=1) as checkpoints:
            checkpoints.save(options.steps, {"params": values}, {"step": options.steps})
        more = {"first_loss": losses[0], "last_loss": float(np.mean(losses[-20:]))}
        guided = setup._replace(model=make_perturbed(setup.model, beta=options.beta))
        metrics = played(guided, {"policy": policy, "values": values})
    result = {name: float(value) for name, value in (metrics | more).items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(found, (json.dumps(result, indent=2) + "\n").encode())
    return result


def compare(workdir: pathlib.Path, options: argparse.Namespace, config: Any = None) -> dict[str, dict] | None:
    """All methods of --methods. config: replaces --world's. Returns method -> metrics, None after a signal.

    Raises:
      ValueError: for a method that is none, or a world that cannot be used.
    """
    methods = options.methods.split(",")
    if unknown := set(methods) - set(METHODS):
        raise ValueError(f"--methods: {', '.join(sorted(unknown))} is none of {', '.join(METHODS)}")
    config = (config or agents_worlds.get_config(options.world)).copy_and_resolve_references()
    players.check(config)
    with probing(players.environment_of(config)()) as env:
        rewrites = getattr(env, "rewrites", False)
    if rewrites:
        raise ValueError(f"--world={options.world} begins its history anew: values of tokens need episodes of one row")
    setup = make_setup(config)
    if setup.merged or setup.mesh.size > 1:
        raise ValueError("model.lora and a mesh of several devices do not work here: values are trained on one device")
    with stops.sharing(checkpoint.StopSignal()) as stop:
        policy = warm_start(setup, workdir, stop)
        return None if policy is None else _compared(setup, policy, workdir, methods, options)


def _compared(
    setup: Setup, policy: Params, workdir: pathlib.Path, methods: Sequence[str], options: argparse.Namespace
) -> dict[str, dict] | None:
    """The methods one after the other, and offline.json. None after a signal."""
    config = setup.config
    returns = returns_of(setup.task.data_source("sft_train"))
    ends = dict(
        low=float(returns.min()), mean=float(returns.mean()), high=expert_return(setup, config.eval.num_prompts)
    )
    found = {}
    for method in methods:
        if (result := stage(setup, policy, method, workdir, options)) is None:
            return None
        found[method] = result | {"score": normalized_score(result["eval/reward"], **ends)}
    write_atomically(workdir / "offline.json", (json.dumps({"data": ends, **found}, indent=2) + "\n").encode())
    return found


def table(found: dict[str, dict]) -> str:
    """A Markdown table, a row per method."""
    rows = [f"| {name} | {one['eval/reward']:.3f} | {one['score']:.1f} |" for name, one in found.items()]
    return "\n".join(["| method | return | score |", "|---|---|---|", *rows])


def parser() -> argparse.ArgumentParser:
    """The command line. Defaults are LMRL-Gym's where it has one."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--workdir", type=pathlib.Path, required=True, help="folder of all methods")
    found.add_argument("--world", default="lmrl_maze", help="words of configs/agents_worlds.py")
    found.add_argument("--methods", default=",".join(METHODS), help="some of " + ", ".join(METHODS))
    found.add_argument("--steps", type=int, default=600, help="updates of mc and ilql")
    found.add_argument("--batch_size", type=int, default=32, help="episodes per update of mc and ilql")
    found.add_argument("--learning_rate", type=float, default=1e-3, help="of mc and ilql; 1e-4 for GPT-2")
    found.add_argument("--discount", type=float, default=0.99, help="per token of the model")
    found.add_argument("--expectile", type=float, default=0.95, help="of ilql")
    found.add_argument("--conservative", type=float, default=0.1, help="weight of CQL's term")
    found.add_argument("--target_rate", type=float, default=0.005, help="of ilql's target network, per update")
    found.add_argument("--beta", type=float, default=8.0, help="weight of Q beside log pi_bc")
    found.add_argument("--top", type=float, default=0.1, help="share of the episodes that filtered_bc clones")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        if options.steps < 1 or options.batch_size < 1 or not 0 < options.top <= 1:
            raise ValueError("--steps and --batch_size must be 1 or more, and --top above 0 and at most 1")
        found = compare(options.workdir, options)
    except (ValueError, OSError) as error:
        print(f"experiments.tools.offline_agents: {error}", file=sys.stderr)
        return 2
    if found is None:
        print("stopped before the end; the same command goes on")
        return stops.STOPPED
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
