"""From rewards to advantages and token weights: shaping, KL in the reward, ensembles, process rewards."""
