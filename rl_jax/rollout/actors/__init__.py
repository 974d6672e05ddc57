"""Actors for environments on the host: workers step them, the policy acts for many at once, a ring hides the waiting.

SRL's parts (arXiv 2306.16688): actor workers step environments (`stage`, `workers`), a policy worker answers the
requests of all of them in one forward (`acting.Remote`), or each acts by itself (`acting.Inline`), and `sampler` hands
segments to the trainer while it trains. What reaches the trainer does not depend on the workers, nor on which process
or machine each is (`fleet.Layout.share`, `workers.RemoteWorker`).
"""
