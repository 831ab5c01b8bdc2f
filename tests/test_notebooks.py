"Rules that every notebook keeps: executed, readable, small functions, no trace of a machine."

import ast, copy, json, re
from functools import lru_cache
from pathlib import Path
import nbformat, pytest
from lint_rules import LIMITS, body_lines, positional

TOP = Path(__file__).resolve().parents[1]
NOTEBOOKS = [
    p
    for folder in ('nbs', 'tutorials')
    for p in sorted((TOP / folder).rglob('*.ipynb'))
    if not any(part.startswith(('_', '.')) for part in p.relative_to(TOP).parts)
]
TEMPLATE = TOP / 'nbs' / '_method_template.ipynb'
PACKAGE = [f for f in sorted((TOP / 'rl4llm').rglob('*.py')) if not f.name.startswith('_')]
HEADINGS = (
    'Idea and formula',
    'Code',
    'By hand',
    'Identities',
    'See it',
    'At scale',
    'Differs from the paper',
)
MACHINE = re.compile(r'(?<![\w.:/])/(tmp|root|home|Users|work|opt|var|private)/\w')
INSTALL = re.compile(r'(pip3?|conda|uv|apt|apt-get)\s+install\b')

every_notebook = pytest.mark.parametrize(
    'path', NOTEBOOKS + [TEMPLATE], ids=lambda p: str(p.relative_to(TOP))
)
every_module = pytest.mark.parametrize('path', PACKAGE, ids=lambda p: str(p.relative_to(TOP)))


@lru_cache(maxsize=None)
def notebook(path):
    return nbformat.read(path, 4)


def code_cells(path):
    return [c for c in notebook(path).cells if c.cell_type == 'code' and c.source.strip()]


def directives(cell):
    return set(re.findall(r'^#\|\s*(\w+)', cell.source, re.MULTILINE))


def statements(cell):
    "Top-level statements of a cell; None where it is not Python (a magic, a shell command)."
    try:
        return ast.parse(cell.source).body
    except SyntaxError:
        return None


def only_definitions(cell):
    "Helpers of the demo below: there is nothing to show yet."
    body = statements(cell)
    return bool(body) and all(isinstance(s, (ast.FunctionDef, ast.ClassDef)) for s in body)


def only_imports(cell):
    body = statements(cell)
    return bool(body) and all(isinstance(s, (ast.Import, ast.ImportFrom)) for s in body)


def shown(cell):
    "Whether a reader sees this cell as code that does something: neither exported nor hidden nor imports alone."
    hidden = directives(cell) & {'export', 'exporti', 'exports', 'hide', 'default_exp', 'eval'}
    return not hidden and not only_imports(cell) and not only_definitions(cell)


def outputs_as_text(path):
    "Source and outputs of a notebook as one text, pictures left out."
    nb = copy.deepcopy(notebook(path))
    for cell in nb.cells:
        for output in cell.get('outputs', []):
            for kind in [
                k for k in output.get('data', {}) if k.startswith(('image/png', 'image/jpeg'))
            ]:
                del output['data'][kind]
    return json.dumps(nb)


def test_there_are_notebooks():
    assert len(NOTEBOOKS) > 10


@every_notebook
def test_is_executed_without_error(path):
    cells = code_cells(path)
    errors = [o['ename'] for c in cells for o in c.outputs if o.output_type == 'error']
    assert not errors and any(c.outputs for c in cells), (
        f'errors {errors}; execute it: make notebooks NB={path.relative_to(TOP)}'
    )


@every_notebook
def test_most_cells_show_something(path):
    cells = [c for c in code_cells(path) if shown(c)]
    silent = [c.source.split('\n')[0] for c in cells if not c.outputs]
    assert len(silent) <= max(1, 0.3 * len(cells)), (
        f'{len(silent)} of {len(cells)} visible code cells show nothing: {silent}'
    )


@every_notebook
def test_no_cell_is_empty(path):
    cells = json.loads(path.read_text())['cells']
    empty = [i for i, cell in enumerate(cells) if not ''.join(cell['source']).strip()]
    assert not empty, f'cells {empty} are empty'


def test_most_cells_of_the_library_show_something():
    cells = [c for path in NOTEBOOKS for c in code_cells(path) if shown(c)]
    assert sum(bool(c.outputs) for c in cells) >= 0.7 * len(cells)


@every_notebook
def test_imports_stand_alone(path):
    for cell in code_cells(path):
        body = statements(cell)
        imports = [s for s in body or () if isinstance(s, (ast.Import, ast.ImportFrom))]
        assert not imports or len(imports) == len(body), (
            f'imports mixed with other code:\n{cell.source[:200]}'
        )


@every_notebook
def test_no_trace_of_a_machine(path):
    found = MACHINE.search(outputs_as_text(path))
    assert not found, (
        f'holds a path of a machine: ...{outputs_as_text(path)[max(0, found.start() - 40) : found.end() + 40]}...'
    )


@every_notebook
def test_nothing_is_installed(path):
    for cell in code_cells(path):
        calls = [
            line
            for line in cell.source.split('\n')
            if line.lstrip().startswith(('!', '%')) and INSTALL.search(line)
        ]
        assert not calls and not re.search(r'subprocess.*' + INSTALL.pattern, cell.source), (
            f'installs something: {cell.source[:200]}'
        )


@every_notebook
def test_begins_with_a_title_and_explains(path):
    cells = notebook(path).cells
    assert cells[0].cell_type == 'markdown' and cells[0].source.startswith('# '), (
        'the first cell is the title'
    )
    prose = sum(c.cell_type == 'markdown' for c in cells)
    assert prose >= len(cells) / 6, f'{prose} of {len(cells)} cells are prose'


