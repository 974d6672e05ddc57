"""The meaning of the fields that only experiments.masked_diffusion has (configs.fields)."""

MASKED_DIFFUSION = {
    "model.causal": "False: every token sees its whole row. Masked diffusion needs that.",
    "algorithm.objective": '"bgpo", "bgpo_clipped", "elbo" or "diffu_grpo". A bound of the ELBO\'s ratio '
    "that is linear in the draws; the same with clips; that ratio, clipped; clipped ratios of tokens.",
    "algorithm.masking": 'How masks are drawn: "count" or "uniform". n of C with n uniform; each with probability t.',
    "algorithm.samples": "Draws of masks per answer and update. They are the same for the old and the new policy.",
    "algorithm.per_token": "Divide the ELBO by the number of tokens. BGPO in DARE does, its paper does not.",
    "algorithm.clip_low": 'Distance of the ratio\'s lower bound from 1. Not for "bgpo".',
    "algorithm.clip_high": 'Distance of the ratio\'s upper bound from 1. Not for "bgpo".',
    "algorithm.prompt_masking": "diffu_grpo: share of the prompt that is masked. d1 has 0.15.",
    "denoise.steps": "Forwards per sampled answer. completion_length: one token per step.",
    "denoise.block_length": "Tokens of a block. Blocks go from left to right; completion_length: one block.",
    "denoise.order": 'What is filled in first: "confidence" or "random".',
    "hints.on": "IGPO: give hints to groups that are all wrong. They are sampled again, with chunks of the reference.",
    "hints.low": "Smallest share of the chunks in a hint. Each row's is uniform.",
    "hints.high": "Largest share of the chunks in a hint.",
    "hints.min_chunk": "Fewest tokens of a chunk.",
    "hints.max_chunk": "Most tokens of a chunk.",
    "hints.replaced": "Most rows of a group that are replaced. Below group_size; by right answers with a hint.",
    "hints.entropy_share": "Share of a hint that is trained on. The least sure of each draw, at least one; 1: all.",
}
