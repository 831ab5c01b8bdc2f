"""Hostile programs in the sandbox: none may pass, none may leave anything behind.

Every attack is bounded by itself too: no more than 500 forks, 300 threads, 200 MB."""

import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rl4llm.rewards import sandbox
from rl4llm.rewards.sandbox import Ended, Limits, find_isolation, run_program
from rl4llm.rewards import code_tests
from rl4llm.rewards.code_tests import (
    CallTest,
    OutputTest,
    as_tests,
    call_test,
    code_verdicts,
    judge_program,
    passes_tests,
    program_of,
    share_of_tests,
)

TOP = Path(__file__).resolve().parents[1]
HERE = [mode for mode in ('namespaces', 'user', 'limits') if sandbox._try(mode).python]
LOCKED = any(mode in HERE for mode in ('namespaces', 'user'))
SHORT = Limits(cpu_s=1, wall_s=3.0)
TESTS = ['assert f(20) == 400']
PRINTS = [OutputTest('20\n', '400\n')]

needs_a_box = pytest.mark.skipif(not LOCKED, reason='no isolation works on this machine')
needs_namespaces = pytest.mark.skipif(
    'namespaces' not in HERE, reason='namespaces do not work on this machine'
)


# -- honest programs

HONEST = {
    'plain': 'def f(x): return x * x',
    'prints on the side': 'print("PASSED")\ndef f(x):\n    print(x)\n    return x * x',
    'has a main part': 'def f(x): return x * x\nif __name__ == "__main__": 1 / 0',
    'a data class': 'from dataclasses import dataclass\n@dataclass\nclass A:\n    n: "int"\n'
    'def f(x): return A(x).n ** 2',
    'threads': 'from concurrent.futures import ThreadPoolExecutor\n'
    'def f(x):\n    with ThreadPoolExecutor(2) as p: return sum(p.map(lambda y: y, [x] * x))',
    'a child': 'import subprocess, sys\ndef f(x):\n    code = f"print({x} ** 2)"\n'
    '    command = [sys.executable, "-I", "-c", code]\n'
    '    return int(subprocess.run(command, capture_output=True).stdout)',
    'a file': 'def f(x):\n    open("a", "w").write(str(x))\n    return int(open("a").read()) ** 2',
}


@needs_a_box
@pytest.mark.parametrize('name', HONEST)
def test_honest_programs_pass(name):
    assert judge_program(HONEST[name], TESTS, isolation='auto').outcome == 'passed', name


@needs_a_box
def test_honest_programs_that_print():
    program = 'import sys\nn = int(input())\nprint(n * n, "", sep=" ")\nexit()'
    assert judge_program(program, PRINTS).outcome == 'passed'
    again = judge_program('print(400)', [*PRINTS, OutputTest('1', '1')])
    assert (again.passed, again.of, again.outcome) == (1, 2, 'wrong answer')
    sees = run_program('import sys; print(sys.modules["__main__"].__name__, sys.argv[1:])')
    assert sees.stdout == b'__main__ []\n'


@needs_a_box
@pytest.mark.parametrize(
    ('expected', 'given', 'same'),
    [
        ('(1, "a")', '(1, "a")', True),
        ('(1, 2)', '[1, 2]', False),
        ('{1: {2, 3}, None: b"x"}', '{None: b"x", 1: {3, 2}}', True),
        ('1', 'True', False),
        ('1', '1.0', False),
        ('2 ** 20000', None, None),
        ('"\\ud800 \\x00 é"', '"\\ud800 \\x00 é"', True),
    ],
)
def test_values_keep_their_types(expected, given, same):
    if given is None:
        test = CallTest('f', (), 2**20000)
        assert judge_program('def f(): return 2 ** 20000', [test]).outcome == 'passed'
        assert judge_program('def f(): return 2 ** 20000 + 1', [test]).outcome == 'wrong answer'
        return
    found = judge_program(f'def f(): return {given}', [f'assert f() == {expected}'])
    assert (found.outcome == 'passed') == same


# -- attacks on the verdict