@every_notebook
def test_a_method_has_the_headings_in_order(path):
    cells = notebook(path).cells
    if not any(
        c.cell_type == 'code'
        and 'export' in directives(c)
        and re.search(r'^add_recipe\(', c.source, re.MULTILINE)
        for c in cells
    ):
        return
    headings = iter(
        [
            line[3:].strip()
            for c in cells
            if c.cell_type == 'markdown'
            for line in c.source.split('\n')
            if line.startswith('## ')
        ]
    )
    missing = [h for h in HEADINGS if h not in headings]
    assert not missing, f'missing or out of order: {missing}'


@pytest.mark.slow
def test_the_template_runs_as_it_is():
    from nbclient import NotebookClient

    cells = (
        NotebookClient(
            nbformat.read(TEMPLATE, 4),
            timeout=300,
            resources={'metadata': {'path': str(TOP / 'nbs' / 'advantages')}},
        )
        .execute()
        .cells
    )
    assert sum(bool(c.get('outputs')) for c in cells) > 5


# -- the package as exported


def functions(path):
    "(dotted name, node) of every function and method of a module."
    module = '.'.join(path.relative_to(TOP).with_suffix('').parts)
    return [
        (f'{module}.{n.name}', n)
        for n in ast.walk(ast.parse(path.read_text()))
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


@every_module
def test_functions_are_short(path):
    long = {name: body_lines(n) for name, n in functions(path) if body_lines(n) > LIMITS['body']}
    assert not long


@every_module
def test_few_positional_arguments(path):
    many = {
        name: positional(n)
        for name, n in functions(path)
        if len(positional(n)) > LIMITS['arguments']
    }
    assert not many, 'too many; put knobs after the star'


@every_module
def test_public_things_have_a_docstring(path):
    bare = [
        n.name
        for n in ast.parse(path.read_text()).body
        if isinstance(n, (ast.FunctionDef, ast.ClassDef))
        and not n.name.startswith('_')
        and not ast.get_docstring(n)
    ]
    assert not bare


def test_the_median_function_is_short():
    lines = sorted(body_lines(n) for path in PACKAGE for _, n in functions(path))
    assert lines[len(lines) // 2] <= 8


# -- papers and pictures

CITED = re.compile(r'\b(paper|seed) (\d{1,3})\b(?! of \d| step)')


def title_words(number):
    "Long words of a paper's title and of its short title and name, in small letters."
    from rl4llm.core.citations import paper_rows

    row = paper_rows()[number]
    return {
        w.lower()
        for w in re.findall(r'[A-Za-z0-9]{3,}', f"{row['title']} {row['short']} {row['component']}")
    } - {'the', 'and', 'for', 'with', 'reinforcement', 'learning', 'language', 'models'}


def bare_citations(text):
    "Papers that a paragraph names by number without two words of their title, or calls seeds."
    from rl4llm.core.citations import paper_rows

    found = []
    for paragraph in text.split('\n'):
        words = set(re.findall(r'[a-z0-9]{3,}', paragraph.lower()))
        for kind, number in CITED.findall(paragraph):
            if kind == 'seed' and int(number) < 10:
                continue
            if (
                kind == 'seed'
                or int(number) not in paper_rows()
                or len(words & title_words(int(number))) < 2
            ):
                found.append(f'{kind} {number}')
    return found


def test_bare_citations_are_found():
    assert bare_citations('as in paper 175, and seed 109 says so') == ['paper 175', 'seed 109']
    assert not bare_citations('*Exploration v.s. exploitation* (paper 175), trained with seed 3')


@every_notebook
def test_papers_are_cited_by_name(path):
    prose = [c.source for c in notebook(path).cells if c.cell_type == 'markdown']
    tables = [
        ''.join(o.get('data', {}).get('text/plain', o.get('text', '')))
        for c in code_cells(path)
        for o in c.outputs
    ]
    strings = [
        d
        for c in code_cells(path)
        for n in ast.walk(ast.Module(statements(c) or [], []))
        if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and (d := ast.get_docstring(n))
    ]
    assert not (bare := [b for text in prose + strings for b in bare_citations(text)]), (
        f'{bare}: name the paper, `cited` says how'
    )
    assert not re.search(r'\bpaper \d{1,3}\b(?! of the atlas)', '\n'.join(tables)), (
        'an output cites a paper by its number alone'
    )


@every_notebook
def test_is_of_a_sensible_size(path):
    assert path.stat().st_size < 500_000, (
        f'{path.stat().st_size / 1e3:.0f} kB: fewer or smaller pictures, or python nbs/_pictures.py {path.relative_to(TOP)}'
    )


def test_pictures_are_made_small_without_a_change_to_the_eye():
    import base64, importlib.util, io
    import numpy as np
    from PIL import Image

    spec = importlib.util.spec_from_file_location('pictures', TOP / 'nbs' / '_pictures.py')
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    for i, colour in enumerate(('#E69F00', '#56B4E9', '#009E73', '#D55E00', '#CC79A7', '#0072B2')):
        ax.text(0.1, i / 6, 'words in many letters, so that it is large', color=colour)
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png')
    plt.close(figure)
    small = made.smaller(buffer.getvalue())
    assert len(small) < 0.7 * len(buffer.getvalue())
    before, after = (
        np.asarray(Image.open(io.BytesIO(data)).convert('RGB'), int)
        for data in (buffer.getvalue(), small)
    )
    changed = np.abs(before - after)
    assert (
        before.shape == after.shape
        and changed.max() < 100
        and changed.mean() < 0.2
        and (changed.sum(-1) > 0).mean() < 0.02
    ), (changed.max(), changed.mean())
    large, little = (base64.b64encode(data).decode() for data in (buffer.getvalue(), small))
    page = '<img alt="words" src="data:image/png;base64,{}">'
    assert made.in_page(page.format(large)) == page.format(little)
