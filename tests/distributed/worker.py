"""One process of a run at the smallest size: the programs one after the other, and what a test asks for beside them.

    python -m tests.distributed.worker FOLDER MESH JOB... -- --coordinator=... --num_processes=2 --process_id=0

A job is a method below. What it writes lies in FOLDER, one folder a job.
"""

import contextlib
import json
import math
import os
import pathlib
import shutil
import signal
import sys
import time

import jax
import numpy as np
from absl import flags
from jax._src import cache_key, compiler

# What only some jobs call is imported by them: four processes that look at the seam alone start in half the time.
from experiments.parts import processes
from rl_jax.training import distributed, resharding, sharding

# Adam divides by the gradient's own size: with the usual eps, rounding alone drives two runs apart.
OPTIMIZER = dict(learning_rate=0.02, eps=1e-3)
MESH_OF_RUNS = "seeds:2,envs:2"  # each of two processes has two of four runs
ROLLOUT_MESH = "fsdp:2,tensor:2"  # of what samples apart from the training mesh
LENGTHS = [3, 5, 8, 2, 7, 8, 1, 4]  # of the rows whose logits are compared


def policy_config(folder: pathlib.Path, mesh: str):
    """A GRPO run with everything in it that is coupled over the batch or carried from step to step.

    It evaluates with the program that it samples with: one less to compile. 12 prompts fill its second batch by half.
    """
    from tests.experiments import small

    found = small.config(
        folder.parent,
        mesh=mesh,
        reward__function=small.reward(small.sevens_of_prompt),
        train__steps=4,
        sample__prompts_per_step=8,
        sample__group_size=4,
        train__epochs=2,
        train__minibatches=2,
        algorithm__kl_coef=0.05,
        algorithm__entropy_coef=0.01,
        rollout__prompt_buckets=(12,),
        eval__every=4,
        eval__batch_size=8,
        eval__num_prompts=12,
        eval__samples_per_prompt=4,
        eval__temperature=1.0,
        checkpoint__every=4,
    ).unlock()
    found.train.optimizer.update(OPTIMIZER)
    return found


def control_config(*, rates: tuple[float, ...], mesh: str = MESH_OF_RUNS):
    """12 updates in 3 calls of 8 envs x 8 steps, of 2 seeds with each learning rate; with all trackers."""
    from configs.control import environments

    config = environments.get_config("matching,ppo_kl")
    config.update(num_seeds=2, log_every=4, mesh=mesh)
    config.sample.update(num_envs=8, num_steps=8)
    config.sweep = (("train.optimizer.learning_rate", rates),)
    config.network.hidden = (8,)
    config.train.update(total_steps=768, epochs=2, minibatches=2)
    config.algorithm.update(normalize_observations=True, normalize_rewards=True)
    config.eval.update(num_episodes=4, max_steps=8)
    config.checkpoint.every = 4
    config.log.update(progress=False, tensorboard=False)
    return config


