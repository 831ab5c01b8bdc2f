"""Tables that the package can tell: recipes, claims, papers, benchmarks.

`collected` asks the package once, in half a minute, and keeps the answer in a file."""
import hashlib, json
from pathlib import Path
from notebooks import TOP, page_of
from reference import escaped


# -- what the package knows

def _notebook(module):
    from rl4llm.core.sources import notebook_of
    return notebook_of(module) or ''


def recipe_rows():
    "One dict a recipe, parents before children."
    from rl4llm import recipes
    from rl4llm.core.method_map import is_placebo, recipe_tree
    from rl4llm.core.registry import RECIPES
    made = recipes()[['changes', 'cited', 'summary']].fillna('')
    rows = []
    for name, depth in recipe_tree():
        told = made.loc[name].to_dict()
        spec = RECIPES[name]
        rows.append(dict(name=name, depth=depth, parent=spec.parent or '', placebo=is_placebo(name),
                         notebook=_notebook(spec.module), **told))
    return rows


def claim_dicts():
    """One dict a claim, those with a verdict first: the rows of its parts, and its maps.

    `pictured` says whether the claim has a picture."""
    from rl4llm.atlas.claims import CLAIMS, claim_rows, claims_table
    from rl4llm.atlas.claims_report import told_claims
    told = [claim.name for claim in told_claims()]
    kept = claims_table()
    rows = []
    for name in [*told, *(name for name in kept.index if name not in told)]:
        parts = claim_rows(CLAIMS[name]).to_dict('records')
        maps = map_dicts(name) if name in told else []
        rows.append(dict(name=name, parts=parts, maps=maps, pictured=name in told,
                         **kept.loc[name].to_dict()))
    return rows


def map_dicts(claim):
    "One dict a map of where a claim holds: its name, what it says, and its cells."
    from rl4llm.atlas.regime_maps import map_sentence, maps_of_claim, readable_cells
    return [dict(name=found.name, said=map_sentence(found), cells=_frame(readable_cells(found)))
            for found in maps_of_claim(claim)]


def paper_dicts():
    "One dict a paper of the atlas."
    from rl4llm.atlas import table
    from rl4llm.core.citations import cited
    rows = table().reset_index().to_dict('records')
    return [{**row, 'cited': cited(row['paper'])} for row in rows]


def _frame(table):
    "A data frame with its index as columns, as lists of texts."
    flat = table.reset_index()
    return [list(map(str, flat.columns)), *flat.astype(str).values.tolist()]


def benchmark_dicts():
    "One dict a stored benchmark: its headline and its tables."
    from rl4llm.app import benchmarks as b
    found = []
    for file in sorted((TOP/'rl4llm/assets/benchmarks').glob('*.json')):
        results = b.load_benchmark(file.stem)
        made = {'A step beside others': b.benchmark_table(results),
                'How far the limit of the machine is': b.floor_table(results),
                'How it grows': b.growth_table(results)}
        tables = {title: _frame(table) for title, table in made.items()}
        found.append(dict(name=file.stem, headline=b.headline(results), tables=tables))
    return found


def glossary_tables():
    "The symbols and the metrics, as lists of texts."
    from rl4llm.course.glossary import metric_table, symbol_table
    return dict(symbols=_frame(symbol_table()), metrics=_frame(metric_table()))


def group_rows(size=8):
    """What each method of a group gives right and wrong answers, by how many are right.

    A dict: method -> list, by the number of right answers, of (advantage of a right one, of a
    wrong one); None where there is none of its sort."""
    import torch
    from rl4llm.core.registry import STAGES, load_stages
    load_stages()
    names = ('reinforce', 'reinforce_batch', 'rloo', 'dr_grpo', 'grpo')
    group, found = torch.zeros(size, dtype=torch.long), {}
    for name in names:
        function = STAGES['advantage', name].fn
        rows = [function((torch.arange(size) < k).float(), group).tolist() for k in range(size + 1)]
        found[name] = [(row[0] if k else None, row[-1] if k < size else None)
                       for k, row in enumerate(rows)]
    return found