SEND = 'import json, os, sys\nword = sys._getframe(1).f_locals["job"]["word"]\n'
ATTACKS = {
    'sys.exit': ('import sys; sys.exit(0)', 'error'),
    'os._exit': ('import os; os._exit(0)', 'error'),
    'exit in the function': ('def f(x): raise SystemExit(0)', 'error'),
    'says PASSED': ('print("PASSED"); print("1 passed"); print([True])', 'error'),
    'equal to everything': (
        'class Y:\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return Y()',
        'wrong answer',
    ),
    'an int that is equal': (
        'class Y(int):\n    def __eq__(self, o): return True\n    def __hash__(self): return 0\n'
        'def f(x): return Y(1)',
        'wrong answer',
    ),
    'monkey-patched builtins': (
        'import builtins, unittest\nbuiltins.AssertionError = Exception\n'
        'builtins.isinstance = lambda *a: True\nbuiltins.all = lambda *a: True\n'
        'unittest.TestCase.assertEqual = lambda *a: None\ndef f(x): return 7',
        ('error', 'wrong answer'),
    ),
    'replaces json': (
        'import json\njson.dumps = json.loads = lambda *a, **k: "true"\ndef f(x): return 7',
        'wrong answer',
    ),
    'replaces the runner': (
        'import sys\nmain = sys.modules["__main__"].__dict__\n'
        'main["_plain"] = lambda v, d=0: ["=", "anything"]\ndef f(x): return 7',
        'cheated',
    ),
    'atexit': (
        'import atexit, os\natexit.register(lambda: os.write(3, b"true"))\ndef f(x): return 7',
        'wrong answer',
    ),
    'closes the channel': ('import os\nos.close(3)\ndef f(x): return 7', 'error'),
    'another file as the channel': (
        'import os\nos.close(3)\nos.open("main.py", 2)\ndef f(x): return 7',
        'error',
    ),
    'writes first': ('import os\nos.write(3, b"[true, true]")\ndef f(x): return 7', 'cheated'),
    'forges a wrong value': (
        SEND + 'os.write(3, json.dumps([word, ["i", "0x191"]]).encode()); os._exit(0)',
        'wrong answer',
    ),
    'forges no value': (
        SEND + 'os.write(3, json.dumps([word, {"i": 1, "j": 2}]).encode()); os._exit(0)',
        'cheated',
    ),
    'forges twice': (
        SEND + 'r = json.dumps([word, ["i", "0x190"]]).encode()\nos.write(3, r + r); os._exit(0)',
        'cheated',
    ),
    'forges depth': (SEND + 'os.write(3, b"[" * 50000); os._exit(0)', 'cheated'),
    'forges nan keys': (
        SEND + 'v = ["d", [[["f", "nan"], ["l", "x"]]]]\n'
        'os.write(3, json.dumps([word, v]).encode()); os._exit(0)',
        'cheated',
    ),
    'a cycle': ('def f(x):\n    a = []\n    a.append(a)\n    return a', 'wrong answer'),
    'no function': ('x = 1', 'error'),
    'a lambda that is no value': ('f = lambda x: f', 'wrong answer'),
}

# -- attacks on the answers

LOOKS = {
    'memory': (
        'import gc, sys\ndef f(x):\n    frame, seen = sys._getframe(), []\n'
        '    while frame:\n        seen += [*frame.f_locals.values(), *frame.f_globals.values()]\n'
        '        frame = frame.f_back\n    seen += gc.get_objects()\n'
        '    return [o for o in seen if type(o) is int and o == 20 * 20 + x * 0][0]',
        'error',
    ),
    'the job': (
        'import sys\njob = sys._getframe(1).f_locals["job"]\n'
        'def f(x): return sorted(job), "400" in str(job)',
        'wrong answer',
    ),
    'the environment': ('import os\ndef f(x): return int(os.environ["EXPECTED"])', 'error'),
    'memory of the parent': (
        'import os\ndef f(x): return open(f"/proc/{os.getppid()}/mem", "rb").read(9)',
        'blocked',
    ),
}

# -- attacks on the machine