class Jobs:
    """What this process can be asked for."""

    def __init__(self, folder: pathlib.Path, mesh: str):
        self.folder, self.mesh = folder, mesh

    def grpo(self) -> None:
        """Dynamic sampling, trackers, a schedule, chosen prompts, foreign rows; sampled on a mesh of its own.

        Not refinements, which ask for a program of their own: they are drawn as hinted rows are.
        """
        from experiments import grpo

        config = policy_config(self.folder, self.mesh)
        config.rollout.mesh = ROLLOUT_MESH
        config.sample.update(prompts=dict(fn="by_success"), memory=dict(on=True, successes=0))
        config.sample.dynamic_sampling.max_batches = 2
        config.algorithm.trackers.update(
            entropy=dict(fn="adaptive_entropy"),
            reward_kl=dict(fn="adaptive_kl"),
            reward_scale=dict(fn="running_moments"),
        )
        config.algorithm.shaping = dict(fn="scaled")
        config.schedules = dict(bonus=dict(field="algorithm.entropy_coef", fn="linear", start=0.02, end=0.0, steps=3))
        config.foreign = dict(
            a=dict(fn="demonstrations", at_most=4, share=0.5),
            b=dict(fn="hints", at_most=4, share=0.5, level=0.5, train_on="original", until_right=False),
            c=dict(fn="replay", at_most=4, replace="last", behavior="drawn"),
        )
        grpo.run(config.lock(), self.folder / "grpo")

    def ppo(self) -> None:
        """A critic of its own, whitened advantages, token rewards of a model that learns from the step's own rows, from
        the run of `grpo` on; without evaluations, which are those of GRPO."""
        from configs import ppo_common
        from experiments import ppo

        ppo.play_groups.make_evaluate = lambda setup, pool: lambda params: ({}, [])
        config = ppo_common.with_critic(policy_config(self.folder, self.mesh))
        config.train.steps = config.critic.warmup_steps + 2
        config.critic.optimizer.update(OPTIMIZER)
        judge = dict(fn="log_ratio", path=str(self.folder / "grpo"), beta=0.1, retrain_every=1, learning_rate=1e-3)
        config.judge = dict(implicit=judge)
        ppo.run(config.lock(), self.folder / "ppo")

    def dpo(self, name: str = "dpo") -> None:
        """A warm start, packed pairs, and a statistic of the whole batch."""
        from configs.preferences import given
        from experiments import dpo

        config = given.get_config("smoke")
        self._read_pairs(config)
        # Enough steps for two that end in the middle, the second of them after a checkpoint that is not its last step.
        config.train.update(steps=8, batch_size=8, micro_batches=2)
        config.algorithm.update(compare=dict(fn="anchored"))
        config.algorithm.batch_stats = dict(fn="bco_anchor")
        config.train.optimizer.update(OPTIMIZER, learning_rate=5e-3)
        config.sft.update(steps=2, batch_size=8)
        config.packing.mode = "shared_prefix"
        config.eval.update(every=4, batch_size=8, num_prompts=10)
        config.checkpoint.every = 3
        dpo.run(config.lock(), self.folder / name)

    def stopped(self) -> None:
        """dpo in a folder of its own, ended by a signal to the last process alone; a copy of what was saved."""
        with self._signal_after(4, signal.SIGTERM):
            self.dpo("stopped")
        if distributed.is_main():
            shutil.copytree(self.folder / "stopped", self.folder / "saved")

    def killed(self) -> None:
        """The same run goes on, until the last process dies without a word."""
        with self._signal_after(7, signal.SIGKILL):
            self.dpo("stopped")

    def goes_on(self) -> None:
        """The same run to its end, in however many processes."""
        self.dpo("stopped")

    @contextlib.contextmanager
    def _signal_after(self, step: int, number: signal.Signals):
        """The last process gets the signal at the end of this step of the run."""
        from experiments.parts import run

        end = run.Step.end

        def signalled(ended, *args, **options):
            if ended.number == step and jax.process_index() == jax.process_count() - 1:
                os.kill(os.getpid(), number)
            end(ended, *args, **options)

        run.Step.end = signalled
        try:
            yield
        finally:
            run.Step.end = end

    def online_dpo(self) -> None:
        """Samples, their opponents, and a reference that moves."""
        from configs.preferences import online
        from experiments import online_dpo

        config = online.of(policy_config(self.folder, self.mesh))
        config.train.update(steps=3, batch_size=8, epochs=2)
        config.train.optimizer.update(OPTIMIZER)
        config.sample.update(prompts_per_step=8, prompts_per_batch=8, opponents=dict(samples=1, share=1.0))
        config.algorithm.reference_schedule = dict(fn="per_iteration")
        online_dpo.run(config.lock(), self.folder / "online_dpo")

    def control_seeds(self) -> None:
        """Four runs in environments, two per process."""
        from experiments.control import ppo as control_ppo

        control_ppo.run(control_config(rates=(0.003, 0.01)).lock(), self.folder / "control_seeds")

    def control_envs(self) -> None:
        """Environments over all processes: gradients are summed over them."""
        from experiments.control import ppo as control_ppo

        control_ppo.run(control_config(rates=(0.003,), mesh="envs:4").lock(), self.folder / "control_envs")

    def control_halves(self) -> None:
        """control_seeds, ended by a signal to the last process alone, and resumed."""
        from experiments.control import ppo as control_ppo
        from experiments.parts import control_loop

        config, folder = control_config(rates=(0.003, 0.01)).lock(), self.folder / "control_halves"

        def record(config):
            recorded = control_loop.make_recorder(config)

            def stopping(state, step):
                if step == 4 and jax.process_index() == jax.process_count() - 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                return recorded(state, step)

            return stopping

        control_loop.train(config, folder, record=record)
        assert not (folder / "final.json").exists()
        control_ppo.run(config, folder)

    def control_diverges(self) -> None:
        """The same program with learning rates at which no run has finite gradients: all processes raise."""
        from experiments.control import ppo as control_ppo

        config = control_config(rates=(math.inf, math.inf))
        config.max_nonfinite_in_a_row = 3
        try:
            control_ppo.run(config.lock(), self.folder / "control_diverges")
        except FloatingPointError as error:
            print(json.dumps({"diverged": str(error)}), flush=True)

    def _read_pairs(self, config) -> None:
        """A config that reads the pairs of all folders with a model of one layer."""
        path = self.folder.parent / "pairs.jsonl"
        config.data.update(path=str(path), kind="pairs", name="jsonl", data_dir=str(self.folder.parent / "data"))
        config.task.alphabet = "abcxyz"
        config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=16)
        config.rollout.update(completion_length=5, prompt_buckets=(6,))
        config.mesh = self.mesh
        config.log.update(progress=False, tensorboard=False)

    def seam(self) -> None:
        """What passes between processes, one function after the other; on a mesh of 4 devices in 2 or 4 processes."""
        mesh, me, count = self._mesh(), jax.process_index(), jax.process_count()
        here = processes.rows_here(mesh, 8)
        np.testing.assert_array_equal(here, np.arange(8).reshape(count, -1)[me])
        shared = sharding.make_mesh(sharding.parse_mesh("tensor:4"))  # a model across hosts: all hold all rows
        np.testing.assert_array_equal(processes.rows_here(shared, 8), np.arange(8))

        rows = np.arange(16, dtype=np.float32).reshape(8, 2)
        placed = processes.own_to_mesh(mesh, rows[here])
        assert placed.shape == (8, 2) and not placed.is_fully_addressable
        np.testing.assert_array_equal(distributed.local_rows(placed), rows[here])
        np.testing.assert_array_equal(distributed.whole(placed), rows)
        np.testing.assert_array_equal(distributed.whole(distributed.place(rows, placed.sharding)), rows)
        key = processes.replicate(mesh, jax.random.key_data(jax.random.key(3)))
        key = jax.jit(jax.random.wrap_key_data)(key)
        assert not key.is_fully_addressable and distributed.whole(key).is_fully_addressable
        assert distributed.whole(key) == jax.random.key(3)
        keys = jax.random.split(jax.random.key(3), 8)
        spread = distributed.place(keys, placed.sharding)
        assert not spread.is_fully_addressable and bool((distributed.whole(spread) == keys).all())

        self._separate_devices()
        assert distributed.any_process(me == 1) and not distributed.any_process(False)
        assert distributed.largest(10 + me) == 9 + count
        assert distributed.gather({"id": me, "text": "ä" * me}) == [{"id": i, "text": "ä" * i} for i in range(count)]
        # Uneven shares, a row that two processes have, and three types: each row at its place, the first one's counts.
        places = np.array([[6, 0], [6, 2, 3], [1], [4, 5]][me])
        mine = {"x": np.full((len(places), 2), me, np.int8), "y": places * 0.5, "z": places > 2}
        found = distributed.gather_rows(mine, places, 7)
        owners = np.array([0, 0, 1, 1, 0, 0, 0] if count == 2 else [0, 2, 1, 1, 3, 3, 0])
        there = np.array([0, 2, 3, 6] if count == 2 else range(7))
        np.testing.assert_array_equal(found["x"], np.stack([owners, owners], axis=1))
        np.testing.assert_array_equal(found["y"][there], there * 0.5)
        np.testing.assert_array_equal(found["z"][there], there > 2)

    def _separate_devices(self) -> None:
        """From one half of each process's devices to the other, by twins; to some of both, by the hosts; rows back."""
        if jax.local_device_count() == 1:
            return
        count = jax.process_count()
        devices = processes.devices_for(count)
        assert [device.process_index for device in devices] == list(range(count))
        train = sharding.make_mesh(sharding.parse_mesh(f"fsdp:{count}"), devices)
        others = [device for device in jax.devices() if device not in devices]
        for chosen in (others, [devices[0], *others[1:]]):
            mesh = sharding.make_mesh(sharding.parse_mesh(f"tensor:{count}"), chosen)
            x = np.arange(32, dtype=np.float32).reshape(8, 4)
            there = jax.NamedSharding(mesh, jax.P(None, "tensor"))
            placed = distributed.place(x, jax.NamedSharding(train, jax.P("fsdp")))
            moved = resharding.reshard({"x": placed}, {"x": there})["x"]
            assert moved.sharding == there and moved.sharding.device_set == {*chosen}
            np.testing.assert_array_equal(distributed.whole(moved), x)
            np.testing.assert_array_equal(processes.own_rows(train, moved), x[processes.rows_here(train, 8)])

    def widths(self) -> None:
        """One process has a longer prompt than the others: all pad to it."""
        from experiments.parts import encoding
        from experiments.parts.setup import make_setup

        config = policy_config(self.folder, self.mesh)
        config.rollout.prompt_buckets = (4, 5, 8)
        setup = make_setup(config.lock())
        long = jax.process_index() == jax.process_count() - 1
        tokens, mask = encoding.encode_prompts(setup, [{"prompt": "1+12=" if long else "1+="}] * 2)
        assert tokens.shape == (2, 8) and mask.sum() == (12 if long else 8), (tokens.shape, mask.sum())
        record = {"prompt": "1+12=" if long else "1+=", "completion": "3", "info": "{}"}
        batch, _ = encoding.encode_sft(setup, [record])
        assert batch.tokens.shape == (1, 8 + config.rollout.completion_length)
        np.testing.assert_array_equal(batch.segment_ids[0, :8], mask[0])

    def continuous(self) -> None:
        """Two rollouts of the continuous engine, 8 rows in 4 slots, on a mesh of its own and with 8-bit weights, to
        FOLDER/continuous.npz.

        Rows and the model's width are split over processes there; on the training mesh a process has the whole model.
        """
        from experiments.parts import encoding, sampler
        from experiments.parts.setup import make_setup

        config = policy_config(self.folder, self.mesh)
        config.rollout.update(mesh=ROLLOUT_MESH, weights="int8")
        config.rollout.engine.update(name="continuous", slots=4)
        setup = make_setup(config.lock())
        params = jax.jit(setup.model.init, out_shardings=setup.param_shardings)(jax.random.key(0))
        generate = sampler.make_sampler(
            setup, 4, group_size=2, completion_length=6, eos_ids=setup.task.tokenizer.eos_ids
        )
        records = [{"prompt": prompt} for prompt in ("1+12=", "1+=", "7=", "3+3=")]
        own = [records[i] for i in processes.rows_here(setup.mesh, 4)]
        prompts = processes.own_to_mesh(setup.mesh, encoding.encode_prompts(setup, own))
        found = [generate(params, *prompts, jax.random.key(seed)) for seed in (1, 2)]
        compiled = generate._cache_size()
        assert jax.process_count() == 1 or not any(leaf.is_fully_addressable for leaf in jax.tree.leaves(found))
        leaves = jax.tree.leaves(distributed.whole(found))
        if distributed.is_main():
            np.savez(self.folder / "continuous.npz", *leaves, programs=compiled)

    def logits(self) -> None:
        """Logits of the params in FOLDER/params, to FOLDER/logits.npy."""
        from rl_jax.models.transformer.model import make_transformer
        from rl_jax.training import checkpoint
        from tests.tiny import CONFIG, token_batch

        mesh = self._mesh()
        model = make_transformer(CONFIG)
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        places = sharding.tree_shardings(shapes, mesh)
        like = jax.tree.map(lambda s, at: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=at), shapes, places)
        with checkpoint.Checkpointer(self.folder / "params", every=1) as checkpoints:
            params = checkpoints.restore({"params": like})[0]["params"]
        batch = distributed.place(token_batch(LENGTHS, 8), sharding.batch_sharding(mesh))
        found = distributed.whole(jax.jit(lambda p, b: model.unembed(p, model.apply(p, b)))(params, batch))
        if distributed.is_main():
            np.save(self.folder / "logits.npy", np.asarray(found))

    def _mesh(self):
        sizes = sharding.parse_mesh(self.mesh)
        processes.simulate_devices(int(np.prod(list(sizes.values()))))
        return sharding.make_mesh(sizes)