PARTS = dict(recipes=recipe_rows, claims=claim_dicts, papers=paper_dicts,
             benchmarks=benchmark_dicts, groups=group_rows, glossary=glossary_tables)


def _stamp():
    "A fingerprint of the package's files and of this one: what the tables are made from."
    files = [*(TOP/'rl4llm').rglob('*'), Path(__file__)]
    kept = [f for f in sorted(files) if f.suffix in ('.py', '.json', '.yaml', '.csv')]
    return hashlib.sha256(b''.join(f.read_bytes() for f in kept)).hexdigest()


def collected(file):
    "All tables; those kept in `file` if the package has not changed since."
    stamp = _stamp()
    if file.exists():
        kept = json.loads(file.read_text())
        if kept['stamp'] == stamp: return kept
    made = dict(stamp=stamp, **{name: make() for name, make in PARTS.items()})
    file.write_text(json.dumps(made, default=str))
    return json.loads(file.read_text())


# -- as Markdown

def cell(text):
    "A text that fits into a cell of a table."
    return ' '.join(str(text).split()) or ' '


def table(columns, rows, classes=''):
    "A table of Markdown; its cells are Markdown already."
    lines = ['| ' + ' | '.join(map(cell, row)) + ' |' for row in [columns, *rows]]
    lines.insert(1, '|' + '---|' * len(columns))
    return f'::::{{container}} wide {classes}\n\n' + '\n'.join(lines) + '\n\n::::\n'


def anchor(kind, name):
    "The anchor of a recipe or a claim on its page."
    return f'{kind}-{name}'.replace('_', '-')


def _names(kind, names, known):
    "Links to recipes or claims by their names, which commas divide."
    told = [name for name in names.split(', ') if name]
    return ', '.join(f'[{escaped(name)}](#{anchor(kind, name)})' if name in known
                     else escaped(name) for name in told)


def _notebooks(paths):
    "Links to notebooks by their paths, which commas divide."
    told = [path for path in paths.split(', ') if path]
    return ', '.join(f'[{page_of(path).title}]({path})' for path in told)


def recipe_text(recipes):
    "Paragraphs of all recipes: one each, with its depth as a class."
    out = []
    for row in recipes:
        source = f" from [{escaped(row['parent'])}](#{anchor('recipe', row['parent'])})"
        head = f"`{row['name']}`" + (source if row['parent'] else '')
        told = [row['summary'], row['changes'], row['cited']]
        words = '. '.join(escaped(part) for part in told if part)
        link = f" [Notebook]({row['notebook']})." if row['notebook'] else ''
        sort = ' .placebo' if row['placebo'] else ''
        attributes = f"{{#{anchor('recipe', row['name'])} .recipe .depth-{row['depth']}{sort}}}"
        out.append(f'{attributes}\n{head}: {words}.{link}\n')
    return '::::{container} recipes filterable\n\n' + '\n'.join(out) + '\n::::\n'


def claim_table(claims):
    "The table of all claims, with a picture of each that has one."
    rows = [[f"[{c['name'].replace('_', ' ')}](#{anchor('claim', c['name'])})", c['verdict'],
             f"{escaped(c['statement'])} ({escaped(c['paper'])})",
             _picture(c) if c['pictured'] else '']
            for c in claims]
    return table(['claim', 'verdict', 'sentence', 'picture'], rows, 'filterable claims')


CLAIM_PICTURES = '_pictures/claims'


def _picture(claim):
    "The picture of a claim: what was measured, with its intervals."
    words = f"What was measured of the claim {claim['name']}: {escaped(claim['statement'])}"
    return f"![{words}]({CLAIM_PICTURES}/{claim['name']}.png)"