HARM = {
    'endless loop': ('while True: pass', 'time'),
    'sleep': ('import time; time.sleep(60)', 'time'),
    'ignores the limit': (
        'import signal\nfor n in (24, 15, 1): signal.signal(n, signal.SIG_IGN)\nwhile True: pass',
        'time',
    ),
    # where the machine is busy the clock may come first
    'memory bomb': (
        'a = []\nfor _ in range(200): a.append(bytearray(b"1" * 10**7))',
        'memory or time',
    ),
    'one big list': ('a = [0] * 10**10', 'memory'),
    'fork bomb': (
        'import os, time\nfor _ in range(500):\n    if os.fork() == 0: time.sleep(30)',
        'blocked',
    ),
    'fork bomb that catches': (
        'import os, time\nfor _ in range(500):\n    try:\n'
        '        if os.fork() == 0: time.sleep(30)\n    except OSError: pass\ntime.sleep(30)',
        'time',
    ),
    'thread bomb': (
        'import threading, time\nfor _ in range(300):\n'
        '    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()',
        'blocked',
    ),
    'huge file': ('open("big", "wb").write(bytes(10**8))', 'blocked'),
    'output flood': ('while True: print("x" * 9999)', 'output'),
    'error flood': ('import sys\nwhile True: sys.stderr.write("x" * 9999)', 'output'),
    'reply flood': ('import os\nwhile True: os.write(3, b"x" * 9999)', 'output'),
    'connects': ('import socket; socket.create_connection(("127.0.0.1", 80), 1)', 'blocked'),
    'resolves': ('import socket; socket.getaddrinfo("example.org", 80)', ('blocked', 'error')),
    'listens': ('import socket; socket.socket(socket.AF_UNIX).bind("s")', 'blocked'),
    'kills its parent': ('import os; os.kill(os.getppid(), 9); f = 1', ('blocked', 'error')),
    'kills everybody': ('import os; os.kill(-1, 9)\nf = int', ('wrong answer', 'blocked', 'error')),
    'makes a namespace': (
        'import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\n'
        'if c.unshare(0x10000000): raise OSError(ctypes.get_errno(), "") \nf = int',
        'blocked',
    ),
    'mounts': (
        'import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n'
        'if c.mount(b"x", b"/box", b"tmpfs", 0, None): raise OSError(ctypes.get_errno(), "")',
        'blocked',
    ),
    'traces': (
        'import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\n'
        'if c.ptrace(16, os.getppid(), 0, 0): raise OSError(ctypes.get_errno(), "")',
        'blocked',
    ),
    'files in memory': ('import os; os.memfd_create("a")', 'blocked'),
    'shared memory': (
        'import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n'
        'if c.shmget(0, 1 << 20, 0o1600) < 0: raise OSError(ctypes.get_errno(), "")',
        'blocked',
    ),
    'raises its limits': (
        'import resource as r\nr.setrlimit(r.RLIMIT_AS, (1 << 40, 1 << 40))',
        'error',
    ),
    'becomes root': ('import os; os.setuid(0)\ndef f(x): return os.getuid()', 'blocked'),
    'deep recursion': (
        'import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x + 1)',
        ('memory', 'error', 'time'),
    ),
    'plain recursion': ('def f(x): return f(x + 1)', 'error'),
    'C recursion': (
        'def f(x):\n    a = x\n    for _ in range(10**6): a = [a]\n    repr(a)',
        ('error', 'time'),
    ),
    'huge int to print': ('print(10 ** 100000)', 'error'),
    'huge int to give': ('def f(x): return 1 << 10**7', 'output'),
    'syntax error': ('def f(x) return', 'error'),
    'NUL bytes': ('def f(x): return 400\x00', 'error'),
    'half a pair': ('def f(x): return "\ud800"', 'error'),
    'empty': ('', 'error'),
    'spaces': (' \n\t', 'error'),
    'a null byte in what is printed': ('print("\\x00")', 'error'),
    'no memory for the end': ('import os; os.abort()', 'error'),
    'breaks the machine of Python': ('import ctypes; ctypes.string_at(0)', 'error'),
    'stops itself': ('import os; os.kill(os.getpid(), 19)', 'time'),
}


def check(attacks, mode):
    "Judges every attack, a few at a time; names those with another outcome than wanted."

    def verdict(name):
        return judge_program(attacks[name][0], TESTS, limits=SHORT, isolation=mode)

    with ThreadPoolExecutor(3) as pool:
        found = dict(zip(attacks, pool.map(verdict, attacks)))
    assert not [name for name, v in found.items() if v.passed or v.outcome == 'passed']
    odd = {name: v for name, v in found.items() if v.outcome not in attacks[name][1]}
    assert not odd
    assert {v.isolation for v in found.values()} == {mode}
    assert all(v.reason and len(v.reason) <= 120 and '\n' not in v.reason for v in found.values())


@needs_a_box
def test_no_attack_on_the_verdict_passes():
    check(ATTACKS, find_isolation())


@needs_namespaces
def test_no_answer_is_found():
    check({name: LOOKS[name] for name in LOOKS}, 'namespaces')


@needs_namespaces
def test_no_harm_is_done():
    check(HARM, 'namespaces')


@pytest.mark.slow
@pytest.mark.parametrize('mode', [mode for mode in ('user', 'limits') if mode in HERE])
def test_the_weaker_modes_stop_the_same(mode):
    "But for reading files, which they do not promise, and stopping the one that watches."
    check(ATTACKS, mode)
    check({k: v for k, v in HARM.items() if k != 'mounts'}, mode)


# -- nothing is left behind, nothing outside is touched


def still_there(mark):
    "Processes of this machine with a word in their command."
    found = []
    for folder in Path('/proc').iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / 'cmdline').read_bytes()
            except OSError:
                continue
            if mark.encode() in words:
                found.append(folder.name)
    return found


