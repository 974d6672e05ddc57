"""Learned judges in the loop: config.judge is a table name -> dict(fn=one of these, weight=1.0, **keywords).

    --config.judge="{'rm': {'fn': 'reward_model', 'path': 'runs/reward_model'}}"

Each is a factory fn(setup, **keywords) -> base.Judge, made once per run (table.make_judges). Your own is named by its
import path, "my_judges:make".
"""

from experiments.parts.judges.certainty import confidence
from experiments.parts.judges.cotraining import cotrained
from experiments.parts.judges.demonstrated import demonstrated
from experiments.parts.judges.embedding import contrastive
from experiments.parts.judges.evolving import evolving
from experiments.parts.judges.follow_ups import follow_up
from experiments.parts.judges.generative import pairwise, pointwise
from experiments.parts.judges.language_models import likelihood, log_ratio
from experiments.parts.judges.latent import latent_strategies
from experiments.parts.judges.latent_iterations import latent_iterations
from experiments.parts.judges.listing import listwise
from experiments.parts.judges.preferring import win_probability
from experiments.parts.judges.reward_models import process_reward_model, reward_model
from experiments.parts.judges.rewriting import rewrites
from experiments.parts.judges.rules import rules
from experiments.parts.judges.self_judging import first_wrong_step
from experiments.parts.judges.spans import spans
from experiments.parts.judges.stimulus import stimulus
from experiments.parts.judges.voting import graded_votes

__all__ = [
    "confidence",
    "contrastive",
    "cotrained",
    "demonstrated",
    "evolving",
    "first_wrong_step",
    "follow_up",
    "graded_votes",
    "latent_iterations",
    "latent_strategies",
    "likelihood",
    "listwise",
    "log_ratio",
    "pairwise",
    "pointwise",
    "process_reward_model",
    "reward_model",
    "rewrites",
    "rules",
    "spans",
    "stimulus",
    "win_probability",
]
