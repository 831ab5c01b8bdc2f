"JupyterLab in headless Chromium: a tutorial runs, widgets render, a slider moves the picture, a button stops a run."

import base64, json, os, shutil, subprocess, sys, time, urllib.request
from pathlib import Path
import nbformat, pytest

TOP = Path(__file__).resolve().parents[1]
NAMES = ('chromium', 'chromium-browser', 'google-chrome')
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
REQUIRED = os.environ.get('REQUIRE_BROWSER') == '1'
pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
if not BROWSER and not REQUIRED:
    pytestmark.append(
        pytest.mark.skip(
            reason=f"no Chromium here (looked for {', '.join(NAMES)}); REQUIRE_BROWSER=1 makes this an error"
        )
    )

TUTORIAL = [
    ('markdown', '# A small tutorial\n\nThree widgets.'),
    (
        'code',
        "from rl4llm import Policy, recipe, task\nfrom rl4llm.widgets import advantage_playground, pass_at_k_explorer, train_live",
    ),
    ('code', "advantage_playground((1., 0., 0.), methods=['rloo', 'grpo'])"),
    ('code', 'pass_at_k_explorer()'),
    (
        'code',
        "board = train_live(Policy.load('tiny'), task('countdown', level='easy'), recipe('grpo', prompts=4, group=8), steps=100_000)\nboard",
    ),
]
PLAYGROUND, EXPLORER, BOARD = (
    '.rl4llm-panel:has(.widget-vslider)',
    '.rl4llm-panel:has(img)',
    '.rl4llm-dashboard',
)


def until(look, seconds, what):
    "The first true value of `look()`, asked again and again for at most `seconds`."
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.2)
    pytest.fail(f'waited {seconds} s for {what}')


def stopped(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()


class Page:
    "A page of Chromium, driven through its DevTools protocol with real mouse and key events."

    def __init__(self, address):
        import websocket

        self.socket, self.number = (
            websocket.create_connection(address, timeout=60, suppress_origin=True),
            0,
        )
        self.call('Page.enable')

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps(dict(id=self.number, method=method, params=params)))
        while (answer := json.loads(self.socket.recv())).get('id') != self.number:
            if answer.get('method') == 'Page.javascriptDialogOpening':
                self.socket.send(
                    '{"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": true}}'
                )  # leaving an unsaved notebook
        assert 'error' not in answer, answer
        return answer['result']

    def js(self, code):
        answer = self.call(
            'Runtime.evaluate', expression=code, returnByValue=True, awaitPromise=True
        )
        assert 'exceptionDetails' not in answer, answer['exceptionDetails']
        return answer['result'].get('value')

    def wait(self, code, seconds=60):
        try:
            return until(lambda: self.js(code), seconds, code)
        except pytest.fail.Exception:
            self.picture('failed.png')
            raise

    def has(self, selector, seconds=60):
        return self.wait(f'!!document.querySelector({json.dumps(selector)})', seconds)

    def place(self, selector):
        "Middle of an element, scrolled into view."
        self.has(selector)
        middle = f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        self.js(middle)
        time.sleep(0.5)
        return self.js(middle)

    def mouse(self, kind, x, y, down=1):
        self.call(
            'Input.dispatchMouseEvent',
            type=f'mouse{kind}',
            x=x,
            y=y,
            button='left' if down or kind != 'Moved' else 'none',
            buttons=down,
            clickCount=1,
        )

    def press(self, selector):
        "Bring the pointer to an element and press; returns where."
        x, y = self.place(selector)
        self.mouse('Moved', x, y, down=0)
        self.mouse('Pressed', x, y)
        return x, y

    def click(self, selector):
        self.mouse('Released', *self.press(selector), down=0)

    def drag(self, selector, right=0, down=0):
        x, y = self.press(selector)
        for i in range(1, 6):
            self.mouse('Moved', x + right * i / 5, y + down * i / 5)
        self.mouse('Released', x + right, y + down, down=0)

    def open(self, address):
        self.call('Page.navigate', url=address)

    def picture(self, name):
        "Keep a screenshot where BROWSER_SCREENSHOTS names a folder."
        if folder := os.environ.get('BROWSER_SCREENSHOTS'):
            (Path(folder) / name).write_bytes(
                base64.b64decode(self.call('Page.captureScreenshot')['data'])
            )


