"""The benchmark runs and reports; it does not judge speed here."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_it_runs_and_reports(tmp_path):
    done = subprocess.run([sys.executable, '-m', 'benchmarks', '--quick', '--repeat', '2', '--out', tmp_path], cwd=TOP, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads((tmp_path / 'results.json').read_text())['rows']
    assert {'s', 'GiB'} == {r['unit'] for r in rows} and all(r['ours'] > 0 and r['plain'] > 0 for r in rows)
    assert (tmp_path / 'results.png').stat().st_size > 1000


def test_a_bad_number_is_named():
    done = subprocess.run([sys.executable, '-m', 'benchmarks', '--repeat', '0'], cwd=TOP, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and 'wanted at least 1' in done.stderr
