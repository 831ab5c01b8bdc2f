"""Reads the notebooks for the site: which there are, in which order, and their clean copies.

Nothing is executed: a page shows the outputs that a notebook was stored with."""
import functools, html, json, os, re
from dataclasses import dataclass
from pathlib import Path
import nbformat

TOP = Path(__file__).resolve().parents[2]
CODE = re.compile(r'(```.*?```|`[^`\n]+`)', re.DOTALL)
LINK = re.compile(r'(\]\()([^)\s]+)(\))')
OUTSIDE = re.compile(r'^(https?:|mailto:|attachment:|#)')
HIDDEN = re.compile(r'^#\|\s*(hide|default_exp)\b', re.MULTILINE)
DIRECTIVE = re.compile(r'^#\|.*\n?', re.MULTILINE)
EXPORT = re.compile(r'^#\|\s*export', re.MULTILINE)
INSIDE = re.compile('src="data:image/png;base64,([^"]+)')        # a picture in HTML
WORDLESS = re.compile(r'<img (?![^>]*\balt=)')
# It wants a server; a still picture stands beside it.
DYNAMIC = 'application/vnd.jupyter.widget-view+json'


@dataclass(frozen=True)
class Page:
    "A notebook of the site; `path` from the top of the project."
    path: str
    title: str
    summary: str
    cells: list

    @property
    def family(self): return Path(self.path).parent.name

    @property
    def name(self): return Path(self.path).stem

    @property
    def doc(self): return '/' + self.path.removesuffix('.ipynb')

    def picture(self):
        "The first stored PNG in base64, alone or in HTML; None where there is none."
        for output in (output for cell in self.cells for output in cell.get('outputs', [])):
            data = output.get('data', {})
            if 'image/png' in data: return ''.join(data['image/png'])
            inside = INSIDE.search(''.join(data.get('text/html', '')))
            if inside: return inside[1]
        return None


@functools.cache
def page_of(path):
    "The notebook at `path`, from the top of the project."
    cells = json.loads((TOP/path).read_text())['cells']
    first = ''.join(cells[0]['source'])
    title = re.match(r'#\s+(.+)', first)
    if title is None: raise ValueError(f'{path} does not begin with a title, `# ...`.')
    summary = re.search(r'^>\s*(.+)', first, re.MULTILINE)
    return Page(path, title[1].strip(), summary[1].strip() if summary else '', cells)


def _pages(pattern):
    return [page_of(str(file.relative_to(TOP))) for file in sorted(TOP.glob(pattern))]


def lessons():
    "The lessons, in order."
    return _pages('tutorials/[0-9]*.ipynb')


@functools.cache
def family_rows():
    "Rows of the table of nbs/index.ipynb: (the families of a row, what it says of them)."
    text = '\n'.join(''.join(cell['source']) for cell in page_of('nbs/index.ipynb').cells)
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip('| ').split(' | ')]
        names = re.findall(r'\[(\w+)\]\((\w+)\)', cells[0])
        if line.startswith('|') and names and all(a == b for a, b in names):
            found.append(([name for name, _ in names], cells[1]))
    return found


def families():
    "Names of the folders of notebooks, in the reading order of nbs/index.ipynb."
    return [name for names, _ in family_rows() for name in names]


def method_families():
    "The families of stages: the row of the table in which `advantages` stands."
    return next(names for names, _ in family_rows() if 'advantages' in names)


def family_pages(family):
    "The notebooks of a family, in order."
    return _pages(f'nbs/{family}/[0-9]*.ipynb')


def said_of(family):
    "What nbs/index.ipynb says of a family."
    said = next(said for names, said in family_rows() if family in names)
    return rewritten(said, 'nbs/index.ipynb', f'nbs/{family}/index.md')


def all_pages():
    "Every notebook of the site."
    library = [page for family in families() for page in family_pages(family)]
    return [page_of('nbs/index.ipynb'), *lessons(), *library]


# -- links

GLOSSARY = 'nbs/course/10_glossary.ipynb'      # links to it lead to the page made of its tables
FOLDERS = {'nbs': 'library.md', 'tutorials': 'course.md', 'rl4llm': 'api/index.md',
           'tests': 'CONTRIBUTING.md', 'examples': 'examples.md', '.': 'index.md'}


def place_of(path):
    "Where a path of the project is on the site; raises FileNotFoundError for one that is not."
    if not (TOP/path).exists(): raise FileNotFoundError(f'{path} is linked but is not there.')
    if path == 'README.md': return 'nbs/index.ipynb'
    if path == GLOSSARY: return 'glossary.md'
    if not (TOP/path).is_dir(): return path
    if path in FOLDERS: return FOLDERS[path]
    if path.startswith('nbs/'): return f'{path}/index.md'
    if path.startswith('rl4llm/'): return f'api/{Path(path).name}.md'
    raise FileNotFoundError(f'the folder {path} is linked but has no page on the site.')


