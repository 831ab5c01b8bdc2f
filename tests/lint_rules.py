"""The rules of the house that ruff does not have, read from the syntax tree of code cells.

A rule of a cell yields (rule, node, text) for each thing it finds; the numbers are those of
tests/lint.toml. `python tests/lint.py` applies them."""

import ast, json, re, tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
RULES = tomllib.loads((TOP / 'tests' / 'lint.toml').read_text())
LIMITS = RULES['limits']
EXPORTS = {'export', 'exporti', 'exports'}
HIDDEN = {'hide', 'default_exp', 'eval'}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)
LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
EFFECTS = {'append', 'extend', 'insert', 'setattr', 'print', 'display', 'write_text'}
CHANGES = {'add', 'update', 'pop', 'setdefault', 'remove', 'discard', 'clear'}  # as methods alone


# -- what is looked at


@dataclass(eq=False)
class Cell:
    "A cell of a notebook; cells are counted from 1, as ruff counts them."

    number: int
    kind: str
    source: str

    @property
    def lines(self):
        return self.source.split('\n')

    @cached_property
    def directives(self):
        return set(re.findall(r'^#\|\s*(\w+)', self.source, re.MULTILINE))

    @property
    def exported(self):
        return self.kind == 'code' and bool(self.directives & EXPORTS)

    @cached_property
    def tree(self):
        "The syntax tree; lines and cells for the shell or for IPython count as empty."
        if self.kind != 'code' or re.search('^%%', self.source, re.MULTILINE):
            return ast.Module([], [])
        plain = ['' if line.startswith(('%', '!')) else line for line in self.lines]
        return ast.parse('\n'.join(plain))

    @property
    def shown(self):
        "Whether a reader sees it do something: not exported, not hidden, not imports alone."
        does = any(not isinstance(s, IMPORTS) for s in self.tree.body)
        return self.kind == 'code' and does and not self.directives & (EXPORTS | HIDDEN)

    @property
    def public(self):
        "The public functions and classes that it exports."
        if not self.exported:
            return []
        defined = [s for s in self.tree.body if isinstance(s, DEFINITIONS)]
        return [s for s in defined if not s.name.startswith('_')]


@dataclass(eq=False)
class Notebook:
    "A notebook, its cells and where it exports to."

    path: Path

    @cached_property
    def cells(self):
        raw = json.loads(self.path.read_text())['cells']
        return [Cell(i, c['cell_type'], ''.join(c['source'])) for i, c in enumerate(raw, 1)]

    @property
    def code(self):
        return [c for c in self.cells if c.kind == 'code' and c.source.strip()]

    @property
    def module(self):
        "Dotted name below rl4llm, or None."
        for cell in self.code:
            found = re.match(r'#\|\s*default_exp\s+(\S+)', cell.source)
            if found:
                return found[1]
        return None


@dataclass(frozen=True)
class Message:
    "One finding: where, which rule, what; `source` is the line that it is about."

    file: str
    rule: str
    text: str
    cell: int = 0
    line: int = 0
    source: str = ''

    def __str__(self):
        cell = f' cell {self.cell}' if self.cell else ''
        line = f' line {self.line}' if self.line else ''
        return f'{self.file}{cell}{line}: {self.text} [{self.rule}]'


def shown_path(path):
    "`path` from the top of the project, where it is below it."
    return str(path.relative_to(TOP)) if path.is_relative_to(TOP) else str(path)


# -- statements and their weight


def is_docstring(statement):
    "Whether a statement is nothing but a text."
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def statements(tree):
    "Every statement below `tree` that is not a docstring."
    return [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and not is_docstring(n)]


def is_data(node):
    "Whether an expression is made of constants alone, such as a table of numbers."
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.UnaryOp):
        return is_data(node.operand)
    if isinstance(node, ast.Dict):
        return all(x and is_data(x) for x in node.keys + node.values)
    return isinstance(node, (ast.List, ast.Tuple, ast.Set)) and all(map(is_data, node.elts))


def weight(node):
    "Number of expressions in `node`; data count as one."
    if isinstance(node, ast.expr) and is_data(node):
        return 1
    return isinstance(node, ast.expr) + sum(map(weight, ast.iter_child_nodes(node)))


