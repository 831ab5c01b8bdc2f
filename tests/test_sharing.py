"""What goes to the hub: the files of the model and an honest card, and nothing of this machine."""

import re
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import pytest
import yaml

from conftest import noisy
from rl4llm import Evaluate, Policy, train
from rl4llm.core.registry import recipe
from rl4llm.training.records import Evaluation, load_run, weights_hash
from rl4llm.training.sharing import hub_card, pass_interval, push_to_hub, without_paths


class Hub:
    "Stands for huggingface_hub.HfApi; keeps what was uploaded."

    is_private = True
    fails = None

    def __init__(self, token=None):
        Hub.token = token
        Hub.calls = []

    def create_repo(self, repo, **how):
        if Hub.fails:
            raise Hub.fails
        Hub.calls.append(('create', repo, how))
        return f'https://huggingface.co/{repo}'

    def repo_info(self, repo):
        return SimpleNamespace(private=Hub.is_private)

    def upload_folder(self, *, folder_path, **how):
        files = {f.name: f.read_bytes() for f in Path(folder_path).iterdir()}
        Hub.calls.append(('upload', files, how))


@pytest.fixture
def hub(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, 'HfApi', Hub)
    monkeypatch.setattr(Hub, 'is_private', True)
    monkeypatch.setattr(Hub, 'fails', None)
    Hub.calls = []
    return Hub


def run_recipe():
    return recipe('dr_grpo', prompts=2, group=2, max_new_tokens=6, reward=noisy)


@pytest.fixture
def run(small_policy, easy, tmp_path):
    small = run_recipe()
    exam = Evaluate(easy.sample(4, seed=0, split='test'), samples=4)
    return train(
        small_policy, easy, small, steps=2, seed=3, callbacks=[exam], path=tmp_path / 'run'
    )


def header(card):
    assert card.startswith('---\n')
    return yaml.safe_load(card.split('---\n')[1])


def test_the_card_says_what_the_run_knows(run):
    card = hub_card(run, 'me/model', license_name='mit', limits='Tried once.')
    fields = header(card)
    assert fields['license'] == 'mit' and fields['library_name'] == 'transformers'
    assert 'dr_grpo' in fields['tags'] and 'base_model' not in fields
    for row in ('| steps | 2 |', '| seed | 3 |', '| group | 2 |', '| varies | grpo |'):
        assert row in card, row
    assert run.config['versions']['torch'] in card and run.config['weights'] in card
    for evaluation in (run.base, run.final):
        mean, low, high = pass_interval(evaluation, 4)
        assert f'{mean:.3f} [{low:.3f}, {high:.3f}]' in card
    assert "Policy.load('me/model')" in card and '- Tried once.' in card
    assert card.count('\n## ') == 5


def test_a_policy_alone_has_a_card_that_claims_nothing(small_policy):
    card = hub_card(small_policy)
    assert 'nothing is recorded' in card and 'not evaluated' in card
    assert 'license' not in header(card) and '## Recipe' not in card


def test_a_model_that_was_trained_on_since_has_no_card_of_the_run(run, easy, hub, tmp_path):
    assert run.config['weights_at_end'] == weights_hash(run.policy.model)
    assert load_run(run.path).config['weights_at_end'] == run.config['weights_at_end']
    later = train(run.policy, easy, run_recipe(), steps=1, seed=4)
    assert later.policy is run.policy
    for make in (hub_card, push_to_hub):
        with pytest.raises(ValueError, match='was changed after the run') as error:
            make(run, 'me/model')
        assert run.config['weights_at_end'] in str(error.value) and not hub.calls
    assert '| steps | 1 |' in hub_card(later) and 'not evaluated' in hub_card(run.policy)


def test_a_run_that_goes_on_has_the_weights_of_its_new_end(run, easy, tiny_folder):
    before = run.config['weights_at_end']
    on = train(Policy.load(tiny_folder), easy, run_recipe(), steps=3, seed=3, path=run.path)
    assert on.config['weights_at_end'] == weights_hash(on.policy.model) != before
    assert '| steps | 3 |' in hub_card(on)


def test_while_a_run_goes_on_its_card_compares_nothing(small_policy, easy):
    class Card:
        def on_step(self, state, row):
            state.run.policy = state.policy
            seen.append(hub_card(state.run))

    seen = []
    train(small_policy, easy, run_recipe(), steps=2, seed=3, callbacks=[Card()])
    assert len(seen) == 2


