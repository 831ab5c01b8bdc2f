# Written by nbs/_stubs.py: the names that __init__.py resolves on first use.
from . import durations as durations
from . import forking_tokens as forking_tokens
from . import row_selection as row_selection
from .durations import duration_weighted as duration_weighted
from .durations import duration_weights as duration_weights
from .durations import made_up_seconds as made_up_seconds
from .durations import sample_by_the_clock as sample_by_the_clock
from .durations import who_arrives as who_arrives
from .forking_tokens import STEP_ROLES as STEP_ROLES
from .forking_tokens import entropy_mask as entropy_mask
from .forking_tokens import entropy_quantile as entropy_quantile
from .forking_tokens import step_roles as step_roles
from .forking_tokens import token_entropy_score as token_entropy_score
from .row_selection import drop_uniform_groups as drop_uniform_groups
from .row_selection import drop_zero_rows as drop_zero_rows
from .row_selection import keep_all as keep_all
