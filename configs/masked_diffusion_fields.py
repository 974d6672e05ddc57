"""The meaning of the fields that only experiments.masked_diffusion has (configs.fields)."""

MASKED_DIFFUSION = {
    "model.causal": "False: every token sees its whole row, which masked diffusion needs.",
    "algorithm.objective": '"bgpo": a bound of the ELBO\'s ratio that is linear in the draws; "elbo": that ratio, '
    'clipped; "diffu_grpo": clipped token ratios of one forward.',
    "algorithm.masking": 'How masks are drawn: "count" (n of C, n uniform) or "uniform" (each with probability t).',
    "algorithm.samples": "Draws of masks per answer and update, the same for the old and the new policy.",
    "algorithm.per_token": "Divide the ELBO by the number of tokens, as BGPO does.",
    "algorithm.clip_low": 'Distance of the ratio\'s lower bound from 1. Not for "bgpo".',
    "algorithm.clip_high": 'Distance of the ratio\'s upper bound from 1. Not for "bgpo".',
    "algorithm.prompt_masking": "diffu_grpo: share of the prompt's tokens that are masked in training (d1: 0.15).",
    "denoise.steps": "Forwards per sampled answer; completion_length: one token per step.",
    "denoise.block_length": "Blocks are filled in from left to right; completion_length: one block.",
    "denoise.order": 'Which positions are filled in first: "confidence" or "random".',
    "hints.on": "IGPO: sample groups without a right answer again, with chunks of the reference answer filled in.",
    "hints.low": "Smallest share of the chunks that a hint shows; each row's is uniform.",
    "hints.high": "Largest share of the chunks that a hint shows.",
    "hints.min_chunk": "Fewest tokens of a chunk.",
    "hints.max_chunk": "Most tokens of a chunk.",
    "hints.replaced": "Most answers of a group that right hinted answers replace.",
    "hints.entropy_share": "Share of a hint's masked positions that are trained on, the most uncertain. 1: all.",
}