def _maps(claim):
    "Where a claim holds: of each map the sentence, the picture and the cells."
    out = []
    for found in claim['maps']:
        columns, *rows = found['cells']
        words = f"The map {found['name']}: the effect in each cell"
        out += [escaped(found['said']), f"![{words}]({CLAIM_PICTURES}/map_{found['name']}.png)",
                table(columns, [[escaped(text) for text in row] for row in rows])]
    return out


def claim_text(claims):
    "A section for each claim: sentence, verdict, picture, parts, maps and how it differs."
    out = []
    for claim in claims:
        out += [f"({anchor('claim', claim['name'])})=\n## {claim['name'].replace('_', ' ')}",
                f"{escaped(claim['statement'])} ({escaped(claim['paper'])})",
                _whose_words(claim['words']),
                f"Verdict: **{claim['verdict']}**"]
        if claim['pictured']: out.append(_picture(claim))
        if claim['parts']:
            columns = list(claim['parts'][0])
            rows = [[escaped(str(part[c])) for c in columns] for part in claim['parts']]
            out.append(table(columns, rows))
        else:
            out.append(escaped(claim['measured']))
        out += _maps(claim)
        differs = escaped(claim['differs']).replace(r'\*', '*')    # it stresses words with stars
        if differs: out.append(f'Differs from the paper: {differs}.')
        if claim['pictured']: out.append(f"Repeat it: `rl4llm claims run {claim['name']}`")
    return '\n\n'.join(out)


def _whose_words(words):
    "A sentence on what a paper says itself, or that the claim was put into words here."
    if words.startswith('"'): return f"The paper's words: {escaped(words)}."
    return f'The sentence is {escaped(words)}, and not a quotation.'


ORDER = ('built', 'partly built', 'not built yet', 'no code')


def _called(paper):
    "A paper's title in bold type and, where it has another name, that."
    title = ' '.join(paper['title'].split())
    other = paper['cited'] if title not in paper['cited'] else f"[{paper['paper']}]"
    return f'**{escaped(title)}** {escaped(other)}'


def paper_table(papers, recipes, claims):
    "The atlas: one row a paper, what is built first."
    known_recipes = {row['name'] for row in recipes}
    known_claims = {row['name'] for row in claims}
    rows = []
    for paper in sorted(papers, key=lambda p: ORDER.index(p['status'].split(':')[0])):
        state, _, why = paper['status'].partition(': ')
        rows.append([_called(paper), paper['family'], state + (f': {escaped(why)}' if why else ''),
                     escaped(paper['component']), _names('recipe', paper['recipe'], known_recipes),
                     _notebooks(paper['notebook']), _names('claim', paper['claim'], known_claims),
                     paper['verdict']])
    columns = ['paper', 'family', 'status', 'what it adds', 'recipes', 'notebooks', 'claims',
               'verdict']
    return table(columns, rows, 'filterable atlas')


def benchmark_text(benchmarks):
    "A section for each stored benchmark."
    out = []
    for made in benchmarks:
        out += [f"## {made['name'].upper()}", escaped(made['headline'])]
        picture = f"rl4llm/assets/benchmarks/{made['name']}.png"
        if (TOP/picture).exists():
            out.append(f'![Time of a training step here and elsewhere, and how it grows; the same '
                       f'numbers stand in the tables below.]({picture})')
        for title, (columns, *rows) in made['tables'].items():
            escapes = [[escaped(text) for text in row] for row in rows]
            out += [f'### {title}', table(columns, escapes)]
    return '\n\n'.join(out)


def group_table(groups):
    "What methods give right and wrong answers, for every number of right ones."
    names = list(groups)
    rows = []
    for k in range(len(groups[names[0]])):
        pairs = [groups[name][k] for name in names]
        told = [' / '.join('–' if x is None else f'{x:+.2f}' for x in pair) for pair in pairs]
        rows.append([str(k), *told])
    return table(['right of 8', *[f'`{name}`' for name in names]], rows, 'faders')
