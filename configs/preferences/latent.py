"""LSPO, latent space policy optimization: arXiv 2502.04686. Werewolf for three seats, in words of the policy's own.

    python -m experiments.online_dpo --config=configs/preferences/latent.py:werewolf --workdir=runs/lspo

    words -> clusters of their embeddings, per role -> CFR on the clusters -> pairs by its regret -> DPO, and again

With `werewolf` an iteration begins every 20 steps (judge `latent_iterations`): the words of a step, from every place of
the game where one speaks, are clustered anew, 2 to a role at first, then 3, then 4; Deep CFR solves the game of the
clusters; for 20 steps DPO trains on the word of the largest regret before the one of the smallest, words of one cluster
make no pair; then the reference becomes the policy. `eval/strategies/gap` is what the players could still gain against
the policy's words: .66 if they are even, 0 in an equilibrium, whose value is about .48 for the village; `latent_gap` is
the solution's. beta is .5: with .1 the policy soon says one word only, and who never mixes can be beaten (numbers:
docs/pages/searches_and_games.md). Departs: three seats for seven, prompts of all places in the game for games that were
played, the moves of others in the prompt for their words. How the clusters grow, and the paper's equations, are
second-hand.

Without it: Kuhn poker, solved anew at each step with tables and 3 clusters (judge `latent_strategies`), the reference
every 10 steps; its gap is .92 if moves are even, and in 40 steps of a smaller model it fell from 1.34 to .83 and
`latent_gap` from .16 to .04 (one seed). Other arguments: `tables` (with werewolf: CFR's tables for its networks),
`policy` (pairs are labelled by the probabilities of the average strategy, sigma(log p_i - log p_j), so that what should
be mixed stays mixed; ours), `smoke`.
"""

from configs import common, sweeps
from configs.preferences import online

INFOSETS = {"kuhn": 12, "werewolf": 52}  # where one says a word
SELECTION = "rl_jax.selection"


def get_config(arg: str | None = None):
    words = common.parse(arg, ("werewolf", "tables", "policy", "smoke"))
    if "tables" in words and "werewolf" not in words:
        raise ValueError("tables is a word of werewolf: Kuhn poker has them")
    prompts = INFOSETS["werewolf" if "werewolf" in words else "kuhn"]
    config = online.of(common.base("lspo"))
    config.name = "lspo_policy" if "policy" in words else "lspo"
    config.task = dict(name="rl_jax.envs.text.kuhn_talk:load", num_words=3_000, data_dir=common.DATA_DIR)
    config.judge = dict(
        strategies=dict(
            fn="latent_strategies", game="rl_jax.envs.text.kuhn_talk:game", clusters=3, rounds=300, by="regret"
        )
    )
    config.model = common.transformer(
        embed_dim=64, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=128, tied_head=False
    )
    config.rollout.update(completion_length=4, prompt_buckets=(5,))
    config.sft.update(steps=200, batch_size=64, eval_every=200)
    config.sft.optimizer = common.optimizer(learning_rate=3e-3, warmup_steps=10, decay_steps=190, final_fraction=0.1)
    config.sample.prompts = dict(fn="ordered")
    config.sample.update(prompts_per_step=prompts, prompts_per_batch=prompts, group_size=16)
    config.algorithm.pair_selection = dict(fn="best_worst", ties="drop")
    config.algorithm.reference_schedule = dict(fn="per_iteration", every=10)
    config.train.update(steps=60, batch_size=prompts)
    config.train.optimizer = common.optimizer(learning_rate=1e-3, warmup_steps=5)
    config.eval.update(every=20, num_prompts=prompts, batch_size=prompts, samples_per_prompt=16)
    config.checkpoint.every = 20
    if "werewolf" in words:
        _werewolf(config, words)
    if "policy" in words:
        config.judge.strategies.by = "policy"
        config.algorithm.pair_selection = dict(fn="bradley_terry", temperature=1.0)
        config.algorithm.beta = 1.0
    if "smoke" in words:
        config.task.num_words = 100
        config.sft.update(steps=10, batch_size=8, eval_every=10)
        config.train.steps = 2
        config.sample.group_size = 4
        config.eval.update(every=2, samples_per_prompt=1)
        config.checkpoint.every = 2
        if "werewolf" in words:
            config.judge.strategies.every = 1
            config.algorithm.reference_schedule.every = 1
        if "rounds" in config.judge.strategies:
            config.judge.strategies.rounds = 20
        else:
            config.judge.strategies.solver.rounds = 3
    return config


def _werewolf(config, words: set[str]) -> None:
    """The iterations, in place."""
    deep = dict(rounds=100, traversals=60, updates=150, batch_size=512, capacity=100_000, hidden=(64,))
    solver = dict(fn=f"{SELECTION}.deep_cfr:solve") | deep
    if "tables" in words:
        solver = dict(fn=f"{SELECTION}.latent_strategies:solve", rounds=300)
    config.name = f"{config.name}_werewolf"
    config.task.name = "rl_jax.envs.text.werewolf_talk:load"
    game = "rl_jax.envs.text.werewolf_talk:game"
    strategies = dict(fn="latent_iterations", game=game, clusters=(2, 3, 4), every=20, solver=solver, by="regret")
    config.judge = dict(strategies=strategies)
    config.rollout.prompt_buckets = (7,)
    config.sample.group_size = 8
    config.eval.samples_per_prompt = 8
    config.algorithm.beta = 0.5
    config.algorithm.reference_schedule.every = 20


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)
