"""A tracked run: each step once, nothing sent by default, and no tracker that ends a training."""

import json, sys, types, warnings
import pytest

from rl4llm import Checkpoint, Evaluate, train
from rl4llm.core.registry import recipe
from rl4llm.training.tracking import Track, flat_numbers, text_table


class Notes:
    "A tracker that remembers every call."

    def __init__(self, place=''):
        self.place = place
        self.calls = []

    def open(self, name, key, config, begins):
        self.calls.append(('open', name, key, config, begins))

    def numbers(self, step, values):
        self.calls.append(('numbers', step, values))

    def texts(self, step, rows):
        self.calls.append(('texts', step, rows))

    def close(self):
        self.calls.append(('close',))

    def of(self, method):
        return [call[1:] for call in self.calls if call[0] == method]

    @property
    def steps(self):
        return [step for step, _ in self.of('numbers')]


class BreakOff:
    "Ends a run after some steps, as a power cut would."

    def __init__(self, *steps):
        self.left = list(steps)

    def on_step(self, state, row):
        if state.step in self.left:
            self.left.remove(state.step)
            raise KeyboardInterrupt


SMALL = recipe('grpo', prompts=2, group=2, max_new_tokens=6)


def run(policy, task, *callbacks, steps=3, **how):
    return train(policy.clone(), task, SMALL, steps=steps, seed=0, callbacks=callbacks, **how)


def exam(task, **how):
    return Evaluate(task.sample(2, seed=0, split='test'), samples=4, **how)


def test_every_metric_of_every_step_is_logged(small_policy, easy):
    notes = Notes()
    done = run(small_policy, easy, Track(notes))
    assert notes.steps == [0, 1, 2]
    for (_, values), row in zip(notes.of('numbers'), done.rows):
        numbers = {f'train/{k}': v for k, v in row.items() if isinstance(v, (int, float, bool))}
        numbers.pop('train/step')
        known = {k: float(v) for k, v in numbers.items() if v == v}
        assert values == known and 'train/reward' in values
    assert len(notes.of('open')) == len(notes.of('close')) == 1


@pytest.mark.parametrize('place', ['before', 'behind'])
def test_evaluations_are_logged_at_their_step_wherever_the_tracker_stands(
    small_policy, easy, place
):
    notes = Notes()
    both = [Track(notes), exam(easy, every=1)]
    done = run(small_policy, easy, *(both if place == 'before' else both[::-1]))
    found = {}
    for step, values in notes.of('numbers'):
        if 'eval/pass_at_4' in values:
            assert step not in found
            found[step] = values['eval/pass_at_4']
    assert found == {step: e.pass_at_k()[4] for step, e in done.evaluations.items()}
    assert set(found) == {0, 1, 2, 3} and notes.steps == sorted(notes.steps)
    rows = [step for step, values in notes.of('numbers') if 'train/reward' in values]
    assert rows == [0, 1, 2]


def test_configuration_is_told_and_what_changes_is_not(small_policy, easy, tmp_path):
    notes = Notes()
    done = run(small_policy, easy, Track(notes), path=tmp_path / 'run')
    [(name, key, config, begins)] = notes.of('open')
    assert config['recipe'] == done.config['recipe'] and config['seed'] == 0 and begins
    assert not {'status', 'seconds', 'started'} & config.keys()
    assert str(tmp_path) not in json.dumps(config)
    assert name == 'grpo-countdown-seed0' and len(key) == 8


def test_some_responses_are_shown_now_and_then(small_policy, easy):
    notes = Notes()
    run(small_policy, easy, Track(notes, texts=5, every=2), steps=4)
    assert [step for step, _ in notes.of('texts')] == [0, 2]
    for _, rows in notes.of('texts'):
        assert len(rows) == 2 and {'prompt', 'response', 'reward'} == rows[0].keys()
        assert len({row['prompt'] for row in rows}) == 2
    none = Notes()
    run(small_policy, easy, Track(none, texts=0))
    assert not none.of('texts')


def test_a_continued_run_stays_one_run_without_doubled_steps(small_policy, easy, tmp_path):
    notes = Notes()
    parts = [Track(notes, every=1), exam(easy, every=2), Checkpoint(every=2), BreakOff(3, 5)]
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(small_policy, easy, *parts, steps=7, path=tmp_path / 'run')
    done = run(small_policy, easy, *parts, steps=7, path=tmp_path / 'run')
    rows = [step for step, values in notes.of('numbers') if 'train/reward' in values]
    seen = [step for step, values in notes.of('numbers') if 'eval/length' in values]
    assert rows == list(range(7)) and seen == [0, 2, 4, 6, 7]
    texts = [step for step, _ in notes.of('texts')]
    assert len(texts) == len(set(texts))
    assert {key for _, key, _, _ in notes.of('open')} == {notes.of('open')[0][1]}
    assert [begins for *_, begins in notes.of('open')] == [True, False, False]
    logged = {s: v['train/reward'] for s, v in notes.of('numbers') if 'train/reward' in v}
    assert list(logged.values()) == done.metrics.reward.tolist()


