"""The lint of the house: `python tests/lint.py [paths]`.

Checks the folders that tests/lint.toml calls clean, or the notebooks and folders that are named:
with ruff (its rules are in pyproject.toml) and with the rules of tests/lint_rules.py.
Without a name it also counts what ruff finds in the tests, which may not grow.
`--measure` prints figures of every folder instead, clean or not."""

import argparse, ast, json, re, statistics, subprocess, sys
from collections import Counter
from pathlib import Path
from lint_rules import (
    DEFINITIONS,
    FUNCTIONS,
    RULES,
    TOP,
    Message,
    Notebook,
    body_lines,
    first_line,
    followed,
    notebook_messages,
    number_messages,
    shown_path,
    weights,
)

RUFF = [
    sys.executable,
    '-m',
    'ruff',
    'check',
    '--no-cache',
    '--output-format',
    'json',
    '--extend-select',
    'F821',
]


# -- ruff


def is_axis(before):
    "Whether a name behind `before` stands in quotes: an axis of a tensor, not a name of Python."
    quoted = any(before.count(quote) % 2 for quote in '\'"')
    return quoted and '{' not in re.split('[\'"]', before)[-1]


def ruff_messages(files):
    "What ruff finds in `files`."
    if not files:
        return
    done = subprocess.run([*RUFF, *map(str, files)], cwd=TOP, capture_output=True, text=True)
    if 'No module named ruff' in done.stderr:
        raise SystemExit('the lint needs ruff: pip install -e .[dev], or make lint')
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    for found in json.loads(done.stdout):
        path = Path(found['filename'])
        cell = found.get('cell') or 0
        row = found['location']['row']
        text = Notebook(path).cells[cell - 1].source if cell else path.read_text()
        line = (text.split('\n') + [''])[row - 1]
        rule = found['code'] or 'syntax'
        if rule == 'F821' and is_axis(line[: found['location']['column'] - 1]):
            continue
        said = found['message'].split('\n')[0]
        yield Message(shown_path(path), rule, said, cell, row, line)


# -- everything together


def notebooks_of(place):
    "Notebooks at a path: itself, or those directly in a folder."
    if place.is_dir():
        return [Notebook(p) for p in sorted(place.glob('*.ipynb'))]
    return [Notebook(place)] if place.suffix == '.ipynb' else []


def sources_of(place):
    "Python files that go with a path: those that lie in it, and the modules that it exports."
    beside = sorted(place.glob('*.py')) if place.is_dir() else [place]
    names = [nb.module for nb in notebooks_of(place) if nb.module and place.is_relative_to(TOP)]
    modules = [TOP / 'rl4llm' / f"{name.replace('.', '/')}.py" for name in names]
    return [f for f in beside + modules if f.suffix == '.py' and f.exists()]


def is_excused(message, exception):
    "Whether an exception of tests/lint.toml is about a message."
    same = (message.file, message.rule) == (exception['file'], exception['rule'])
    return same and exception['text'] in message.source


def idle_messages(found, files):
    "Exceptions for `files` that excuse nothing of what was found."
    here = set(map(shown_path, files))
    for e in RULES.get('exceptions', []):
        if e['file'] not in here or any(is_excused(m, e) for m in found):
            continue
        yield Message('tests/lint.toml', 'exceptions', f"not needed: {e['file']}, {e['text']!r}")


def lint(places):
    "Messages about a list of paths, in order."
    found, files = [], []
    for place in places:
        if place.is_dir():
            found += number_messages(place)
        for notebook in notebooks_of(place):
            found += notebook_messages(notebook)
        files += [nb.path for nb in notebooks_of(place)] + sources_of(place)
    found += ruff_messages(files)
    exceptions = RULES.get('exceptions', [])
    kept = [m for m in found if not any(is_excused(m, e) for e in exceptions)]
    kept += idle_messages(found, files)
    return sorted(set(kept), key=lambda m: (m.file, m.cell, m.line, m.rule))


