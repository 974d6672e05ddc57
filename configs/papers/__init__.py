"""One file a reproduced ablation: the claim, its arms, its seeds, and what must come out. Run by experiments.ablation."""
