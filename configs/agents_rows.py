"""Papers on agents, each as the world, the credit and the loss that define it. docs/pages/agents_papers.md says more.

    python -m experiments.agents --config=configs/agents_rows.py:iterresearch --workdir=runs/iterresearch

Models, warm starts and sizes are those of configs/agents_worlds.py: small worlds of text of the same shape stand for
the web, a repository, TextWorld and users who are language models. Arguments: the paper, and words of it.

    `tau2` (the default)   R = 1 if the shared state is right at the end; pass^k = C(c, k) / C(n, k) of 4 samples each
                           (arXiv 2506.07982). `careless`: a user who does not always do what he says;
                           or `modelled`: the policy's older version is the user, with the user's tools
    `multi_turn_guide`     the grid of arXiv 2510.01132: density of the reward `sparse` (the default), `quarter`,
                           `half`, `dense`; size of the world `w2o3q4` (the default), `w8o3q4`, `w2o12q4`,
                           `w8o12q4`, `w4o6q8` (rooms, objects, commands); credit `rloo` (the default), `grpo`,
                           `reinforce_pp`, and with experiments.ppo `bilevel` (GAE over turns, then tokens);
                           SFT against RL at one budget by --sweep=ratio
    `iterresearch`         r_t = gamma^(T - t) R, A over all rounds of a group, GSPO's clip per round, a mean over a
                           multiple of 8 rounds, a report in place of the history (arXiv 2511.07327). gamma is not told
                           in the paper, .9 here for at most 5 rounds. `mono`: the history is kept
    `hiagent`              finished subgoals leave a summary that the model writes, in a turn of its own, trained as any
                           (arXiv 2408.09559, which trains nothing). `outcome`: they leave their last observation;
                           `whole`: the history is kept
    `agent_rlvr`           a failed attempt is made again under guidance (arXiv 2506.11425); attempts are compared with
                           attempts of the same kind. The guidance: `both` (the default), `plan`, `error`, `none`. Then
                           DPO on the recorded attempts, as the paper: configs/preferences/episodes.py:program,turns
    `rise_recursive`       -w log pi, w = exp(r / tau) on the best own response of each state of a multi-turn try
                           (arXiv 2407.18219); one update of 4 epochs a round of new tries, where the paper has few
                           rounds of many. `every`: all responses, not the best ones
    `tool_star`            R = -1 malformed, 0 wrong, 1 right, 1.1 right with both tools, GRPO (arXiv 2505.16410). Then
                           its self-critic DPO on recorded episodes: configs/preferences/episodes.py:two_tools,episodes
    `comas`                each of 4 agents solves, agents that are drawn evaluate and score, and in the second round
                           all read 2 discussions of the first; solver (score - 1) / 2, evaluator 1 - that, scorer 0
                           (without a score: 0, 0, -1), normalized over all tokens, as in its code (arXiv 2510.08529).
                           One policy for all agents, its option shared_agents; its script gives each its own weights.
                           `scripted`: a scorer who knows; `solver`, `evaluator`: the only role that learns
    `itool`                tries at tool questions, grown by tree search over turns whose values are the policy's own
                           grades, with its confidence in the exploration, as in its code (arXiv 2501.09766); this run
                           only plays (its rate is 1e-12), after a warm start from easy to hard. The whole loop, with
                           the choice of hard prompts and DPO on the pairs: python -m experiments.tools.itool
                           (configs/preferences/itool.py). `reward`: the environment's reward as value; `uct`: plain UCT
    `arpo_gui`             GRPO with a replay of successes, on screens with things to click, several clicks an episode
                           (arXiv 2505.16282): a group with std(R) < .05 and mean(R) < .2 gets one of the prompt's last
                           8 episodes with R > .1 and the log-probs they were drawn with; clip .2/.3. Screens of text
                           stand for screenshots; 64 tasks, so that each is seen often. `plain`: no replay
    `smoke`                seconds, for CI
"""

from configs import agents_ppo, agents_worlds, common, sweeps

