"The lint: clean folders are clean, and each rule sees what it is for and nothing else."

import ast
import lint, lint_rules, nbformat, pytest
from lint_rules import LIMITS, RULES, TOP, Cell, Notebook

TITLE = '# A title\n\n> One line that says it all.'


def notebook(path, *cells):
    "A notebook at `path`: texts that begin with # and a space are prose."
    prose, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    made = [prose(source) if source.startswith('# ') else code(source) for source in cells]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=made), path)
    return Notebook(path)


def broken(source):
    "Rules that a code cell breaks."
    cell = Cell(1, 'code', source)
    return {rule for check in lint_rules.CELL_RULES for rule, _, _ in check(cell)}


def wide(columns):
    return 'x'.ljust(columns, 'x')


# -- the project


def test_the_list_of_clean_folders_is_in_order():
    assert RULES['clean'] == sorted(set(RULES['clean']))
    assert all((TOP / name).exists() for name in RULES['clean'])


def test_exceptions_give_reasons():
    for e in RULES.get('exceptions', []):
        assert set(e) == {'file', 'rule', 'text', 'why'} and e['why'], e
        assert (TOP / e['file']).exists(), f"{e['file']} is gone, and so may be its exception"


def test_the_lint_keeps_its_own_rules():
    assert [str(m) for m in lint.ruff_messages(sorted((TOP / 'tests').glob('lint*.py')))] == []


def test_the_tests_grow_no_less_tidy(tmp_path):
    assert [str(m) for m in lint.untidy_messages()] == []
    more = tmp_path / 'test_new.py'
    more.write_text('import os\nf = lambda x: x\n')
    (found,) = lint.untidy_messages([more])
    assert found.file == 'tests/test_new.py' and 'finds 2 things, at most 0' in found.text


# -- statements

SUM = ' + '.join(f'x{i}' for i in range(13))  # 25 expressions: 13 names, 12 sums


@pytest.mark.parametrize(
    'source, rule',
    [
        (f'total = {SUM}', 'nodes'),
        (f'if {SUM} + y:\n    f()', 'nodes'),
        (f'@stage({SUM})\ndef f(x):\n    return x', 'nodes'),
        ('run() if ready else None', 'statement'),
        ('ready and run()\ndone', 'statement'),
        ('f(x), g(y)\ndone', 'statement'),
        ('[f(x) for x in xs]\ndone', 'statement'),
        ('[f(x) for x in xs];', 'statement'),
        ('out = [found.append(x) for x in xs]', 'statement'),
        ('out = {k: given.pop(k) for k in keys}', 'statement'),
        ('out = {seen.add(x) for x in xs}', 'statement'),
        ('#| export\nREADERS = {"n": lambda body: None}', 'lambda'),
        ('#| export\ndef f(x):\n    "Doc."\n    return lambda y: x + y', 'lambda'),
        ('a = b if c else d if e else f', 'choice'),
        ('a, b = f(x), g(y)', 'packing'),
        ('#| export\nrow = (a, b, c, d)', 'tuple'),
        ('#| export\ndef f(x):\n    "Doc."\n    return x, x, x, x + 1', 'tuple'),
        ('for x in xs: f(x)', 'line'),
        ('with a: f()', 'line'),
        ('try: f()\nexcept ValueError:\n    g()', 'line'),
        ('try:\n    f()\nexcept ValueError: g()', 'line'),
        ('if x:\n    f()\nelse: g()', 'line'),
        ('if x: y = 1', 'line'),
        (f'if {wide(80)}: raise', 'line'),
        (f'def f({wide(80)}): return 1', 'line'),
        ('def f(a, b, c, d, e, g):\n    return a', 'arguments'),
        ('def f():\n' + '    x = 1\n' * (LIMITS['body'] + 1), 'body'),
        (f'def _f():\n    "{wide(89)}"', 'docstring'),
        ('#| export\ndef f(x):\n    return x', 'docstring'),
        ('#| export\nclass A:\n    x = 1', 'docstring'),
        ('import torch\nx = 1', 'imports'),
    ],
)
def test_a_rule_sees_what_it_is_for(source, rule):
    assert broken(source) == {rule}


