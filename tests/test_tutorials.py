"The course: every exercise has a stub, a folded solution and hints; every lesson runs, dry in seconds and in full in minutes."
import ast, contextlib, io, os, re, time
from pathlib import Path
from unittest import mock
import nbformat, pytest
from nbclient import NotebookClient
from rl4llm.course.exercises import EXERCISES, check_answer, load_exercises, review_answer

TOP = Path(__file__).resolve().parents[1]
LESSONS = sorted((TOP/'tutorials').glob('[0-9][0-9]_*.ipynb'))
FOLDED = re.compile(r'<details><summary>Solution ([\d.]+)</summary>\n\n(.*?)\n</details>', re.DOTALL)
SECONDS = 180    # a whole lesson on one thread

load_exercises()
every_lesson = pytest.mark.parametrize('path', LESSONS, ids=lambda p: p.stem[:2])
every_exercise = pytest.mark.parametrize('ex', EXERCISES.values(), ids=lambda e: e.name)


def cells(path, kind): return [c.source for c in nbformat.read(path, 4).cells if c.cell_type == kind]


def calls(source):
    "(exercise, answer expression) of every `check_answer('1.1', answer)` in a cell."
    found = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and getattr(n.func, 'id', '') == 'check_answer']
    return [(n.args[0].value, ast.unparse(n.args[1])) for n in found]


def asked():
    "Exercise -> (lesson, source of its cell, answer expression)."
    return {name: (path, source, answer) for path in LESSONS for source in cells(path, 'code') if 'check_answer(' in source for name, answer in calls(source)}


def folded():
    "Exercise -> code of its folded solution."
    text = {name: body for path in LESSONS for source in cells(path, 'markdown') for name, body in FOLDED.findall(source)}
    return {name: '\n'.join(re.findall(r'```python\n(.*?)```', body, re.DOTALL)) for name, body in text.items()}


def imported(path):
    "A namespace with what the lesson's import cells bring."
    space = {}
    for source in cells(path, 'code'):
        if all(isinstance(s, (ast.Import, ast.ImportFrom)) for s in ast.parse(source).body): exec(source, space)
    return space


def execute(path, **environ):
    "Run a lesson in a kernel of its own and return the seconds it took. Errors are raised."
    with mock.patch.dict(os.environ, {'OMP_NUM_THREADS': '1', 'RL4LLM_PRESET': 'cpu', 'RL4LLM_DEVICE': 'cpu', **environ}):
        start = time.perf_counter()
        NotebookClient(nbformat.read(path, 4), timeout=600, kernel_name='python3', resources={'metadata': {'path': str(path.parent)}}).execute()
        return time.perf_counter() - start


# -- exercises

def test_every_exercise_is_asked_and_solved():
    assert set(asked()) == set(folded()) == set(EXERCISES)
    for name, (path, *_) in asked().items(): assert path.stem[:2] == f"{int(name.split('.')[0]):02}", f'{name} is asked in {path.name}'


@every_lesson
def test_a_lesson_has_exercises_and_a_question(path):
    assert sum(lesson == path for lesson, *_ in asked().values()) >= 3
    assert any('question' in source.lower() and '?' in source for source in cells(path, 'markdown')[-2:])


@every_exercise
def test_the_stub_is_asked_for(ex):
    path, source, _ = asked()[ex.name]
    with contextlib.redirect_stdout(io.StringIO()) as said: exec(source, imported(path))
    assert said.getvalue().startswith('Not yet: ')


@every_exercise
def test_the_folded_solution_is_right(ex):
    path, _, answer = asked()[ex.name]
    space = imported(path)
    exec(folded()[ex.name], space)
    right, text = review_answer(ex.name, eval(answer, space))
    assert right, text


@every_exercise
def test_each_mistake_has_a_hint_of_its_own(ex):
    assert ex.mistakes
    for wrong, hint in ex.mistakes: assert review_answer(ex.name, wrong if ex.cases else wrong()) == (False, hint)


@every_exercise
def test_nothing_handed_in_raises(ex, capsys):
    def broken(*args): raise RuntimeError('on purpose')
    for answer in (None, ..., broken, lambda: 1, lambda *args: 'word', lambda *args: ..., lambda *args: (1, ...), float('nan'), 'word', [], {}, object(), [object()]): check_answer(ex.name, answer)
    said = capsys.readouterr().out
    assert 'Right' not in said and said.count('Not yet') >= 2


def test_an_unknown_exercise_is_named():
    with pytest.raises(ValueError, match='did you mean'): check_answer('1.11', ...)


# -- lessons

@every_lesson
def test_links_of_a_lesson_lead_somewhere(path):
    for link in re.findall(r'\]\(([^)\s]+)\)', '\n'.join(cells(path, 'markdown'))):
        if not link.startswith(('http', '#')): assert (path.parent/link.split('#')[0]).exists(), f'{link} is not there'


@every_lesson
@pytest.mark.timeout(300)
def test_a_lesson_runs_dry(path): assert execute(path, RL4LLM_DRY_RUN='1') < SECONDS    # an error in a cell raises


@pytest.mark.slow
@every_lesson
@pytest.mark.timeout(900)
def test_a_lesson_takes_minutes(path): assert execute(path, RL4LLM_DRY_RUN='0') < SECONDS
