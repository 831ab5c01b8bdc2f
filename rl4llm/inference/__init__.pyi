# Written by nbs/_stubs.py: the names that __init__.py resolves on first use.
from . import mixing as mixing
from . import voting as voting
from .mixing import Mixed as Mixed
from .mixing import guided as guided
from .mixing import mix_logits as mix_logits
from .mixing import transferred as transferred
from .voting import Ballots as Ballots
from .voting import Chooser as Chooser
from .voting import RULES as RULES
from .voting import ballots_of as ballots_of
from .voting import choice_curve as choice_curve
from .voting import choice_table as choice_table
from .voting import text_score as text_score
from .voting import token_confidence as token_confidence