def read_programs(give_up_s: float = 60.0) -> None:
    """What the first process compiles for all of them the others read from the shared folder of compiled programs.

    jax's key of a program has a CPU process's own view of the devices in it, so the others would find nothing. If the
    first writes all that it compiles, they wait for it; whoever waits in vain compiles the program itself.

    Private to jax: in a version without these names each process compiles for itself.
    """

    def name_devices(entry, devices):
        entry.update(repr([(device.id, device.process_index) for device in devices.flat]).encode())

    def wait(backend, computation, devices, options, callbacks, name, key):
        owners = {device.process_index for device in devices}
        give_up = time.monotonic() + give_up_s
        while not callbacks and 0 in owners and len(owners) > 1 and time.monotonic() < give_up:
            found, _ = compiler._cache_read(name, key, options, backend, devices)  # None where nothing is yet
            if found is not None:
                return found
            time.sleep(0.005)
        return compile_here(backend, computation, devices, options, callbacks, name, key)

    compile_here = getattr(compiler, "_compile_and_write_cache", None)
    if compile_here is None or not hasattr(cache_key, "_hash_accelerator_config"):
        return
    cache_key._hash_accelerator_config = name_devices
    if processes.FLAGS.process_id > 0 and jax.config.jax_persistent_cache_min_compile_time_secs == 0:
        compiler._compile_and_write_cache = wait


def share_programs() -> None:
    """Jits what the jobs of this process have in common once."""
    from tests.experiments.shared_programs import Sharing

    if not isinstance(jax.jit, Sharing):
        jax.jit = Sharing(jax.jit)


def main() -> None:
    """The jobs that the command line names, in their order."""
    split = sys.argv.index("--")
    folder, mesh, *names = sys.argv[1:split]
    flags.FLAGS(["worker", *sys.argv[split + 1 :]])
    processes.start(supported=True)
    read_programs()
    jobs = Jobs(pathlib.Path(folder), mesh)
    for name in names:
        if name != "seam":
            share_programs()
        getattr(jobs, name)()
        distributed.barrier(name)
        print(json.dumps({"done": name}), flush=True)


if __name__ == "__main__":
    main()
