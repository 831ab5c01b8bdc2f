"""Small faults for the functions of a module, as changes of its syntax tree, and how one is planted
in the package that is loaded: the code of the function is replaced, so that every importer has it.
"""

import ast, contextlib, copy, inspect, os, re, sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

PACKAGE = 'rl4llm'


# -- the parts of a module


class Unit(NamedTuple):
    "A function, a method or a value at the top of a module or class."

    module: str
    name: str
    node: ast.AST
    file: str

    @property
    def key(self):
        return f"{self.module}:{self.name}"


def live_module(name):
    return import_module(f"{PACKAGE}.{name}")


def plain(tree):
    "The tree without annotations of arguments and without decorators of functions and methods."
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
    for node in tree.body:
        for part in (node, *getattr(node, 'body', ())):
            if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
                part.decorator_list = []
    return tree


def target_of(node):
    "The name that a statement defines; None if it is no plain definition."
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, 'target', None)]
    wanted = isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
    return getattr(targets[0], 'id', None) if wanted and len(targets) == 1 else None


def units_of(module, file, text):
    "All units of a module, given by the text of its file."
    for node in plain(ast.parse(text)).body:
        name = target_of(node)
        parts = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{name}." if isinstance(node, ast.ClassDef) else ''
        for part in parts:
            own = target_of(part)
            if own and not isinstance(part, ast.ClassDef):
                yield Unit(module, prefix + own, part, file)


SHOWN = re.compile(r'html|repr__|_repr|plot|picture|caption|readable|__all__')
DRAWN = {'plt', 'ax', 'axes', 'figure'}


def is_for_show(unit):
    "Whether a unit makes pictures, pages or text for a reader."
    names = {n.id for n in ast.walk(unit.node) if isinstance(n, ast.Name)}
    return bool(SHOWN.search(unit.name) or names & DRAWN)


# -- the faults that fit an expression

COMPARISONS = {
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
RENAMED = {
    'mean': 'sum',
    'nanmean': 'nansum',
    'masked_mean': 'masked_sum',
    'group_mean': 'group_sum',
    'max': 'min',
    'min': 'max',
    'amax': 'amin',
    'amin': 'amax',
    'argmax': 'argmin',
    'argmin': 'argmax',
    'maximum': 'minimum',
    'minimum': 'maximum',
    'any': 'all',
    'all': 'any',
}
DROPPED = {'clamp', 'clamp_min', 'clamp_max', 'clip', 'nan_to_num', 'masked_fill', 'detach'}
LIBRARIES = {'torch', 'np', 'numpy', 'math', 'F'}
COMMUTE = {
    'maximum',
    'minimum',
    'max',
    'min',
    'logaddexp',
    'multiply',
    'add',
    'equal',
    'not_equal',
    'isinstance',
    'issubclass',
    'getattr',
    'hasattr',
    'zip',
    'check_shape',
    'print',
    'union',
}


def called(node):
    "The last part of the name of what is called."
    return getattr(node.func, 'attr', getattr(node.func, 'id', ''))


def with_changes(node, **changes):
    "A shallow copy of a node with other fields."
    new = copy.copy(node)
    for name, value in changes.items():
        setattr(new, name, value)
    return new


def faults_of_compare(node, parent):
    for i, op in enumerate(node.ops):
        if type(op) in COMPARISONS:
            ops = [*node.ops[:i], COMPARISONS[type(op)](), *node.ops[i + 1 :]]
            yield 'comparison', with_changes(node, ops=ops)


def is_sequence(node):
    "Whether an operand is a text or a list, whatever + and * then mean."
    written = (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr)
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return isinstance(node, written) or text


MINUS = 'minus before'


def faults_of_binop(node, parent):
    if is_sequence(node.left) or is_sequence(node.right):
        return
    if isinstance(node.op, ast.Add):
        yield 'sign', with_changes(node, op=ast.Sub())
    if isinstance(node.op, ast.Sub):
        yield 'sign', with_changes(node, op=ast.Add())
    if isinstance(node.op, ast.Mult):
        yield 'operator', with_changes(node, op=ast.Div())
    if not isinstance(node.op, (ast.Mult, ast.Div)):
        return
    yield 'factor', node.left
    free = isinstance(node.left, ast.Constant) and node.left.value == 0
    if not free and not isinstance(parent, (ast.BinOp, ast.UnaryOp)):
        yield MINUS, ast.UnaryOp(ast.USub(), node)


def faults_of_unaryop(node, parent):
    kinds = {ast.USub: 'sign', ast.Not: 'negation', ast.Invert: 'negation'}
    if type(node.op) in kinds:
        yield kinds[type(node.op)], node.operand


def faults_of_boolop(node, parent):
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield 'and/or', with_changes(node, op=other)


def faults_of_constant(node, parent):
    old = node.value
    if isinstance(old, bool):
        new = not old
    elif isinstance(old, int):
        new = old + 1 if abs(old) <= 8 else 2 * old
    elif isinstance(old, float):
        new = old + 1 if abs(old) < 0.01 else 2 * old
    else:
        return
    if new == new and new != old:
        yield 'constant', ast.Constant(new)


def faults_of_call(node, parent):
    name, args = called(node), node.args
    if name in DROPPED:
        base = getattr(node.func, 'value', None)
        of_library = getattr(base, 'id', None) in LIBRARIES
        kept = base if base and not of_library else args[0] if args else None
        if kept is not None:
            yield f"without {name}", kept
    if name in RENAMED:
        slot = 'attr' if isinstance(node.func, ast.Attribute) else 'id'
        func = with_changes(node.func, **{slot: RENAMED[name]})
        yield f"{name} -> {RENAMED[name]}", with_changes(node, func=func)
    if name == 'where' and len(args) in (2, 3):
        *first, a, b = args
        if len(args) == 3:
            yield 'arguments', with_changes(node, args=[*first, b, a])
    elif len(args) == 2 and name not in COMMUTE and alike(*args):
        yield 'arguments', with_changes(node, args=args[::-1])


def alike(a, b):
    "Whether two arguments may be mixed up: both are numbers, or both are computed."
    if any(isinstance(x, ast.Starred) or is_sequence(x) for x in (a, b)):
        return False
    same_kind = isinstance(a, ast.Constant) == isinstance(b, ast.Constant)
    return same_kind and ast.dump(a) != ast.dump(b)


FAULTS_OF = {
    ast.Compare: faults_of_compare,
    ast.BinOp: faults_of_binop,
    ast.UnaryOp: faults_of_unaryop,
    ast.BoolOp: faults_of_boolop,
    ast.Constant: faults_of_constant,
    ast.Call: faults_of_call,
}


# -- where faults are planted


class Site(NamedTuple):
    "One fault: what stands at `parent.field[place]` (no place: the field itself) becomes `new`."

    unit: Unit
    kind: str
    name: str
    parent: ast.AST
    field: str
    place: int | None
    old: ast.AST
    new: ast.AST
    lines: tuple


SAID = {'warn', 'print', 'display', 'write', 'echo'}


def only_raises(node):
    "Whether a statement is a guard: it raises or does nothing."
    guards = isinstance(node, ast.If) and not node.orelse
    return guards and all(isinstance(s, ast.Raise) for s in node.body)


def is_left_out(node):
    "What is not changed: errors and their guards, texts, docstrings, messages."
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.ExceptHandler)):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Call) and called(node) in SAID:
        return True
    return only_raises(node)


