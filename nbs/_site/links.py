"""Checks the built pages: every link and anchor leads somewhere, nothing comes from another host.

`python nbs/_site/links.py FOLDER` prints what is wrong."""
import os, re, sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {'script': 'src', 'img': 'src', 'iframe': 'src', 'source': 'src', 'link': 'href',
          'embed': 'src', 'audio': 'src', 'video': 'src', 'object': 'data'}
NOT_LOADED = {'canonical', 'next', 'prev', 'search', 'author', 'index', 'genindex', 'copyright'}
STYLED = re.compile(r'''url\(\s*['"]?([^'")]+)['"]?\s*\)|@import\s+['"]([^'"]+)['"]''')


@dataclass
class Html(HTMLParser):
    "What a page names: ids, links, files it loads, pictures without words, levels of headings."
    ids: set = field(default_factory=set)
    links: list = field(default_factory=list)
    loaded: list = field(default_factory=list)
    wordless: list = field(default_factory=list)
    levels: list = field(default_factory=list)

    def __post_init__(self): super().__init__()

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.ids |= {named[key] for key in ('id', 'name') if named.get(key)}
        if tag == 'a' and named.get('href'): self.links.append(named['href'])
        if re.fullmatch('h[1-6]', tag): self.levels.append(int(tag[1]))
        if tag == 'img' and not named.get('alt'): self.wordless.append(named.get('src', ''))
        place = named.get(LOADED.get(tag))
        if place and named.get('rel') not in NOT_LOADED: self.loaded.append(place)
        if named.get('style'): self.loaded += styled(named['style'])

    def handle_data(self, data):
        if self.lasttag == 'style': self.loaded += styled(data)


def styled(text):
    "Addresses that a style sheet loads."
    return [a or b for a, b in STYLED.findall(text)]


def read(folder):
    "Path -> Html of every page below a folder; templates of the theme are none."
    found = {}
    files = [f for f in folder.rglob('*.html') if '_static' not in f.relative_to(folder).parts]
    for file in sorted(files):
        page = Html()
        page.feed(file.read_text())
        found[os.path.relpath(file, folder)] = page
    return found


def is_outside(address):
    "Whether an address has a host, or is no place at all such as mailto: or data:."
    return bool(urlsplit(address).scheme or urlsplit(address).netloc)


def inside(page, address):
    "(path, anchor) of an address on a page."
    parts = urlsplit(address)
    path = unquote(parts.path)
    place = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
    return place, unquote(parts.fragment)


def broken_links(folder, pages):
    "Sentences about links that lead nowhere, and the number of links that were followed."
    wrong, followed = [], 0
    for name, page in pages.items():
        for address in page.links + page.loaded:
            if is_outside(address): continue
            followed += 1
            place, anchor = inside(name, address)
            if not (folder/place).is_file():
                wrong.append(f'{name}: {address} is not there')
            elif anchor and place in pages and anchor not in pages[place].ids:
                wrong.append(f'{name}: {address} has no such anchor')
    return wrong, followed


def foreign_files(folder, pages):
    "Files that a page or a style sheet would load from another host."
    named = [(name, address) for name, page in pages.items() for address in page.loaded]
    for sheet in folder.rglob('*.css'):
        named += [(sheet.name, address) for address in styled(sheet.read_text())]
    hosts = [(name, a) for name, a in named if is_outside(a) and not a.startswith('data:')]
    return [f'{name} loads {address}' for name, address in hosts]


def clicks(pages, start='index.html'):
    "Path -> how many clicks it is away from `start`."
    away, now = {start: 0}, [start]
    while now:
        reached = []
        for name in now:
            for address in pages[name].links:
                place, _ = inside(name, address)
                if is_outside(address) or place not in pages or place in away: continue
                away[place] = away[name] + 1
                reached.append(place)
        now = reached
    return away


def skipped_headings(pages):
    "Pages that do not begin with one heading of the first level, or skip a level."
    wrong = []
    for name, page in pages.items():
        steps = zip(page.levels, page.levels[1:])
        if page.levels[:1] != [1] or page.levels.count(1) > 1 or any(b > a + 1 for a, b in steps):
            wrong.append(f'{name}: {page.levels}')
    return wrong


def main(folder):
    "Prints what is wrong with the pages below a folder; returns how much that is."
    pages = read(folder)
    wrong, followed = broken_links(folder, pages)
    wrong += foreign_files(folder, pages)
    for line in wrong: print(line)
    print(f'{len(pages)} pages, {followed} links followed, {len(wrong)} wrong')
    return len(wrong)


if __name__ == '__main__':
    sys.exit(bool(main(Path(sys.argv[1]))))
