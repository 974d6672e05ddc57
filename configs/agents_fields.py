"""The meaning of the fields of config.agent, which programs of episodes have (configs.fields)."""

AGENT = {
    "agent.env": 'Environment of the episodes. Of rl_jax.envs.text, or your own, "module:Class".',
    "agent.max_turns": "Turns of the model per episode, at most.",
    "agent.max_turn_tokens": "Tokens of one turn, at most. 0: what fits.",
    "agent.max_tokens": "Sampled tokens of an episode, at most. 0: what fits.",
    "agent.max_context": "Tokens that the model reads at once, at most. 0: the widest bucket + completion_length.",
    "agent.max_observation": "Tokens of one answer of the environment, at most; a longer one is cut. 0: what fits.",
    "agent.max_seconds": "Seconds that a coroutine environment may take for one answer, or it has failed. 0: any.",
    "agent.overflow": 'What happens if an answer does not fit. "end": the episode ends; "cut": the answer is '
    'shortened; "drop_oldest": the oldest turns go.',
    "agent.on_rewrite": 'If a chat template writes earlier turns anew: "keep" the ids as they are, or "refuse".',
    "agent.train_observations": "Train on the environment's tokens as well. A mistake, to show its harm.",
    "agent.branching": 'Where episodes branch (experience.branching): at_random, by_entropy, ... "": nowhere.',
    "agent.roots": "With agent.branching: episodes of a group that begin at the prompt.",
    "agent.rounds": "With agent.branching: rounds in which the group's other episodes begin.",
    "agent.own_judgement": "After an episode the policy grades it, as own_value of its last turn (by_judgement).",
    "agent.state_rollouts": "Fresh episodes from each state, for credit that asks for state_values. 0: none.",
    "agent.partner": 'The other side of kuhn, bargain. "": a script; "self": the policy; "reference": an older one.',
    "agent.step_model": 'A reward model of turns, trained beside the policy: "implicit" (OPRL). "": none.',
    "agent.turn_rewards": 'A model pays: "process" turns, beside the rest (VLA-RL); "outcome" alone (WebRL). "": none.',
    "agent.replay": 'Brings recorded episodes back: "successes" to failed groups (ARPO), "familiar" in ppo (WebRL).',
    "agent.curriculum": 'Who makes new tasks of failed ones, in ppo: "policy", "chat", "rule" (WebRL). "": nobody.',
    "agent.record": "Write each step's episodes to WORKDIR/trajectories, for configs/preferences/episodes.py.",
}
