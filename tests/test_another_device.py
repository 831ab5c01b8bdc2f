"""What would fail on a GPU fails here: the tests of `test_gpu.py` on a device that stands in."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

TOP = Path(__file__).resolve().parents[1]
IS_THERE = hasattr(backend_registration, '_setup_privateuseone_for_python_backend')


@pytest.mark.slow
@pytest.mark.takes_turns
@pytest.mark.skipif(not IS_THERE, reason='this torch has no devices in Python')
def test_recipes_and_worlds_train_on_a_device_that_is_not_the_cpu():
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', 'tests/test_gpu.py']
    env = os.environ | dict(STAND_IN_FOR_GPU='1', PYTEST_ADDOPTS='', OMP_NUM_THREADS='1')
    done = subprocess.run(command, cwd=TOP, env=env, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r'(\d+) passed', done.stdout)
    assert passed and int(passed[1]) >= 10, done.stdout[-500:]


MIXED = (
    'x + y',
    'torch.cat([x, y])',
    'x.index_select(0, i)',
    'x.gather(0, i)',
    'torch.where(y > 0, x, x)',
    'y[i.to(x.device)]',
)
TAKEN = ('x[i].sum()', 'x + 1', 'x * y[0]', 'x.cpu() + y', 'x + y.to(x.device)')


@pytest.mark.skipif(not IS_THERE, reason='this torch has no devices in Python')
@pytest.mark.slow
def test_two_devices_do_not_mix():
    code = (
        'import torch, another_device\n'
        'x = torch.ones(3, device=another_device.install())\n'
        'y, i = torch.ones(3), torch.tensor([0, 2])\n'
        f'for text in {MIXED + TAKEN}:\n'
        '    try:\n'
        '        eval(text)\n'
        '        print("taken")\n'
        '    except RuntimeError:\n'
        '        print("refused")\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], cwd=TOP / 'tests', capture_output=True, text=True, timeout=120
    )
    wanted = ['refused'] * len(MIXED) + ['taken'] * len(TAKEN)
    assert done.stdout.split() == wanted, done.stdout + done.stderr
