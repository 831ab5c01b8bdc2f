# Written by nbs/_stubs.py: the names that __init__.py resolves on first use.
from . import reference_policies as reference_policies
from .reference_policies import CopiedPolicy as CopiedPolicy
from .reference_policies import blend as blend
from .reference_policies import drift as drift
from .reference_policies import ema_reference as ema_reference
from .reference_policies import fixed_reference as fixed_reference
from .reference_policies import reset_reference as reset_reference