def untidy_messages(files=None):
    "Files of tests/ in which ruff finds more than tests/lint.toml says: the numbers only fall."
    files = sorted((TOP / 'tests').glob('*.py')) if files is None else files
    counts = Counter(Path(message.file).name for message in ruff_messages(files))
    for name, count in sorted(counts.items()):
        most = RULES['untidy'].get(name.removesuffix('.py'), 0)
        if count <= most:
            continue
        text = f'ruff finds {count} things, at most {most}: run `ruff check tests/{name}`'
        yield Message(f'tests/{name}', 'untidy', text)


# -- figures


def share(flags):
    "Percentage of the true ones, or a dash."
    flags = list(flags)
    return f'{100 * sum(flags) / len(flags):.1f}' if flags else '-'


def median(values):
    return f'{statistics.median(values):g}' if values else '-'


def line_figures(cells):
    lines = [line for c in cells for line in c.lines if line.strip() and not line.startswith('#|')]
    return {
        'lines': len(lines),
        '>100 %': share(len(line) > 100 for line in lines),
        '>120 %': share(len(line) > 120 for line in lines),
    }


def statement_figures(cells):
    counts = [n for c in cells for _, n in weights(c.tree)]
    return {'nodes': median(counts), '>25 %': share(n > 25 for n in counts), 'most': max(counts)}


def function_figures(cells):
    nodes = [n for c in cells for n in ast.walk(c.tree) if isinstance(n, DEFINITIONS)]
    docs = [len(first_line(n)) for n in nodes if first_line(n)]
    bodies = [body_lines(n) for n in nodes if isinstance(n, FUNCTIONS)]
    return {
        'doc': median(docs),
        '>88 %': share(n > 88 for n in docs),
        'longest': max(docs, default=0),
        'body': median(bodies),
        'largest': max(bodies, default=0),
    }


def figures(name, places):
    "Figures of folders taken together, by name of the column."
    notebooks = [nb for place in places for nb in notebooks_of(place)]
    cells = [c for nb in notebooks for c in nb.code]
    examples = [shown for nb in notebooks for cell, shown in followed(nb) for _ in cell.public]
    return {
        'folder': name,
        'notebooks': len(notebooks),
        **line_figures(cells),
        **statement_figures(cells),
        **function_figures(cells),
        'exported': len(examples),
        'shown %': share(examples),
        'messages': len(lint(places)),
    }


def folders():
    "Every folder with notebooks."
    notebooks = [p for name in ('nbs', 'tutorials') for p in (TOP / name).rglob('*.ipynb')]
    return sorted({p.parent for p in notebooks if p.parent.name != '.ipynb_checkpoints'})


def measure(places):
    "Prints a table of the figures, a line for each folder and one for all."
    rows = [figures(shown_path(place), [place]) for place in places] + [figures('all', places)]
    table = [list(rows[0]), *[list(map(str, row.values())) for row in rows]]
    widths = [max(map(len, column)) for column in zip(*table)]
    for first, *rest in table:
        padded = [value.rjust(width) for value, width in zip(rest, widths[1:])]
        print(first.ljust(widths[0]), *padded, sep='  ')


def main(arguments):
    "Number of messages, which are printed."
    parser = argparse.ArgumentParser(description='The lint of the house: see tests/lint.toml.')
    parser.add_argument('paths', nargs='*', type=Path, help='notebooks, folders; or the clean ones')
    parser.add_argument('--measure', action='store_true', help='print figures of every folder')
    options = parser.parse_args(arguments)
    places = [p.resolve() for p in options.paths]
    missing = [str(p) for p in options.paths if not p.exists()]
    if missing:
        parser.error(f"not there: {', '.join(missing)}")
    if options.measure:
        return measure(places or folders())
    messages = lint(places or [TOP / name for name in RULES['clean']])
    if not places:
        messages += untidy_messages()
    for message in messages:
        print(message)
    return len(messages)


if __name__ == '__main__':
    sys.exit(bool(main(sys.argv[1:])))
