"""What is made once is read from its file afterwards, and damaged files are named."""

import json

import pytest

from rl4llm.core.storage import made_once


def test_what_was_made_is_read_and_not_made_again(tmp_path):
    path = tmp_path / 'new' / 'made.json'
    asked = []

    def make():
        asked.append(1)
        return {'pair': (1, 2)}

    first = made_once(path, 'a', make)
    second = made_once(path, 'a', make)
    assert first == second == {'pair': [1, 2]}, 'also the first time it has been written and read'
    assert len(asked) == 1


def test_other_names_are_kept(tmp_path):
    path = tmp_path / 'made.json'
    made_once(path, 'a', lambda: 1)
    made_once(path, 'b', lambda: 2)
    assert json.loads(path.read_text()) == {'a': 1, 'b': 2}


def test_a_failed_making_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / 'made.json'
    made_once(path, 'a', lambda: 1)
    with pytest.raises(ZeroDivisionError):
        made_once(path, 'b', lambda: 1 / 0)
    assert json.loads(path.read_text()) == {'a': 1}


@pytest.mark.parametrize('text, said', [('{"a": ', 'damaged'), ('[1, 2]', 'holds a list')])
def test_a_file_that_holds_no_names_is_named(tmp_path, text, said):
    path = tmp_path / 'made.json'
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as caught:
        made_once(path, 'a', lambda: 1)
    assert 'made.json' in str(caught.value)
