"The site: what it is made of, its links, and how it looks in a browser without a network."

import json, re, sys, time
from pathlib import Path
import pytest
from test_browser import BROWSER, REQUIRED, page  # noqa: F401

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / 'nbs' / '_site'))
import links, notebooks, pages, reference, tables  # noqa: E402

GRPO = dict(
    name='grpo',
    depth=0,
    parent='',
    placebo=False,
    notebook='nbs/advantages/01_group_relative.ipynb',
    changes='advantage: grpo',
    cited='',
    summary='a summary',
)
CLAIM = dict(
    name='a',
    statement='S.',
    paper='P',
    verdict='waits',
    words='in our words',
    parts=[dict(part='a_b', difference='+0.1')],
    maps=[dict(name='m', said='It holds in 2 of 3 cells.', cells=[['dial', 'effect'], ['1', '-']])],
    pictured=True,
    measured='',
    differs='scale',
)
TOLD = dict(
    recipes=[GRPO],
    claims=[],
    papers=[],
    benchmarks=[],
    groups={'grpo': [(None, 0.0), (1.0, None)]},
    glossary=dict(
        symbols=[['symbol', 'code'], ['KL(p || q)', 'kl']], metrics=[['metric'], ['reward']]
    ),
)


@pytest.fixture(scope='module')
def made():
    "Path -> text of the pages that are no notebooks."
    return pages.made_pages(TOLD)


def toctree_entries(made):
    "Every page that a toctree names, by its path from the top without an ending."
    found = []
    for path, text in made.items():
        for block in re.findall(r'```\{toctree\}\n(.*?)```', text, re.DOTALL):
            names = [line for line in block.split('\n') if line and not line.startswith(':')]
            folder = Path(path).parent
            found += [n.lstrip('/') if n.startswith('/') else str(folder / n) for n in names]
    return found


# -- what the site is made of


def test_every_page_has_exactly_one_place_in_the_navigation(made):
    own = [one.path for one in notebooks.all_pages()]
    assert len(own) == len(set(own))
    wanted = {str(Path(path).with_suffix('')) for path in [*own, *made]} - {'index'}
    entries = toctree_entries(made)
    assert sorted(entries) == sorted(wanted)


def test_every_lesson_and_every_notebook_is_a_page():
    there = {one.path for one in notebooks.all_pages()}
    files = [*TOP.glob('tutorials/[0-9]*.ipynb'), *TOP.glob('nbs/*/[0-9]*.ipynb')]
    assert len(files) > 100
    assert {str(file.relative_to(TOP)) for file in files} <= there


def test_families_stand_in_the_order_of_the_overview():
    found = notebooks.families()
    assert found[:2] == ['engine', 'core'] and len(found) == len(set(found))
    assert {'advantages', 'objectives', 'rewards'} <= set(notebooks.method_families())


def test_every_method_has_a_card_with_a_picture_and_its_words(made):
    for family in notebooks.method_families():
        for notebook in notebooks.family_pages(family):
            card = pages.card(notebook)
            assert ':img-top: /_pictures/' in card and ':img-alt: ' in card
            assert card in made['methods.md'] and card in made[f'nbs/{family}/index.md']


def test_every_link_of_a_notebook_leads_to_a_page_or_a_file(made):
    there = {one.path for one in notebooks.all_pages()} | set(made)
    there |= set(notebooks.linked_files())
    for one in notebooks.all_pages():
        for cell in one.cells:
            if cell['cell_type'] != 'markdown':
                continue
            for link in notebooks.links_of(''.join(cell['source'])):
                place = notebooks.place_of(notebooks.target_of(link, one.path))
                assert place in there, f'{one.path}: {link}'


def test_the_landing_page_shows_the_picture_and_the_two_commands(made):
    text = made['index.md']
    commands = re.search(r'```sh\n(.*?)```', text, re.DOTALL)[1].splitlines()
    assert [line.split('#')[0].split() for line in commands] == [['make', 'demo'], ['make', 'test']]
    assert '](nbs/images/gain_and_price.png)' in text and 'GRPO' in text


