"""Released code that was read: every method says which, and its notebook says what was found; the list and the prose tell the same."""

import re
from pathlib import Path
import nbformat, pytest
from rl4llm.atlas.catalogue import ALSO, home_of, papers
from rl4llm.core.citations import released_code, unread_code
from rl4llm.core.registry import RECIPES, STAGES, load_stages
from rl4llm.scaling.config_files import config_names, config_rows, load_config

NBS = Path(__file__).parents[1] / 'nbs'
RELEASES = released_code()
READ = [
    (release['repository'], notebook) for release in RELEASES for notebook in release['notebooks']
]
NAMED = re.compile(r'(?<![\w/.`-])([\w-]+/[\w.-]+): `')  # owner/name: `file`


def section(notebook):
    "What a notebook says under its heading that begins with 'Differs', up to the next heading."
    cells = nbformat.read(NBS / f'{notebook}.ipynb', 4).cells
    prose = '\n'.join(c.source for c in cells if c.cell_type == 'markdown')
    found = re.search(r'^## Differs from .*?(?=^## |\Z)', prose, re.MULTILINE | re.DOTALL)
    return found[0] if found else ''


def built():
    "Numbers of the papers that a stage, a recipe or a measure of the package names."
    load_stages()
    stages = {info.paper for info in STAGES.values() if info.module.startswith('rl4llm.')}
    recipes = {made.paper for name, made in RECIPES.items()}
    return (stages | recipes | set(ALSO)) - {None}


def test_of_every_paper_it_is_known_whether_its_code_was_read():
    "A new method must say so, and nothing that is not built is listed."
    read = [paper for release in RELEASES for paper in release['papers']]
    assert len(read) == len(set(read)) and not set(read) & set(unread_code()), (
        'a paper is listed twice'
    )
    assert set(read) | set(unread_code()) == built(), (
        'rl4llm/assets/atlas/releases.yaml lists what was read, or why nothing was'
    )
    assert all(reason.strip() for reason in unread_code().values()) and set(unread_code()) <= set(
        papers().index
    )


@pytest.mark.parametrize('repository, notebook', READ)
def test_a_notebook_says_what_was_found_in_the_code_that_was_read(repository, notebook):
    assert repository in section(notebook), (
        f"{notebook} has no word on {repository} in its section 'Differs from the paper'"
    )


@pytest.mark.parametrize('release', RELEASES, ids=lambda release: release['repository'])
def test_a_release_is_read_at_the_home_of_its_papers(release):
    assert re.fullmatch(r'[\w-]+/[\w.-]+', release['repository']) and re.fullmatch(
        r'([0-9a-f]{40})?', release['commit']
    )
    assert all(files and all(files) for files in release['notebooks'].values())
    for paper in release['papers']:
        homes = {home.removeprefix('nbs/').removesuffix('.ipynb') for home in home_of(paper)}
        assert homes & set(release['notebooks']), (
            f'{release["repository"]} belongs to paper {paper}, which lives in {homes}'
        )


def test_what_a_notebook_names_is_listed():
    "A repository that a notebook says was read stands in the list, beside this notebook."
    named = {
        (repository, str(path.relative_to(NBS).with_suffix('')))
        for path in NBS.glob('*/*.ipynb')
        for repository in NAMED.findall(section(path.relative_to(NBS).with_suffix('')))
    }
    assert len(named) > 20 and named <= set(READ), named - set(READ)


def test_sources_of_full_scale_files_were_read():
    sources = [source for name in config_names() for _, _, source in config_rows(load_config(name))]
    named = {
        found[1]
        for source in sources
        if (found := re.match(r'(?:as in \w+: )?([\w-]+/[\w.-]+), ', source))
    }
    assert len(named) > 5 and named <= {release['repository'] for release in RELEASES}, named
