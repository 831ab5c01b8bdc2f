# Written by nbs/_stubs.py: the names that __init__.py resolves on first use.
from . import spurious as spurious
from . import verifier as verifier
from .spurious import advantage_bound as advantage_bound
from .spurious import check_rate as check_rate
from .spurious import flipped_reward as flipped_reward
from .spurious import informative_share as informative_share
from .spurious import mislabelling_loss as mislabelling_loss
from .spurious import random_reward as random_reward
from .spurious import text_uniform as text_uniform
from .verifier import as_item as as_item
from .verifier import correct as correct
from .verifier import items_dataset as items_dataset
from .verifier import partial_credit as partial_credit
from .verifier import text_of as text_of
from .verifier import verdicts as verdicts
