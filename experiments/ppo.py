"""PPO with a critic, from prompts to report: the loop of experiments.grpo with values in it.

    python -m experiments.ppo --config=configs/tasks/arithmetic_ppo.py --workdir=runs/arithmetic_ppo

Each step: prompts -> rollouts -> rewards -> values -> advantages and returns -> updates of critic and policy. The
policy's side is config.algorithm; config.critic is the critic: a network of its own that starts from the policy's
params, or a head on the policy. The same command resumes whatever was interrupted, bit for bit.
"""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments import grpo
from experiments.evaluate import make_evaluate, make_pool, sample_rows
from experiments.parts import common, processes, rollout_mesh, sample_groups, trackers
from experiments.parts.sample_groups import collect
from rl_jax import ppo
from rl_jax.advantages import tokens as token_advantages
from rl_jax.core.binding import bind, needs
from rl_jax.losses import value
from rl_jax.models.heads import NAME as HEAD
from rl_jax.models.heads import add_value_head, make_predict, without_value_head
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import checkpoint, distributed, sharding
from rl_jax.training.scoring import make_score
from rl_jax.training.step import TrainState


def make_objective(config) -> ppo.Objective:
    """The losses' parts by name, with their keywords, from config.algorithm and config.critic."""
    settings = config.critic
    value_loss = bind(settings.loss.to_dict(), value)
    objective = ppo.Objective(
        policy=grpo.make_objective(config),
        value_loss=value_loss,
        support=value.Support(**settings.support.to_dict()) if "support" in needs(value_loss) else None,
        value_coef=settings.value_coef,
    )
    objective.check()
    return objective


def make_estimator(config) -> ppo.Estimator:
    """How values become advantages, from config.critic."""
    settings = config.critic
    return ppo.Estimator(
        advantage=bind(settings.advantage.to_dict(), token_advantages),
        whiten=settings.whiten,
        bootstrap_truncated=settings.bootstrap_truncated,
    )


class Learner(NamedTuple):
    """What is trained. critic: None where it is a head among the policy's params."""

    policy: TrainState
    critic: TrainState | None

    def policy_params(self):
        """The policy's own params."""
        return without_value_head(self.policy.params)

    def with_trackers(self, states: trackers.States) -> "Learner":
        """The same with new states of the trackers, which travel with the policy."""
        return self._replace(policy=self.policy._replace(trackers=states))

    def critic_params(self):
        """The params that predict values."""
        return self.policy.params if self.critic is None else self.critic.params

    def checkpoint_items(self, reference) -> dict[str, Any]:
        """What is saved. "params" are the policy's own, so that any other program can load them."""
        head = {name: group for name, group in self.policy.params.items() if name == HEAD}
        items = {"params": self.policy_params(), "rest": self.policy._replace(params=head), "reference": reference}
        return items if self.critic is None else items | {"critic": self.critic}

    @classmethod
    def of(cls, items: dict[str, Any]) -> "Learner":
        """The Learner that checkpoint_items took apart."""
        rest = items["rest"]
        return cls(rest._replace(params={**items["params"], **rest.params}), items.get("critic"))


class Programs(NamedTuple):
    """The compiled functions of a run.

    generate, score: of the policy, as in experiments.grpo. predict: (critic params, TokenBatch) -> values [B, C + 1].
    assign: (rollout, rewards, values, before, reference, key, tracker states) -> (PPOBatch, metrics).
    policy_step: (state, PolicyBatch) -> (state, metrics); of both, and from a PPOBatch, where the critic is shared.
    critic_step: (state, PPOBatch) -> (state, metrics), or None.
    """

    generate: Callable
    score: Callable
    predict: Callable
    assign: Callable
    policy_step: Callable
    critic_step: Callable | None

    def compile_count(self) -> int:
        """How many programs stand behind them: constant after the first steps, or shapes are leaking."""
        return sum(program._cache_size() for program in self if program is not None)

    def update(self, learner: Learner, batch: ppo.PPOBatch, *, only_critic: bool):
        """One update on one minibatch: (learner, metrics of the policy or None, metrics of a critic of its own)."""
        policy, critic = learner
        if critic is None:
            policy, metrics = self.policy_step(policy, batch)
            return Learner(policy, None), metrics, {}
        critic, of_critic = self.critic_step(critic, batch)
        if only_critic:
            return Learner(policy, critic), None, of_critic
        policy, metrics = self.policy_step(policy, batch.policy)
        return Learner(policy, critic), metrics, of_critic