def test_a_base_of_the_hub_is_named_in_the_header(small_policy):
    small_policy.model.config._name_or_path = 'Qwen/Qwen2.5-0.5B'
    assert header(hub_card(small_policy))['base_model'] == 'Qwen/Qwen2.5-0.5B'
    for local in ('/home/me/model', './model', 'model', 'runs/models/x', '..', ''):
        small_policy.model.config._name_or_path = local
        assert 'base_model' not in header(hub_card(small_policy)), local


def test_a_broken_off_run_says_how_far_it_came(run):
    run.config.update(steps=9, status='interrupted')
    assert '| steps | 2 of 9 (interrupted) |' in hub_card(run)


def test_no_path_and_no_markup_gets_into_the_card(run, tmp_path):
    run.config['task_settings'] = f"Data('{tmp_path}/rows.jsonl' | <b>x</b>\n# no title)"
    run.config['model'] = '/home/ann/models/base'
    run.config['recipe']['reward'] = dict(stage='mine', knobs=dict(file='/srv/keys/a.json'))
    card = hub_card(run, 'me/model')
    for secret in (str(tmp_path), '/home/ann', '/srv', '<b>'):
        assert secret not in card, secret
    assert 'rows.jsonl' in card and 'a.json' in card and '\n# no title' not in card
    for line in card.splitlines():
        if line.startswith('| task'):
            assert len(re.findall(r'(?<!\\)\|', line)) == 3


def test_paths_are_told_from_other_slashes():
    same = 'https://a.b/c/d, 3/4, and/or, Qwen/Qwen2, a / b, 1 // 2'
    assert without_paths(same) == same
    assert without_paths('/a/b/c.txt ~/x/y "/data/z"') == 'c.txt y "z"'
    assert without_paths(r'C:\Users\ann\x.txt') == 'x.txt'


@pytest.mark.parametrize(
    'prose',
    [
        '/usr/bin is a folder, and /etc/hosts a file',
        'it reads /dev/null, /usr/share/dict/words and /proc/cpuinfo',
        '(he)/she/they, $a$/b/c, x²/y/z',
        'right and/or wrong, 1 /2/ 3, a/b/c, ./a/b, ../a/b',
        'http://a.b/c/d, hf://datasets/x/y, see <a/b/c>',
        'the last step / the next / the end',
    ],
)
def test_prose_with_slashes_stays(prose):
    assert without_paths(prose) == prose


@pytest.mark.parametrize(
    'text, wanted',
    [
        ('model:/home/ann/base', 'model:base'),
        ('file:///home/ann/base.txt', 'file:base.txt'),
        ('/home/ann/runs/ is gone', 'runs/ is gone'),
        ('(/srv/ann/x.json)', '(x.json)'),
        ('path=/mnt/ann/x', 'path=x'),
        ('/usr/home/ann/x and /share/ann/y', 'x and y'),
        ('/binaries/ann/x, /etc.old/ann/y', 'x, y'),
        ("['/data/ann/a', '/data/ann/b']", "['a', 'b']"),
    ],
)
def test_paths_of_a_machine_do_not(text, wanted):
    assert without_paths(text) == wanted


def test_the_interval_is_that_of_a_t_test():
    from scipy import stats

    counts = np.array([3, 9, 5, 7, 4])
    given = dict(keys=tuple('abcde'), num_samples=np.full(5, 16), num_correct=counts)
    evaluation = Evaluation(step=0, task='t', **given)
    wanted = stats.ttest_1samp(counts / 16, 0).confidence_interval(0.95)
    assert np.allclose(pass_interval(evaluation, 1), [counts.mean() / 16, *wanted])
    one = Evaluation(
        step=0, task='t', keys=('a',), num_samples=np.array([4]), num_correct=np.array([2])
    )
    assert pass_interval(one, 1) == pytest.approx((0.5, 0.0, 1.0))