DAEMON = """
import os, sys
if os.fork() == 0:
    try: os.setsid()
    except OSError: pass
    if os.fork() == 0:
        os.close(1); os.close(2); os.close(3)
        code = 'import time; time.sleep(40)'
        os.execv(sys.executable, [sys.executable, '-I', '-S', '-c', code, 'MARK'])
    os._exit(0)
import time; time.sleep(0.5)
print('done')
"""


@needs_a_box
@pytest.mark.parametrize('mode', HERE)
def test_no_daemon_is_left(mode):
    mark = f'daemon-{os.getpid()}-{time.monotonic_ns()}'
    ended = run_program(DAEMON.replace('MARK', mark), isolation=mode)
    assert (ended.how, ended.stdout) == ('exit', b'done\n')
    assert still_there(mark) == []
    sleeping = DAEMON.replace('MARK', mark).replace("print('done')", 'time.sleep(60)')
    started = []

    def watch():
        until = time.monotonic() + 20
        while time.monotonic() < until and not started:
            started.extend(still_there(mark))
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert run_program(sleeping, limits=Limits(wall_s=3), isolation=mode).how == 'time'
    watcher.join()
    assert started, 'the daemon was never seen, so this shows nothing'
    assert still_there(mark) == []


@needs_a_box
@pytest.mark.parametrize('mode', HERE)
def test_folders_of_runs_are_removed(mode, tmp_path, monkeypatch):
    "However deep they are, and wherever their links lead."
    outside = tmp_path / 'outside'
    outside.mkdir()
    (outside / 'kept').write_text('kept')
    boxes = tmp_path / 'boxes'
    boxes.mkdir()
    for folder in (boxes, *boxes.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path('/'):
            folder.chmod(folder.stat().st_mode | 0o011)
    monkeypatch.setattr(sandbox.tempfile, 'tempdir', str(boxes))
    program = f"""
import os
os.symlink({str(outside)!r}, 'link')
for n in range(300):
    os.mkdir('deep'); os.chdir('deep')
print('made')
"""
    assert run_program(program, isolation=mode).stdout == b'made\n'
    assert list(boxes.iterdir()) == []
    assert (outside / 'kept').read_text() == 'kept'


@needs_namespaces
def test_nothing_outside_is_seen(tmp_path):
    secret = tmp_path / 'answers.json'
    secret.write_text('400')
    tmp_path.chmod(0o755)
    secret.chmod(0o644)
    os.environ['EXPECTED'] = '400'
    program = f"""
import os, socket
for path in ({str(secret)!r}, {__file__!r}, '/etc/passwd', '/proc/1/environ', '/proc', '/root/.ssh',
             '/home', '/tmp', '/sys', '/var'):
    assert not os.path.exists(path), path
os.symlink('/etc/passwd', 'link')
os.symlink('../../../..' + {str(secret)!r}, 'other')
for path in ('link', 'other'):
    try:
        open(path)
    except FileNotFoundError:
        pass
for path in ('/usr/lib/x', '/x', '/lib/x'):
    try:
        open(path, 'w')
        print('wrote', path)
    except OSError:
        pass
assert set(os.environ) <= {{'LC_CTYPE'}}
assert os.getppid() == 1 and os.getuid() != 0
assert [n for n in range(4, 200) if os.path.exists(f'/dev/fd/{{n}}')] == []
for n in range(4, 200):
    try:
        os.fstat(n)
        print('open', n)
    except OSError:
        pass
print('nothing')
"""
    try:
        ended = run_program(program)
    finally:
        del os.environ['EXPECTED']
    assert (ended.stdout, ended.code) == (b'nothing\n', 0), ended


@needs_a_box
def test_output_of_any_bytes():
    program = 'import sys\nsys.stdout.buffer.write(b"\\xff\\xfe400")'
    assert judge_program(program, PRINTS)[:4] == (0, 1, 'wrong answer', 'the output is not UTF-8')
    nul = judge_program('print("400\\x00")', PRINTS)
    assert nul.outcome == 'wrong answer'


# -- what a program finds

LOOK = """
import ctypes, json, os, resource, time
prctl = ctypes.CDLL(None).prctl
death = ctypes.c_int()
prctl(2, ctypes.byref(death))               # PR_GET_PDEATHSIG

def may_leave():
    "Whether a child may begin a session of its own."
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
        except PermissionError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0

def place(path):
    stat = os.statvfs(path)
    return dict(flags=stat.f_flag & 7, size=stat.f_blocks * stat.f_frsize, files=stat.f_files)

names = ('CPU', 'AS', 'FSIZE', 'NPROC', 'NOFILE', 'CORE', 'MSGQUEUE')
limits = {name: resource.getrlimit(getattr(resource, f'RLIMIT_{name}')) for name in names}
places = {path: place(path) for path in ('/', '/usr/lib', '/dev/null', '.')}
print(json.dumps(dict(limits=limits, places=places, death=death.value, leaves=may_leave(),
                      rights=prctl(39, 0, 0, 0, 0), filter=prctl(21, 0, 0, 0, 0))))
"""


@needs_a_box
@pytest.mark.parametrize('mode', HERE)
def test_what_a_program_finds(mode):
    limits = Limits(cpu_s=7, memory_mb=200, file_mb=6, processes=9)
    ended = run_program(LOOK, limits=limits, isolation=mode)
    found = json.loads(ended.stdout)
    processes = found['limits'].pop('NPROC')
    assert found['limits'] == {
        'CPU': [7, 8],
        'AS': [200 << 20] * 2,
        'FSIZE': [6 << 20] * 2,
        'NOFILE': [64, 64],
        'CORE': [0, 0],
        'MSGQUEUE': [0, 0],
    }
    if os.geteuid() == 0:
        assert processes == [9, 9]
    elif mode == 'namespaces':
        assert processes == [11, 11]  # with process 1 and the one that watches it
    else:
        assert processes[0] > 9  # with all that the user has
    assert found['death'] == signal.SIGKILL and found['rights'] == 1
    assert found['filter'] == 2  # SECCOMP_MODE_FILTER
    assert found['leaves'] == (mode == 'namespaces')
    if mode != 'namespaces':
        return
    shut = os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV
    flags = {path: place['flags'] for path, place in found['places'].items()}
    assert flags.pop('.') == os.ST_NOSUID | os.ST_NODEV
    assert flags.pop('/dev/null') & (os.ST_NOSUID | os.ST_NODEV) == os.ST_NOSUID
    assert flags == {'/': shut, '/usr/lib': shut}
    assert found['places']['.']['size'] == 2 * limits.file_mb << 20
    assert found['places']['.']['files'] == 1000


FRESH = """
import os, resource, sys
from rl4llm.rewards import sandbox
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 6000), hard))
held = [os.dup(0) for _ in range(min(hard - 50, int(sys.argv[2])))]
listing = 'import os\\nfor n in range(6000):\\n try: os.fstat(n); print(n)\\n except OSError: pass'
print(sandbox.run_program(listing, isolation=sys.argv[1]).stdout.decode().split())
"""


@needs_a_box
@pytest.mark.parametrize('held', [0, 7, 5000])
def test_the_channels_are_all_that_is_open(held):
    "Whether the one outside has hardly a file open or thousands, so that channels lie low or high."
    command = [sys.executable, '-c', FRESH, find_isolation(), str(held)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['0', '1', '2', '3']"


@needs_a_box
def test_time_is_counted_in_the_program_alone():
    "In its own code and in the kernel; nobody is busy while it sleeps."
    program = 'import os\nwhile sum(os.times()[:2]) < 0.2: open("/dev/urandom", "rb").read(1 << 20)'
    assert run_program(program).cpu_s >= 0.2
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run_program('import time; time.sleep(1)').how == 'exit'
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 0.7


# -- what a machine offers

SHARED = """
from pathlib import Path
from rl4llm.rewards import sandbox
before = Path('/proc/self/mountinfo').read_text()
ended = sandbox.run_program('print(1)', isolation='namespaces')
print(ended.stdout == b'1\\n', Path('/proc/self/mountinfo').read_text() == before)
"""


def unshared(*command):
    "A command in new namespaces, made by the program of the system; None where that is not there."
    if not shutil.which('unshare'):
        return None
    user = [] if os.geteuid() == 0 else ['--user', '--map-root-user']
    words = ['unshare', '--mount', *user, *command]
    return subprocess.run(words, cwd=TOP, capture_output=True, text=True, check=False)


def test_what_works_is_offered():
    "A way of locking in that the machine allows is there: tests that need it are not left out."
    assert 'limits' in HERE
    known = os.uname().machine in ('x86_64', 'aarch64')
    if os.geteuid() == 0 and known and Path('/usr/bin/python3').exists():
        assert 'user' in HERE
    new_root = 'mount -t tmpfs x /sys && cd /sys && mkdir old && pivot_root . old'
    done = unshared('--ipc', '--pid', '--net', '--fork', 'sh', '-c', new_root)
    linux = tuple(int(n) for n in os.uname().release.split('-')[0].split('.')[:2])
    if done and done.returncode == 0 and linux >= (5, 12):
        assert 'namespaces' in HERE


@needs_namespaces
def test_no_mount_reaches_the_machine():
    "Where the machine shares its mounts, as many do."
    done = unshared('--propagation', 'shared', sys.executable, '-c', SHARED)
    if done is None or 'unshare:' in done.stderr:
        pytest.skip('this machine makes no namespace that shares its mounts')
    assert done.stdout == 'True True\n', done.stderr


@pytest.mark.parametrize(
    ('wanted', 'user', 'outcomes', 'python', 'why'),
    [
        ('limits', 1000, ['alive'], 'a', ''),
        ('user', 0, ['alive'], 'a', ''),
        ('user', 1000, ['alive'], None, 'only root may run programs as another user'),
        ('limits', 0, ['dead', 'alive'], 'b', ''),
        ('limits', 0, ['cannot', 'alive'], 'b', ''),
        ('limits', 0, ['cannot'], None, 'no memory'),
        ('limits', 0, ['dead', 'cannot'], None, 'a program that prints one word ended with 3'),
    ],
)
def test_each_way_is_tried(monkeypatch, wanted, user, outcomes, python, why):
    "With each Python until one works; of several reasons the first is told."
    how = dict(zip('ab', outcomes))

    def pretended(job, limits):
        assert limits == Limits()
        outcome = how[job['python']]
        if outcome == 'cannot':
            raise RuntimeError('the sandbox (limits) could not start: no memory')
        if outcome == 'dead':
            return Ended('exit', 3, b'', b'', b'', 0.0, wanted)
        return Ended('exit', 0, b'alive\n', b'', b'', 0.0, wanted)

    monkeypatch.setattr(sandbox, '_pythons', lambda: list(how))
    monkeypatch.setattr(sandbox, '_run', pretended)
    monkeypatch.setattr(os, 'geteuid', lambda: user)
    assert sandbox._try.__wrapped__(wanted) == (python, why)


def test_only_linux_has_boxes(monkeypatch):
    monkeypatch.setattr(sys, 'platform', 'darwin')
    assert sandbox._try.__wrapped__('limits') == (None, 'this is not Linux')


def test_which_python_and_what_it_needs(monkeypatch, tmp_path):
    "Its library wherever that lies, and nothing that lies below what is shown already."
    top = tmp_path.resolve()
    python = str(top / 'bin' / 'python')
    monkeypatch.setattr(sys, '_base_executable', python, raising=False)
    assert sandbox._pythons()[0] == python
    for library, named in ((top / 'elsewhere', True), (top / 'lib' / 'below', False)):
        library.mkdir(parents=True)
        monkeypatch.setattr(sandbox.sysconfig, 'get_path', lambda name, to=library: str(to))
        assert (str(library) in sandbox._shown(python)) == named
        assert str(library) not in sandbox._shown('/usr/bin/env')
    assert str(top / 'lib') in sandbox._shown(python)


@needs_a_box
def test_a_machine_with_one_python(monkeypatch):
    mode = find_isolation()
    monkeypatch.setattr(sandbox, '_pythons', lambda: [sandbox._try(mode).python])
    assert run_program('print(1)').stdout == b'1\n'


# -- limits, channels and reports

FINE = dict(cpu_s=[1, 999_999], memory_mb=[1], wall_s=[1e-9, 1, 999_999.5], output_kb=[999_999])
BAD = [0, -1, 10**6, 10**6 + 1, True, None, '1', math.nan, math.inf, (1,)]


def test_which_limits_can_be():
    for name, values in FINE.items():
        for value in values:
            sandbox._check_limits(Limits(**{name: value}))
    wrong = [(name, value) for name in Limits._fields for value in BAD]
    wrong += [(name, 0.5) for name in Limits._fields if name != 'wall_s']
    for name, value in wrong:
        with pytest.raises(ValueError, match=f'{name} is .*, wanted a positive'):
            sandbox._check_limits(Limits(**{name: value}))


@pytest.mark.parametrize(
    ('report', 'output', 'kept_open', 'wanted'),
    [
        (b'started\n', b'x' * 1024, (), 'exit'),
        (b'started\n', b'x' * 1025, (), 'output'),
        (b'started\n', b'x', ('report', 'stdout'), 'time'),
        (b'started\ncode\n', b'x', ('stdout',), 'exit'),
    ],
)
def test_when_reading_ends(monkeypatch, report, output, kept_open, wanted):
    "By the clock after the start; soon after the end, whoever still holds a channel."
    monkeypatch.setattr(sandbox, '_LEFT_OVER', 0.2 if b'code' in report else 8)
    limits = Limits(wall_s=8.0 if b'code' in report else 0.2, output_kb=1)
    ends = {name: os.pipe() for name in ('stdout', 'stderr', 'reply', 'report')}
    os.write(ends['report'][1], report)
    os.write(ends['stdout'][1], output)
    for name, (_, write) in ends.items():
        if name not in kept_open:
            os.close(write)
    start = time.monotonic()
    how, kept = sandbox._read({name: read for name, (read, _) in ends.items()}, limits)
    assert time.monotonic() - start < 5
    for name, (read, write) in ends.items():
        os.close(read)
        if name in kept_open:
            os.close(write)
    assert (how, bytes(kept['stdout']), bytes(kept['report'])) == (wanted, output, report)


def told(report, stderr=b''):
    return dict(stdout=b'', stderr=stderr, reply=b'', report=report)


def test_what_a_report_says():
    start, failed = b'{"started": 7}\n', b'{"failed": "no room"}\n'
    for report, stderr, why in (
        (b'', b'', 'it gave no reason'),
        (b'', b'a\nlast words\n', 'last words'),
        (failed, b'words', 'no room'),
        (start + failed, b'', 'no room'),
    ):
        with pytest.raises(RuntimeError, match=f'could not start: {why}'):
            sandbox._ended('exit', told(report, stderr), 'limits')
    lost = sandbox._ended('exit', told(start), 'limits')
    assert (lost.how, lost.code, lost.cpu_s) == ('lost', None, 0.0)
    fine = sandbox._ended('exit', told(start + b'{"code": 3, "cpu": 0.5}\n'), 'limits')
    assert (fine.how, fine.code, fine.cpu_s, fine.isolation) == ('exit', 3, 0.5, 'limits')


@needs_a_box
def test_a_box_has_a_session_of_its_own():
    "So what the keyboard interrupts is the one outside, which then ends the box."
    mode = find_isolation()
    python = sandbox._try(mode).python
    job = sandbox._job('', '', Limits(), mode)
    job |= dict(python=python, shown=sandbox._shown(python), folder='/no/such/place')
    running = sandbox._open_box(job)
    try:
        assert os.getsid(running.process.pid) == running.process.pid
    finally:
        sandbox._close_box(running)


def test_a_folder_that_stays_costs_no_verdict(monkeypatch, tmp_path):
    "Such as one that the program has closed to its own user."
    (tmp_path / 'rm').write_text('#!/bin/sh\nexit 1\n')
    (tmp_path / 'rm').chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))
    monkeypatch.setattr(sandbox.tempfile, 'tempdir', str(tmp_path))
    assert run_program('print(1)', isolation='limits').stdout == b'1\n'
    assert any(path.name.startswith('rl4llm-box-') for path in tmp_path.iterdir())