def make_assign(config) -> Callable:
    """Programs.assign, all of it on the global batch."""
    rule, estimator = grpo.make_credit(config), make_estimator(config)

    def assign(rollout, rewards, values, before, reference, key, states):
        batch, means = ppo.assign(
            rule,
            estimator,
            rollout,
            rewards,
            values,
            group_size=config.sample.group_size,
            key=key,
            ref_log_probs=reference,
            log_probs=before.log_probs,
            entropy=before.entropy,
            **trackers.known(config, states),
        )
        policy = trackers.weigh(batch.policy, states)
        if grpo.has_several_updates(config):
            policy = policy._replace(old_log_probs=before.log_probs)
        return batch._replace(policy=policy), {name: mean.value() for name, mean in means.items()}

    return assign


def build(setup: common.Setup, params) -> tuple[Programs, Learner]:
    """The programs of this config on this mesh, and what they start from. `params` are given up to it."""
    config, objective = setup.config, make_objective(setup.config)
    length, settings = config.rollout.completion_length, config.critic
    if settings.shared and settings.warmup_steps:
        raise ValueError("critic.warmup_steps: a critic that shares the policy's trunk cannot be trained alone")
    rows = sharding.batch_sharding(setup.mesh)
    critic_params = jax.jit(lambda p: add_value_head(setup.model, p, num_outputs=objective.num_outputs()))(params)
    critic_shardings = sharding.tree_shardings(jax.eval_shape(lambda: critic_params), setup.mesh)
    of_policy, policy = grpo.build(setup, params)

    def predict(params, batch, model=setup.model):
        return make_predict(model, completion_length=length)(params, batch)

    def critic_loss(params, batch):
        return ppo.value_loss(predict(params, batch.policy.batch)[:, :-1], batch, objective)

    def joint_loss(params, batch):
        tokens = batch.policy.batch
        hidden = setup.model.apply(params, tokens)  # once, for both heads
        model = setup.model._replace(apply=lambda *_: hidden)
        sampling = Sampling(config.rollout.temperature)  # what is trained, as in experiments.grpo.build
        score = make_score(model, completion_length=length, sampling=sampling, chunk=config.score.chunk)
        return ppo.loss(score(params, tokens), predict(params, tokens, model)[:, :-1], batch, objective)

    if settings.shared:
        policy_step, policy = common.make_trainer(setup, config.train, joint_loss, critic_params, policy.trackers)
        critic_step, critic = None, None
    else:
        policy_step = of_policy.train_step
        critic_step, critic = common.make_trainer(setup, settings, critic_loss, critic_params)
    programs = Programs(
        generate=of_policy.generate,
        score=of_policy.score,
        predict=jax.jit(
            lambda params, batch: objective.values(predict(params, batch)),
            in_shardings=(critic_shardings, rows),
            out_shardings=rows,
        ),
        assign=jax.jit(make_assign(config), out_shardings=(rows, sharding.replicated(setup.mesh))),
        policy_step=policy_step,
        critic_step=critic_step,
    )
    return programs, Learner(policy, critic)


# What a step without an update of the policy has instead of its metrics.
NO_UPDATE = {"ratio/max_dev": 0.0, "sampler/gap_max": 0.0, "sampler/weight": 1.0, "sampler/weight_squared": 1.0}


