"""Writes a stub beside each lazy `__init__.py`: `python nbs/_stubs.py`, after nbdev-export.

Editors and type checkers do not run `__getattr__`, so the names of a package are written down
for them, from the table that resolves the names."""
import importlib, sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
HEADER = "# Written by nbs/_stubs.py: the names that __init__.py resolves on first use.\n"


def stub(folder, names):
    "Text of a stub: the modules and packages in `folder`, and `names` (name -> module)."
    package = '.'.join(folder.relative_to(TOP).parts)
    modules = {f.stem for f in folder.glob('*.py')}
    packages = {f.parent.name for f in folder.glob('*/__init__.py')}
    children = sorted(name for name in modules | packages if not name.startswith('_'))
    lines = [f'from . import {name} as {name}\n' for name in children]
    for name, module in sorted(names.items(), key=lambda item: (item[1], item[0])):
        if name in children: continue
        lines.append(f'from {module.removeprefix(package)} import {name} as {name}\n')
    return HEADER + ''.join(lines)


def stubs():
    "File -> text of every stub of the package."
    sys.path.insert(0, str(TOP))
    public = importlib.import_module('rl4llm').PUBLIC
    index = importlib.import_module('rl4llm.core.lazy').index
    found = {}
    for init in sorted((TOP/'rl4llm').rglob('__init__.py')):
        folder, top = init.parent, init.parent.name == 'rl4llm'
        package = '.'.join(folder.relative_to(TOP).parts)
        text = stub(folder, public if top else index(package))
        found[init.with_suffix('.pyi')] = text + ('\n__version__: str\n' if top else '')
    return found


if __name__ == '__main__':
    written = stubs()
    for old in (TOP/'rl4llm').rglob('__init__.pyi'):
        if old not in written: old.unlink()
    for file, text in written.items(): file.write_text(text)