def test_a_tracker_that_comes_later_hears_of_the_steps_before(small_policy, easy, tmp_path):
    run(small_policy, easy, exam(easy), steps=2, path=tmp_path / 'run')
    notes = Notes()
    run(small_policy, easy, exam(easy), Track(notes), steps=4, path=tmp_path / 'run')
    assert [s for s, v in notes.of('numbers') if 'train/reward' in v] == [0, 1, 2, 3]
    assert [s for s, v in notes.of('numbers') if 'eval/length' in v] == [0, 2, 4]


def test_nothing_left_to_train_still_brings_the_tracker_up_to_date(small_policy, easy, tmp_path):
    run(small_policy, easy, steps=2, path=tmp_path / 'run')
    notes = Notes()
    with pytest.warns(UserWarning, match='nothing is trained'):
        run(small_policy, easy, Track(notes), steps=2, path=tmp_path / 'run')
    assert notes.steps == [0, 1]


def test_two_trackers_and_two_runs_do_not_mix(small_policy, easy, tmp_path):
    one = Notes('one')
    two = Notes('two')
    both = [Track(one), Track(two)]
    run(small_policy, easy, *both, path=tmp_path / 'a')
    run(small_policy, easy, *both, path=tmp_path / 'b')
    for notes in (one, two):
        assert notes.steps == [0, 1, 2, 0, 1, 2]
        assert len({key for _, key, _, _ in notes.of('open')}) == 2
    assert one.of('open')[0][1] != two.of('open')[0][1]


@pytest.mark.parametrize('method', ['open', 'numbers', 'texts', 'close'])
def test_no_failure_of_a_tracker_reaches_the_training(small_policy, easy, method):
    notes = Notes()

    def fails(*args):
        raise RuntimeError('the server\nis down')

    setattr(notes, method, fails)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('always')
        tracked = run(small_policy, easy, Track(notes), exam(easy))
    alone = run(small_policy, easy)
    assert tracked.metrics.loss.tolist() == alone.metrics.loss.tolist()
    said = [str(w.message) for w in told if 'tracking' in str(w.message)]
    assert len(said) == (0 if method == 'close' else 1) and '\n' not in ''.join(said)


def test_what_failed_is_made_up_for_when_the_run_is_continued(small_policy, easy, tmp_path):
    class Flaky(Notes):
        def numbers(self, step, values):
            if step == self.bad:
                raise ConnectionError
            super().numbers(step, values)

    notes = Flaky()
    notes.bad = 1
    with pytest.warns(UserWarning, match='ConnectionError'):
        run(small_policy, easy, Track(notes), path=tmp_path / 'run')
    notes.bad = None
    run(small_policy, easy, Track(notes), steps=4, path=tmp_path / 'run')
    assert notes.steps == [0, 1, 2, 3]


def test_a_damaged_note_is_named_and_the_training_goes_on(small_policy, easy, tmp_path):
    run(small_policy, easy, Track(Notes()), path=tmp_path / 'run')
    [note] = (tmp_path / 'run' / 'tracked').iterdir()
    for damage in ('{"run": ', '[]', '{}'):
        note.write_text(damage)
        with pytest.warns(UserWarning) as told:
            done = run(small_policy, easy, Track(Notes()), steps=4, path=tmp_path / 'run')
        said = [str(w.message) for w in told if 'tracking' in str(w.message)]
        assert len(said) == 1 and note.name in said[0] and 'damaged' in said[0]
    assert len(done.rows) == 4


@pytest.mark.parametrize(
    'make, part',
    [
        (lambda: Track('tensorbord'), "did you mean 'tensorboard'"),
        (lambda: Track(3), 'object with the methods'),
        (lambda: Track(Notes), 'object with the methods'),
        (lambda: Track(Notes(), project='x'), 'made already'),
        (lambda: Track(Notes(), texts=-1), 'texts is -1'),
        (lambda: Track(Notes(), every=0), 'every is 0'),
        (lambda: Track(Notes(), name=' '), 'name is'),
        (lambda: Track(Notes(), name=7), 'name is 7'),
    ],
)
def test_wrong_arguments_are_answered_at_once(make, part):
    with pytest.raises(ValueError, match=part) as error:
        make()
    assert '\n' not in str(error.value)


def test_a_name_cannot_leave_the_folder(small_policy, easy):
    notes = Notes()
    run(small_policy, easy, Track(notes, name='../../etc/x y'), steps=1)
    name = notes.of('open')[0][0]
    assert '/' not in name and ' ' not in name


def test_numbers_are_flat_and_finite():
    row = dict(a=1, b=True, c=None, d='x', e=float('inf'), f=dict(g=2, h=dict(i=3)), j=[1])
    assert flat_numbers(row, 't') == {'t/a': 1.0, 't/b': 1.0, 't/f/g': 2.0, 't/f/h/i': 3.0}
    assert flat_numbers({}, 't') == {}


def test_no_text_breaks_the_table():
    rows = [dict(prompt='a|b\nc', response='<script>`x`', reward=1.0)]
    lines = text_table(rows).split('\n')
    assert len(lines) == 3 and all(line.count('|') == 4 for line in lines)
    assert '<script>' not in lines[2] and '`' not in lines[2]
    assert text_table([]) == ''


