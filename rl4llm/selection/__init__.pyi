# Written by nbs/_stubs.py: the names that __init__.py resolves on first use.
from . import durations as durations
from . import dynamic_sampling as dynamic_sampling
from . import forking_tokens as forking_tokens
from . import row_selection as row_selection
from .durations import duration_weighted as duration_weighted
from .durations import duration_weights as duration_weights
from .dynamic_sampling import drop_uniform_groups as drop_uniform_groups
from .dynamic_sampling import grpo_overlong as grpo_overlong
from .dynamic_sampling import overlong_penalty as overlong_penalty
from .forking_tokens import entropy_mask as entropy_mask
from .forking_tokens import entropy_quantile as entropy_quantile
from .forking_tokens import step_roles as step_roles
from .row_selection import drop_zero_rows as drop_zero_rows
from .row_selection import keep_all as keep_all
