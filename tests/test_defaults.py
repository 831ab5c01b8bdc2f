"""The defaults of stages are what they were: one that changes, changes on purpose.

A default is a promise to whoever does not name the knob, and no other test may name it either.
`python tests/test_defaults.py` stores those of now in `defaults.json`."""

import json, sys
from pathlib import Path
import pytest
from rl4llm.core.registry import parameters_of, stages

STORED = Path(__file__).with_name('defaults.json')
OURS = {f'{s.kind}/{s.name}': s for s in stages().values() if s.module.startswith('rl4llm.')}


def as_text(value):
    "A default in words that are the same in every process."
    if isinstance(value, tuple):
        return f"({', '.join(map(as_text, value))})"
    if callable(value) and hasattr(value, '__name__'):
        return value.__name__
    return repr(value)


def defaults_of(fn):
    "Knob -> its default, in words."
    known = parameters_of(fn).items()
    return {name: as_text(p.default) for name, p in known if p.default is not p.empty}


def stored():
    return json.loads(STORED.read_text())


@pytest.mark.parametrize('info', [pytest.param(s, id=s.name) for s in OURS.values()])
def test_a_default_is_what_it_was(info):
    assert defaults_of(info.fn) == stored()[f'{info.kind}/{info.name}']


def test_every_stage_has_stored_defaults_and_no_other():
    assert stored().keys() == OURS.keys(), 'run `python tests/test_defaults.py`'
    assert sum(map(len, stored().values())) > 300


if __name__ == '__main__':
    found = {name: defaults_of(info.fn) for name, info in sorted(OURS.items())}
    STORED.write_text(json.dumps(found, indent=1, sort_keys=True) + '\n')
    sys.exit(0)
