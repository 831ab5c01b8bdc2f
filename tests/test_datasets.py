"""Problems from local files in the layouts of real data sets, and what is said of faulty ones."""

import json, socket, time
import pytest

pytest.importorskip('datasets')
pytest.importorskip('math_verify')

import pandas as pd
from datasets import Dataset, DatasetDict
from rl4llm.rewards.mathematics import correct_mathematics
from rl4llm.scaling import datasets as module
from rl4llm.scaling.config_files import config_names, load_config
from rl4llm.scaling.datasets import DATASETS, datasets_named, load_problems


def chat(text):
    return [{'role': 'user', 'content': text}]


LAYOUTS = {
    'gsm8k': ({'question': 'Q1?', 'answer': '6*7=<<6*7=42>>42\n#### 42'}, 'Q1?', '42'),
    'math': (
        {
            'problem': 'Q2?',
            'solution': r'So $x=\boxed{\frac{1}{2}}$.',
            'level': 'Level 3',
            'type': 'Algebra',
        },
        'Q2?',
        r'\frac{1}{2}',
    ),
    'math-500': (
        {
            'problem': 'Q3?',
            'solution': 'x',
            'answer': r'\left( 3, \frac{\pi}{2} \right)',
            'subject': 'a',
            'level': 2,
            'unique_id': 't',
        },
        'Q3?',
        r'\left( 3, \frac{\pi}{2} \right)',
    ),
    'dapo-math-17k': (
        {
            'data_source': 'math_dapo',
            'prompt': chat('Solve. Q4?'),
            'ability': 'MATH',
            'reward_model': {'ground_truth': '34', 'style': 'rule-lighteval/MATH_v2'},
            'extra_info': {'index': 'a'},
        },
        'Solve. Q4?',
        '34',
    ),
    'dapo-math-17k-processed': ({'prompt': 'Q5?', 'solution': '34'}, 'Q5?', '34'),
    'deepscaler': (
        {'problem': 'Q6?', 'answer': '-\\frac{2}{3}', 'solution': ''},
        'Q6?',
        '-\\frac{2}{3}',
    ),
    'open-rs': ({'problem': 'Q7?', 'solution': 's', 'answer': '7', 'level': 'Easy'}, 'Q7?', '7'),
    'numinamath': (
        {'source': 'amc', 'problem': 'Q8?', 'solution': r'\boxed{C}', 'messages': chat('Q8?')},
        'Q8?',
        'C',
    ),
    'simplelr-level3to5': (
        {'prompt': chat('Q9?'), 'reward_model': {'ground_truth': '2\\sqrt{2}', 'style': 'rule'}},
        'Q9?',
        '2\\sqrt{2}',
    ),
}


def write(folder, rows, form):
    path = folder / f'train.{form}'
    if form == 'jsonl':
        path.write_text('\n'.join(map(json.dumps, rows)) + '\n\n')
    elif form == 'json':
        path.write_text(json.dumps(rows))
    elif form == 'parquet':
        Dataset.from_list(rows).to_parquet(str(path))
    elif form == 'csv':
        pd.DataFrame(rows).to_csv(path, index=False)
    else:
        path = folder / 'saved'
        Dataset.from_list(rows).save_to_disk(str(path))
    return path


FORMS = ('jsonl', 'json', 'parquet', 'saved')


@pytest.mark.parametrize('name', DATASETS)
@pytest.mark.parametrize('form', FORMS)
def test_layouts(name, form, tmp_path):
    if name not in LAYOUTS:
        assert 'columns' in DATASETS[name].unsure
        return
    row, question, gold = LAYOUTS[name]
    rows = load_problems(name, path=write(tmp_path, [row], form))
    assert rows[:] == {'prompt': [chat(question)], 'answer': [gold]}
    texts = [f'\\boxed{{{gold}}}', '\\boxed{99}']
    prompts = rows['prompt'][:] * 2
    assert correct_mathematics(prompts, texts, answer=rows['answer'][:] * 2) == [1.0, 0.0]


@pytest.mark.parametrize('name', ['gsm8k', 'math', 'open-rs'])
def test_layouts_as_csv(name, tmp_path):
    row, question, gold = LAYOUTS[name]
    rows = load_problems(name, path=write(tmp_path, [row], 'csv'), chat=False)
    assert rows[:] == {'prompt': [question], 'answer': [gold]}


