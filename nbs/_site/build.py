"""Builds the site: `python nbs/_site/build.py [FOLDER]`, or `make docs`.

It copies the notebooks with their stored outputs, writes the other pages beside them and calls
Sphinx. Nothing is executed and nothing is downloaded."""
import argparse, base64, io, subprocess, sys, time
from pathlib import Path
import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[2]))
import links, notebooks, pages, tables    # noqa: E402

HERE = Path(__file__).resolve().parent
TOP = notebooks.TOP
SMALL = (560, 320)                # the largest small picture, in pixels
STATIONS = {'samplers': ['responses'], 'rewards': ['verifier', 'reward'], 'curricula': ['problem'],
            'references': ['policy'], 'selection': ['gradient'], 'advantages': ['advantage'],
            'objectives': ['gradient']}


def loop_picture(family):
    "The loop of reinforcement learning with what a family changes lit, as PNG."
    import matplotlib
    matplotlib.use('Agg')
    from rl4llm.course.pictures import loop_diagram
    buffer = io.BytesIO()
    figure = loop_diagram(*STATIONS[family])
    figure.savefig(buffer, dpi=80, bbox_inches='tight', facecolor='white')
    return buffer.getvalue()


def small(png):
    "A picture scaled down to a card, with few colours."
    from PIL import Image
    image = Image.open(io.BytesIO(png)).convert('RGBA')
    paper = Image.new('RGBA', image.size, 'white')
    paper.alpha_composite(image)
    paper.thumbnail(SMALL, Image.LANCZOS)
    buffer = io.BytesIO()
    paper.convert('P', palette=Image.ADAPTIVE, colors=64).save(buffer, 'PNG', optimize=True)
    return buffer.getvalue()


def put(folder, path, content):
    "Writes a file of the staging folder if it is not there already, so that Sphinx can skip it."
    file = folder/path
    data = content.encode() if isinstance(content, str) else content
    if file.exists() and file.read_bytes() == data: return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def put_pictures(folder):
    "The pictures of the cards, and that of the map of methods in full."
    for page in filter(pages.has_picture, notebooks.all_pages()):
        stored = page.picture()
        png = base64.b64decode(stored) if stored else loop_picture(page.family)
        is_map = page.path == 'nbs/core/10_method_map.ipynb'
        put(folder, pages.picture_of(page).lstrip('/'), png if is_map else small(png))


def put_claims(folder, told):
    "The pictures of the claims, drawn anew if the package has changed since."
    from rl4llm.atlas.claims_report import draw_pictures
    from rl4llm.atlas.claims import CLAIMS
    pictures = folder/tables.CLAIM_PICTURES
    stamp = pictures/'stamp'
    if stamp.exists() and stamp.read_text() == told['stamp']: return
    pictures.mkdir(parents=True, exist_ok=True)
    for claim in told['claims']:
        if claim['pictured']: draw_pictures(CLAIMS[claim['name']], pictures)
    stamp.write_text(told['stamp'])


def stage(folder, told):
    "Fills the folder that Sphinx reads; returns the paths of its pages."
    made = {page.path: nbformat.writes(notebooks.clean(page)) for page in notebooks.all_pages()}
    made |= pages.made_pages(told)
    for path, text in made.items(): put(folder, path, text)
    for path in notebooks.linked_files(): put(folder, path, (TOP/path).read_bytes())
    for file in (TOP/'rl4llm/assets/benchmarks').glob('*.png'):
        put(folder, file.relative_to(TOP), file.read_bytes())
    put_pictures(folder)
    put_claims(folder, told)
    remove_others(folder, ('.md', '.ipynb'), made)
    return sorted(made)


def remove_others(folder, endings, known):
    "Removes what an earlier build left: files with one of the endings that are not `known`."
    kept = {folder/path for path in known}
    for file in [f for ending in endings for f in folder.rglob(f'*{ending}')]:
        if file not in kept: file.unlink()


def sphinx(source, target, kept, jobs=2):
    "Calls Sphinx; a warning is an error."
    command = [sys.executable, '-m', 'sphinx', '-b', 'html', '-q', '-j', str(jobs), '-W',
               '--keep-going', '-c', str(HERE), '-d', str(kept), str(source), str(target)]
    return subprocess.run(command, cwd=TOP).returncode


def build(folder):
    "Builds the site below `folder`; returns where the pages are, and how Sphinx ended."
    folder.mkdir(parents=True, exist_ok=True)
    target = folder/'html'
    told = tables.collected(folder/'tables.json')
    made = stage(folder/'source', told)
    status = sphinx(folder/'source', target, folder/'doctrees')
    extra = ['search.html', 'genindex.html', 'py-modindex.html']
    ours = [str(Path(path).with_suffix('.html')) for path in made]
    theirs = target.glob('_static/**/*.html')
    remove_others(target, ['.html'], [*ours, *extra, *theirs])
    return target, status


def main(arguments):
    "0 if the site was built without a warning and all of its links lead somewhere."
    parser = argparse.ArgumentParser(description='Builds the site from the stored outputs.')
    parser.add_argument('folder', nargs='?', type=Path, default=TOP/'build/site')
    folder = parser.parse_args(arguments).folder.resolve()
    start = time.monotonic()
    target, status = build(folder)
    wrong = links.main(target)
    print(f'{target}/index.html, {time.monotonic() - start:.0f} s')
    return bool(status or wrong)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
