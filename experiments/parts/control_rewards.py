"""The reward that control.preferences learns, from a config: its network, its fit, and an evaluation by it."""

import functools
import math
from collections.abc import Callable

import jax

from experiments.parts import control_runs, control_setup
from experiments.parts.control_offline import fit_settings
from rl_jax import envs, reward_model
from rl_jax.control import reward_learning
from rl_jax.core.binding import bind
from rl_jax.envs.learned import learned_reward
from rl_jax.losses import reward_model as reward_losses
from rl_jax.losses.reward_model import rankings
from rl_jax.models.agents.reward_network import RewardNetwork, make_reward_network
from rl_jax.rollout.envs.steps import memoryless
from rl_jax.training.step import TrainState


def reward_network(config, env: envs.Vector) -> RewardNetwork:
    """The network of config.reward that fits the environment's spaces."""
    space, fields = env.action_space, config.reward
    kind = dict(num_actions=space.n) if isinstance(space, envs.Discrete) else dict(action_size=math.prod(space.shape))
    shape = dict(members=fields.members, hidden=fields.hidden, activation=fields.activation)
    return make_reward_network(math.prod(env.observation_space.shape), **kind, **shape)


def make_learner(config, agent, network: RewardNetwork) -> Callable:
    """Makes learn(key, data, held_out) -> (LearnedReward, metrics): reward_learning.learn_reward of config.reward.

    Args:
      config: of the run; its groups `reward` and `fit`.
      agent: for its actions.
      network: the reward network.
    """
    fields, fit = config.reward, config.fit
    objective = reward_model.Objective(
        loss=bind(fields.loss.to_dict(), reward_losses),
        regularizer=bind(fields.regularizer.to_dict(), rankings),
        regularizer_coef=fields.regularizer_coef,
        members=fields.members,
    )
    settings = fit_settings(config) | dict(updates=fit.updates, discount=fit.discount, center=fields.center)
    to_env = agent.distribution.to_env
    return functools.partial(
        reward_learning.learn_reward, network, objective=objective, to_env=to_env, **settings
    )


def make_learned_judge(config, agent, network: RewardNetwork) -> Callable:
    """Makes judge(params, LearnedReward, TrainState) -> {"eval/learned_return"}: what the reward says of the policy.

    Without evaluations, if eval.num_episodes is 0, it gives {}.
    """
    if not config.eval.num_episodes:
        return lambda params, reward, train: {}
    eval_env = control_setup.load_env(config, config.eval.num_episodes)

    def judge(params, reward: reward_learning.LearnedReward, train: TrainState) -> dict[str, jax.Array]:
        env = learned_reward(eval_env, functools.partial(reward_learning.learned, network.apply, reward))
        policy = memoryless(functools.partial(agent.policy, params))
        evaluated = control_runs.judge(config, policy, agent.distribution, env, train)
        return {"eval/learned_return": evaluated["eval/return"]}

    return judge
