"""Ablations of papers, one file each, run by experiments.ablation.

Every file gives paper, claim, scaled_down, seeds, metric, expected (the claim as statements), smoke (what a small run
replaces) and tried: how many settings of each arm were looked at, those of the file among them, which a reader should
know of a claim that was reproduced. needs: files that are not of this repository, without which it cannot run.
"""