@pytest.mark.parametrize(
    'source',
    [
        f'f({SUM})'.replace('x0 + x1 + ', ''),
        'x = torch.tensor([' + '[1, -2.], ' * 40 + '])',
        'def f(x: Float[Tensor, "n t"] = 1, *, y: dict[str, tuple[int, ...]] = 2) -> A[B[C], D[E]]:'
        '\n    return x',
        'raise ValueError(f"{a} {b} {c} {d} {e} {f} {g} {h} {i} {j} {k} {m} {n} {o} {p} {q}")',
        'assert x, f"{a} {b} {c} {d} {e} {f} {g} {h} {i} {j} {k} {m} {n} {o} {p} {q}"',
        '[f(x) for x in xs]',
        'out = [update(x) for x in xs]',
        '#| export\ndef f(say=lambda line: None):\n    "Doc."\n    g(lambda x: x, key=lambda x: x)',
        'half = lambda x: x / 2',
        'f(x), g(y)',
        'a, b = f(x)',
        'a, b = b, a',
        '#| export\nnames = ("a", "b", "c", "d")',
        '#| export\nx = y[a, b, c, d]',
        '#| export\nfine = isinstance(x, (A, B, C, D)) or x in (a, b, c, d)',
        '#| export\nclass F(Function):\n    "Doc."\n'
        '    def backward(ctx, grad):\n        return grad, x, y, None',
        'row = (a, b, c, d)',
        'if not x: raise ValueError(x)',
        'def f(x): return x',
        'if x:\n    y = 1\nelif z:\n    y = 2',
        'def f(self, a, b, c, d, e, *, g, h):\n    return a',
        'def f():\n    "Doc."\n' + '    x = 1\n' * LIMITS['body'],
        f'#| export\ndef f(x):\n    """{wide(88)}\n\n    {wide(95)}"""',
        '#| export\nfrom a import b\nimport c',
        '%matplotlib inline\n!ls\nx = 1',
    ],
)
def test_a_rule_sees_nothing_else(source):
    assert broken(source) == set()


def test_data_count_as_one():
    assert lint_rules.weight(ast.parse('[1, 2, [3, -4]]')) == 1
    assert lint_rules.weight(ast.parse('f(x, [1, 2])')) == 4


# -- notebooks and folders


def rules_of(found):
    return [m.rule for m in found]


EXPORT = '#| export\ndef f(x):\n    "Doc."\n    return x'
REGISTER = '#| export\nadd_recipe("f", advantage=f)'


@pytest.mark.parametrize(
    'cells, missing',
    [
        ([EXPORT, 'f(1)', EXPORT, 'assert f(1)'], 0),
        ([EXPORT, REGISTER, '# prose', 'f(1)'], 0),
        ([EXPORT, '#| hide\nassert f(1) == 1'], 0),
        ([EXPORT, EXPORT, 'f(1)'], 1),
        ([EXPORT, '#| hide\nx = 1'], 1),
        ([EXPORT, 'import torch'], 1),
        ([EXPORT + '\n\n' + EXPORT.split('\n', 1)[1].replace('f(', 'g('), 'f(1)'], 0),
        (['#| export\ndef _f(x): return x', '#| export\nN = 3'], 0),
    ],
)
def test_an_export_of_a_stage_is_followed_by_an_example(tmp_path, cells, missing):
    there = notebook(tmp_path / 'advantages' / '00_a.ipynb', TITLE, *cells)
    assert rules_of(lint_rules.example_messages(there)) == ['example'] * missing
    elsewhere = notebook(tmp_path / 'core' / '00_a.ipynb', TITLE, *cells)
    assert rules_of(lint_rules.example_messages(elsewhere)) == []


@pytest.mark.parametrize(
    'title, wrong',
    [
        (TITLE, 0),
        ('# A title', 1),
        ('# A title\n> One.\n> Two.', 1),
        ('# A title\n> ' + wide(89), 1),
    ],
)
def test_a_title_has_a_summary(tmp_path, title, wrong):
    there = notebook(tmp_path / 'core' / '00_a.ipynb', title, '# prose\n\n> A quotation.', 'x = 1')
    assert rules_of(lint_rules.summary_messages(there)) == ['summary'] * wrong