# -- the libraries: stand-ins record the calls


class Library(types.ModuleType):
    "Stands for wandb and trackio."

    def __init__(self, name):
        super().__init__(name)
        self.calls = []

    def init(self, **how):
        self.calls.append(('init', how))
        return self

    def log(self, values, step=None):
        self.calls.append(('log', values, step))

    def finish(self):
        self.calls.append(('finish',))

    def Table(self, **how):
        return ('table', how)


@pytest.fixture(params=['wandb', 'trackio'])
def library(request, monkeypatch):
    module = Library(request.param)
    monkeypatch.setitem(sys.modules, request.param, module)
    return module


def test_calls_of_the_libraries(small_policy, easy, tmp_path, library):
    name = library.__name__
    track = Track(name, project='tries', tags=['x'])
    for steps in (2, 3):
        run(small_policy, easy, track, exam(easy), steps=steps, path=tmp_path / 'run')
    first, second = [call[1] for call in library.calls if call[0] == 'init']
    assert first['project'] == 'tries' and first['resume'] == 'allow' and first['tags'] == ['x']
    assert first['config']['recipe']['name'] == 'grpo'
    same = 'id' if name == 'wandb' else 'name'
    assert first[same] == second[same]
    logged = [call[2] for call in library.calls if call[0] == 'log' and 'train/reward' in call[1]]
    assert logged == [0, 1, 2]
    tables = [call for call in library.calls if call[0] == 'log' and 'samples' in call[1]]
    assert len(tables) == 1 and tables[0][2] == 0
    assert sum(call[0] == 'finish' for call in library.calls) == 2


def test_nothing_is_sent_unless_it_is_asked_for(small_policy, easy, library):
    run(small_policy, easy, Track(library.__name__), steps=1)
    how = library.calls[0][1]
    assert how.get('mode') == ('offline' if library.__name__ == 'wandb' else None)
    assert 'space_id' not in how
    if library.__name__ == 'wandb':
        Track('wandb', mode='online').tracker.open('a', 'b', {}, True)
        assert library.calls[-1][1]['mode'] == 'online'


# -- TensorBoard: a stand-in for its writer, and the real one where it is installed


class Writer:
    made = []

    def __init__(self, folder):
        self.folder = str(folder)
        self.calls = []
        Writer.made.append(self)

    def add_scalar(self, name, value, step):
        self.calls.append((name, value, step))

    def add_text(self, name, text, step):
        self.calls.append((name, text, step))

    def flush(self):
        self.calls.append(('flush', None, None))

    def close(self):
        self.calls.append(('close', None, None))


def test_the_folder_of_a_continued_run_is_the_same(small_policy, easy, tmp_path, monkeypatch):
    writers = types.ModuleType('torch.utils.tensorboard')
    writers.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, 'tensorboard', types.ModuleType('tensorboard'))
    monkeypatch.setitem(sys.modules, 'torch.utils.tensorboard', writers)
    monkeypatch.setattr(Writer, 'made', [])
    with pytest.raises(ValueError, match='project'):
        Track('tensorboard', project='x')
    for steps in (2, 3):
        track = Track('tensorboard', folder=tmp_path / 'logs')
        run(small_policy, easy, track, steps=steps, path=tmp_path / 'run')
    first, second = Writer.made
    assert first.folder == second.folder and first.folder.startswith(str(tmp_path / 'logs'))
    steps = [call[2] for w in Writer.made for call in w.calls if call[0] == 'train/reward']
    assert steps == [0, 1, 2]
    told = [call for w in Writer.made for call in w.calls if call[0] == 'configuration']
    assert len(told) == 1 and '"grpo"' in told[0][1]
    assert first.calls[-1][0] == second.calls[-1][0] == 'close'


def test_what_the_real_tensorboard_reads(small_policy, easy, tmp_path):
    accumulators = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator')
    parts = [exam(easy), Checkpoint(every=2), BreakOff(3)]
    track = Track('tensorboard', folder=tmp_path / 'logs', every=2)
    with pytest.raises(KeyboardInterrupt):
        run(small_policy, easy, track, *parts, steps=5, path=tmp_path / 'run')
    again = Track('tensorboard', folder=tmp_path / 'logs', every=2)
    done = run(small_policy, easy, again, *parts, steps=5, path=tmp_path / 'run')
    [folder] = (tmp_path / 'logs').iterdir()
    found = accumulators.EventAccumulator(str(folder))
    found.Reload()
    rewards = found.Scalars('train/reward')
    assert [event.step for event in rewards] == [0, 1, 2, 3, 4]
    assert [event.value for event in rewards] == pytest.approx(done.metrics.reward.tolist())
    assert [event.step for event in found.Scalars('eval/pass_at_1')] == [0, 5]
    texts = found.Tags()['tensors']
    assert {'samples/text_summary', 'configuration/text_summary'} <= set(texts)
    assert [e.step for e in found.Tensors('samples/text_summary')] == [0, 2, 4]
    assert len(found.Tensors('configuration/text_summary')) == 1
