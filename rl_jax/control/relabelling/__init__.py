"""Relabellings of a rollout's rewards by name: config.algorithm.relabel = dict(fn="by_potential", ...).

Each function makes an algorithm.Relabel. Its keywords are those of the config, and what the program knows: num_envs,
observation_size, discount, distribution, axis_name, make_net (models.agents.features), make_annotator (who answers
questions about captions), make_encoder (of images, see relabelling.images). A function of anybody's own is named by its
import path, "my_rewards:by_mine", with the same keywords.
"""

from rl_jax.control.relabelling.aligned import by_aligned_transport
from rl_jax.control.relabelling.annotated import by_annotator
from rl_jax.control.relabelling.captioned import by_captions
from rl_jax.control.relabelling.coded import by_code
from rl_jax.control.relabelling.hierarchy import by_hierarchy
from rl_jax.control.relabelling.hindsight import by_bootstrap, by_hindsight
from rl_jax.control.relabelling.images import by_image_goal, by_image_stages
from rl_jax.control.relabelling.imitation import by_discriminator
from rl_jax.control.relabelling.likelihood import by_likelihood
from rl_jax.control.relabelling.novelty import by_archive, by_distillation, by_elliptical
from rl_jax.control.relabelling.progress import by_progress
from rl_jax.control.relabelling.redistribution import by_importance
from rl_jax.control.relabelling.shaping import by_lagrange, by_machine, by_potential, by_terms
from rl_jax.control.relabelling.transport import by_stages, by_transport

__all__ = [
    "by_aligned_transport",
    "by_annotator",
    "by_archive",
    "by_bootstrap",
    "by_code",
    "by_captions",
    "by_discriminator",
    "by_distillation",
    "by_elliptical",
    "by_hierarchy",
    "by_hindsight",
    "by_image_goal",
    "by_image_stages",
    "by_importance",
    "by_lagrange",
    "by_likelihood",
    "by_machine",
    "by_potential",
    "by_progress",
    "by_stages",
    "by_terms",
    "by_transport",
]
