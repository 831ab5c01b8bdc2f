"""Judges: what is asked once, what is read from a reply, and what becomes of no answer."""

import json, threading, time, warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
import pytest, torch
from rl4llm.core.policy import Policy
from rl4llm.rewards import judges as J
from rl4llm.rewards.judges import (
    JudgeError,
    Question,
    add_answer,
    ask,
    model_judge,
    noisy_judge,
    programmed_judge,
    read_answers,
    read_degree,
    with_fallback,
)

GONE = 'http://127.0.0.1:9/v1'


def of(text, criterion='c', prompt='p'):
    return Question(prompt, text, criterion)


def by_text(questions):
    return [float(q.text) for q in questions]


# -- ask


def test_equal_questions_are_put_once_and_answers_keep_their_places():
    seen = []

    def judge(questions):
        seen.extend(questions)
        return by_text(questions)

    assert ask(judge, [of('1'), of('0.5'), of('1'), of('0')]) == [1, 0.5, 1, 0]
    assert seen == [of('1'), of('0.5'), of('0')]
    assert ask(judge, []) == [] and len(seen) == 3


@pytest.mark.parametrize(
    'answer',
    [
        None,
        0.5,
        'yes',
        [0.5],
        [0.5, 0.5, 0.5],
        [0.5, 2],
        [0.5, -0.1],
        [0.5, float('nan')],
        [0.5, 'x'],
    ],
)
def test_what_is_no_degree_is_refused_in_a_sentence(answer):
    with pytest.raises(JudgeError, match='from 0 to 1'):
        ask(lambda questions: answer, [of('a'), of('b')])


def test_whatever_a_judge_raises_is_a_judge_error_that_keeps_its_cause():
    def judge(questions):
        raise KeyError('x')

    with pytest.raises(JudgeError, match='with_fallback') as caught:
        ask(judge, [of('a')])
    assert isinstance(caught.value.__cause__, KeyError)


def test_numbers_of_numpy_and_torch_are_degrees():
    assert ask(lambda qs: torch.tensor([0.5, 1.0]), [of('a'), of('b')]) == [0.5, 1.0]
    assert ask(lambda qs: [True, torch.tensor(0)], [of('a'), of('b')]) == [1.0, 0.0]


# -- programs, error and fallback


def test_noise_is_keyed_by_the_words_and_the_seed():
    questions = [of(f'a {i}') for i in range(300)]
    truth = programmed_judge(lambda q: True)
    one, same, other = (ask(noisy_judge(truth, 0.3, seed=s), questions) for s in (0, 0, 1))
    assert one == same != other and 0.2 < one.count(0) / 300 < 0.4
    assert ask(noisy_judge(truth, 1), questions) == [0.0] * 300
    backwards = ask(noisy_judge(truth, 0.3), questions[::-1])
    assert backwards == one[::-1]
    spaced = [q._replace(text=q.text.replace(' ', '\n ')) for q in questions]
    assert ask(noisy_judge(truth, 0.3), spaced) == one
    with pytest.raises(ValueError, match='probability'):
        noisy_judge(truth, 1.5)


def test_noise_turns_degrees_round():
    assert ask(noisy_judge(by_text, 1), [of('0.25')]) == [0.75]


@pytest.mark.parametrize('degree', [2, -1, float('nan'), 'half', None])
def test_a_fallback_is_a_degree(degree):
    with pytest.raises(ValueError, match='fallback'):
        with_fallback(by_text, degree)


def test_a_fallback_counts_for_what_is_missing_alone_and_says_so():
    def judge(questions):
        raise JudgeError('half of it.', [1.0, None])

    careful = with_fallback(judge, 0.4)
    with pytest.warns(UserWarning, match='half of it. For 1 of 2 questions the declared 0.4'):
        assert ask(careful, [of('a'), of('b')]) == [1.0, 0.4]
    assert (careful.asked, careful.fell_back) == (2, 1)
    plain = with_fallback(by_text, 0.4)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert ask(plain, [of('1')]) == [1] and plain.fell_back == 0


def test_partial_answers_are_spread_over_equal_questions():
    def judge(questions):
        raise JudgeError('no.', [None, 0.5])

    with pytest.raises(JudgeError) as caught:
        ask(judge, [of('a'), of('b'), of('a'), of('b')])
    assert caught.value.degrees == [None, 0.5, None, 0.5]


# -- a model in memory


def random_policy():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tiny = Policy.load('tiny')
    size = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    config = LlamaConfig(vocab_size=len(tiny.tokenizer), max_position_embeddings=64, **size)
    return SimpleNamespace(model=LlamaForCausalLM(config).eval(), tokenizer=tiny.tokenizer)


