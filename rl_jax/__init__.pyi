from rl_jax import advantages as advantages
from rl_jax import credit as credit
from rl_jax import dpo as dpo
from rl_jax import grpo as grpo
from rl_jax import losses as losses
from rl_jax import ppo as ppo
from rl_jax import reward_model as reward_model
from rl_jax import sft as sft
from rl_jax import testing as testing
from rl_jax import token_weights as token_weights
from rl_jax.core.binding import bind as bind
from rl_jax.core.masked import Mean as Mean
from rl_jax.core.masked import zero_masked as zero_masked
from rl_jax.core.types import PolicyBatch as PolicyBatch
from rl_jax.core.types import PreferenceBatch as PreferenceBatch
from rl_jax.core.types import Rollout as Rollout
from rl_jax.core.types import TokenBatch as TokenBatch
from rl_jax.core.types import TokenScores as TokenScores
from rl_jax.losses.policy.base import Surrogate as Surrogate
from rl_jax.losses.policy.base import log_ratio as log_ratio

__version__: str
