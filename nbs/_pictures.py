"Gives large stored pictures a palette: `python nbs/_pictures.py NOTEBOOK...`"
import base64, io, re, sys
from pathlib import Path
import nbformat
import numpy as np
from PIL import Image

LARGE = 8_000           # letters of a PNG that is worth the work
MOST = 4000             # colours of a drawing; a photograph has more, and stays as it is
INSIDE = re.compile('(src="data:image/png;base64,)([^"]+)')


def smaller(data):
    "The PNG `data` with a palette of its most frequent colours; others become the nearest."
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert('RGB'))
    colours, which, counts = np.unique(pixels.reshape(-1, 3), axis=0,
                                       return_inverse=True, return_counts=True)
    if len(colours) > MOST: return data
    palette = colours[np.argsort(-counts)[:256]].astype(int)
    apart = np.abs(colours[:, None].astype(int) - palette).sum(-1)
    numbers = apart.argmin(1)[which.ravel()].reshape(pixels.shape[:2])
    indexed = Image.fromarray(numbers.astype(np.uint8))
    indexed.putpalette(palette.astype(np.uint8).tobytes())
    out = io.BytesIO()
    indexed.save(out, 'PNG', optimize=True)
    return min(out.getvalue(), data, key=len)


def shorter(text):
    "A PNG in base64 with a palette; text below `LARGE` letters stays as it is."
    if len(text) < LARGE: return text
    return base64.b64encode(smaller(base64.b64decode(text))).decode()


def in_page(text):
    "HTML with palettes in the pictures that it holds."
    return INSIDE.sub(lambda found: found[1] + shorter(found[2]), text)


def shrink(path):
    "Store the large pictures of a notebook anew; returns the bytes saved."
    nb = nbformat.read(path, 4)
    before = Path(path).stat().st_size
    found = False
    for data in (o.get('data', {}) for c in nb.cells for o in c.get('outputs', [])):
        for kind, made in (('image/png', shorter), ('text/html', in_page)):
            if len(data.get(kind, '')) < LARGE: continue
            data[kind] = made(data[kind])
            found = True
    if found: nbformat.write(nb, path)
    return before - Path(path).stat().st_size


if __name__ == '__main__':
    for path in sys.argv[1:]:
        saved = shrink(path)
        if saved > 1000: print(f'{path}: {saved/1e3:.0f} kB saved')
