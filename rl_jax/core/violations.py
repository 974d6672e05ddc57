"""How a constraint is written into a reward, for those who write it (rewards.constraints) and read it (selection)."""

PENALTY = 1000.0  # off the reward of a violation: far above any reward; float32 still resolves 1e-4 beside it
