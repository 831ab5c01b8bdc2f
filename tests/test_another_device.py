"""What would fail on a GPU fails here: the tests of `test_gpu.py` on a device that stands in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

TOP = Path(__file__).resolve().parents[1]
IS_THERE = hasattr(backend_registration, '_setup_privateuseone_for_python_backend')


@pytest.mark.skipif(not IS_THERE, reason='this torch has no devices in Python')
def test_recipes_and_worlds_train_on_a_device_that_is_not_the_cpu():
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', 'tests/test_gpu.py']
    env = os.environ | dict(STAND_IN_FOR_GPU='1', PYTEST_ADDOPTS='', OMP_NUM_THREADS='1')
    done = subprocess.run(command, cwd=TOP, env=env, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-3000:]
    assert 'passed' in done.stdout


@pytest.mark.skipif(not IS_THERE, reason='this torch has no devices in Python')
def test_two_devices_do_not_mix():
    code = (
        'import torch, another_device\n'
        'x = torch.ones(3, device=another_device.install())\n'
        'print((x * 2).sum().item())\n'
        'x + torch.ones(3)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], cwd=TOP / 'tests', capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ['6.0']
    assert 'TwoDevices: aten::add' in done.stderr