@pytest.fixture(scope='module')
def lab(tmp_path_factory):
    "(address, token) of a JupyterLab on a temporary folder with the small tutorial and the first lesson."
    folder = tmp_path_factory.mktemp('lab')
    notebook = nbformat.v4.new_notebook(
        metadata={
            'kernelspec': {'name': 'python3', 'display_name': 'python3', 'language': 'python'}
        }
    )
    notebook.cells = [getattr(nbformat.v4, f'new_{kind}_cell')(source) for kind, source in TUTORIAL]
    (folder / 'work').mkdir()
    nbformat.write(notebook, folder / 'work' / 'small.ipynb')
    shutil.copy(next((TOP / 'tutorials').glob('01_*.ipynb')), folder / 'work' / 'lesson.ipynb')
    shutil.copy(TOP / 'settings.ini', folder / 'work')
    own = {
        k: str(folder / k.lower())
        for k in (
            'JUPYTER_RUNTIME_DIR',
            'JUPYTER_CONFIG_DIR',
            'JUPYTER_DATA_DIR',
            'JUPYTERLAB_SETTINGS_DIR',
            'JUPYTERLAB_WORKSPACES_DIR',
            'IPYTHONDIR',
        )
    }
    (folder / 'jupyter_config_dir' / 'labconfig').mkdir(parents=True)
    (folder / 'jupyter_config_dir' / 'labconfig' / 'page_config.json').write_text(
        '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}'
    )
    (folder / 'jupyterlab_settings_dir' / '@jupyterlab' / 'notebook-extension').mkdir(parents=True)
    (
        folder
        / 'jupyterlab_settings_dir'
        / '@jupyterlab'
        / 'notebook-extension'
        / 'tracker.jupyterlab-settings'
    ).write_text('{"windowingMode": "none"}')  # cells out of sight are in the page too
    options = [
        '--no-browser',
        '--allow-root',
        '--port=0',
        f'--ServerApp.root_dir={folder}/work',
        '--LabApp.expose_app_in_browser=True',
    ]
    with open(folder / 'log', 'w') as log:
        server = subprocess.Popen(
            [sys.executable, '-m', 'jupyterlab', *options],
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith('RL4LLM_')},
                **own,
                'RL4LLM_DRY_RUN': '1',
                'OMP_NUM_THREADS': '1',
            },
            stdout=log,
            stderr=log,
        )
    try:
        runtime = Path(own['JUPYTER_RUNTIME_DIR'])
        info = json.loads(
            until(
                lambda: (
                    [p for p in runtime.glob('jpserver-*.json') if p.stat().st_size]
                    or (
                        server.poll() is not None
                        and pytest.fail((folder / 'log').read_text()[-2000:])
                    )
                ),
                60,
                'JupyterLab',
            )[0].read_text()
        )
        yield info['url'], info['token']
    finally:
        stopped(server)