TEMPLATE = '{prompt} {text} {criterion} ?'


def test_a_model_is_asked_for_two_words_whatever_else_is_in_the_batch():
    policy = random_policy()
    questions = [of('cat ' * n + 'runs', 'good') for n in range(1, 12)]
    degrees = ask(model_judge(policy, template=TEMPLATE, batch=4), questions)
    alone = [ask(model_judge(policy, template=TEMPLATE), [q])[0] for q in questions]
    assert degrees == pytest.approx(alone, abs=1e-5) and len(set(degrees)) == 11
    turned = model_judge(policy, template=TEMPLATE, yes=('no',), no=('yes',))
    assert [1 - d for d in ask(turned, questions)] == pytest.approx(degrees, abs=1e-5)
    ids = policy.tokenizer('p cat runs good ?', return_tensors='pt')['input_ids']
    p = policy.model(ids).logits[0, -1].softmax(0)
    yes, no = (p[policy.tokenizer.convert_tokens_to_ids(word)].item() for word in ('yes', 'no'))
    assert degrees[0] == pytest.approx(yes / (yes + no), abs=1e-5)


def test_a_model_refuses_words_it_lacks_and_questions_too_long():
    policy = random_policy()
    for words in (dict(yes=('absolutely',)), dict(yes=('yes', 'no'))):
        with pytest.raises(ValueError, match='single tokens'):
            model_judge(policy, **words)
    with pytest.raises(ValueError, match='batch'):
        model_judge(policy, batch=0)
    with pytest.raises(JudgeError, match='room for 64 tokens'):
        ask(model_judge(policy, template=TEMPLATE), [of('cat ' * 100)])


def test_a_batch_of_one_and_a_template_that_opens_the_answer():
    policy = random_policy()
    alone = model_judge(policy, template='{text} ? {text}', batch=1)
    assert len(ask(alone, [of('cat'), of('dog runs')])) == 2
    opened = "{{ messages[0]['content'] }}{% if add_generation_prompt %} cat{% endif %}"
    policy.tokenizer.chat_template = opened
    chat = ask(model_judge(policy, template='{text} ?'), [of('dog')])
    plain = random_policy()
    ids = plain.tokenizer('dog ? cat', add_special_tokens=False)['input_ids']
    p = plain.model(torch.tensor([ids])).logits[0, -1]
    yes, no = plain.tokenizer.convert_tokens_to_ids(['yes', 'no'])
    assert chat == pytest.approx([(p[yes] - p[no]).sigmoid().item()], abs=1e-5)


def test_a_chat_template_is_used():
    policy = random_policy()
    import copy

    policy.tokenizer = copy.deepcopy(policy.tokenizer)
    policy.tokenizer.chat_template = "<user> {{ messages[0]['content'] }} <assistant>"
    chat = ask(model_judge(policy, template=TEMPLATE), [of('cat')])
    plain = random_policy()
    ids = plain.tokenizer('<user> p cat c ? <assistant>', add_special_tokens=False)['input_ids']
    p = plain.model(torch.tensor([ids])).logits[0, -1]
    yes, no = plain.tokenizer.convert_tokens_to_ids(['yes', 'no'])
    assert chat == pytest.approx([(p[yes] - p[no]).sigmoid().item()], abs=1e-5)


# -- reading and keeping


@pytest.mark.parametrize(
    'said, scale, degree',
    [
        ('yes', None, 1),
        ('It is so.\n\n YES. \n', None, 1),
        ('no', None, 0),
        ('no\nyes', None, 1),
        ('yes, it does', None, None),
        ('yes\nI am sure', None, None),
        ('**yes**', None, None),
        ('1', None, None),
        ('', None, None),
        ('5', 10, 0.5),
        ('so\n10.', 10, 1),
        ('11', 10, None),
        ('-1', 10, None),
        ('5/10', 10, None),
        ('0.5', 10, None),
        ('\u0665', 10, None),
        ('\u00b2', 10, None),
        ('9' * 5000, 10, None),
        ('yes', 10, None),
    ],
)
def test_replies_are_read_strictly(said, scale, degree):
    assert read_degree(said, scale) == degree


def test_a_file_of_answers_survives_every_cut(tmp_path):
    whole = tmp_path / 'whole'
    add_answer(whole, 'a', 1.0, 'yes\n\u00fc')
    first = whole.stat().st_size
    add_answer(whole, 'b', 0.5, '5')
    data = whole.read_bytes()
    for cut in range(len(data) + 1):
        torn = tmp_path / 'torn'
        torn.write_bytes(data[:cut])
        known = read_answers(torn)
        # a line is whole without its line break
        assert known == ({'a': 1.0} if cut >= first - 1 else {}) | (
            {'b': 0.5} if cut >= len(data) - 1 else {}
        )
        add_answer(torn, 'c', 0.0, 'no')
        assert read_answers(torn) == known | {'c': 0.0}


