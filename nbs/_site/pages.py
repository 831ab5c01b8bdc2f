"""Pages of the site that are no notebooks: landing page, course, families, map, claims, atlas."""
import re
from pathlib import Path
import jinja2
import notebooks as nb
import tables
from notebooks import TOP
from reference import escaped, packages, reference_pages

HERE = Path(__file__).parent


def toctree(entries, options=':hidden:'):
    "The directive that gives pages their place in the navigation."
    return '```{toctree}\n' + options + '\n\n' + '\n'.join(entries) + '\n```\n'


def picture_of(page):
    "Where the small picture of a notebook is put; see build.py."
    return f"/_pictures/{page.family}-{page.name}.png"


def has_picture(page):
    "Methods and lessons have a picture each; of other notebooks those that draw one."
    return page.picture() is not None or page.family in nb.method_families()


def card(page):
    "A card that leads to a notebook."
    lines = [f':::{{grid-item-card}} {page.title}', f':link: {page.doc}', ':link-type: doc']
    if has_picture(page):
        told = escaped(page.summary.rstrip('.')) or page.title
        lines += [f':img-top: {picture_of(page)}', f':img-alt: A picture of the notebook. {told}.']
    return '\n'.join([*lines, '', page.summary, ':::', ''])


def grid(cards, columns='1 2 2 3'):
    "A grid of cards."
    return f'::::{{grid}} {columns}\n:gutter: 3\n\n' + '\n'.join(cards) + '::::\n'


# -- notebooks by folder

def course(lessons):
    "The page of the course: its lessons in order."
    intro = nb.rewritten('Lessons with exercises that check themselves, to be read in order. '
                         '`make lab` opens the first one in JupyterLab, where the exercises are '
                         'solved; here they are shown with their outputs.', 'index.md')
    words = 'Every symbol and every metric has its line in the [glossary](glossary.md).'
    items = [f'{i}. [{page.title}]({page.path}). {page.summary}'
             for i, page in enumerate(lessons, 1)]
    parts = ['# Course', f'{intro} {words}', '\n'.join(items), grid(map(card, lessons), '1 1 2 2'),
             toctree([page.doc for page in lessons])]
    return '\n\n'.join(parts)


def glossary_page(glossary):
    "Symbols and metrics as tables, without the code that reads them from their file."
    intro = ('Papers, lessons and code call one thing by three names. Here is each with its name '
             f'in the code. Where the lists come from: [the notebook]({nb.GLOSSARY}).')
    parts = ['# Glossary', intro]
    for name in ('symbols', 'metrics'):
        columns, *rows = glossary[name]
        told = [[escaped(text) for text in row] for row in rows]
        parts += [f'## {heading(name)}', tables.table(columns, told, 'filterable')]
    return '\n\n'.join(parts)


def family_page(name):
    "The page of a folder of notebooks."
    members = nb.family_pages(name)
    return '\n\n'.join([f'# {heading(name)}', _sentence(nb.said_of(name)), grid(map(card, members)),
                        toctree([page.doc for page in members])])


def _sentence(text):
    return text[0].upper() + text[1:].rstrip('.') + '.'


def heading(family):
    "A family's name as a heading."
    return family[0].upper() + family[1:]


def methods(groups, grpo):
    "All notebooks of methods by family, with a picture each."
    stages = nb.method_families()
    intro = ('A training method is a row of plain functions: a sampler draws responses, a reward '
             'judges them, an advantage compares them, an objective turns that into a step. A '
             'method has its notebook in the family of the stage that it changes. New here? Begin '
             f'with [{grpo.title}]({grpo.path}).')
    parts = ['# Methods', intro, _faders(groups)]
    for name in stages:
        members = nb.family_pages(name)
        parts += [f'## {heading(name)}', grid(map(card, members))]
    return '\n\n'.join([*parts, toctree([f'/nbs/{name}/index' for name in stages])])


def _faders(groups):
    "A figure to move: advantages of right and wrong answers by how many of a group are right."
    words = ('What does a method give a right answer of a group of eight, and what a wrong one? '
             'Move the number of right answers.')
    return f'## One group of eight\n\n{words}\n\n' + tables.group_table(groups)


def library():
    "The families that are not stages."
    stages = nb.method_families()
    names = [name for name in nb.families() if name not in stages]
    parts = ['# Library', 'What the methods stand on, in reading order. '
             'The whole of it in one page is the [overview](nbs/index.ipynb).']
    for name in names:
        items = [f'- [{p.title}]({p.path}): {p.summary}' for p in nb.family_pages(name)]
        said = nb.rewritten(nb.said_of(name), f'nbs/{name}/index.md', 'library.md')
        parts += [f'## {heading(name)}', _sentence(said), '\n'.join(items)]
    entries = ['/nbs/index', *[f'/nbs/{name}/index' for name in names]]
    return '\n\n'.join([*parts, toctree(entries)])


# -- what the package tells

