# Written by nbs/_stubs.py: the names that __init__.py resolves on first use.
from . import exercises as exercises
from . import policy_lesson as policy_lesson
from . import reinforcement_lesson as reinforcement_lesson
from .exercises import EXERCISES as EXERCISES
from .exercises import Exercise as Exercise
from .exercises import check_answer as check_answer
from .exercises import exercise as exercise
from .exercises import exercise_named as exercise_named
from .exercises import exercise_table as exercise_table
from .exercises import load_exercises as load_exercises
from .exercises import review_answer as review_answer
