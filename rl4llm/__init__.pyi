# Written by nbs/_stubs.py: the names that __init__.py resolves on first use.
from . import advantages as advantages
from . import analysis as analysis
from . import atlas as atlas
from . import benchmarks as benchmarks
from . import cli as cli
from . import core as core
from . import course as course
from . import curricula as curricula
from . import demonstration as demonstration
from . import objectives as objectives
from . import oracle as oracle
from . import rewards as rewards
from . import scaling as scaling
from . import tasks as tasks
from . import training as training
from . import widgets as widgets
from .analysis.page import report as report
from .core.policy import Policy as Policy
from .core.registry import recipe as recipe
from .core.registry import use as use
from .core.settings_file import apply_settings as apply_settings
from .core.settings_file import size as size
from .course.exercises import check_answer as check_answer
from .tasks.protocol import task as task
from .training.callbacks import Evaluate as Evaluate
from .training.callbacks import LivePlot as LivePlot
from .training.comparison import compare as compare
from .training.evaluation import evaluate as evaluate
from .training.loop import train as train

__version__: str