# -- where nothing works


def absent(monkeypatch, *modes):
    "A machine on which ways of locking in do not work."
    real = sandbox._try
    none = sandbox._Tried(None, 'not allowed here')
    monkeypatch.setattr(sandbox, '_try', lambda mode: none if mode in modes else real(mode))


def test_without_isolation_nothing_is_run(monkeypatch):
    absent(monkeypatch, 'namespaces', 'user')
    monkeypatch.setattr(sandbox, '_open_box', lambda job: pytest.fail('it was run'))
    for call in (
        lambda: run_program('1'),
        lambda: judge_program('1', TESTS),
        lambda: passes_tests([''], ['1'], tests=[TESTS]),
    ):
        with pytest.raises(RuntimeError, match="no program is run.*isolation='limits'") as e:
            call()
        assert '\n' not in str(e.value)
    assert passes_tests([''], ['1'], tests=[None]) == [None]


def test_limits_must_be_asked_for(monkeypatch):
    if 'limits' not in HERE:
        pytest.skip('limits do not work on this machine')
    absent(monkeypatch, 'namespaces', 'user')
    assert judge_program('f = lambda x: x * x', TESTS, isolation='limits')[2:] == (
        'passed',
        '',
        'limits',
    )


def test_a_box_that_cannot_start_is_no_verdict(monkeypatch):
    monkeypatch.setattr(sandbox, '_shown', lambda python: ['/no/such/place'])
    if 'namespaces' in HERE:
        with pytest.raises(RuntimeError, match='could not start'):
            run_program('1', isolation='namespaces')


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason='only root can become an ordinary user')
def test_an_ordinary_user(tmp_path):
    "The same from a user without rights, with the Python of the system."
    python = '/usr/bin/python3'
    if not Path(python).exists():
        pytest.skip('no Python of the system')
    script = (
        'import json\nfrom rl4llm.rewards import sandbox as s\n'
        'def run(m, c): return s.run_program(c, isolation=m, limits=s.Limits(wall_s=3))\n'
        'f = "import os, time\\nfor _ in range(200):\\n if os.fork() == 0: time.sleep(9)"\n'
        'k = "import os; os.kill(os.getppid(), 9)"\n'
        'found = {m: [run(m, "print(1)").stdout.decode(), run(m, f).code, run(m, k).how]\n'
        '    for m in ("namespaces", "limits") if s._try(m).python}\n'
        'found["user"] = s._try("user").why\nprint(json.dumps(found))'
    )
    environment = {'PYTHONPATH': str(TOP), 'PYTHONDONTWRITEBYTECODE': '1'}
    done = subprocess.run(
        [python, '-c', script],
        user=65534,
        group=65534,
        extra_groups=[],
        env=environment,
        cwd='/',
        capture_output=True,
        text=True,
        check=False,
    )
    if 'Permission denied' in done.stderr or 'No module' in done.stderr:
        pytest.skip('the project cannot be read by an ordinary user')
    found = json.loads(done.stdout)
    assert found.pop('user') == 'only root may run programs as another user'
    assert 'limits' in found
    assert all(seen == ['1\n', 1, 'exit'] for seen in found.values()), found