def span(node):
    return node.lineno, node.end_lineno


def children(node):
    "(field, place in a list or None, child) of all children that may be changed."
    for name, value in ast.iter_fields(node):
        if name in ('annotation', 'decorator_list'):
            continue
        listed = isinstance(value, list)
        for i, child in enumerate(value if listed else [value]):
            if isinstance(child, ast.AST) and not is_left_out(child):
                yield name, i if listed else None, child


def places(node, lines, whole=None):
    """Every (parent, field, place, child, lines, whole) below a node: `lines` are those that run
    when the child does, `whole` is the statement or the header that it is a part of."""
    for name, i, child in children(node):
        at, inside = lines, whole
        compound = isinstance(child, ast.stmt) and hasattr(child, 'body')
        if isinstance(child, ast.stmt) and not compound:
            at, inside = span(child), child
        elif isinstance(child, ast.expr) and whole is None:
            at = lines if isinstance(node, ast.arguments) else span(child)
            inside = child
        if isinstance(node, ast.Lambda) and name == 'body':
            at = span(child)
        yield node, name, i, child, at, inside
        yield from places(child, at, None if compound else inside)


def put(site, node):
    "Write a node to the site's place."
    if site.place is None:
        setattr(site.parent, site.field, node)
    else:
        getattr(site.parent, site.field)[site.place] = node


@contextlib.contextmanager
def changed(site):
    "The unit's tree with the fault; put back afterwards."
    put(site, site.new)
    try:
        yield
    finally:
        put(site, site.old)


WORD = re.compile(r'\d[\d.]*(?:e-?\d+)?|\w+|\s+|[<>=!]=|[^\w\s]')


def difference(old, new, around=24):
    "Two texts as one, with [old -> new] where they differ."
    words = [WORD.findall(text) for text in (old, new)]
    start = len(os.path.commonprefix(words))
    end = len(os.path.commonprefix([w[start:][::-1] for w in words]))
    middle = [''.join(w[start : len(w) - end]) for w in words]
    before, after = ''.join(words[0][:start]), ''.join(words[0][len(words[0]) - end :])
    left = before if len(before) <= around else '...' + before[-around:]
    right = after if len(after) <= around else after[:around] + '...'
    return ' '.join(f"{left}[{middle[0]} -> {middle[1]}]{right}".split())