def test_damaged_lines_are_left_out_and_the_first_answer_stays(tmp_path):
    file = tmp_path / 'answers'
    lines = ['[]', '1', 'null', '{"key": "x"}', '{"key": "x", "degree": 1.5}', '\x00']
    lines += ['{"key": "x", "degree": "1"}', '{"key": "x", "degree": NaN}', '{"degree": 1}']
    lines += ['{"key": "y", "degree": 1.0}', '{"key": "y", "degree": 0.0}']
    file.write_text('\n'.join(lines))
    assert read_answers(file) == {'y': 1.0}
    file.write_bytes(b'\xff\xfe\n{"key": "z", "degree": 0.5}\n')
    assert read_answers(file) == {'z': 0.5}


def test_many_writers_at_once_spoil_no_line(tmp_path):
    file = tmp_path / 'deep' / 'deeper' / 'answers'

    def write(name):
        for i in range(50):
            add_answer(file, f'{name}-{i}', 0.5, 'x' * 200)

    threads = [threading.Thread(target=write, args=(name,)) for name in 'abcd']
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_answers(file)) == 200


def test_a_key_knows_all_that_decides_an_answer():
    request = dict(model='m', messages=[dict(role='user', content='x')], temperature=0)
    keys = {J.answer_key(None, request), J.answer_key('u', request)}
    keys |= {J.answer_key(None, request | change) for change in (dict(model='n'), dict(top_p=1))}
    assert len(keys) == 4
    assert J.answer_key(None, dict(reversed(request.items()))) in keys


# -- a server


def completion(said):
    message = dict(role='assistant', content=said)
    choice = dict(index=0, finish_reason='stop', message=message)
    return dict(id='1', object='chat.completion', created=0, model='m', choices=[choice])


class Stub(BaseHTTPRequestHandler):
    "What is said is up to `server.plan`, a function of (text asked, number of the request)."

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        with self.server.lock:
            self.server.asked.append((body, self.headers['Authorization']))
            number = len(self.server.asked)
        self.server.now.append(1)
        self.server.most = max(self.server.most, len(self.server.now))
        status, said = self.server.plan(body['messages'][0]['content'], number)
        self.server.now.pop()
        data = (said if isinstance(said, str) else json.dumps(said)).encode()
        try:
            self.send_response(status)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            pass

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    pytest.importorskip('openai')
    server = ThreadingHTTPServer(('127.0.0.1', 0), Stub)
    server.daemon_threads = True
    server.asked, server.now, server.most = [], [], 0
    server.lock = threading.Lock()
    server.plan = lambda text, number: (200, completion('yes'))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.url = f'http://127.0.0.1:{server.server_port}/v1'
    yield server
    server.shutdown()
    server.server_close()


def judge_at(server, **knobs):
    return J.endpoint_judge('m', base_url=server.url, **dict(dict(timeout=20, retries=0), **knobs))


def test_a_question_is_asked_once_in_a_batch_and_ever(server, tmp_path):
    file = tmp_path / 'answers'
    server.plan = lambda text, number: (200, completion('yes' if 'cat' in text else 'no'))
    judge = judge_at(server, cache=file, max_tokens=7)
    assert ask(judge, [of('cat'), of('dog'), of('cat')]) == [1, 0, 1] and len(server.asked) == 2
    assert judge([of('dog'), of('cat')]) == [0, 1] and len(server.asked) == 2
    assert judge_at(server, cache=file, max_tokens=7)([of('cat')]) == [1]
    assert len(server.asked) == 2
    assert judge_at(server, cache=file)([of('cat')]) == [1] and len(server.asked) == 3
    body = server.asked[2][0]
    assert (body['model'], body['temperature'], body.get('max_tokens')) == ('m', 0, None)
    asked = body['messages'][0]['content']
    assert all(part in asked for part in ('p', 'cat', 'c', 'yes or no'))


def test_without_a_file_answers_are_kept_in_memory(server):
    judge = judge_at(server)
    assert judge([of('a')]) == judge([of('a')]) == [1] and len(server.asked) == 1


def test_a_scale_asks_for_a_number(server):
    server.plan = lambda text, number: (200, completion('4'))
    assert judge_at(server, scale=5)([of('a')]) == [0.8]
    assert 'from 0 (not at all) to 5' in server.asked[0][0]['messages'][0]['content']