def step_metrics(config, judged, state: TrainState, updates, critic_updates) -> dict[str, float]:
    """A step's row of metrics: those of experiments.grpo, and the mean of the critic's updates.

    updates: of the policy, none while the critic warms up. critic_updates: of a critic of its own, or empty dicts.
    """
    if updates:
        metrics = grpo.step_metrics(config, judged, updates)
    else:
        idle = NO_UPDATE | {"nonfinite/skipped": float(state.skipped)}
        metrics = grpo.step_metrics(config, judged, [idle])
        for name in ("ratio/max_dev", "ratio/first_max_dev", "sampler/gap_max", "sampler/ess"):
            del metrics[name]
    for name in critic_updates[0]:
        mean = sum(float(update[name]) for update in critic_updates) / len(critic_updates)
        if name == "nonfinite/skipped":
            mean = float(critic_updates[-1][name])  # a count so far
        metrics[name if name.startswith("value/") else f"critic/{name}"] = mean
    metrics.pop("critic/loss", None)  # it stands in value/loss
    return metrics


def check_config(config) -> None:
    """Raises ValueError for what the configs of experiments.grpo have and a critic does not."""
    if config.packing.mode != "padded":
        raise ValueError(f"packing.mode={config.packing.mode!r}: the critic reads padded rows; set it to 'padded'")
    if config.model.lora.rank:
        raise ValueError(f"model.lora.rank={config.model.lora.rank}: the critic has no adapters; set it to 0")