def name_of(site, whole, labels):
    "What the fault changes, as text: the same for any layout of the code."
    label, old = labels.get(id(whole)), ast.unparse(whole)
    if site.kind == MINUS:
        return f"[ -> -]({ast.unparse(site.old)[:60]}"
    with changed(site):
        new = ast.unparse(site.new if whole is site.old else whole)
    return (f"{label}=" if label else '') + difference(old, new)


def labels_of(tree):
    "Names of arguments by the identity of their defaults."
    found = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.arguments):
            continue
        last = [*node.posonlyargs, *node.args][-len(node.defaults) :] if node.defaults else []
        pairs = [*zip(last, node.defaults), *zip(node.kwonlyargs, node.kw_defaults)]
        found |= {id(default): arg.arg for arg, default in pairs}
    return found


ALL_LINES = (0, 10**9)


def sites_of(unit):
    "All faults of a unit, in the order of its code; names differ."
    is_value = not isinstance(unit.node, ast.FunctionDef)
    start = (ALL_LINES, unit.node) if is_value else (span(unit.node), None)
    labels, seen = labels_of(unit.node), defaultdict(int)
    for parent, slot, place, old, lines, whole in list(places(unit.node, *start)):
        for kind, new in FAULTS_OF.get(type(old), no_faults)(old, parent):
            ast.copy_location(new, old)
            site = Site(unit, kind, '', parent, slot, place, old, new, lines)
            name = name_of(site, whole, labels)
            seen[name] += 1
            count = f" #{seen[name]}" if seen[name] > 1 else ''
            yield site._replace(name=f"{unit.name}: {name}{count}")


def no_faults(node, parent):
    return ()


def sites_in(module):
    "All faults of a module."
    file = live_module(module).__file__
    units = units_of(module, file, Path(file).read_text())
    return [site for unit in units if not is_for_show(unit) for site in sites_of(unit)]


# -- planting


def unwrapped(thing):
    "The plain function behind a method, a property, a cache, or another wrapper."
    for slot in ('__func__', 'fget', 'func'):
        inner = getattr(thing, slot, None)
        if inner and not inspect.isfunction(thing):
            thing = inner
    return inspect.unwrap(thing)


def evaluated(site):
    "What the site's unit defines, with the fault: a function or a value."
    unit = site.unit
    module = live_module(unit.module)
    *owner, own = unit.name.split('.')
    shell = ast.parse(f"class {owner[0]}: pass" if owner else '')
    holder = shell.body[0] if owner else shell
    names = dict(vars(module))
    with changed(site):
        holder.body = [unit.node]
        exec(compile(ast.fix_missing_locations(shell), unit.file, 'exec'), names)
    return vars(names[owner[0]])[own] if owner else names[own]


def plant(site):
    "Put the fault into the package that is loaded, wherever the function has been imported to."
    module = live_module(site.unit.module)
    *owner, own = site.unit.name.split('.')
    holder = getattr(module, owner[0]) if owner else module
    made, old = evaluated(site), vars(holder)[own]
    for thing in vars(module).values():
        if hasattr(thing, 'cache_clear'):
            thing.cache_clear()
    if isinstance(site.unit.node, ast.FunctionDef):
        live, new = unwrapped(old), unwrapped(made)
        for part in ('__code__', '__defaults__', '__kwdefaults__'):
            setattr(live, part, getattr(new, part))
    elif isinstance(old, dict):
        refill(old, made)
    elif hasattr(holder, '_field_defaults'):  # a named tuple: its fields are read through it
        give_default(holder.__new__, own, made)
    elif owner:
        setattr(holder, own, made)
        give_default(holder.__init__, own, made)
    else:
        replace_everywhere(own, old, made)


def refill(old, new):
    "Give a table its new entries in place; tables in it too, which others may hold by themselves."
    for name, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(name), dict):
            refill(old[name], value)
        else:
            old[name] = value


def give_default(made_by, name, value):
    "Give an argument of a written `__init__` (as data classes have) or `__new__` another default."
    code, defaults = getattr(made_by, '__code__', None), getattr(made_by, '__defaults__', None)
    names = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
    if name in names:
        here = names.index(name)
        made_by.__defaults__ = (*defaults[:here], value, *defaults[here + 1 :])
    if name in (getattr(made_by, '__kwdefaults__', None) or {}):
        made_by.__kwdefaults__[name] = value


def replace_everywhere(name, old, new):
    "Give a value its new value in every module of the package that has it under this name."
    for known, module in list(sys.modules.items()):
        if known.startswith(PACKAGE) and vars(module).get(name) is old:
            setattr(module, name, new)