SIZES = {
    "w2o3q4": dict(rooms=2, objects=3, quest=4),
    "w8o3q4": dict(rooms=8, objects=3, quest=4),
    "w2o12q4": dict(rooms=2, objects=12, quest=4),
    "w8o12q4": dict(rooms=8, objects=12, quest=4),
    "w4o6q8": dict(rooms=4, objects=6, quest=8),
}
DENSITIES = {"sparse": 0.0, "quarter": 0.25, "half": 0.5, "dense": 1.0}
CREDIT = {"rloo": "loop", "grpo": "trajectory", "reinforce_pp": "", "bilevel": "bilevel"}
ONE_OF = {  # words that exclude each other, of one paper
    "multi_turn_guide": (tuple(SIZES), tuple(DENSITIES), tuple(CREDIT)),
    "tau2": (("careless", "modelled"),),  # only the scripted user is careless
    "iterresearch": (("mono",),),
    "hiagent": (("outcome", "whole"),),
    "agent_rlvr": (("both", "plan", "error", "none"),),
    "rise_recursive": (("every",),),
    "tool_star": (),
    "comas": (("scripted",), ("solver", "evaluator")),
    "itool": (("reward", "uct"),),
    "arpo_gui": (("plain",),),
}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*ONE_OF, *(word for key in ONE_OF for word in _words_of(key)), "smoke"))
    named = [word for word in ONE_OF if word in words]
    paper = named[0] if named else _owner(words)
    _check(paper, named, words)
    config = PAPERS[paper](words)
    config.name = paper
    return config


def _words_of(paper: str) -> list[str]:
    return [word for part in ONE_OF[paper] for word in part]


def _owner(words: set[str]) -> str:
    """The paper of the words, the first if there are none."""
    return next((key for key, lists in ONE_OF.items() if any(words & set(part) for part in lists)), "tau2")


def _check(paper: str, named: list[str], words: set[str]) -> None:
    if len(named) > 1:
        raise ValueError(f"{', '.join(named)}: one paper at a time")
    if left := words - {paper, "smoke", *_words_of(paper)}:
        raise ValueError(f"{sorted(left)} is no word of {paper}, which has {_words_of(paper)}")
    for part in ONE_OF[paper]:
        if len(found := [word for word in part if word in words]) > 1:
            raise ValueError(f"{', '.join(found)}: one of them at a time")


def world(words: set[str], *chosen: str, of=agents_worlds, **settings):
    """A config of agents_worlds or agents_ppo with these words, whose world has further settings."""
    config = of.get_config(",".join([*chosen, *({"smoke"} & words)]))
    settings = {**config.task.settings.to_dict(), **settings}
    config.task.settings = settings
    config.agent.env = dict(fn=config.agent.env.fn, **settings)
    return config


def _tau2(words: set[str]):
    partner = ("older",) if "modelled" in words else ()
    config = world(words, "dual", *partner, careless=0.3 if "careless" in words else 0.0)
    config.eval.samples_per_prompt = 4
    if "smoke" not in words:
        config.eval.update(num_prompts=64, batch_size=32)
    return config