def test_every_source_says_where_it_is_from():
    for name, source in DATASETS.items():
        assert source.hub.count('/') == 1 and source.source and source.unsure, name
        assert bool(source.question) == bool(source.answer) == bool(source.reads), name


def test_the_full_scale_files_name_known_data_sets():
    "All but those that are no public sets of mathematical problems."
    words = {name: load_config(name).dataset for name in config_names()}
    nameless = {name for name, entry in words.items() if entry and not datasets_named(entry.value)}
    assert nameless == {
        'adactrl',
        'arena_rl',
        'bfs_prover',
        'dph_forward_kl',
        'duration_aware',
        'paired',
        'prorl',
        'rlcr',
        'rlp',
        'rlpt',
        'rstar',
        'rubric',
        'scope',
        'timehc',
        'tool_star',
    }


def test_a_file_of_one_s_own(tmp_path):
    path = write(tmp_path, [{'q': ' 1+1? ', 'a': 2}, {'q': '1/2?', 'a': 0.5}], 'jsonl')
    rows = load_problems(path=path, question='q', answer='a', system='Be brief.')
    assert rows['answer'][:] == ['2', '0.5']
    system = {'role': 'system', 'content': 'Be brief.'}
    assert rows[0]['prompt'] == [system, *chat('1+1?')]
    text = load_problems(path=str(path), question='q', answer='a', system='Be brief.', chat=False)
    assert text['prompt'][0] == 'Be brief.\n\n1+1?'
    assert len(load_problems(path=path, question='q', answer='a', limit=1)) == 1


def test_other_forms_of_json(tmp_path):
    path = tmp_path / 'x.json'
    for text in (
        '{"question": ["a", "b"], "answer": ["1", "2"]}',
        '{"question": "a", "answer": "1"}\n{"question": "b", "answer": "2"}',
        '\ufeff[{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]',
    ):
        path.write_text(text, encoding='utf-8')
        assert load_problems(path=path)['answer'][:] == ['1', '2']


def test_splits_of_folders(tmp_path):
    row = LAYOUTS['gsm8k'][0]
    other = {**row, 'answer': '#### 7'}
    DatasetDict(train=Dataset.from_list([row]), test=Dataset.from_list([other])).save_to_disk(
        str(tmp_path / 'saved')
    )
    files = tmp_path / 'files'
    files.mkdir()
    write(files, [row], 'jsonl')
    (files / 'test.json').write_text(json.dumps([other]))
    for place in (tmp_path / 'saved', files):
        assert load_problems('gsm8k', path=place)['answer'][:] == ['42']
        assert load_problems('gsm8k', path=place, split='test')['answer'][:] == ['7']
        with pytest.raises(ValueError, match='valid'):
            load_problems('gsm8k', path=place, split='valid')


def test_copies_count_once(tmp_path):
    path = write(tmp_path, [LAYOUTS['dapo-math-17k'][0]] * 5, 'parquet')
    assert len(load_problems('dapo-math-17k', path=path)) == 1
    path = write(tmp_path, [LAYOUTS['gsm8k'][0]] * 5, 'parquet')
    assert len(load_problems('gsm8k', path=path)) == 5


def test_answers_that_are_not_read(tmp_path):
    rows = [{'question': 'a', 'answer': '1'}, {'question': 'b', 'answer': r'\frac{'}]
    path = write(tmp_path, rows, 'jsonl')
    with pytest.raises(ValueError, match=r'row 1 .*frac'):
        load_problems('gsm8k', path=path)
    assert load_problems('gsm8k', path=path, unread='drop')['answer'][:] == ['1']
    assert load_problems('gsm8k', path=path, unread='keep')['answer'][:] == ['1', r'\frac{']
    with pytest.raises(ValueError, match='no rows with an answer'):
        load_problems('gsm8k', path=write(tmp_path, rows[1:], 'json'), unread='drop')