def check_rows(setup: common.Setup) -> None:
    """Raises ValueError where the rows of a step, or of a micro-batch, do not divide over the devices."""
    minibatch = setup.config.sample.prompts_per_step * setup.config.sample.group_size // setup.config.train.minibatches
    parts = {"micro_batch": setup.config.train.micro_batches, "critic's micro_batch": setup.config.critic.micro_batches}
    micro_batches = {name: minibatch // count for name, count in parts.items()}
    common.check_rows(setup, prompts_per_step=setup.config.sample.prompts_per_step, **micro_batches)


def compile_ahead(setup: common.Setup, programs: Programs, pool, prompts, learner: Learner) -> None:
    """Compiles what the first step calls: the step itself, with its prompts, and zeros in place of results."""
    config, ahead, key = setup.config, common.ahead(setup), processes.step_key(learner.policy, 0)
    params = rollout_mesh.place(setup.rollout, learner.policy_params(), common.Clock())
    collected = sample_groups.compile_ahead(setup, pool, programs.generate, None, prompts, params, key)
    if collected is None:
        return
    rollout, rewards = common.place_rows(setup, (collected.judged.rollout, collected.judged.result.rewards))
    before = ahead("score", programs.score)(learner.policy_params(), rollout.batch)
    values = ahead("predict", programs.predict)(learner.critic_params(), rollout.batch)
    states = jax.device_get(learner.policy.trackers)
    batch, _ = ahead("assign", programs.assign)(rollout, rewards, values, before, before.log_probs, key, states)
    part = common.place_rows(setup, grpo.minibatches(config, distributed.whole(batch), key)[0])
    if programs.critic_step:
        ahead("critic_step", programs.critic_step)(learner.critic, part)
        part = part.policy
    ahead("policy_step", programs.policy_step)(learner.policy, part)


def run(config, workdir: pathlib.Path) -> None:
    """The whole of it: warm start, restore if there is something, loop, save."""
    check_config(config)
    stop = checkpoint.StopSignal()  # from the first moment, and one for both loops: no signal falls in between
    setup = common.setup(config)
    check_rows(setup)
    common.record_run(setup, workdir, "ppo")
    params = grpo.warm_start(setup, workdir, stop)
    if params is None:
        return
    reference_params = jax.tree.map(jnp.copy, params)
    programs, learner = build(setup, params)
    source = setup.task.data_source("train")
    prompts = processes.own_batches(setup.mesh, source, batch_size=config.sample.prompts_per_step, seed=config.seed)
    checkpoints = checkpoint.Checkpointer(workdir / "checkpoints", **config.checkpoint.to_dict())
    step = 0
    if checkpoints.latest_step() is not None:
        items, host = checkpoints.restore(learner.checkpoint_items(reference_params), in_place=True)
        learner, reference_params, step = Learner.of(items), items["reference"], host["step"]
        prompts.set_state(host["data"])
    made = trackers.make_trackers(config)
    log = processes.run_logger(workdir, step, total_steps=config.train.steps, **common.log_options(config))
    with checkpoints, make_pool(setup) as pool, log:
        if step < config.train.steps:
            compile_ahead(setup, programs, pool, prompts, learner)
        evaluate = make_evaluate(setup, pool)
        if step == 0:
            metrics, samples = evaluate(learner.policy_params())
            log.log(0, metrics)
            log.samples(0, samples)
        stopping = distributed.any_process(stop.received)
        while step < config.train.steps and not stopping:
            step += 1
            looking = step % config.eval.every == 0 or step == config.train.steps
            warming_up = step <= config.critic.warmup_steps
            clock = common.Clock()
            rollout_key, credit_key, order_key = jax.random.split(processes.step_key(learner.policy, step), 3)
            params = rollout_mesh.place(setup.rollout, learner.policy_params(), clock)
            collected = collect(setup, pool, programs.generate, None, prompts, params, rollout_key, clock)
            del params  # a second copy of the weights, which the updates have no room for
            judged = collected.judged
            rollout, rewards = common.place_rows(setup, (judged.rollout, judged.result.rewards))
            tokens = rollout.batch
            before = programs.score(learner.policy_params(), tokens)
            reference = programs.score(reference_params, tokens).log_probs
            values = programs.predict(learner.critic_params(), tokens)
            learner = learner.with_trackers(trackers.see_rewards(made, learner.policy.trackers, judged.result.rewards))
            states = jax.device_get(learner.policy.trackers)
            batch, batch_metrics = programs.assign(rollout, rewards, values, before, reference, credit_key, states)
            before, batch, batch_metrics = distributed.whole((before, batch, jax.device_get(batch_metrics)))
            clock.lap("score_s", batch)
            updates, critic_updates = [], []
            for part in grpo.minibatches(config, batch, order_key):
                part = common.place_rows(setup, part)
                learner, metrics, of_critic = programs.update(learner, part, only_critic=warming_up)
                updates += [] if metrics is None else [jax.device_get(metrics)]
                critic_updates.append(jax.device_get(of_critic))
                for state in filter(None, learner):
                    common.stop_on_nonfinite(state, part, workdir, step, config.train.max_nonfinite_in_a_row)
            clock.lap("train_s")
            metrics = step_metrics(config, judged, learner.policy, updates, critic_updates)
            states = trackers.observe(made, learner.policy.trackers, judged.result.rewards, metrics)
            learner = learner.with_trackers(processes.replicate(setup.mesh, states))
            metrics |= collected.metrics | batch_metrics | trackers.metrics_of(states)
            metrics |= {"data/skipped_records": source.num_skipped}
            if looking:
                evaluated, samples = evaluate(learner.policy_params())
                metrics |= evaluated
                log.samples(step, samples + sample_rows(judged, "train", config.log.sample_rows))
                after = distributed.whole(programs.score(learner.policy_params(), tokens))
                log.group_view(step, grpo.group_view(setup, judged, batch.policy, before, after))
            sampled = judged.rollout.completion_mask.sum()
            log.log(step, metrics, clock.totals(sampled) | {"compile_count": programs.compile_count()})
            stopping = distributed.any_process(stop.received)
            if checkpoints.due(step) or step == config.train.steps or stopping:
                items = learner.checkpoint_items(reference_params)
                checkpoints.save(step, items, {"step": step, "data": prompts.get_state()}, metrics)
    if step == config.train.steps:
        common.write_final(setup, workdir, step, learner.policy_params(), critic=learner.critic_params())


if __name__ == "__main__":
    common.main(run, several_processes=True)
