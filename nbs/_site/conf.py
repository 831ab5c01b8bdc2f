"""How Sphinx makes the site out of the folder that build.py fills."""
import importlib.metadata, re, shutil
from pathlib import Path

HERE = Path(__file__).parent
TOP = HERE.parents[1]

project = 'rl4llm'
author = 'the rl4llm maintainers'
project_copyright = author
release = re.search(r"__version__ = ['\"](.+?)['\"]", (TOP/'rl4llm/__init__.py').read_text())[1]
version = release
language = 'en'

extensions = ['myst_nb', 'sphinx_design', 'sphinx.ext.mathjax']
exclude_patterns = ['_pictures', 'jupyter_execute']
add_module_names = False
toc_object_entries_show_parents = 'hide'
maximum_signature_line_length = 88
python_maximum_signature_line_length = 88

nb_execution_mode = 'off'
nb_ipywidgets_js = {}
nb_merge_streams = True
myst_enable_extensions = ['amsmath', 'attrs_block', 'attrs_inline', 'colon_fence', 'dollarmath']
myst_heading_anchors = 4
myst_dmath_double_inline = True
# Lexers for a few fences differ from Python (shell output, chat templates); that is no error.
suppress_warnings = ['misc.highlighting_failure', 'mystnb.unknown_mime_type']

# MathJax comes with the package sphinx-mathjax-offline; only what formulas need is copied.
mathjax_path = 'mathjax/tex-chtml.js'
mathjax3_config = {'loader': {'load': ['[tex]/textmacros']},
                   'tex': {'packages': {'[+]': ['textmacros']}}}
MATHJAX = ('tex-chtml.js', 'output/chtml/fonts/woff-v2', 'input/tex/extensions')

html_theme = 'pydata_sphinx_theme'
html_title = 'rl4llm'
html_static_path = [str(HERE/'static')]
html_css_files = ['site.css']
html_js_files = [('site.js', {'defer': 'defer'})]
html_search_scorer = str(HERE/'static/scorer.js')
html_copy_source = False
html_show_sphinx = False
ALONE = ('index', 'glossary', 'atlas', 'recipes', 'claims', 'benchmarks', 'examples',
         'CONTRIBUTING', 'CHANGELOG', 'search', 'genindex')
html_sidebars = dict.fromkeys(ALONE, [])
html_theme_options = {
    'logo': {'text': 'rl4llm'},
    'header_links_before_dropdown': 7,
    'navbar_align': 'left',
    'navigation_depth': 2,
    'show_nav_level': 1,
    'show_toc_level': 2,
    'show_prev_next': True,
    'secondary_sidebar_items': {'**': ['page-toc'], 'index': [], 'atlas': []},
    'navbar_persistent': ['search-button-field'],
    'navbar_end': ['theme-switcher'],
    'footer_start': ['copyright'],
    'footer_end': [],
    'back_to_top_button': True,
    'pygments_light_style': 'a11y-high-contrast-light',
    'pygments_dark_style': 'a11y-high-contrast-dark',
}


def copy_mathjax(app, error):
    "Copies MathJax and its fonts beside the pages."
    if error is not None: return
    installed = importlib.metadata.distribution('sphinx-mathjax-offline')
    source = Path(installed.locate_file('sphinx-mathjax-offline/static/mathjax'))
    target = Path(app.outdir)/'_static/mathjax'
    for name in MATHJAX:
        (target/name).parent.mkdir(parents=True, exist_ok=True)
        if (source/name).is_dir():
            shutil.copytree(source/name, target/name, dirs_exist_ok=True)
        else:
            shutil.copy(source/name, target/name)


def setup(app):
    app.connect('build-finished', copy_mathjax)