def test_the_summary_is_what_nbdev_writes(tmp_path):
    from nbdev.export import nb_mdoc

    there = notebook(tmp_path / '00_a.ipynb', TITLE, '#| default_exp a', EXPORT)
    assert nb_mdoc(there.path).strip() == f'"""{lint_rules.summary_lines(there)[0]}"""'


@pytest.mark.parametrize(
    'name, module, wrong',
    [('00_a', 'core.a', 0), ('00_a', 'core.b', 1), ('00_a', 'training.a', 1), ('_a', 'core.b', 0)],
)
def test_a_notebook_is_called_like_its_module(tmp_path, name, module, wrong):
    there = notebook(tmp_path / 'core' / f'{name}.ipynb', TITLE, f'#| default_exp {module}')
    assert rules_of(lint_rules.name_messages(there)) == ['name'] * wrong


@pytest.mark.parametrize(
    'names, wrong',
    [
        (['00_a', '01_b', 'index', '_template'], 0),
        (['01_a', '02_b'], 0),
        (['00_a', '02_b'], 1),
        (['80_a'], 1),
        (['00_a', '00_b'], 1),
        (['a'], 1),
        ([], 0),
    ],
)
def test_numbers_have_no_gap(tmp_path, names, wrong):
    for name in names:
        notebook(tmp_path / f'{name}.ipynb', TITLE)
    assert rules_of(lint_rules.number_messages(tmp_path)) == ['number'] * wrong


def test_ruff_reads_notebooks_and_knows_axes(tmp_path):
    axes = 'def f(x: F[T, "n"]) -> F[T, "n *k"]:\n    return judge(f"{jury}", x)'
    there = notebook(tmp_path / '00_a.ipynb', TITLE, 'import torch\nfrom a import F, T', axes)
    messages = [m for m in lint.ruff_messages([there.path]) if m.rule != 'F722']
    found = sorted((m.rule, m.cell, m.line) for m in messages)
    assert found == [('F401', 2, 1), ('F821', 3, 2), ('F821', 3, 2)]


# -- the command


def test_the_command_prints_one_line_for_a_message(tmp_path, capsys):
    notebook(tmp_path / 'core' / '00_a.ipynb', TITLE, 'y = 1\na, b = f(x), g(y)')
    count = lint.main([str(tmp_path / 'core')])
    assert count == len(capsys.readouterr().out.splitlines()) > 0
    lint.main([str(tmp_path / 'core' / '00_a.ipynb')])
    wanted = f'{tmp_path}/core/00_a.ipynb cell 2 line 2: assignments packed'
    assert wanted in capsys.readouterr().out


def test_an_exception_excuses_and_is_named_when_idle(tmp_path, monkeypatch):
    there = notebook(tmp_path / 'core' / '00_a.ipynb', TITLE, 'a, b = 1, 2')
    excuse = {'file': str(there.path), 'rule': 'packing', 'text': 'a, b =', 'why': 'a test'}
    monkeypatch.setitem(RULES, 'exceptions', [excuse])
    assert rules_of(lint.lint([there.path])) == []
    notebook(there.path, TITLE, 'a = 1')
    assert rules_of(lint.lint([there.path])) == ['exceptions']


def test_figures(tmp_path, capsys):
    notebook(tmp_path / 'core' / '00_a.ipynb', TITLE, EXPORT, 'f(1)', EXPORT)
    lint.main(['--measure', str(tmp_path / 'core')])
    head, row, _ = [line.split('  ') for line in capsys.readouterr().out.splitlines()]
    columns = [text.strip() for text in head if text.strip()]
    values = [text.strip() for text in row if text.strip()]
    numbers = dict(zip(columns, values))
    assert numbers['notebooks'] == '1' and numbers['exported'] == '2'
    assert numbers['shown %'] == '50.0'
