"""More papers on agents: a compressed history, a frozen actor, a price of calls. docs/pages/agents_papers.md says more.

    python -m experiments.agents --config=configs/agents_papers.py:webagent_r1 --workdir=runs/webagent

Models, warm starts and sizes are those of configs/agents_worlds.py; small worlds of text stand for web sites and for
large models. Arguments: the paper, and words of it.

    `webagent_r1` (the default)  A_i = (R_i - mean) / (std + 1e-4) on all that the model said, R of 0 or 1 at the end;
                           older pages of the history become a mark when a new one arrives, the model's own words stay
                           (arXiv 2505.16421). beta .001 for the KL, as there. The warm start is its behavior cloning;
                           `zero` has none (WebAgent-R1-Zero). `whole`: the history is kept
    `retroformer`          r_i = G_i+1 - G_i for a reflection between two trials of an actor, PPO on reflections alone
                           (arXiv 2308.02151), with experiments.ppo. The actor is the policy's weights after the warm
                           start, which stay as they are; the KL in the reward (k1) is to the same, .2 as its code
                           begins with (weirayao/Retroformer, which then adapts it to a target). A reflection is a step
                           of its own: discount 0. Rows are the step's own, the paper's are collected beforehand
    `router_r1`            R = -1 for a wrong format, else (1 - alpha) EM + alpha c, where c is 1 for the cheapest of
                           the last 1000 episodes and 0 for the dearest (5 and 95 % quantiles), PPO with GAE over
                           tokens (arXiv 2506.09033), with experiments.ppo. alpha .5; scripted models stand for APIs
    `ur2`                  questions, and a search that only hard ones may use: --config.task.rates says how often each
                           was solved without it (arXiv 2508.06165; its threshold, here .5, and REINFORCE++ are from
                           memory). The facts are the same everywhere, so easy ones can be known by heart. `alone`
                           measures the rates: nobody may search, nothing is learned (its rate is 1e-12), episodes are
                           recorded for experiments.tools.pass_rates
    `toolchain_star`       A* over turns of tool calls: the next episodes begin at the plan of the least f = g + h, made
                           of a memory of solved tasks, self-consistency, and the rest that the model imagines
                           (arXiv 2310.13227, which trains nothing; its terms second-hand, exponents .5 ours). Memory
                           compares tools, the first token of a turn; it begins with 8 demonstrations and grows by what
                           the run solved. This run only plays and records; 4 at once, 32 episodes a prompt
    `vla_rl`               PPO with a value per action on episodes of a robot arm, an action of several tokens a turn;
                           r = 1 for success, and .1 for each key state that a process reward model sees, trained
                           on pseudo labels of successes (arXiv 2505.18719), with experiments.ppo. Only the first 2
                           of an episode are paid, as many as the shortest success has: ours, as a loop through key
                           states would be paid in each turn. Tasks of success .5
                           come most often, by their number of actions. First `alone`, with experiments.agents: the
                           policy after its warm start plays and records; then
                           python -m experiments.reward_model --config=configs/preferences/vla_rl.py
                           trains the model. `plain`: without it. Clip .2 on the product over an action's tokens, GAE
                           with .99 and .95 over actions, value clip .2, no whitening, 5 steps of the critic alone, one
                           epoch, as the released code (GuanxingLu/vlarl); the .1 is ours, the paper sums both
                           with weight 1. Its temperature of 1.5, pictures and OpenVLA are not here
    `webrl`                several turns on pages, a critic of the outcome (arXiv 2411.02337), with experiments.ppo:
                           V(s) by cross-entropy to success, the smaller of two heads (as its code; `one_critic`: one),
                           A_j = .5 (r_j + V_j+1 - V_j) + .5 (R - V_j),
                           (beta log(pi / pi_before) - A)^2 per turn, pi_before the policy at the last multiple of ten
                           steps; successes of earlier steps, one per task, are learned from again, turn by turn, if
                           .5 <= exp(mean logp) <= .95 under the policy now, up to as many rows as a step has, among
                           which they are shuffled (`fresh`: none; twice as many in the paper). After every ten steps
                           the policy, in the paper GPT-4o, writes new tasks: it reads two that failed (ten there); the
                           site says whether a task can be done, and .05 <= V(s_0) <= .75 whether it is asked. Half of
                           the next ten steps' tasks are new ones, all in the paper. `by_rule`: a rule writes, `fixed`:
                           nobody. A chat server: --config.agent.curriculum="{'fn': 'chat', 'url': ...}" and the other
                           fields. What is right is the site's word; `outcome_model`: that of a model that reads
                           instruction, actions and newest page and says YES or NO, which alone pays, as in the paper
                           (configs/preferences/outcome_model.py has the commands before it). The critic learns every
                           token of a turn
    `smoke`                seconds, for CI
"""

from configs import agents_ppo, common, sweeps
from configs.agents_rows import world

PRICES = "rl_jax.credit.prices"
ONLY_PLAYS = 1e-12  # a learning rate below what a weight can show
ONE_OF = {  # words that exclude each other, of one paper
    "webagent_r1": (("whole",), ("zero",)),
    "retroformer": (),
    "router_r1": (),
    "ur2": (("alone",),),
    "toolchain_star": (),
    "vla_rl": (("alone", "plain"),),
    "webrl": (("fresh",), ("fixed", "by_rule"), ("one_critic",), ("outcome_model",)),
}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*ONE_OF, *(word for key in ONE_OF for word in words_of(key)), "smoke"))
    owners = [key for key in ONE_OF if words & set(words_of(key))]
    named = [word for word in ONE_OF if word in words] or owners[:1] or list(ONE_OF)[:1]
    if len(named) > 1:
        raise ValueError(f"{', '.join(named)}: one paper at a time")
    paper = named[0]
    if left := words - {paper, "smoke", *words_of(paper)}:
        raise ValueError(f"{sorted(left)} is no word of {paper}, which has {words_of(paper)}")
    config = PAPERS[paper](words)
    config.name = paper
    return config