# -- tests, programs and rewards

BAD_TESTS = [
    'assert f(1) > 2',
    'assert f(x) == 2',
    'assert f(1) == g(2)',
    'assert a.f(1) == 2',
    'assert f(x=1) == 2',
    'assert f(*[1]) == 2',
    'f(1) == 2',
    'import os',
    '',
    'assert f(1) == 2\nassert f(2) == 3',
    'assert ' + '(' * 500,
    dict(stdin='1'),
    dict(stdin=1, stdout='2'),
    dict(function='f', args=1, expected=2),
    dict(function='f; g', args=[], expected=2),
    dict(function='f', args=[object()], expected=2),
    CallTest('f', (1,), object()),
    CallTest('f', (1,), 1.0, -1),
    None,
    7,
]


@pytest.mark.parametrize('bad', BAD_TESTS, ids=lambda bad: repr(bad)[:30])
def test_tests_that_cannot_be_are_refused(bad):
    with pytest.raises(ValueError, match='wanted') as e:
        as_tests([bad])
    assert '\n' not in str(e.value) and len(str(e.value)) < 300


def test_no_tests_are_refused():
    for bad in ([], '[]', '{"a"', 7, None, OutputTest('', ''), '[' * 10**5):
        with pytest.raises(ValueError):
            as_tests(bad)
    for bad in (TESTS[0], [TESTS, TESTS], {}):
        with pytest.raises(ValueError, match='wanted a list'):
            code_verdicts(['1'], bad)
    with pytest.raises(ValueError, match='limits'):
        judge_program('1', TESTS, limits=7)


