"""The defaults of stages, and of functions beside them, are what they were: one that changes,
changes on purpose.

A default is a promise to whoever does not name the knob, and no other test may name it either.
`python tests/test_defaults.py` stores those of now in `defaults.json`."""

import json
from importlib import import_module
from pathlib import Path
import pytest
from rl4llm.core.registry import parameters_of, stages

STORED = Path(__file__).with_name('defaults.json')
MODULES = sorted({s.module for s in stages().values() if s.module.startswith('rl4llm.')})


def as_text(value):
    "A default in words that are the same in every process."
    if isinstance(value, tuple):
        return f"({', '.join(map(as_text, value))})"
    if callable(value) and hasattr(value, '__name__'):
        return value.__name__
    return repr(value)


def defaults_of(thing):
    "Knob -> its default, in words, of a function or a class."
    known = parameters_of(thing).items()
    return {name: as_text(p.default) for name, p in known if p.default is not p.empty}


def defaults_in(module):
    "Public name of a module -> the defaults of what it names, if there are any."
    here = import_module(module)
    things = {name: getattr(here, name) for name in here.__all__}
    found = {name: defaults_of(x) for name, x in things.items() if callable(x)}
    return {name: defaults for name, defaults in found.items() if defaults}


def stored():
    return json.loads(STORED.read_text())


@pytest.mark.parametrize('module', MODULES)
def test_a_default_is_what_it_was(module):
    assert defaults_in(module) == stored().get(module), 'run `python tests/test_defaults.py`'


def test_a_changed_default_is_noticed(monkeypatch):
    from rl4llm.rollouts import forked_episodes, value_guided

    for module, fn, knob in (
        (forked_episodes, forked_episodes.tool_branches, 'base'),
        (value_guided, value_guided.grow_guided, 'explore'),
        (value_guided, value_guided.value_guided_rollouts.__init__, 'doubt'),
    ):
        with monkeypatch.context() as patched:
            patched.setitem(fn.__kwdefaults__, knob, 0.75)
            assert defaults_in(module.__name__) != stored()[module.__name__]
        assert defaults_in(module.__name__) == stored()[module.__name__]


def test_every_module_has_stored_defaults_and_no_other():
    assert list(stored()) == MODULES, 'run `python tests/test_defaults.py`'
    assert sum(map(len, stored().values())) > 300


if __name__ == '__main__':
    found = {module: defaults_in(module) for module in MODULES}
    STORED.write_text(json.dumps(found, indent=1, sort_keys=True) + '\n')