def test_the_key_is_sent_and_stands_nowhere(server, tmp_path, monkeypatch):
    monkeypatch.setenv('OPENAI_API_KEY', 'of-the-environment')
    judge_at(server, cache=tmp_path / 'a', api_key='very-secret')([of('a')])
    judge_at(server)([of('a')])
    monkeypatch.delenv('OPENAI_API_KEY')
    judge_at(server)([of('a')])
    sent = [key for _, key in server.asked]
    assert sent == ['Bearer very-secret', 'Bearer of-the-environment', 'Bearer none']
    assert 'secret' not in (tmp_path / 'a').read_text()


def test_an_error_500_is_asked_again(server):
    server.plan = lambda text, number: (500, 'oh') if number == 1 else (200, completion('yes'))
    assert judge_at(server, retries=1)([of('a')]) == [1] and len(server.asked) == 2


def test_without_retries_an_error_500_is_an_error(server):
    server.plan = lambda text, number: (500, 'oh')
    with pytest.raises(JudgeError, match="whether 'a' meets 'c'.*InternalServerError"):
        judge_at(server)([of('a')])


def test_a_late_answer_is_an_error_that_says_so(server):
    server.plan = lambda text, number: time.sleep(1.5) or (200, completion('yes'))
    with pytest.raises(JudgeError, match='APITimeoutError.*timeout'):
        judge_at(server, timeout=0.2)([of('a')])


@pytest.mark.parametrize(
    'said',
    [
        completion('perhaps'),
        completion(''),
        completion(None),
        dict(completion('yes'), choices=[]),
        dict(error='x'),
        [],
        'yes',
        '<html>',
        '',
    ],
)
def test_nonsense_is_an_error_and_is_not_kept(server, said, tmp_path):
    server.plan = lambda text, number: (200, said)
    judge = judge_at(server, cache=tmp_path / 'a')
    with pytest.raises(JudgeError, match='meets'):
        judge([of('a')])
    assert read_answers(tmp_path / 'a') == {}
    server.plan = lambda text, number: (200, completion('no'))
    assert judge([of('a')]) == [0]


@pytest.mark.parametrize('status, mend', [(401, 'api_key'), (404, 'base_url'), (429, 'workers')])
def test_an_error_says_how_to_mend_it(server, status, mend):
    server.plan = lambda text, number: (status, '{}')
    with pytest.raises(JudgeError, match=mend):
        judge_at(server)([of('a')])


def test_nobody_there_is_an_error():
    pytest.importorskip('openai')
    with pytest.raises(JudgeError, match='start the server'):
        J.endpoint_judge('m', base_url=GONE, retries=0)([of('a')])


def test_good_answers_of_a_batch_with_a_failure_are_kept(server, tmp_path):
    server.plan = lambda text, number: (200, completion('hm' if 'bad' in text else 'yes'))
    judge = judge_at(server, cache=tmp_path / 'a')
    with pytest.raises(JudgeError) as caught:
        ask(judge, [of('one'), of('bad'), of('two'), of('bad')])
    assert caught.value.degrees == [1, None, 1, None]
    careful = with_fallback(judge, 0.25)
    with pytest.warns(UserWarning, match='1 of 3'):
        assert ask(careful, [of('bad'), of('one'), of('two')]) == [0.25, 1, 1]
    assert len(read_answers(tmp_path / 'a')) == 2


def test_a_batch_is_broken_off_after_some_failures(server):
    server.plan = lambda text, number: (200, completion('hm'))
    with pytest.raises(JudgeError) as caught:
        judge_at(server, give_up=3, workers=1)([of(str(i)) for i in range(200)])
    assert len(server.asked) < 20 and caught.value.degrees == [None] * 200


def test_so_many_failures_are_enough():
    def put(question):
        raise JudgeError('no.')

    knobs = dict(workers=1, give_up=3, keep=None)
    assert len(J._ask_all([of(str(i)) for i in range(50)], put, **knobs)) == 3


def test_several_are_asked_at_a_time_and_no_more(server):
    server.plan = lambda text, number: time.sleep(0.05) or (200, completion('yes'))
    assert judge_at(server, workers=4)([of(str(i)) for i in range(24)]) == [1] * 24
    assert 2 <= server.most <= 4


@pytest.mark.parametrize(
    'knobs', [dict(timeout=0), dict(retries=-1), dict(workers=0), dict(give_up=0), dict(scale=0)]
)
def test_knobs_out_of_range_are_refused(knobs):
    pytest.importorskip('openai')
    with pytest.raises(ValueError, match='endpoint_judge'):
        J.endpoint_judge('m', **knobs)


def test_without_the_package_the_command_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, 'openai', None)
    with pytest.raises(ModuleNotFoundError, match='openai'):
        J.endpoint_judge('m')