@pytest.mark.parametrize(
    'right, low, high',
    [(16, 0.025 ** (1 / 12), 1.0), (0, 0.0, 1 - 0.025 ** (1 / 12)), (8, 0.368, 0.632)],
)
def test_problems_of_one_score_have_an_interval_too(right, low, high):
    "Where all of 12 are solved the bound is the exact one of Clopper and Pearson, 0.735."
    from scipy import stats

    given = dict(num_samples=np.full(12, 16), num_correct=np.full(12, right))
    evaluation = Evaluation(step=0, task='t', keys=tuple('abcdefghijkl'), **given)
    assert np.allclose(pass_interval(evaluation, 1), [right / 16, low, high], atol=5e-4)
    if right in (0, 16):
        exact = stats.binomtest(12 * right // 16, 12).proportion_ci(0.95)
        assert np.allclose(pass_interval(evaluation, 1)[1:], exact)


def test_what_is_uploaded_loads_again_and_holds_no_pickle(run, hub, tmp_path):
    address = push_to_hub(run, 'me/model', token='secret', license_name='mit')
    assert address == 'https://huggingface.co/me/model' and hub.token == 'secret'
    (_, repo, how), (_, files, upload) = hub.calls
    assert repo == 'me/model' and how == dict(private=True, exist_ok=True)
    assert set(files) >= {'README.md', 'model.safetensors', 'config.json', 'tokenizer.json'}
    ends = {Path(name).suffix for name in files}
    assert ends <= {'.md', '.safetensors', '.json', '.jinja', '.txt', '.model'}
    assert not any('bin' in p or 'pt' in p or p == '*' for p in upload['allow_patterns'])
    for name, data in files.items():
        if not name.endswith('.safetensors'):
            assert str(tmp_path) not in data.decode() and 'secret' not in data.decode(), name
    folder = tmp_path / 'again'
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    weights = Policy.load(folder).model.state_dict()
    for name, value in run.policy.model.state_dict().items():
        assert (weights[name] == value).all()


def test_a_card_of_your_own_is_taken_as_it_is(small_policy, hub):
    push_to_hub(small_policy, 'me/model', card='# Mine', private=False)
    assert hub.calls[1][1]['README.md'] == b'# Mine' and hub.calls[0][2]['private'] is False


def test_nothing_goes_into_a_public_repository_by_accident(small_policy, hub, monkeypatch):
    monkeypatch.setattr(Hub, 'is_private', False)
    with pytest.raises(ValueError, match='is public'):
        push_to_hub(small_policy, 'me/model')
    assert [call[0] for call in hub.calls] == ['create']
    push_to_hub(small_policy, 'me/model', private=False)


def test_a_pickle_is_refused(small_policy, hub, monkeypatch):
    def save(folder):
        (Path(folder) / 'pytorch_model.bin').write_bytes(b'x')

    monkeypatch.setattr(small_policy, 'save', save)
    with pytest.raises(ValueError, match='pytorch_model.bin'):
        push_to_hub(small_policy, 'me/model')
    assert not hub.calls


def failures():
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    def answered(status):
        error = HfHubHTTPError.__new__(HfHubHTTPError)
        Exception.__init__(error, f'{status} from\nthe server')
        error.response = SimpleNamespace(status_code=status)
        return error

    return [
        (LocalTokenNotFoundError('no token'), PermissionError, 'log in'),
        (answered(401), PermissionError, 'log in'),
        (answered(403), PermissionError, 'log in'),
        (answered(500), ConnectionError, 'refused'),
        (OfflineModeIsEnabled('offline'), ConnectionError, 'cannot be reached'),
        (ConnectionError('no route'), ConnectionError, 'cannot be reached'),
    ]


@pytest.mark.parametrize('given, kind, part', failures())
def test_no_network_or_token_is_one_sentence(small_policy, hub, monkeypatch, given, kind, part):
    monkeypatch.setattr(Hub, 'fails', given)
    with pytest.raises(kind, match=part) as error:
        push_to_hub(small_policy, 'me/model')
    assert '\n' not in str(error.value) and 'me/model' in str(error.value)


def test_without_a_network_the_real_interface_is_one_sentence(small_policy, monkeypatch):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    with pytest.raises((ConnectionError, PermissionError)) as error:
        push_to_hub(small_policy, 'me/model', token='hf_wrong')
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('repo', ['a/b/c', '', 'me/mo del', None, 7, 'me/x..y', '/tmp/x'])
def test_a_name_that_cannot_be_is_answered_before_anything_is_saved(small_policy, hub, repo):
    with pytest.raises(ValueError, match='wanted a name on the hub') as error:
        push_to_hub(small_policy, repo)
    assert '\n' not in str(error.value) and not hub.calls


def test_what_is_no_model_is_answered(run, hub):
    with pytest.raises(TypeError):
        push_to_hub(3, 'me/model')
    with pytest.raises(ValueError, match='no model in memory'):
        push_to_hub(load_run(run.path), 'me/model')
    with pytest.raises(ValueError, match='one or the other'):
        push_to_hub(run, 'me/model', card='x', license_name='mit')
    assert not hub.calls