def test_where_the_program_is():
    code = 'print(1)\n'
    for text, source in (
        (f'```python\n{code}```', 'python block'),
        (f'```py\n{code}```\n```text\n7\n```', 'python block'),
        (f'```Python3\nold\n```\r\n```python\n{code}', 'python block'),
        (f'```\nold\n```\n```\n{code}```', 'block'),
        (code, 'whole text'),
    ):
        assert program_of(text) == (code, source)
    assert program_of('') == ('', 'whole text')
    start = time.perf_counter()
    program_of('```python\n' * 20_000)
    program_of('```' + ' ' * 100_000)
    assert time.perf_counter() - start < 5


@needs_a_box
def test_equal_programs_are_judged_once(monkeypatch):
    calls = []
    real = code_tests.judge_program

    def counted(program, *rest, **knobs):
        calls.append(program)
        return real(program, *rest, **knobs)

    monkeypatch.setattr(code_tests, 'judge_program', counted)
    good = 'def f(x): return x * x'
    answers = [good, f'```python\n{good}\n```', f'so:\n```python\n{good}\n```', 'nothing', good]
    tests = [TESTS, json.dumps(TESTS), TESTS, TESTS, None]
    assert passes_tests([''] * 5, answers, tests=tests) == [1.0, 1.0, 1.0, 0.0, None]
    assert len(calls) == 3


@needs_a_box
def test_the_share_and_the_whole():
    tests = [[*TESTS, 'assert f(0) == 0', 'assert f(2) == 4']] * 2
    answers = ['def f(x): return 2 * x', 'def f(x): return x ** 2']
    assert share_of_tests([''] * 2, answers, tests=tests) == [2 / 3, 1.0]
    assert passes_tests([''] * 2, answers, tests=tests, workers=1) == [0.0, 1.0]
    assert call_test('assert f(-1)').expected is True