def recipe_page(recipes):
    "The map of recipes."
    source = 'nbs/core/10_method_map.ipynb'
    intro = ('Every recipe is another one with a stage or two changed. Indented below a recipe '
             'stand those that descend from it; the field above them keeps what contains all of '
             f'your words. How the map is made: [the map of methods]({source}).')
    words = ('The family tree of the recipes; squares mark the stages that each one changes. '
             'The same is told in words below.')
    picture = f'::::{{container}} wide\n\n![{words}](_pictures/core-10_method_map.png)\n\n::::'
    return '\n\n'.join(['# Recipe map', intro, picture, '## All recipes',
                        tables.recipe_text(recipes)])


def claim_page(claims):
    "The claims and their verdicts."
    intro = ('Sentences of papers as experiments on small models, with intervals over seeds and a '
             'rule that was written down first. How they are judged: '
             '[claims](nbs/atlas/00_claims.ipynb); how a picture is read: '
             '[all claims in two minutes](nbs/atlas/04_claims_report.ipynb). No result on a tiny '
             'model is a result on a large one.')
    return '\n\n'.join(['# Claims', intro, tables.claim_table(claims), tables.claim_text(claims)])


def atlas_page(papers, recipes, claims):
    "The papers and what is here of each."
    intro = (f'{len(papers)} papers and what is here of each, found out from the code. Write words '
             'into the field, or choose a family, a status or a verdict. How the table is made: '
             '[the catalogue](nbs/atlas/01_catalogue.ipynb).')
    return '\n\n'.join(['# Atlas of papers', intro, tables.paper_table(papers, recipes, claims)])


def benchmark_page(benchmarks):
    "The stored measurements."
    intro = ('Speed beside other libraries, measured by `make bench` and stored. '
             'How it is measured: [benchmarks](nbs/app/03_benchmarks.ipynb).')
    return '\n\n'.join(['# Benchmarks', intro, tables.benchmark_text(benchmarks)])


def reference_index():
    "The page that lists the packages of the reference."
    items = [f'- [rl4llm.{name}]({name}.md)' for name in packages()]
    intro = ('Every public function and class, from the docstrings; each module names the notebook '
             'that it was written from. What most programs need is offered at the top: '
             '`from rl4llm import recipe, train`.')
    return '\n\n'.join(['# Reference', intro, '\n'.join(items), toctree(packages())])


def example_page():
    "The scripts to copy."
    parts = ['# Examples', 'Three short scripts to copy.']
    for file in sorted((TOP/'examples').glob('*.py')):
        parts += [f'## {file.name}', f'```python\n{file.read_text()}\n```']
    return '\n\n'.join(parts)


# -- the landing page

def landing(known):
    "The landing page, with the picture, its words and the commands of nbs/index.ipynb."
    cells = [''.join(cell['source']) for cell in nb.page_of('nbs/index.ipynb').cells]
    blocks = [block.strip() for block in cells[0].split('\n\n')]
    at = next(i for i, block in enumerate(blocks) if block.startswith('!['))
    commands = re.search(r'```\n(.*?)```', '\n'.join(cells), re.DOTALL)[1].splitlines()
    alt, picture = re.match(r'!\[(.*)\]\((.*)\)', blocks[at]).groups()
    caption = nb.rewritten(blocks[at + 1], 'nbs/index.ipynb', 'index.md')
    caption = caption.replace('the section on code', '[the section on code](nbs/index.ipynb) of '
                              'the overview')
    told = dict(tagline=blocks[1].strip('*'), lead=blocks[at - 1],
                alt=alt, picture=f'nbs/{picture}',
                caption=caption,
                commands='\n'.join(commands[:2]), **known)
    text = jinja2.Template((HERE/'landing.md').read_text()).render(told)
    entries = ['course', 'glossary', 'methods', 'recipes', 'claims', 'atlas', 'api/index',
               'benchmarks', 'library', 'examples', 'CONTRIBUTING', 'CHANGELOG']
    return text + '\n' + toctree(entries)


def made_pages(told):
    "Path -> text of every page that is no notebook; `told` is what tables.collected gives."
    recipes, claims, papers = told['recipes'], told['claims'], told['papers']
    grpo = nb.page_of(next(row['notebook'] for row in recipes if row['name'] == 'grpo'))
    counts = dict(lessons=len(nb.lessons()), papers=len(papers), recipes=len(recipes),
                  claims=len(claims))
    pages = {'index.md': landing(counts | dict(grpo=grpo)), 'course.md': course(nb.lessons()),
             'glossary.md': glossary_page(told['glossary']),
             'methods.md': methods(told['groups'], grpo), 'library.md': library(),
             'recipes.md': recipe_page(recipes), 'claims.md': claim_page(claims),
             'atlas.md': atlas_page(papers, recipes, claims), 'examples.md': example_page(),
             'benchmarks.md': benchmark_page(told['benchmarks']), 'api/index.md': reference_index()}
    pages |= {f'nbs/{name}/index.md': family_page(name) for name in nb.families()}
    pages |= {name: nb.rewritten((TOP/name).read_text(), name)
              for name in ('CONTRIBUTING.md', 'CHANGELOG.md')}
    return pages | reference_pages()