@pytest.fixture(scope='module')
def page(tmp_path_factory):
    "A page of headless Chromium."
    if not BROWSER:
        pytest.fail(f"REQUIRE_BROWSER=1, but there is no Chromium (looked for {', '.join(NAMES)})")
    folder = tmp_path_factory.mktemp('chromium')
    options = [
        '--headless=new',
        '--no-sandbox',
        '--disable-gpu',
        '--disable-dev-shm-usage',
        '--no-first-run',
        '--remote-debugging-port=0',
        f'--user-data-dir={folder}',
        '--window-size=1300,1000',
    ]
    browser = subprocess.Popen(
        [BROWSER, *options, 'about:blank'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        port = until(
            lambda: (
                (folder / 'DevToolsActivePort').exists()
                and (folder / 'DevToolsActivePort').read_text().split('\n')[0]
            ),
            60,
            'Chromium',
        )
        targets = until(
            lambda: [
                t
                for t in json.load(urllib.request.urlopen(f'http://127.0.0.1:{port}/json'))
                if t['type'] == 'page'
            ],
            30,
            'a page',
        )
        yield Page(targets[0]['webSocketDebuggerUrl'])
    finally:
        stopped(browser)


BOOK = "[...(window.jupyterapp?.shell.widgets('main') ?? [])].find(w => w.context)"
IDLE = f"{BOOK}?.sessionContext?.session?.kernel?.status === 'idle'"
CELLS = f"[...{BOOK}.content.model.cells].filter(c => c.type === 'code')"
ERRORS = f"{CELLS}.flatMap(c => c.outputs.toJSON()).filter(o => o.output_type === 'error').map(o => o.ename + ': ' + o.evalue)"
DONE = f"{CELLS}.every(c => c.executionCount !== null) && {IDLE}"


def run_all(page, lab, name):
    "Open a notebook in JupyterLab and run all its cells from the menu."
    page.open(f'{lab[0]}lab/tree/{name}?token={lab[1]}&reset')
    page.wait(f"{BOOK}?.context.path === '{name}' && {IDLE}", 90)
    page.js(
        "[...document.querySelectorAll('.lm-MenuBar-item')].find(e => e.innerText.trim() === 'Run').id = 'run-menu'"
    )
    page.click('#run-menu')
    page.click('.lm-Menu-item[data-command="runmenu:run-all"]')


@pytest.fixture(scope='module')
def tutorial(page, lab):
    "The page, with the small tutorial run."
    run_all(page, lab, 'small.ipynb')
    page.wait(f"{ERRORS}.length > 0 || !!document.querySelector('{BOARD}')", 90)
    assert page.js(ERRORS) == []
    return page


def test_a_fader_moves_the_advantages(tutorial):
    numbers = f"document.querySelector({json.dumps(PLAYGROUND)}).querySelector('table').innerText"
    tutorial.place(PLAYGROUND)
    before = tutorial.js(numbers)
    assert 'rloo' in before and '+1.00' in before
    tutorial.drag(PLAYGROUND + ' .widget-vslider:nth-of-type(2) .noUi-handle', down=-60)
    tutorial.wait(f'{numbers} !== {json.dumps(before)} && {IDLE}')
    tutorial.picture('playground.png')


def test_a_slider_moves_the_picture(tutorial):
    picture = f"document.querySelector({json.dumps(EXPLORER)}).querySelector('img')"
    tutorial.place(EXPLORER)
    tutorial.wait(f'{picture}.naturalWidth > 300')
    before, caption = (
        tutorial.js(f'{picture}.src'),
        tutorial.js(f"document.querySelector({json.dumps(EXPLORER)}).innerText"),
    )
    tutorial.drag(EXPLORER + ' .noUi-handle', right=45)
    tutorial.wait(f'{picture}.src !== {json.dumps(before)} && {IDLE}')
    assert 'pass@16' in caption and 'pass@16' not in tutorial.js(
        f"document.querySelector({json.dumps(EXPLORER)}).querySelector('table').innerText"
    )
    tutorial.picture('explorer.png')


def test_pictures_move_while_training_and_stop_ends_it(tutorial):
    text = f"document.querySelector('{BOARD}').innerText"
    picture = f"document.querySelector('{BOARD} img')?.src"
    tutorial.place(BOARD)
    before = tutorial.wait(picture)
    tutorial.wait(f'{picture} !== {json.dumps(before)}')
    assert before.startswith('data:image') and before != tutorial.js(picture)
    tutorial.click(BOARD + ' .widget-toggle-button')
    tutorial.wait(f"{text}.includes('paused')")
    assert 'stopped' not in tutorial.js(text)
    tutorial.place(BOARD)
    tutorial.picture('dashboard.png')
    tutorial.click(BOARD + ' button.jupyter-button:not(.widget-toggle-button)')
    tutorial.wait(f"{text}.includes('stopped')")


def test_the_first_lesson_runs(page, lab):
    run_all(page, lab, 'lesson.ipynb')
    page.wait(f'({ERRORS}).length > 0 || ({DONE})', 240)
    assert (
        page.js(ERRORS) == []
        and page.js("document.querySelectorAll('.jp-OutputArea-output').length") > 0
    )
    page.picture('lesson.png')
