"""Configs of the tasks with a verifier: arithmetic, game of 24, stories, a Hugging Face folder."""