def _multi_turn_guide(words: set[str]):
    size = next((SIZES[word] for word in SIZES if word in words), SIZES["w2o3q4"])
    density = next((DENSITIES[word] for word in DENSITIES if word in words), 0.0)
    credit = next((word for word in CREDIT if word in words), "rloo")
    chosen = [word for word in ("quest", CREDIT[credit]) if word]
    of = agents_ppo if credit == "bilevel" else agents_worlds
    config = world(words, *chosen, of=of, density=density, **size)
    if credit == "reinforce_pp":
        config.algorithm.advantage = dict(fn="reinforce_pp")
    if credit == "bilevel":
        config.critic.advantage.turn_discount = 1.0  # the paper's best gamma in TextWorld
    look = 1 + size["objects"] + 2 + size["rooms"]  # "A[abc]BD" and the end of the line
    config.agent.max_turns = 2 * size["quest"]
    config.rollout.prompt_buckets = (size["quest"] // 2 + look + 2,)
    config.rollout.completion_length = 2 * size["quest"] * (3 + look - size["rooms"] // 2)
    return config


def _iterresearch(words: set[str]):
    if "mono" in words:
        return world(words, "research", "trajectory", markov=False)
    config = world(words, "research", "eapo")
    common.set_updates(config, minibatches=2)  # with one update a batch GSPO's clip does nothing
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.turns:turn_clip", clip_low=3e-4, clip_high=4e-4)
    config.algorithm.token_weight = dict(fn="rl_jax.token_weights.rounds:whole_rounds", multiple=8)
    return config


def _hiagent(words: set[str]):
    if not {"outcome", "whole"} & words:
        return world(words, "summaries")
    return world(words, "errands", compress="whole" not in words)


def _agent_rlvr(words: set[str]):
    guidance = next((word for word in ONE_OF["agent_rlvr"][0] if word in words), "both")
    config = world(words, "program", "attempts", guidance=guidance)
    config.agent.record = True
    return config


def _rise_recursive(words: set[str]):
    config = world(words, "recursive", "rise")
    config.algorithm.advantage.best = "every" not in words
    config.algorithm.surrogate = dict(fn="reinforce")
    config.train.epochs = 4
    return config


def _tool_star(words: set[str]):
    config = world(words, "two_tools", "trajectory")
    config.agent.record = True
    return config


def _comas(words: set[str]):
    judge, smoke = "scripted" if "scripted" in words else "model", "smoke" in words
    config = world(words, "discussed", "zero_sum", judge=judge, agents=2 if smoke else 4)
    if smoke:
        config.agent.max_turns, config.rollout.completion_length = 12, 180
    else:
        config.sample.update(prompts_per_step=8, group_size=4)  # 24 turns an episode
    roles = {"solver": (1,), "evaluator": (2,)}
    config.algorithm.advantage.roles = next((roles[word] for word in roles if word in words), (1, 2, 3))
    return config


def _itool(words: set[str]):
    config, smoke = world(words, "graded", "branch_loo"), "smoke" in words
    config.task.update(expert_share=0.8, settings=dict(grades=True))  # demonstrations end with the grade
    config.rollout.update(prompt_buckets=(8, *config.rollout.prompt_buckets), temperature=1.5)
    rules = {"reward": "tree_search:by_confidence", "uct": "tree_search:by_uct"}
    rule = next((rules[word] for word in rules if word in words), "own_judgement:by_judgement")
    config.agent.branching = dict(fn=f"rl_jax.experience.{rule}")
    config.agent.update(roots=2, rounds=2 if smoke else 6, record=True, own_judgement=rule.startswith("own"))
    config.sft.prompts = dict(fn="one_level_after_another", column="calls", steps=-(-config.sft.steps // 3))
    config.train.optimizer.learning_rate = 1e-12  # below what a weight can show: this run only plays
    return config


def _arpo_gui(words: set[str]):
    config = world(words, "screens", "trajectory")
    clip = dict(fn="clipped_surrogate", clip_low=0.2, clip_high=0.3)
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.mixed:against_sampler", surrogate=clip)
    config.algorithm.aggregate = dict(fn="token_mean")
    config.task.num_train = 64
    config.agent.record = True
    if "plain" not in words:
        config.agent.replay = dict(fn="successes", size=8, above=0.1, std=0.05, mean=0.2)
    return config


PAPERS = {
    "tau2": _tau2,
    "multi_turn_guide": _multi_turn_guide,
    "iterresearch": _iterresearch,
    "hiagent": _hiagent,
    "agent_rlvr": _agent_rlvr,
    "rise_recursive": _rise_recursive,
    "tool_star": _tool_star,
    "comas": _comas,
    "itool": _itool,
    "arpo_gui": _arpo_gui,
}


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)


def sweep_density(arg: str | None = None):
    """multi_turn_guide: the density of the reward."""
    return sweeps.grid("argument", sweeps.words(arg, tuple(DENSITIES)))


def sweep_size(arg: str | None = None):
    """multi_turn_guide: rooms, objects and commands."""
    return sweeps.grid("argument", sweeps.words(arg, tuple(SIZES)))


def sweep_credit(arg: str | None = None):
    """multi_turn_guide: the estimators of experiments.agents."""
    return sweeps.grid("argument", sweeps.words(arg, ("rloo", "grpo", "reinforce_pp")))


def sweep_grid(arg: str | None = None):
    """multi_turn_guide: density and credit, all pairs."""
    pairs = [f"{density},{credit}" for density in DENSITIES for credit in ("rloo", "grpo", "reinforce_pp")]
    return sweeps.grid("argument", sweeps.words(arg, pairs))


def sweep_ratio(arg: str | None = None):
    """multi_turn_guide: steps of SFT and of RL with 51,200 rows together."""
    points = [(steps, (51_200 - 64 * steps) // 128) for steps in map(int, sweeps.numbers(arg, (100, 300, 600)))]
    fields = ("sft.steps", "sft.optimizer.decay_steps", "train.steps")
    return ({**dict(zip(fields, (sft, sft - 20, rl), strict=True))} for sft, rl in points)
