"The house around the library: package, README, versions, commands, names."

import ast, functools, importlib, importlib.metadata as metadata, importlib.util, json, re, subprocess, sys, tomllib
from pathlib import Path
import pytest, yaml
from packaging.requirements import Requirement
from packaging.version import Version
import rl4llm

TOP = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((TOP / 'pyproject.toml').read_text())
PAGES = ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md')


@functools.cache
def modules():
    "Every generated module: (dotted name, file)."
    package = TOP / 'rl4llm'
    files = [f for f in sorted(package.rglob('*.py')) if not f.name.startswith('_')]
    return [('.'.join(f.relative_to(TOP).with_suffix('').parts), f) for f in files]


@functools.cache
def defined(file):
    "Public functions and classes that a module defines at its top level."
    return [
        n.name
        for n in ast.parse(file.read_text()).body
        if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith('_')
    ]


# -- package and notebooks


def test_every_module_names_a_notebook_that_is_there():
    for name, file in modules():
        source = re.search(r'File to edit: (\S+\.ipynb)', file.read_text())
        assert source, f'{name} was not written by nbdev'
        assert (file.parent / source[1]).resolve().is_file(), (
            f'{name}: its notebook {source[1]} is gone; remove the module'
        )


def test_every_package_resolves_names_lazily():
    for init in (TOP / 'rl4llm').rglob('__init__.py'):
        given = '__name__, PUBLIC' if init.parent == TOP / 'rl4llm' else '__name__'
        line = f'__getattr__, __dir__, __all__ = attach({given})'
        assert init.read_text().rstrip().endswith(line), init


def test_public_names_are_unique_in_a_package():
    homes = {}
    for module, file in modules():
        for name in defined(file):
            homes.setdefault((file.parent.name, name), []).append(module)
    assert not {n: ms for n, ms in homes.items() if len(ms) > 1}


def test_no_module_bears_the_name_of_a_function_beside_it():
    for module, file in modules():
        beside = {n for other, f in modules() if f.parent == file.parent for n in defined(f)}
        assert file.stem not in beside, f'{module}: the package re-exports a function of that name'


def test_every_public_name_resolves_from_its_package():
    for module, file in modules():
        package = importlib.import_module(module.rpartition('.')[0])
        for name in defined(file):
            assert getattr(package, name).__module__ == module, name


def test_every_name_of_the_short_list_resolves_from_the_top():
    for name, module in rl4llm.PUBLIC.items():
        assert getattr(rl4llm, name) is getattr(importlib.import_module(module), name)


# -- stubs and types


