"""One file a reproduced ablation: the claim, its arms, its seeds, what must come out. See experiments.ablation."""