def links_of(text):
    "The relative links of Markdown, outside of code."
    prose = ''.join(CODE.split(text)[::2])
    return [found[2] for found in LINK.finditer(prose) if not OUTSIDE.match(found[2])]


def target_of(link, source):
    "The path from the top of the project that a relative link in the file `source` means."
    return os.path.normpath(os.path.join(os.path.dirname(source), link.split('#')[0]))


def rewritten(text, source, page=None):
    "Markdown of the file `source` with its relative links as those of the site's `page`."
    folder = os.path.dirname(page or source) or '.'

    def moved(found):
        if OUTSIDE.match(found[2]): return found[0]
        place = os.path.relpath(place_of(target_of(found[2], source)), folder)
        anchor = found[2].partition('#')[2]
        return f"{found[1]}{place}{'#' + anchor if anchor else ''}{found[3]}"
    parts = CODE.split(text)
    parts[::2] = [LINK.sub(moved, part) for part in parts[::2]]
    return ''.join(parts)


def linked_files():
    "Files, not pages, that a notebook or a page of the project links: they come along."
    pages = {page.path for page in all_pages()} | {'CONTRIBUTING.md', 'CHANGELOG.md', 'README.md'}
    texts = [(page.path, ''.join(cell['source'])) for page in all_pages() for cell in page.cells
             if cell['cell_type'] == 'markdown']
    texts += [(name, (TOP/name).read_text()) for name in ('CONTRIBUTING.md', 'CHANGELOG.md')]
    found = {target_of(link, source) for source, text in texts for link in links_of(text)}
    return sorted(path for path in found - pages if not (TOP/path).is_dir())


# -- clean copies

def plain(markdown):
    "Markdown as one line of plain words, for the alternative text of a picture."
    text = re.sub(r'!?\[([^\]]*)\]\([^)]*\)', r'\1', markdown)
    text = re.sub(r'<[^>]+>|[*`#>$\\]|^\s*[-\d.]+ ', '', text, flags=re.MULTILINE)
    return ' '.join(text.split())


def _words_before(cells, number):
    "The last paragraph before a cell, or its section's heading."
    for cell in reversed(cells[:number]):
        if cell['cell_type'] != 'markdown': continue
        paragraphs = [p for p in ''.join(cell['source']).split('\n\n') if p.strip()]
        words = plain(paragraphs[-1])
        return words if len(words) <= 300 else words[:297].rsplit(' ', 1)[0] + ' ...'
    return ''


def _shown_outputs(cell, words):
    "The outputs of a cell, without what wants a server; pictures in HTML are told in `words`."
    shown = []
    for output in cell.get('outputs', []):
        if output['output_type'] == 'stream' and output['name'] == 'stderr': continue
        data = {kind: value for kind, value in output.get('data', {}).items() if kind != DYNAMIC}
        if 'text/html' in data:
            told = f'<img alt="{html.escape(words)}" '.replace('\\', '')
            data['text/html'] = WORDLESS.sub(told, ''.join(data['text/html']))
        shown.append({**output, 'data': data} if 'data' in output else output)
    return shown


def _code_cell(cell, words):
    "A code cell as the site shows it: no directives; its pictures are told in `words`."
    source = ''.join(cell['source'])
    made = nbformat.v4.new_code_cell(DIRECTIVE.sub('', source))
    made.outputs = [nbformat.from_dict(output) for output in _shown_outputs(cell, words)]
    made.metadata['mystnb'] = {'image': {'alt': f'Figure. {words}'}}
    if EXPORT.search(source): made.metadata['tags'] = ['export']
    return made


def stepwise(text, level):
    "(Markdown whose headings go down one level at a time, the level of its last heading)."
    parts = CODE.split(text)
    for i, part in enumerate(parts[::2]):
        lines = part.split('\n')
        for j, line in enumerate(lines):
            heading = re.match(r'(#{1,6})(?= )', line)
            if heading is None: continue
            level = min(len(heading[1]), level + 1)
            lines[j] = '#' * level + line[heading.end():]
        parts[2 * i] = '\n'.join(lines)
    return ''.join(parts), level


def clean(page):
    "The notebook of a page as the site shows it."
    made = nbformat.v4.new_notebook()
    level = 0
    kernel = {'name': 'python3', 'display_name': 'Python', 'language': 'python'}
    made.metadata['kernelspec'] = kernel
    for number, cell in enumerate(page.cells):
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'markdown':
            text, level = stepwise(rewritten(source, page.path), level)
            made.cells.append(nbformat.v4.new_markdown_cell(text))
        elif not HIDDEN.search(source):
            made.cells.append(_code_cell(cell, _words_before(page.cells, number) or page.title))
    for number, cell in enumerate(made.cells): cell['id'] = f'cell-{number}'
    return made
