"""The programs whose policies act in environments: PPO, replay, recorded data, preferences, actors."""