def test_a_section_that_the_landing_page_speaks_of_is_linked(made):
    text = made['index.md']
    assert '[the section on code](nbs/index.ipynb)' in text
    assert 'the section on' not in re.sub(r'\[[^]]*\]\([^)]*\)', '', text)


def test_the_glossary_is_tables_one_click_from_course_and_start(made):
    text = made['glossary.md']
    assert '## Symbols' in text and '## Metrics' in text and '| reward |' in text
    assert r'KL(p \|\| q)' in text and '```' not in text
    assert '](glossary.md)' in made['course.md']
    entries = re.search(r'```\{toctree\}\n(.*?)```', made['index.md'], re.DOTALL)[1].split()
    assert 'glossary' in entries[1 : 1 + 7]  # what the menu shows before it says "More"
    link = '[the glossary](../nbs/course/10_glossary.ipynb#metrics)'
    moved = notebooks.rewritten(link, 'tutorials/07_debugging.ipynb')
    assert moved == '[the glossary](../glossary.md#metrics)'


def test_a_claim_in_our_words_is_not_given_to_the_paper():
    one = dict(CLAIM, pictured=False, parts=[], maps=[])
    ours, theirs = tables.claim_text(
        [{**one, 'words': w} for w in ('in our words', '"so" (p. 1)')]
    ).split('## a')[1:]
    assert "The paper's words" not in ours and 'in our words' in ours
    assert 'The paper\'s words: "so" (p. 1).' in theirs


def test_a_claim_shows_its_picture_its_maps_and_how_to_repeat_it():
    table, text = tables.claim_table([CLAIM]), tables.claim_text([CLAIM])
    for part in (table, text):
        assert '(_pictures/claims/a.png)' in part
    assert '(_pictures/claims/map_m.png)' in text and 'It holds in 2 of 3 cells.' in text
    assert '| dial | effect |' in text and '`rl4llm claims run a`' in text
    waiting = dict(CLAIM, pictured=False, maps=[])
    assert '.png' not in tables.claim_table([waiting]) + tables.claim_text([waiting])


def test_no_page_shows_directives_or_hidden_cells():
    for one in notebooks.all_pages():
        cells = notebooks.clean(one).cells
        hidden = sum(
            bool(notebooks.HIDDEN.search(''.join(c['source'])))
            for c in one.cells
            if c['cell_type'] == 'code'
        )
        assert len(cells) == len(one.cells) - hidden
        assert not any(c.source.startswith('#|') for c in cells if c.cell_type == 'code')
        assert [c.id for c in cells] == [f'cell-{i}' for i in range(len(cells))]


def test_every_stored_picture_is_told_in_words():
    for one in notebooks.all_pages():
        for cell in notebooks.clean(one).cells:
            if any('image/png' in output.get('data', {}) for output in cell.get('outputs', [])):
                assert len(cell.metadata['mystnb']['image']['alt']) > 15


def test_every_public_function_is_in_the_reference():
    index = reference.reference_pages()
    assert '{py:function} grpo(' in index['api/advantages.md']
    assert '../nbs/advantages/01_group_relative.ipynb' in index['api/advantages.md']
    assert set(index) == {f'api/{name}.md' for name in reference.packages()}


# -- how texts are written


def test_links_are_moved_and_code_is_left_alone():
    moved = notebooks.rewritten
    source = 'nbs/core/01_registry.ipynb'
    assert moved('[a](../../tutorials)', source) == '[a](../../course.md)'
    assert moved('[a](../objectives)', source) == '[a](../objectives/index.md)'
    assert moved('[a](02_pipeline.ipynb) `x[0](y)`', source) == '[a](02_pipeline.ipynb) `x[0](y)`'
    assert moved('[a](https://x.org) [b](#c)', source) == '[a](https://x.org) [b](#c)'
    with pytest.raises(FileNotFoundError, match='not there'):
        moved('[a](nowhere.ipynb)', source)


