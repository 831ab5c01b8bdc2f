"""Pages of the reference, one a package, from the docstrings of the modules.

The files are parsed, not imported, so that this takes a second."""
import ast, re
from notebooks import TOP, page_of

MEANING = re.compile(r'^([a-z_]\w*(?:, \w+)*): (.*)$')
PARAGRAPH = re.compile(r'(Raises|Source|Returns)\b')
SOURCE = re.compile(r'File to edit: (?:\.\./)*(nbs/\S+?\.ipynb)')


def packages():
    "Names of the packages inside rl4llm, in order."
    return sorted(init.parent.name for init in (TOP/'rl4llm').glob('*/__init__.py'))


def modules(package):
    "Files of a package's modules."
    return [f for f in sorted((TOP/'rl4llm'/package).glob('*.py')) if not f.name.startswith('_')]


def escaped(text):
    "Plain text as Markdown that shows the same; what stands in backticks stays code."
    parts = re.split(r'(`[^`]*`)', text)
    parts[::2] = [re.sub(r'([\\*_<>\[\]$|#{}~])', r'\\\1', part) for part in parts[::2]]
    return ''.join(parts)


def prose(docstring):
    "A docstring as Markdown: paragraphs, and a list of what is said of each argument."
    out = []
    for line in (docstring or '').splitlines():
        meaning = MEANING.match(line)
        if meaning:
            names = ', '.join(f'`{name}`' for name in meaning[1].split(', '))
            out += ['', f'- {names}: {escaped(meaning[2])}']
        elif PARAGRAPH.match(line):
            out += ['', escaped(line.strip())]
        elif out and out[-1].startswith('- ') and line.strip():
            out[-1] += ' ' + escaped(line.strip())
        else:
            out.append(escaped(line.strip()))
    return re.sub(r'\n{3,}', '\n\n', '\n'.join(out)).strip()


def _signature(node):
    "Arguments and result of a function, as its source has them."
    arguments = ast.unparse(node.args)
    for me in ('self, ', 'cls, ', 'self', 'cls'):
        if arguments.startswith(me):
            arguments = arguments.removeprefix(me)
            break
    result = f' -> {ast.unparse(node.returns)}' if node.returns else ''
    return f'({arguments}){result}'.replace('\n', ' ')


def _public(node, kinds):
    return [n for n in node.body if isinstance(n, kinds) and not n.name.startswith('_')]


def _fields(node):
    "The annotated fields of a class, as lines of a list."
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
    return [f'- `{ast.unparse(n)}`' for n in fields if not ast.unparse(n).startswith('_')]


def _block(fence, kind, head, body):
    "A directive of Sphinx's Python domain."
    return f'{fence}{{py:{kind}}} {head}\n\n{body}\n{fence}\n'


def _function(node, kind='function'):
    return _block(':::', kind, node.name + _signature(node), prose(ast.get_docstring(node)))


def _class(node):
    "A class with its fields and its public methods."
    methods = _public(node, ast.FunctionDef)
    start = next((n for n in node.body if getattr(n, 'name', '') == '__init__'), None)
    head = node.name + (_signature(start) if start else '')
    body = [prose(ast.get_docstring(node)), '\n'.join(_fields(node))]
    body += [_function(method, 'method') for method in methods]
    return _block('::::', 'class', head, '\n\n'.join(part for part in body if part))


def _module(file, package):
    "The section of one module; empty where it has no public function or class."
    text = file.read_text()
    tree = ast.parse(text)
    public = _public(tree, (ast.FunctionDef, ast.ClassDef))
    source = SOURCE.search(text)
    if not public or source is None: return ''
    page = page_of(source[1])
    parts = [f'## {page.title}', f'`rl4llm.{package}.{file.stem}`, '
             f'[its notebook](../{page.path}). {escaped(ast.get_docstring(tree) or "")}']
    parts += [_class(n) if isinstance(n, ast.ClassDef) else _function(n) for n in public]
    return '\n\n'.join(parts)


def reference(package):
    "The page of a package."
    sections = [section for file in modules(package) if (section := _module(file, package))]
    head = f'# rl4llm.{package}\n\n```{{py:currentmodule}} rl4llm.{package}\n```\n'
    return head + '\n\n' + '\n\n'.join(sections) + '\n'


def reference_pages():
    "Path -> text of all pages of the reference."
    return {f'api/{package}.md': reference(package) for package in packages()}