def words_of(paper: str) -> list[str]:
    """The words that a paper has."""
    return [word for part in ONE_OF[paper] for word in part]


def _webagent_r1(words: set[str]):
    config = world(words, "site", "trajectory", simplify="whole" not in words)
    config.algorithm.kl_coef = 0.001
    if "zero" in words:
        config.sft.steps = 0
    return config


def _retroformer(words: set[str]):
    config = world(words, "reflect", "turn_ppo", of=agents_ppo)
    config.agent.env.side = "r"  # only reflections are trained; the recorded episodes have both sides
    config.agent.partner = "reference"
    config.algorithm.update(reference_schedule=dict(fn="fixed"), reward_kl=dict(fn="k1"), reward_kl_coef=0.2)
    config.critic.advantage.update(discount=0.0)
    return config


def _router_r1(words: set[str]):
    config = world(words, "router", "bilevel", of=agents_ppo, alpha=0.0)  # the world pays EM and the format only
    config.critic.advantage = dict(fn="gae", discount=1.0, lam=1.0)
    config.algorithm.shaping = dict(fn=f"{PRICES}:priced", weight=0.5)
    config.algorithm.trackers.reward_scale = dict(fn=f"{PRICES}:cost_window", size=1000)
    return config


def _ur2(words: set[str]):
    config = world(words, "search", fresh=False)
    config.task.update(rates="", below=0.5)
    config.algorithm.advantage = dict(fn="reinforce_pp")
    if "alone" in words:
        config.agent.env.tool = False
        config.agent.record = True
        config.train.optimizer.learning_rate = ONLY_PLAYS
    return config


def _toolchain_star(words: set[str]):
    config = world(words, "two_tools", "branch_loo")
    config.agent.branching = dict(
        fn="rl_jax.experience.a_star:by_a_star", width=4, alpha=0.5, beta=0.5, named=1, demonstrations=8
    )
    size = 8 if "smoke" in words else 32
    config.sample.update(group_size=size, prompts_per_step=4)
    config.agent.update(roots=4, rounds=size // 4 - 1, record=True)
    config.train.optimizer.learning_rate = ONLY_PLAYS
    return config


def _vla_rl(words: set[str]):
    if "alone" in words:
        config = world(words, "gripper", "trajectory")
        config.agent.record = True
        config.train.steps = min(config.train.steps, 30)
        config.train.optimizer.learning_rate = ONLY_PLAYS
        return config
    config = world(words, "gripper", "turn_ppo", of=agents_ppo)
    config.critic.advantage.update(discount=0.99, lam=0.95)
    config.critic.whiten = False
    config.algorithm.surrogate.geometric = False
    config.algorithm.token_weight = dict(fn="rl_jax.token_weights.rounds:whole_rounds")
    config.sample.prompts = dict(fn="softmax", column="distance", temperature=0.2, target=0.5)
    if "plain" not in words:
        path = f"runs/{'smoke_' if 'smoke' in words else ''}vla_rl_reward"
        config.agent.turn_rewards = dict(fn="process", path=path, weight=0.1, hard=True, most=2)
    return config


def _webrl(words: set[str]):
    config = world(words, "orders", "turn_ppo", of=agents_ppo)
    mixture = dict(fn="rl_jax.advantages.turn_critics:outcome_mixture", lam=0.5)
    bins = dict(low=-0.5, high=1.5, num_bins=2, padding=0)  # their centres are 0 and 1
    loss = dict(fn="two_hot" if "one_critic" in words else "rl_jax.losses.several_critics:each_two_hot")
    bins |= {} if "one_critic" in words else dict(members=2)
    config.critic.advantage, config.critic.loss, config.critic.support = mixture, loss, bins
    config.critic.whiten = False
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.regression:toward_turn_advantage", beta=1.0)
    config.algorithm.aggregate = dict(fn="seq_mean_token_sum")
    config.algorithm.reference_schedule = dict(fn="per_iteration", every=10)
    if "fixed" not in words:
        config.task.update(written=config.task.num_train // 5)
        author = dict(fn="rule") if "by_rule" in words else dict(fn="policy", template="~{tasks}", tokens=16)
        phase = dict(every=10, share=0.5, seeds=2, requests=64, keep=256, size=128, low=0.05, high=0.75)
        config.agent.curriculum = author | phase
    if "fresh" not in words:
        config.agent.record = True
        config.agent.replay = dict(fn="familiar", batches=1, above=0.5, low=0.5, high=0.95)
    if "outcome_model" in words:
        runs = f"runs/{'smoke_' if 'smoke' in words else ''}webrl"
        config.init_from = f"{runs}_start"
        config.agent.turn_rewards = dict(fn="outcome", path=f"{runs}_outcome_model")
    return config


PAPERS = {
    "webagent_r1": _webagent_r1,
    "retroformer": _retroformer,
    "router_r1": _router_r1,
    "ur2": _ur2,
    "toolchain_star": _toolchain_star,
    "vla_rl": _vla_rl,
    "webrl": _webrl,
}


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)
