# Written by nbs/_stubs.py: the names that __init__.py resolves on first use.
from . import broad_rollouts as broad_rollouts
from . import episodes as episodes
from . import stale_samples as stale_samples
from .broad_rollouts import mass_balance as mass_balance
from .broad_rollouts import mass_step as mass_step
from .episodes import Listener as Listener
from .episodes import count_calls as count_calls
from .episodes import draw_episodes as draw_episodes
from .episodes import episode_names as episode_names
from .episodes import episode_room as episode_room
from .episodes import sample_episodes as sample_episodes
from .episodes import turn_rows as turn_rows
from .stale_samples import engine_sample as engine_sample
from .stale_samples import round_weights as round_weights
from .stale_samples import stale_sample as stale_sample
