"""Writes README.md from nbs/index.ipynb: `python nbs/_readme.py [FILE]`.

Pictures that cells draw go to nbs/images."""
import re, sys
from os.path import normpath
from pathlib import Path
import nbformat
from nbconvert import MarkdownExporter
from traitlets.config import Config

NBS = Path(__file__).resolve().parent
# A table of pandas is plain text: its HTML carries a style sheet.
PLAIN = ['text/markdown', 'image/png', 'text/plain']
HIDDEN = re.compile(r'^#\|\s*(hide|default_exp|export)', re.MULTILINE)


def rooted(text):
    "`text` with the relative links of a file in nbs/ as links of a file beside nbs/."
    def link(m):
        return m[1] + normpath(f'nbs/{m[2]}')
    return re.sub(r'(\]\(|src="|href=")(?!https?:|mailto:|#)([^)"#]+)', link, text)


def readme(notebook=NBS/'index.ipynb'):
    """(text, pictures) of the README.

    Text is Markdown; pictures are the PNG files that it shows, by their path from the top."""
    nb = nbformat.read(notebook, 4)
    nb.metadata['language_info'] = {'name': 'python'}
    nb.cells = [c for c in nb.cells if not (c.cell_type == 'code' and HIDDEN.search(c.source))]
    for cell in nb.cells:
        if cell.cell_type == 'markdown': cell.source = rooted(cell.source)
    exporter = MarkdownExporter(config=Config({'NbConvertBase': {'display_data_priority': PLAIN}}))
    places = {'unique_key': 'index', 'output_files_dir': 'nbs/images'}
    text, resources = exporter.from_notebook_node(nb, resources=places)
    text = '\n'.join(line.rstrip() for line in text.split('\n')).strip()
    return re.sub(r'\n{3,}', '\n\n', text) + '\n', resources.get('outputs', {})


if __name__ == '__main__':
    target = Path(sys.argv[1]) if sys.argv[1:] else NBS.parent/'README.md'
    text, pictures = readme()
    target.write_text(text)
    for name, data in pictures.items(): (NBS.parent/name).write_bytes(data)