def without_message(error):
    "The parts of a raised error that are not its message."
    if not isinstance(error, ast.Call):
        return [error]
    words = (ast.JoinedStr, ast.Constant, ast.BinOp)
    return [error.func, *[a for a in error.args if not isinstance(a, words)]]


def units(node):
    """What must be understood at once in a statement: lists of nodes.

    One for a simple statement; for a compound one its head, each decorator for itself.
    Annotations, and messages of errors and assertions, do not count."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            return [[d] for d in node.decorator_list] + [[d for d in defaults if d]]
        case ast.ClassDef():
            bases = [*node.bases, *[k.value for k in node.keywords]]
            return [[d] for d in node.decorator_list] + [bases]
        case ast.If() | ast.While() | ast.Assert():
            return [[node.test]]
        case ast.For() | ast.AsyncFor():
            return [[node.target, node.iter]]
        case ast.With() | ast.AsyncWith():
            return [node.items]
        case ast.Try():
            return [[h.type] for h in node.handlers if h.type]
        case ast.Match():
            return [[node.subject], *[[c.guard] for c in node.cases if c.guard]]
        case ast.AnnAssign():
            return [[n for n in (node.target, node.value) if n]]
        case ast.Raise():
            return [without_message(node.exc) if node.exc else []]
    return [[node]]


def weights(tree):
    "(statement, number of expressions) of every unit below `tree`."
    found = [(s, unit) for s in statements(tree) for unit in units(s)]
    return [(s, sum(map(weight, unit))) for s, unit in found if unit]


# -- rules of statements


def dense_statements(cell):
    most = LIMITS['nodes']
    for statement, count in weights(cell.tree):
        text = f'{count} expressions in one statement, at most {most}: name what is between'
        if count > most:
            yield 'nodes', statement, text


def called(node):
    "Last name of what a call calls, or an empty text."
    func = getattr(node, 'func', None)
    return getattr(func, 'id', getattr(func, 'attr', ''))


def alone(statement):
    "Why an expression should not stand alone as a statement, or None."
    match statement.value:
        case ast.BoolOp():
            return '`and` or `or` as a statement: write an if'
        case ast.Tuple():
            return 'several expressions in one statement: one a line'
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return 'a comprehension as a statement: write a loop'
    return None


def lonely_expressions(cell):
    "Expressions as statements; the last of a cell may be there to be shown."
    last = None if cell.source.rstrip().endswith(';') else cell.tree.body[-1]
    for statement in statements(cell.tree):
        if not isinstance(statement, ast.Expr):
            continue
        if isinstance(statement.value, ast.IfExp):
            yield 'statement', statement, 'a conditional expression as a statement: write an if'
        elif statement is not last and alone(statement):
            yield 'statement', statement, alone(statement)


def values_of(comprehension):
    "The expressions that a comprehension computes for each of its items."
    if isinstance(comprehension, ast.DictComp):
        return [comprehension.key, comprehension.value]
    return [comprehension.elt]


def effect_of(node):
    "The name of what a node calls for its effect, or ''."
    name = called(node)
    is_method = isinstance(getattr(node, 'func', None), ast.Attribute)
    return name if name in EFFECTS or is_method and name in CHANGES else ''


def busy_comprehensions(cell):
    for node in ast.walk(cell.tree):
        values = values_of(node) if isinstance(node, COMPREHENSIONS) else []
        for effect in filter(None, map(effect_of, values)):
            yield 'statement', node, f'a comprehension calls {effect} for its effect: write a loop'


def stray_lambdas(cell):
    "Exported functions without a name that are no argument: of a call, or the default of one."
    if not cell.exported:
        return
    arguments = set()
    for node in ast.walk(cell.tree):
        match node:
            case ast.Call():
                arguments |= {id(a) for a in node.args}
            case ast.keyword():
                arguments.add(id(node.value))
            case ast.arguments():
                arguments |= {id(d) for d in (*node.defaults, *node.kw_defaults)}
    for node in ast.walk(cell.tree):
        if isinstance(node, ast.Lambda) and id(node) not in arguments:
            yield 'lambda', node, 'a lambda that is no argument: write a def'


def nested_choices(cell):
    for node in ast.walk(cell.tree):
        if not isinstance(node, ast.IfExp):
            continue
        if any(isinstance(part, ast.IfExp) for part in (node.test, node.body, node.orelse)):
            yield 'choice', node, 'a conditional inside a conditional: write ifs, or a function'


def annotated(tree):
    "Ids of the nodes inside annotations."
    kinds = {
        ast.AnnAssign: 'annotation',
        ast.arg: 'annotation',
        ast.FunctionDef: 'returns',
        ast.AsyncFunctionDef: 'returns',
    }
    roots = [getattr(n, kinds[type(n)]) for n in ast.walk(tree) if type(n) in kinds]
    return {id(n) for root in roots if root for n in ast.walk(root)}


def free_tuples(tree):
    "Ids of the nodes that may be long tuples: see `long_tuples`."
    free = annotated(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Subscript():
                free.add(id(node.slice))
            case ast.For() | ast.comprehension():
                free.add(id(node.iter))
            case ast.Compare():
                free.update(map(id, node.comparators))
            case ast.Call() if called(node) == 'isinstance':
                free.update(map(id, node.args))
            case ast.FunctionDef(name='backward'):
                free.update(map(id, ast.walk(node)))
    return free


def long_tuples(cell):
    """Tuples of many unnamed places in exported code.

    Constants, indices, members to compare with and things to loop over may be many,
    and so may the gradients that torch asks `backward` for."""
    if not cell.exported:
        return
    free, most = free_tuples(cell.tree), LIMITS['places']
    for node in ast.walk(cell.tree):
        if not isinstance(node, ast.Tuple) or id(node) in free or is_data(node):
            continue
        text = f'a tuple of {len(node.elts)} unnamed places, at most {most}: give them names'
        if isinstance(node.ctx, ast.Load) and len(node.elts) > most:
            yield 'tuple', node, text


def is_swap(target, value):
    "Whether the same things stand on both sides."
    return set(map(ast.unparse, target.elts)) == set(map(ast.unparse, value.elts))


def packed_assignments(cell):
    for statement in statements(cell.tree):
        if not isinstance(statement, ast.Assign):
            continue
        target, value = statement.targets[0], statement.value
        both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        if both and not is_swap(target, value):
            yield 'packing', statement, 'assignments packed into one: one a line'


def blocks(node):
    "(name, statements) of the blocks of a compound statement."
    for name in ('body', 'orelse', 'finalbody'):
        block = getattr(node, name, None)
        if isinstance(block, list) and block:
            yield name, block
    for handler in getattr(node, 'handlers', []):
        yield 'handler', handler.body


def before_on_the_line(cell, statement):
    "What stands before a statement on its line."
    line = cell.lines[statement.lineno - 1].encode()
    return line[: statement.col_offset].decode().strip()


def shared_lines(cell):
    "Bodies on the line of their head: short guards and short functions may."
    for node in statements(cell.tree):
        for name, block in blocks(node):
            first = block[0]
            if not before_on_the_line(cell, first).endswith(':'):
                continue
            guard = isinstance(node, ast.If) and name == 'body' and isinstance(first, LEAVES)
            short = len(cell.lines[first.lineno - 1]) <= LIMITS['guard']
            if not (guard or isinstance(node, DEFINITIONS)):
                yield 'line', first, 'a body on the line of its head: give it a line'
            elif not short:
                yield 'line', first, 'a body on the line of its head, which is long: give it a line'


# -- rules of functions and cells


def body_lines(node):
    "Lines of a function's body, docstring not counted."
    body = node.body[1:] if is_docstring(node.body[0]) else node.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def first_line(node):
    "First line of a docstring, or an empty text."
    return (ast.get_docstring(node) or '').split('\n')[0]


def positional(node):
    "Positional arguments of a function, self and cls not counted."
    names = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
    return [name for name in names if name not in ('self', 'cls')]


def long_docstrings(cell):
    for node in ast.walk(cell.tree):
        if not isinstance(node, DEFINITIONS):
            continue
        wide, most = len(first_line(node)), LIMITS['docstring']
        text = f"the docstring of {node.name} begins with {wide} columns, at most {most}"
        if wide > most:
            yield 'docstring', node, text


def large_functions(cell):
    for node in ast.walk(cell.tree):
        if not isinstance(node, FUNCTIONS):
            continue
        lines, most = body_lines(node), LIMITS['body']
        if lines > most:
            yield 'body', node, f'{node.name} has {lines} lines, at most {most}'
        count, most = len(positional(node)), LIMITS['arguments']
        text = f'{node.name} has {count} positional arguments, at most {most}: use the star'
        if count > most:
            yield 'arguments', node, text


def bare_definitions(cell):
    for node in cell.public:
        if not ast.get_docstring(node):
            yield 'docstring', node, f'{node.name} has no docstring'


def mixed_imports(cell):
    imports = [s for s in cell.tree.body if isinstance(s, IMPORTS)]
    if imports and len(imports) < len(cell.tree.body):
        yield 'imports', imports[0], 'imports share a cell with other code: give them one'


CELL_RULES = (
    dense_statements,
    lonely_expressions,
    busy_comprehensions,
    stray_lambdas,
    nested_choices,
    long_tuples,
    packed_assignments,
    shared_lines,
    long_docstrings,
    large_functions,
    bare_definitions,
    mixed_imports,
)


def cell_messages(notebook):
    "What the code cells of a notebook break."
    place = shown_path(notebook.path)
    for cell in notebook.code:
        if not cell.tree.body:
            continue
        for rule in CELL_RULES:
            for name, node, text in rule(cell):
                line = node.lineno
                yield Message(place, name, text, cell.number, line, cell.lines[line - 1])


# -- rules of notebooks and folders


def followed(notebook):
    """(cell, whether an example follows it) of every cell that exports something public.

    An example is a visible code cell or an assertion before the next such cell."""
    public = [c for c in notebook.code if c.public]
    ends = [c.number for c in public[1:]] + [len(notebook.cells) + 1]
    for cell, end in zip(public, ends):
        between = [c for c in notebook.code if cell.number < c.number < end and not c.exported]
        yield cell, any(c.shown or 'assert' in c.source for c in between)


def example_messages(notebook):
    "In a folder of stages, an exported function is followed by its smallest example."
    if notebook.path.parent.name not in RULES['stages']:
        return
    for cell, shown in followed(notebook):
        if shown:
            continue
        text = f"no example of {', '.join(n.name for n in cell.public)} before the next export"
        line = cell.public[0].lineno
        place = shown_path(notebook.path)
        yield Message(place, 'example', text, cell.number, line, cell.lines[line - 1])


def summary_lines(notebook):
    "The `> ` lines in the cell of the title, which nbdev takes for the module's docstring."
    titles = [c for c in notebook.cells if c.kind == 'markdown' and c.source.startswith('# ')]
    lines = titles[0].lines if titles else []
    return [line[2:].strip() for line in lines if line.startswith('> ')]


def summary_messages(notebook):
    "One line of summary under the title, in its cell; the README's page has none."
    if notebook.path.stem == 'index':
        return
    lines, most = summary_lines(notebook), LIMITS['summary']
    place = shown_path(notebook.path)
    if len(lines) != 1:
        found = len(lines) or 'no'
        yield Message(place, 'summary', f'{found} `> ` lines under the title: write one', 1)
    elif len(lines[0]) > most:
        text = f'the summary has {len(lines[0])} columns, at most {most}'
        yield Message(place, 'summary', text, 1)


def name_messages(notebook):
    "A notebook bears the name of its module, behind its number."
    if not notebook.module or notebook.path.name.startswith('_'):
        return
    folder = notebook.path.parent.name
    stem = re.sub(r'^\d\d_', '', notebook.path.stem)
    wanted = stem if folder == 'nbs' else f'{folder}.{stem}'
    if notebook.module == wanted:
        return
    text = f'exports to {notebook.module}, but its name says {wanted}'
    yield Message(shown_path(notebook.path), 'name', text)


def number_messages(folder):
    "Notebooks of a folder are numbered without a gap, from 00 or 01."
    names = sorted(p.name for p in folder.glob('*.ipynb') if not p.name.startswith(('_', 'index')))
    numbers = [name[:2] for name in names]
    runs = [[f'{first + i:02}' for i in range(len(names))] for first in (0, 1)]
    if numbers in runs:
        return
    text = f"the numbers are {', '.join(numbers)}; wanted without a gap from 00 or 01"
    yield Message(shown_path(folder), 'number', text)


def notebook_messages(notebook):
    "Everything that a notebook breaks, ruff's rules aside."
    for rule in (example_messages, summary_messages, name_messages, cell_messages):
        yield from rule(notebook)