def script(name):
    "A script of nbs/ as a module."
    spec = importlib.util.spec_from_file_location(name, TOP / 'nbs' / f'_{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stubs_say_what_resolves():
    written = {file: file.read_text() for file in (TOP / 'rl4llm').rglob('*.pyi')}
    assert written == script('stubs').stubs(), (
        'the stubs are not those of the present names: run make stubs'
    )


def test_every_name_at_the_top_is_used_as_a_user_would():
    stub = (TOP / 'rl4llm' / '__init__.pyi').read_text()
    offered = set(re.findall(r'^from \.\S+ import (\w+)', stub, re.MULTILINE))
    tree = ast.parse((TOP / 'tests' / 'typing' / 'public_api.py').read_text())
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert offered and offered <= used, (
        f'tests/typing/public_api.py does not use {sorted(offered - used)}'
    )


# -- versions and metadata


def test_version_and_console_script():
    assert metadata.version('rl4llm') == rl4llm.__version__
    scripts = [e for e in metadata.entry_points(group='console_scripts') if e.name == 'rl4llm']
    assert scripts and callable(scripts[0].load())


def versions():
    "The version as each page that names one says it."
    found = {
        'rl4llm/__init__.py': re.search(
            r"__version__ = [\"'](.+)[\"']", (TOP / 'rl4llm' / '__init__.py').read_text()
        ),
        'CITATION.cff': re.search(
            r'^version: (\S+)$', (TOP / 'CITATION.cff').read_text(), re.MULTILINE
        ),
        'CHANGELOG.md': re.search(
            r'^## \[(.+?)\]', (TOP / 'CHANGELOG.md').read_text(), re.MULTILINE
        ),
        'README.md': re.search(
            r'^  version = \{(.+?)\}', (TOP / 'README.md').read_text(), re.MULTILINE
        ),
    }
    return {page: match and match[1] for page, match in found.items()}


def test_every_page_says_the_same_version():
    assert len(set(versions().values())) == 1, versions()


def test_citation_names_what_the_project_file_names():
    citation = yaml.safe_load((TOP / 'CITATION.cff').read_text())
    assert (
        citation['cff-version'] == '1.2.0'
        and citation['type'] == 'software'
        and citation['message']
    )
    assert citation['license'] == PROJECT['project']['license']
    assert citation['authors'] == PROJECT['project']['authors']
    assert citation['title'] in (TOP / 'README.md').read_text()


def test_changelog_is_in_order():
    headings = re.findall(
        r'^## \[(.+?)\] - (.+)$', (TOP / 'CHANGELOG.md').read_text(), re.MULTILINE
    )
    order = [Version(version) for version, _ in headings]
    assert order == sorted(order, reverse=True) and len(set(order)) == len(order)
    for version, when in headings[1:]:
        assert re.fullmatch(r'\d{4}-\d{2}-\d{2}', when), (
            f'{version}: only the newest may be unreleased'
        )


@pytest.mark.parametrize(
    'command', [['rl4llm'], [sys.executable, '-m', 'rl4llm']], ids=['script', 'module']
)
def test_the_command_answers_help(command):
    done = subprocess.run([*command, '--help'], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and 'demo' in done.stdout and 'doctor' in done.stdout


def test_pins_fit_the_requirements():
    pins = {
        r.name.lower(): r
        for r in map(
            Requirement,
            (l for l in (TOP / 'constraints.txt').read_text().splitlines() if l and l[0] != '#'),
        )
    }
    extras = PROJECT['project']['optional-dependencies']
    for need in map(
        Requirement,
        PROJECT['project']['dependencies'] + extras['lab'] + extras['dev'] + extras['docs'],
    ):
        pin = pins.get(need.name.lower())
        assert pin, f'constraints.txt does not pin {need.name}'
        version = next(iter(pin.specifier)).version
        assert need.specifier.contains(version, prereleases=True), f'{pin} does not fit {need}'


def test_licence():
    text = (TOP / 'LICENSE').read_text()
    assert (
        'Apache License' in text
        and 'Version 2.0' in text
        and PROJECT['project']['license'] == 'Apache-2.0'
    )


def test_the_tiny_model_is_small():
    size = sum(f.stat().st_size for f in (TOP / 'rl4llm' / 'assets' / 'tiny-v1').iterdir())
    assert 0 < size < 5e6, f'the embedded model takes {size / 1e6:.1f} MB'


# -- pages


def test_readme_is_in_step_with_its_notebook():
    text, pictures = script('readme').readme()
    assert (TOP / 'README.md').read_text() == text, (
        'README.md is not what nbs/index.ipynb says: run make readme'
    )
    for name, data in pictures.items():
        assert (TOP / name).read_bytes() == data, f'{name}: run make readme'


def test_the_first_code_of_the_readme_is_the_two_commands_of_a_fresh_machine():
    page = (TOP / 'README.md').read_text()
    first = page.split('```')[1]
    assert 'make demo' in first and 'make test' in first and 'import' not in first
    before = page[: page.index('frontier_verdict')]
    assert '## In code' in before and 'pass@k is the share' in before


def test_readme_links_are_moved_to_the_top():
    rooted = script('readme').rooted
    assert (
        rooted('[a](core) ![b](images/x.png) [c](../LICENSE)')
        == '[a](nbs/core) ![b](nbs/images/x.png) [c](LICENSE)'
    )
    assert (
        rooted('[a](https://x.org/y) [b](#part) <img src="images/x.png">')
        == '[a](https://x.org/y) [b](#part) <img src="nbs/images/x.png">'
    )


@pytest.mark.parametrize('page', PAGES)
def test_links_of_a_page_lead_somewhere(page):
    text = re.sub(r'```.*?```', '', (TOP / page).read_text(), flags=re.DOTALL)
    for link in re.findall(r'\]\(([^)\s]+)\)', text) + re.findall(r'src="([^"]+)"', text):
        if not link.startswith(('http', '#')):
            assert (TOP / link.split('#')[0]).exists(), f'{page}: {link} is not there'


def test_links_of_notebooks_lead_somewhere():
    "In the prose of every notebook; a renumbered neighbour is found here."
    lost = []
    for path in [*TOP.glob('nbs/**/*.ipynb'), *TOP.glob('tutorials/*.ipynb')]:
        if '.ipynb_checkpoints' in path.parts:
            continue
        prose = ''.join(
            ''.join(cell['source']) + '\n'
            for cell in json.loads(path.read_text())['cells']
            if cell['cell_type'] == 'markdown'
        )
        text = re.sub(r'```.*?```|`[^`]*`', '', prose, flags=re.DOTALL)
        links = [
            link.split('#')[0]
            for link in re.findall(r'\]\(([^)\s]+)\)', text)
            if not link.startswith(('http', '#', 'attachment:'))
        ]
        lost += [
            f'{path.relative_to(TOP)}: {link}'
            for link in links
            if not (path.parent / link).exists()
        ]
    assert not lost


@pytest.mark.parametrize('page', PAGES)
def test_commands_of_a_page_exist(page):
    text = (TOP / page).read_text()
    targets = set(re.findall(r'^([a-z-]+):', (TOP / 'Makefile').read_text(), re.MULTILINE))
    named = set(re.findall(r'`make ([a-z-]+)', text)) | set(
        re.findall(r'^make ([a-z-]+)', text, re.MULTILINE)
    )
    assert named and named <= targets, f'{page} names make {", ".join(named - targets)}'


def test_every_listed_target_would_run():
    listed = subprocess.run(
        ['make', '-s', 'help'], cwd=TOP, capture_output=True, text=True, check=True
    ).stdout
    targets = re.findall(r'make ([a-z-]+)', listed)
    assert {'demo', 'lab', 'test', 'test-all', 'readme', 'notebooks'} <= set(targets)
    for target in targets:
        assert (
            subprocess.run(['make', '-n', target], cwd=TOP, capture_output=True).returncode == 0
        ), target


def test_the_workflow_runs_what_is_there():
    jobs = yaml.safe_load((TOP / '.github' / 'workflows' / 'tests.yml').read_text())['jobs']
    targets = set(re.findall(r'^([a-z-]+):', (TOP / 'Makefile').read_text(), re.MULTILINE))
    runs = [step['run'] for job in jobs.values() for step in job['steps'] if 'run' in step]
    assert {run.split()[1] for run in runs if run.startswith('make ')} <= targets
    pythons = jobs['linux']['strategy']['matrix']['python']
    assert all(isinstance(p, str) for p in pythons), 'quote versions: 3.10 is the number 3.1'
    assert PROJECT['project']['requires-python'] == f'>={min(pythons, key=Version)}'


def test_the_workflow_of_the_site_publishes_what_make_docs_builds():
    text = (TOP / '.github' / 'workflows' / 'site.yml').read_text()
    jobs = yaml.safe_load(text)['jobs']
    steps = [step for job in jobs.values() for step in job['steps']]
    assert 'make docs' in [step.get('run') for step in steps]
    assert 'build/site/html' in [step.get('with', {}).get('path') for step in steps]
    assert jobs['publish']['needs'] == 'build'