def test_headings_go_down_one_level_at_a_time():
    assert notebooks.stepwise('# A\n### B', 0) == ('# A\n## B', 2)
    assert notebooks.stepwise('## C\n```\n# no heading\n```', 2) == (
        '## C\n```\n# no heading\n```',
        2,
    )


def test_docstrings_become_markdown_that_says_the_same():
    text = 'Mean of `x_1 * x_2`, a_b.\n\neps, k: small,\n    and more.\nRaises ValueError for 0.'
    assert reference.prose(text).split('\n') == [
        'Mean of `x_1 * x_2`, a\\_b.',
        '',
        '- `eps`, `k`: small, and more.',
        '',
        'Raises ValueError for 0.',
    ]


def test_kept_tables_are_used_until_the_package_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(
        tables, 'PARTS', {'counted': lambda calls=[]: calls.append(1) or len(calls)}
    )
    file = tmp_path / 'tables.json'
    assert tables.collected(file)['counted'] == tables.collected(file)['counted'] == 1
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, 'stamp': 'of another day'}))
    assert tables.collected(file)['counted'] == 2


# -- the link checker


def test_the_checker_sees_what_is_wrong(tmp_path):
    (tmp_path / 'a').mkdir()
    (tmp_path / 'index.html').write_text(
        '<h1>A</h1><h3>B</h3><a href="a/b.html#here">b</a> <a href="a/b.html#there">b</a>'
        '<a href="gone.html">c</a> <a href="https://x.org">d</a> <img src="p.png">'
        '<script src="https://x.org/s.js"></script>'
    )
    (tmp_path / 'a' / 'b.html').write_text('<h1 id="here">B</h1><a href="../index.html">a</a>')
    (tmp_path / 'style.css').write_text('p { background: url(//x.org/p.png) }')
    (tmp_path / 'p.png').touch()
    found = links.read(tmp_path)
    wrong, followed = links.broken_links(tmp_path, found)
    assert followed == 5 and len(wrong) == 2
    assert 'no such anchor' in wrong[0] and 'gone.html is not there' in wrong[1]
    assert len(links.foreign_files(tmp_path, found)) == 2
    assert links.clicks(found) == {'index.html': 0, 'a/b.html': 1}
    assert links.skipped_headings(found) == ['index.html: [1, 3]']
    assert found['index.html'].wordless == ['p.png']


# -- the built site


@pytest.fixture(scope='module')
def site():
    "The folder of the built pages: made anew where something has changed."
    pytest.importorskip('myst_nb')
    import build

    target, status = build.build(TOP / 'build' / 'site')
    assert status == 0, 'Sphinx has warned'
    return target


@pytest.fixture(scope='module')
def built(site):
    return links.read(site)


slow = [pytest.mark.slow, pytest.mark.timeout(1800)]


class TestBuilt:
    pytestmark = slow

    def test_links_and_anchors_lead_somewhere(self, site, built):
        wrong, followed = links.broken_links(site, built)
        assert not wrong and followed > 10_000

    def test_nothing_comes_from_another_host(self, site, built):
        assert not links.foreign_files(site, built)

    def test_grpo_is_two_clicks_away_and_nothing_is_out_of_reach(self, built):
        away = links.clicks(built)
        assert away['nbs/advantages/01_group_relative.html'] <= 2
        assert set(built) - set(away) <= {'search.html', 'genindex.html'}

    def test_headings_are_in_order_and_pictures_have_words(self, built):
        assert not links.skipped_headings(built)
        assert not {name: one.wordless for name, one in built.items() if one.wordless}


# -- in a browser


PLACES = (
    'index.html',
    'atlas.html',
    'methods.html',
    'claims.html',
    'api/advantages.html',
    'nbs/advantages/01_group_relative.html',
)
WIDE_BOX = "document.querySelector('.atlas table').offsetWidth"
ROOM = "document.querySelector('.atlas').clientWidth"
LOADED = """performance.getEntriesByType('resource').map(e => e.name)
    .filter(name => !name.startsWith('file:') && !name.startsWith('data:'))"""


