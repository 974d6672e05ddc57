"""Offline reinforcement learning: a policy from recorded transitions, without a step in the environment.

A method is a Recipe (recipe.py): a loss of all its networks. A config names one of the functions here as `algorithm`.

    bc, filtered_bc, awr, iql, xql, dual     in_sample.py       Q is asked for the data's actions only
    recoil                                   in_sample.py       imitation of some steps of mixed data, without rewards
    td3_bc, a2pr, cql                        actor_critic.py    the policy's own actions, kept near the data's
    dt, mo_dt, region_dt                     sequence.py        cloning, given the return that is asked for
    oppo                                     hindsight.py       cloning, given a code that preferences choose
    histories                                history.py         one of these on codes of what was seen so far
    oer                                      continual.py       tasks one after the other, with a little of the old ones
    hypercrl                                 hypernetwork.py    the same for a model that is planned with
    t2mir, t2mir_ad                          in_context.py      several tasks, told apart by what was seen so far
    psec                                     skills.py          skills as adapters of one policy, and their composition
    bq_nco                                   tours.py           cloning of parts of optimal tours
"""

from rl_jax.control.offline.actor_critic import a2pr, cql, td3_bc
from rl_jax.control.offline.continual import oer
from rl_jax.control.offline.hindsight import oppo
from rl_jax.control.offline.history import histories
from rl_jax.control.offline.hypernetwork import hypercrl
from rl_jax.control.offline.in_context import t2mir, t2mir_ad
from rl_jax.control.offline.in_sample import awr, bc, dual, filtered_bc, iql, recoil, xql
from rl_jax.control.offline.sequence import dt, mo_dt, region_dt
from rl_jax.control.offline.skills import psec
from rl_jax.control.offline.tours import bq_nco

__all__ = ["a2pr", "awr", "bc", "cql", "dt", "dual", "filtered_bc", "iql", "mo_dt", "oer", "oppo", "recoil", "td3_bc"]
__all__ += ["bq_nco", "histories", "hypercrl", "psec", "region_dt", "t2mir", "t2mir_ad", "xql"]
