"""Worlds of text with a known optimum: mazes, guessing games, Wordle, retries, talks, searches, poker, an endgame.

    python -m experiments.agents --config=configs/agents_worlds.py:maze --workdir=runs/maze

The first argument is the world (`maze` is the default; WORLDS lists them). Further ones: a credit over turns,
`trajectory`, `loop`, `turn_grpo`, `gigpo`, `semi_online`, `vine`, `arpo`, ... (CREDIT; the default is turn_return_loo,
docs/pages/turn_credit.md); `self_play` and `older` let the policy, or its version of up to ten steps ago, play the
other side of `kuhn` and `bargain`; `real` takes the published lists of Wordle or the cities instead of the small own
ones (`python -m experiments.tools.fetch_data games`); `smoke`: seconds, for CI. The warm start imitates recorded
episodes, half of whose turns are a beginner's.
"""

from configs import agents, common, sweeps

TEXT = "rl_jax.envs.text"
# world -> (class, keywords, most turns, tokens of a prompt, tokens of an episode after it)
WORLDS = {
    "maze": ("maze:Maze", dict(size=3, most=8), 8, 8, 56),
    "lmrl_maze": ("maze:Maze", dict(size=3, most=8, price=1.0, invalid=3.0, win=0.0), 8, 8, 56),  # LMRL-Gym's returns
    "guided": ("maze:Guided", dict(), 8, 8, 64),
    "guess": ("guessing:GuessNumber", dict(top=8), 6, 4, 30),
    "questions": ("guessing:TwentyQuestions", dict(animals=8, most=8), 8, 5, 72),
    "city": ("guessing:GuessCity", dict(most=8), 8, 5, 176),
    "wordle": ("wordle:Wordle", dict(number=12), 6, 7, 80),
    "retry": ("retry:Retry", dict(), 5, 5, 40),
    "hidden_digit": ("retry:Retry", dict(answers=10), 5, 4, 32),
    "recursive": ("retry:Retry", dict(decay=1.0, repetition=0.0), 5, 5, 40),
    "improve": ("retry:Improvement", dict(length=3), 5, 3, 40),
    "reflect": ("reflection:Reflection", dict(), 4, 6, 48),
    "user": ("talks:User", dict(), 4, 8, 20),
    "doctor": ("talks:Doctor", dict(), 6, 4, 48),
    "negotiate": ("talks:Negotiation", dict(), 6, 4, 48),
    "search": ("lookups:Search", dict(), 5, 16, 112),
    "database": ("lookups:Database", dict(), 4, 20, 240),
    "router": ("lookups:Router", dict(), 4, 10, 32),
    "kuhn": ("kuhn:Kuhn", dict(), 3, 4, 12),
    "bargain": ("two_party:Bargain", dict(), 4, 5, 40),
    "dual": ("dual:Dual", dict(), 8, 4, 76),
    "research": ("workspaces:Research", dict(most=5), 5, 26, 190),
    "errands": ("workspaces:Errands", dict(), 12, 48, 160),
    "summaries": ("summaries:Summaries", dict(), 14, 48, 224),
    "program": ("attempts:Guided", dict(), 2, 24, 44),
    "judged": ("attempts:Judged", dict(), 3, 20, 64),
    "discussed": ("discussions:Discussions", dict(), 24, 20, 360),
    "quest": ("quests:Quest", dict(), 8, 12, 96),
    "screens": ("screens:Screens", dict(), 6, 11, 66),
    "gripper": ("gripper:Gripper", dict(), 8, 10, 80),
    "endgame": ("endgame:Endgame", dict(), 10, 10, 80),
    "site": ("site:Site", dict(), 6, 40, 200),
    "orders": ("orders:Orders", dict(things=2), 8, 30, 152),
    "graded": ("graded:GradedTools", dict(), 4, 46, 44),
    "two_tools": ("quests:TwoTools", dict(), 4, 8, 44),
}
CREDIT = {
    "loop": dict(fn="rl_jax.advantages.turns:loop"),
    "trajectory": dict(fn="rl_jax.advantages.turns:trajectory"),
    "turn_grpo": dict(fn="rl_jax.advantages.turns:turn_grpo"),
    "mt_grpo": dict(fn="rl_jax.advantages.turns:mt_grpo", coef=1.0),
    "gigpo": dict(fn="rl_jax.advantages.turn_states:gigpo", step_coef=1.0, discount=0.95),
    "state_loo": dict(fn="rl_jax.advantages.turn_states:state_return_loo"),
    "transitions": dict(fn="rl_jax.advantages.turn_states:transitions"),
    "igpo": dict(fn="rl_jax.advantages.turn_states:igpo"),
    "semi_online": dict(fn="rl_jax.advantages.turn_states:semi_online"),  # for `guided`, which counts patched turns
    "aspo": dict(fn="rl_jax.advantages.turn_shaping:aspo"),  # for worlds that count calls: search, database, router
    "igpo_logs": dict(fn="rl_jax.advantages.turn_shaping:igpo_policy", logs=True, separate=True),
    "igpo_policy": dict(fn="rl_jax.advantages.turn_shaping:igpo_policy"),  # for worlds with a right answer, as search
    "oprl": dict(fn="rl_jax.advantages.turn_shaping:oprl", step_coef=1.0),  # with a reward model in training
    "attempts": dict(fn="rl_jax.advantages.turns:turn_return_loo", discount=0.0),  # a turn is an episode: program
    "eapo": dict(fn="rl_jax.advantages.turn_rounds:eapo", discount=0.9),
    "rise": dict(fn="rl_jax.advantages.turn_rounds:reward_weighted", temperature=1.0),
    "zero_sum": dict(fn="rl_jax.advantages.turn_rounds:zero_sum"),  # for judged, discussed
    "sweet": dict(fn="rl_jax.advantages.turn_shaping:sweet"),
    "vine": dict(fn="rl_jax.advantages.turn_critics:vine"),
    "arpo": dict(fn="rl_jax.advantages.turn_trees:arpo"),
    "arpo_entropy": dict(fn="rl_jax.advantages.turn_trees:arpo"),  # branches by the entropy of tokens, not -log p
    "arpo_soft": dict(fn="rl_jax.advantages.turns:trajectory", eps=1e-6),  # its code's credit, and its draws
    "tree_grpo": dict(fn="rl_jax.advantages.turn_trees:tree_grpo"),
    "branch_loo": dict(fn="rl_jax.advantages.turn_trees:branch_return_loo"),
}
# What config.agent needs for them.
AGENT = {
    "oprl": dict(step_model=dict(fn="implicit", beta=0.05, learning_rate=1e-4, updates=1)),  # rates of small models
    "vine": dict(state_rollouts=2),
    "arpo": dict(branching=dict(fn="by_entropy"), roots=4),
    "arpo_entropy": dict(branching=dict(fn="by_entropy", measure="entropy"), roots=4),
    "arpo_soft": dict(branching=dict(fn="drawn_by_entropy", vocab=64), roots=4),
    "tree_grpo": dict(branching=dict(fn="at_random"), roots=4, rounds=2),
    "branch_loo": dict(branching=dict(fn="at_random"), roots=4),
}
# What config.algorithm needs for them. iStar clips one ratio per turn and takes the mean over all turns.
ALGORITHM = {
    "oprl": dict(
        surrogate=dict(fn="rl_jax.losses.policy.turns:turn_clip", clip_low=0.2, clip_high=0.2, geometric=False),
        token_weight=dict(fn="rl_jax.token_weights.rounds:whole_rounds"),
    ),
}
# Who plays the other side of kuhn and bargain, and the user of dual.
PARTNERS = {"self_play": "self", "older": "reference"}
REAL = {
    "wordle": dict(path="games/wordle_official_400.txt.gz", guesses="games/wordle_official_guess.txt.gz", number=0),
    "city": dict(path="games/guess_city_global_cities.txt.gz", number=0),
}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*WORLDS, *CREDIT, *PARTNERS, "real", "smoke"))
    world = common.one_of(words, WORLDS, "maze")
    path, settings, turns, prompt, row = WORLDS[world]
    config = agents.base(world)
    if "real" in words:
        if world not in REAL:
            raise ValueError(f"{world} has no published list; these have: {', '.join(REAL)}")
        settings = settings | {k: common.real(v) if isinstance(v, str) else v for k, v in REAL[world].items()}
        row *= 2
    config.task = dict(
        name=f"{TEXT}.recorded:load", world=f"{TEXT}.{path}", settings=settings, num_train=2_000, num_test=200,
        expert_share=0.5, data_dir=common.DATA_DIR,
    )  # fmt: skip
    config.agent.update(max_turns=turns)
    config.agent.env = dict(fn=f"{TEXT}.{path}", **settings)
    chosen = common.one_of(words, CREDIT, "")
    config.algorithm.advantage = CREDIT[chosen] if chosen else dict(fn="rl_jax.advantages.turns:turn_return_loo")
    config.agent.update(AGENT.get(chosen, {}))
    config.algorithm.update(ALGORITHM.get(chosen, {}))
    config.agent.partner = PARTNERS.get(common.one_of(words, PARTNERS, ""), "")
    if config.agent.partner == "reference":
        config.algorithm.reference_schedule = dict(fn="per_iteration", every=10)
    config.model = common.transformer(
        embed_dim=64, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=256, tied_head=False
    )
    config.rollout.update(completion_length=row, prompt_buckets=(prompt + 1,))
    config.sft.update(steps=600, batch_size=64, eval_every=600)
    config.sft.optimizer = common.optimizer(learning_rate=2e-3, warmup_steps=20, decay_steps=580, final_fraction=0.1)
    config.train.update(steps=100)
    config.train.optimizer = common.optimizer(learning_rate=3e-4, warmup_steps=10)
    if "surrogate" in ALGORITHM.get(chosen, {}):
        common.set_updates(config, minibatches=2)  # with one update a batch its clip does nothing
    config.sample.update(prompts_per_step=16, group_size=8)
    config.eval.update(every=25, num_prompts=128, batch_size=128)
    config.checkpoint.every = 50
    if "smoke" in words:
        common.smoke(config)
        config.task.update(num_train=100, num_test=20)
        config.agent.roots = 2
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)