@pytest.fixture
def reader(request, site):
    "A page of Chromium that reaches no host: (open a page of the site, the browser's page)."
    tab = request.getfixturevalue('page')
    tab.call('Network.enable')
    tab.call('Network.setBlockedURLs', urls=['http://*', 'https://*'])

    def visit(place, width=1280, colours='light'):
        size = dict(width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        tab.call('Emulation.setDeviceMetricsOverride', **size)
        scheme = dict(name='prefers-color-scheme', value=colours)
        tab.call('Emulation.setEmulatedMedia', features=[scheme])
        tab.open(f'file://{site}/{place}')
        ending = place.split('?')[0]
        tab.wait(f"location.pathname.endsWith('{ending}') && document.readyState === 'complete'")

    return visit, tab


@pytest.mark.browser
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not BROWSER and not REQUIRED, reason='no Chromium here')
class TestInABrowser:
    @pytest.mark.parametrize('width', [1280, 390])
    @pytest.mark.parametrize('colours', ['light', 'dark'])
    def test_pages_fit_their_window_in_both_colours(self, reader, width, colours):
        visit, tab = reader
        for place in PLACES:
            visit(place, width, colours)
            wide = tab.js('document.documentElement.scrollWidth - innerWidth')
            assert wide <= 0, f'{place} is {wide} pixels too wide for {width}'
            paper = tab.js("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
            assert (int(paper) > 200) == (colours == 'light'), place
            assert tab.js(LOADED) == [], place
            tab.picture(f'site_{place.replace("/", "_")}_{width}_{colours}.png')

    def test_formulas_are_drawn(self, reader):
        visit, tab = reader
        visit('nbs/advantages/01_group_relative.html')
        tab.wait("document.querySelectorAll('mjx-container').length > 5")
        assert tab.js("document.querySelectorAll('mjx-merror').length") == 0
        assert tab.js("document.querySelectorAll('mjx-assistive-mml').length") > 5

    def test_search_finds_grpo(self, reader):
        visit, tab = reader
        visit('search.html?q=GRPO')
        found = "[...document.querySelectorAll('#search-results li a')].map(a => a.innerText)"
        tab.wait(f"{found}.some(text => text.startsWith('GRPO'))")
        assert tab.js(f'{found}[0]').startswith('GRPO')
        assert 'nbs/advantages' in tab.js("document.querySelector('#search-results li a').href")

    def test_the_atlas_shows_its_last_column(self, reader):
        visit, tab = reader
        for width in (1280, 1300):
            visit('atlas.html', width)
            tab.wait("!!document.querySelector('.controls select')")
            assert tab.js(f'{WIDE_BOX} - {ROOM}') <= 0, width

    def test_the_atlas_is_filtered_by_words_and_by_status(self, reader):
        visit, tab = reader
        visit('atlas.html')
        tab.wait("!!document.querySelector('.controls select')")
        shown = "[...document.querySelectorAll('.atlas tbody tr')].filter(r => !r.hidden).length"
        everything = tab.js(shown)
        tab.js(
            "document.querySelectorAll('.controls select')[1].value = 'built';"
            "document.querySelector('.controls').dispatchEvent(new Event('input'))"
        )
        built = tab.js(shown)
        tab.click('.controls input[type=search]')
        tab.call('Input.insertText', text='entropy')
        tab.wait(f'{shown} < {built}')
        assert 0 < tab.js(shown) < built < everything

    def test_a_fader_moves_the_bars(self, reader):
        visit, tab = reader
        visit('methods.html')
        bars = "document.querySelector('.bars').innerText"
        tab.wait("!!document.querySelector('.bars .bar')")
        before = tab.js(bars)
        x, y = tab.press('.controls input[type=range]')
        tab.mouse('Released', x, y, down=0)
        time.sleep(0.2)
        assert tab.js(bars) != before