@pytest.mark.parametrize(
    'name, text, knobs, said',
    [
        ('x.jsonl', '', {}, 'no rows'),
        ('x.json', '[]', {}, 'no rows'),
        ('x.json', '[', {}, 'line 1'),
        ('x.json', '3', {}, 'wanted a list of objects'),
        ('x.json', '{"question": ["a"], "answer": []}', {}, 'equally long'),
        ('x.json', '[1]', {}, 'wanted a dict'),
        ('x.jsonl', '{"q": "a", "a": "1"}', {}, r"no field 'question'; it has q, a"),
        ('x.jsonl', '{"question": "a"}', {}, r"no field 'answer'; it has question"),
        ('x.jsonl', '{"question": "a", "answer": "1"}', {'answer': 'answer.x'}, 'no fields'),
        ('x.jsonl', '{"question": "", "answer": "1"}', {}, 'the question is'),
        ('x.jsonl', '{"question": null, "answer": "1"}', {}, 'the question is'),
        ('x.jsonl', '{"question": [], "answer": "1"}', {}, 'the question is'),
        ('x.jsonl', '{"question": "a", "answer": null}', {}, 'row 0'),
        ('x.csv', 'question,answer\n', {}, 'no rows'),
        ('x.csv', 'q,answer\na,1\n', {}, 'it has q, answer'),
        ('x.parquet', 'no parquet', {}, 'x.parquet'),
        ('x.txt', 'a', {}, r'ends in \.txt'),
        ('x', 'a', {}, 'ends in nothing'),
        ('x.jsonl', '{"question": "a", "answer": "1"}', {'limit': 0}, 'limit'),
        ('x.jsonl', '{"question": "a", "answer": "1"}', {'limit': True}, 'limit'),
        ('x.jsonl', '{"question": "a", "answer": "1"}', {'unread': 'no'}, 'unread'),
    ],
)
def test_faults_are_named(name, text, knobs, said, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        load_problems('gsm8k', path=tmp_path / name, **knobs)


def test_a_file_that_is_no_text(tmp_path):
    for form in ('jsonl', 'json', 'csv', 'parquet'):
        path = tmp_path / f'x.{form}'
        path.write_bytes(bytes(range(128, 256)))
        with pytest.raises(ValueError, match=f'x.{form}'):
            load_problems('gsm8k', path=path)


def test_names(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'gsm8k'"):
        load_problems('gsm-8k')
    with pytest.raises(ValueError, match='path='):
        load_problems()
    with pytest.raises(ValueError, match='columns of rlfr'):
        load_problems('rlfr')
    with pytest.raises(FileNotFoundError, match='no file or folder'):
        load_problems('gsm8k', path=tmp_path / 'missing.jsonl')
    with pytest.raises(ValueError, match='no file of data'):
        load_problems('gsm8k', path=tmp_path)


def test_without_network_it_ends_quickly_in_a_sentence(monkeypatch):
    def refuse(*args, **knobs):
        raise OSError('the network is cut off')

    monkeypatch.setattr(socket, 'getaddrinfo', refuse)
    monkeypatch.setattr(socket.socket, 'connect', refuse)
    begun = time.perf_counter()
    with pytest.raises(ValueError, match='openai/gsm8k cannot be loaded.*path='):
        load_problems('gsm8k')
    assert time.perf_counter() - begun < 20


def test_what_is_asked_of_the_hub(monkeypatch):
    import datasets, huggingface_hub

    asked = []
    rows = Dataset.from_list([LAYOUTS['simplelr-level3to5'][0]])

    def load(*place, **how):
        asked.append((place, how))
        return rows

    monkeypatch.setattr(huggingface_hub.HfApi, 'dataset_info', lambda *a, **k: None)
    monkeypatch.setattr(datasets, 'load_dataset', load)
    found = load_problems('simplelr-level3to5', split='test')
    assert found['answer'][:] == ['2\\sqrt{2}']
    file = {'test': 'simplelr_abel_level3to5/test.parquet'}
    assert asked == [(('hkust-nlp/SimpleRL-Zoo-Data', None), dict(data_files=file, split='test'))]


def test_without_the_library(monkeypatch, tmp_path):
    path = write(tmp_path, [LAYOUTS['gsm8k'][0]], 'jsonl')
    monkeypatch.setitem(__import__('sys').modules, 'datasets', None)
    with pytest.raises(ModuleNotFoundError, match='datasets'):
        load_problems('gsm8k', path=path)
    assert module.DATASETS is DATASETS


@pytest.mark.parametrize('answer', [['3', '4'], {'a': 1}, '3 or 4'])
def test_an_answer_that_is_several_is_refused(tmp_path, answer):
    path = tmp_path / 'own.jsonl'
    path.write_text(json.dumps(dict(question='which?', answer=answer)))
    with pytest.raises(ValueError, match='cannot be read as mathematics'):
        load_problems(path=path)
