# Written by nbs/_stubs.py: the names that __init__.py resolves on first use.
from . import few_problems as few_problems
from . import uniform_sampling as uniform_sampling
from .few_problems import handful as handful
from .few_problems import rank_problems as rank_problems
from .uniform_sampling import uniform as uniform
