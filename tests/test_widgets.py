"Widgets and traces without a browser: what is drawn, that a moved knob draws anew, that a plain page has a still form, that a bad file is refused."

import dataclasses, json, pickle, re, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
import numpy as np, pytest, torch
from rl4llm.analysis.traces import (
    keep_statistics,
    load_rollouts,
    replay,
    save_rollouts,
    trace_words,
)
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import make_rollouts
from rl4llm.core.signals import scored
from rl4llm.objectives.offline import as_logged, logged_sample, written_log
from rl4llm.training.checkpoints import pack_stages, unpack_stages
from rl4llm.atlas import atlas_explorer
from rl4llm.widgets import (
    Dashboard,
    Panel,
    advantage_playground,
    advantage_table,
    batch_calculator,
    batch_pass_at_k,
    batch_table,
    batch_warnings,
    bundle,
    dashboard_html,
    has_frontend,
    group_html,
    microscope,
    needy_advantages,
    pass_at_k_explorer,
    pass_at_k_table,
    recipe_differ,
    recipe_rows,
    slider,
    token_words,
    train_live,
)


@pytest.fixture
def rollouts(small_policy, easy):
    "Three problems, four answers each, rewards that vary."
    drawn = scored(
        small_policy,
        small_policy.sample(easy.sample(3, seed=0), 4, seed=0, max_new_tokens=10),
        use('correct'),
    )
    drawn.rewards[::3] = 1.0
    return keep_statistics(small_policy, drawn)


@pytest.fixture
def trace(rollouts, small_policy, tmp_path):
    return save_rollouts(rollouts, tmp_path / 'trace', tokenizer=small_policy.tokenizer)


# -- traces


def test_a_trace_comes_back_as_it_was(rollouts, trace):
    back = load_rollouts(trace)
    same_rollouts(back, rollouts)


def same_rollouts(back, wanted):
    "Every field, whatever there may be, entry by entry of a table."
    for field in dataclasses.fields(wanted):
        a, b = getattr(back, field.name), getattr(wanted, field.name)
        pairs = [(a, b)]
        if isinstance(b, dict):
            assert a.keys() == b.keys(), field.name
            pairs = [(a[key], b[key]) for key in b]
        for x, y in pairs:
            if torch.is_tensor(y):
                torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
            else:
                assert x == y, field.name


@pytest.fixture
def unusual(rollouts):
    "Rollouts of which no field is as `make_rollouts` leaves it."
    n, t = rollouts.mask.shape
    plain = make_rollouts(
        **{
            name: getattr(rollouts, name)
            for name in ('prompt_ids', 'prompt_mask', 'tokens', 'prompt', 'mask')
        }
    )
    changes = dict(
        group=plain.group + 1,
        traj=plain.traj.flip(0),
        sampled=~plain.sampled,
        seg=plain.seg + 1,
        finished=~plain.finished,
        parent=plain.parent + 1,
        fork_at=plain.fork_at + 2,
        origin=plain.origin + 1,
        step=plain.step + 1,
        loss_weight=plain.loss_weight / 2,
        token_rewards=torch.rand(n, t),
        logp_ref=-torch.rand(n, t),
        temperature=0.7,
        components=dict(correct=torch.rand(n), style=torch.rand(n)),
    )
    made = dataclasses.replace(rollouts, **changes)
    for field in dataclasses.fields(made):
        x, y = getattr(plain, field.name), getattr(made, field.name)
        if field.name not in ('prompt_ids', 'prompt_mask', 'tokens', 'prompt', 'mask'):
            assert not (torch.equal(x, y) if torch.is_tensor(x) else x == y), field.name
    return made


def through_a_log(rollouts):
    "What a sampler's log gives back after a checkpoint."
    keeper = SimpleNamespace(state_dict=lambda: written_log([rollouts]))
    packed, tensors = pack_stages({'sampler': keeper})
    sampler = logged_sample()
    unpack_stages({'sampler': sampler}, json.loads(json.dumps(packed)), tensors)
    return sampler.log[0]


def test_every_field_of_rollouts_is_written_and_read(unusual, tmp_path):
    "In a trace and in the log of a checkpoint, which are one format."
    same_rollouts(load_rollouts(save_rollouts(unusual, tmp_path / 'trace')), unusual)
    same_rollouts(through_a_log(unusual), as_logged(unusual))


def test_an_older_log_is_still_read(rollouts):
    "Seven fields, and problems as lists; the rest is as `make_rollouts` leaves it."
    fields = 'prompt_ids prompt_mask tokens prompt mask logp_behave finished'.split()
    state = {f'log/0/{name}': getattr(rollouts, name) for name in fields}
    items = [[item.task, item.data, item.difficulty] for item in rollouts.items]
    facts = dict(items=items, texts=list(rollouts.texts), temperature=1.0)
    state['facts'] = json.loads(json.dumps([facts]))
    sampler = logged_sample()
    sampler.load_state_dict(state)
    (back,) = sampler.log
    own = {name: getattr(rollouts, name) for name in fields}
    wanted = make_rollouts(items=rollouts.items, texts=rollouts.texts, **own)
    same_rollouts(back, as_logged(wanted))


def test_plain_strings_are_problems_too(tmp_path):
    one = torch.ones(1, 2, dtype=torch.bool)
    r = make_rollouts(
        prompt_ids=torch.zeros(1, 1).long(),
        prompt_mask=one[:, :1],
        tokens=one.long(),
        prompt=torch.zeros(1).long(),
        mask=one,
        items=('1 + 1 =',),
        texts=('2',),
    )
    assert (
        load_rollouts(save_rollouts(r, tmp_path / 't')).items == ('1 + 1 =',)
        and trace_words(tmp_path / 't') == {}
    )


def refusal(folder, error=ValueError):
    with pytest.raises(error) as raised:
        load_rollouts(folder)
    sentence = str(raised.value)
    assert sentence.endswith('.') and '\n' not in sentence and len(sentence) < 300
    return sentence


def test_another_version_is_refused(trace):
    facts = json.loads((trace / 'rollouts.json').read_text())
    (trace / 'rollouts.json').write_text(json.dumps(facts | dict(version=99)))
    assert '99' in refusal(trace) and 'version 1' in refusal(trace)
    (trace / 'rollouts.json').write_text(json.dumps(facts | dict(format='else')))
    assert 'rl4llm rollouts' in refusal(trace)


@pytest.mark.parametrize('position', [10, -1])
def test_damaged_tensors_are_refused(trace, position):
    data = bytearray((trace / 'rollouts.safetensors').read_bytes())
    data[position] ^= 1
    (trace / 'rollouts.safetensors').write_bytes(data)
    assert 'SHA-256' in refusal(trace)


def test_damaged_or_missing_files_are_refused(trace):
    text = (trace / 'rollouts.json').read_text()
    (trace / 'rollouts.json').write_text(text[: len(text) // 2])
    assert 'damaged' in refusal(trace)
    (trace / 'rollouts.json').write_text(text)
    (trace / 'rollouts.safetensors').unlink()
    assert 'rollouts.safetensors' in refusal(trace)
    (trace / 'rollouts.json').unlink()
    assert 'no trace' in refusal(trace, FileNotFoundError)


class Bomb:
    "A pickle of this writes a file when it is opened."

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return open, (str(self.place), 'w')


@pytest.mark.parametrize('inside', [True, False])
@pytest.mark.parametrize('how', ['torch', 'pickle'])
def test_a_pickle_is_refused_unopened(trace, tmp_path, how, inside):
    target = trace / 'rollouts.safetensors' if inside else tmp_path / 'rollouts.pt'
    bomb = Bomb(tmp_path / 'exploded')
    torch.save(bomb, target) if how == 'torch' else target.write_bytes(pickle.dumps(bomb))
    assert (
        'pickled' in refusal(trace if inside else target) and not (tmp_path / 'exploded').exists()
    )


def test_replay_weighs_tokens_by_their_advantage(trace):
    saved = load_rollouts(trace)
    for name in ('reinforce', 'rloo', 'positive'):
        played = replay(saved, name)
        assert torch.allclose(played.weight, played.adv * saved.mask, atol=1e-5)
    assert len(played.table) == len(saved) and 'positive' in repr(played)


def test_replay_takes_another_reward_and_objective(trace):
    saved = load_rollouts(trace)
    length = lambda prompts, completions, **columns: [float(len(c)) for c in completions]
    played = replay(saved, 'rloo', reward=length, objective='ppo_clip')
    assert played.rollouts.rewards.tolist() == [float(len(t)) for t in saved.texts] and torch.equal(
        saved.rewards, load_rollouts(trace).rewards
    )
    assert played.recipe.objective == use('ppo_clip') and torch.allclose(
        played.weight, played.adv * saved.mask, atol=1e-4
    )


def test_replay_says_what_is_missing(trace):
    with pytest.raises(ValueError, match='greedy_rewards'):
        replay(load_rollouts(trace), advantage='remax')
    with pytest.raises(ValueError, match='policy='):
        replay(load_rollouts(trace), advantage='hicra')

    def for_the_task(rewards, group, *, task):
        return rewards

    with pytest.raises(ValueError, match='task: .*no replay has'):
        replay(load_rollouts(trace), advantage=for_the_task)


def test_a_replay_has_the_live_statistics_that_the_loss_asks_for(rollouts, small_policy):
    "Those that were saved, or those of a policy if there is one; without either it says so at once."
    seen = {}

    def by_entropy(logp, logp_old, adv, mask, *, entropy):
        seen.update(entropy=entropy)
        return -(adv * logp * entropy.detach()).masked_fill(~mask, 0)

    saved = dataclasses.replace(rollouts, signals={})
    with pytest.raises(
        ValueError, match='old_entropy: not in these rollouts; pass policy=, or use keep_statistics'
    ):
        replay(saved, objective=by_entropy)
    replay(rollouts, objective=by_entropy)
    assert torch.equal(seen['entropy'], rollouts.signals['old_entropy'])
    now = {'the same': small_policy, 'another': small_policy.clone()}
    with torch.no_grad():
        for p in now['another'].model.parameters():
            p.mul_(3.0)
    for rows in (saved, rollouts):
        for name, who in now.items():
            replay(rows, objective=by_entropy, policy=who)
            assert torch.allclose(seen['entropy'], rollouts.signals['old_entropy'], atol=1e-5) == (
                name == 'the same'
            )


# -- panels

PANELS = [
    (pass_at_k_explorer, 'k', 64),
    (advantage_playground, 'r2', 1.0),
    (recipe_differ, 'b', 'rloo'),
    (batch_calculator, 'group', 64),
    (atlas_explorer, 'family', 'curricula'),
]


@pytest.mark.parametrize('make, knob, value', PANELS, ids=[p[0].__name__ for p in PANELS])
def test_a_moved_knob_draws_anew(make, knob, value):
    pytest.importorskip('ipywidgets')
    panel = make()
    panel.widget()
    before = panel.screen.value
    panel.knobs[knob].value = value
    assert (
        panel.values[knob] == value
        and panel.screen.value != before
        and panel.screen.value == panel.html
    )


def test_the_playground_takes_stages_with_memory(monkeypatch):
    from rl4llm.core import registry

    monkeypatch.setattr(registry, 'STAGES', dict(registry.STAGES))

    class remembering:
        "Rewards less what it remembers."

        def __init__(self):
            self.mean = 1.0

        def __call__(self, rewards, group):
            return rewards - self.mean

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    registry.stage('advantage')(remembering)
    assert advantage_table([1.0, 0.0]).loc['remembering'].tolist() == [0, -1]


def test_the_playground_computes_advantages_as_the_loop_does(monkeypatch):
    "It takes what the loop takes (a signal named by the signature alone, a list), and refuses what the loop refuses."
    from rl4llm.core import registry

    monkeypatch.setattr(registry, 'STAGES', dict(registry.STAGES))
    monkeypatch.setattr('rl4llm.core.ready_stages.STAGES', registry.STAGES)

    def shorter(rewards, group, *, lengths):
        return (rewards / lengths).tolist()

    def infinite(rewards, group):
        return rewards / 0

    def by_entropy(rewards, group, *, old_entropy):
        return rewards

    for fn in (shorter, infinite, by_entropy):
        registry.stage('advantage')(fn)
    assert advantage_table([1.0, 0.0], methods=['shorter']).loc['shorter'].tolist() == [1 / 8, 0]
    with pytest.raises(ValueError, match='infinite gave an advantage that is not finite'):
        advantage_table([1.0, 0.0], methods=['infinite'])
    with pytest.raises(
        ValueError, match='by_entropy needs old_entropy, which there is only with a model'
    ):
        advantage_table([1.0, 0.0], methods=['by_entropy'])
    assert needy_advantages()['by_entropy'] == ('old_entropy',) and not {
        'shorter',
        'infinite',
    } & set(needy_advantages())


@pytest.mark.parametrize('make, knob, value', PANELS, ids=[p[0].__name__ for p in PANELS])
def test_a_plain_page_shows_a_still_form(make, knob, value):
    assert not has_frontend()
    shown = make()._repr_mimebundle_()
    assert (
        set(shown) == {'text/plain', 'text/html'}
        and '<table' in shown['text/html']
        and len(shown['text/html']) < 600_000
    )


def test_with_a_frontend_both_forms_are_sent(monkeypatch):
    pytest.importorskip('ipywidgets')
    monkeypatch.setenv('JPY_SESSION_NAME', 'lesson.ipynb')
    pytest.importorskip('ipykernel')
    assert {'application/vnd.jupyter.widget-view+json', 'text/html', 'text/plain'} <= set(
        bundle(recipe_differ())
    )


def test_notebooks_store_the_still_form_only():
    for path in sorted((Path(__file__).resolve().parents[1] / 'nbs' / 'widgets').glob('*.ipynb')):
        text = path.read_text()
        assert 'application/vnd.jupyter.widget-' not in text, (
            f'{path.name} holds widget state, which shows nothing on a plain page'
        )


def test_a_wrong_value_is_answered():
    with pytest.raises(ValueError, match='there are'):
        batch_calculator().set(colour='red')
    with pytest.raises(ValueError, match='from 0'):
        advantage_playground().set(r1=2.0)


def test_a_sentence_of_the_picture_is_shown_escaped():
    def draw(x):
        raise ValueError(f'<b>{x}</b> is too much')

    assert '&lt;b&gt;3&lt;/b&gt;' in Panel(draw, dict(x=slider('x', 3, 0, 9))).html


@pytest.mark.slow
def test_widgets_are_not_needed_to_import_and_draw():
    code = "import sys; sys.modules['ipywidgets'] = None\nfrom rl4llm.widgets import *; import rl4llm.widgets as w\nprint(len(w.batch_calculator()._repr_html_()) > 500, len(w.advantage_playground().html) > 500, w.microscope and w.train_live and 1)"
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.stdout.split() == ['True', 'True', '1'], done.stderr


# -- tables


def test_pass_at_k_table_by_hand():
    counts = {
        'base': (np.full((1, 2), 4), np.array([[1, 0]])),
        'grpo': (np.full((1, 2), 4), np.array([[2, 0]])),
    }
    table = pass_at_k_table(counts, 4)
    assert np.allclose(table[['pass@1', 'pass@4', 'minus base']], [[0.125, 0.5, 0], [0.25, 0.5, 0]])


def test_advantages_by_hand():
    table = advantage_table([1.0, 0.0, 0.0], methods=['rloo', 'dr_grpo'])
    assert np.allclose(table.to_numpy(), [[1, -0.5, -0.5], [2 / 3, -1 / 3, -1 / 3]], atol=1e-6)
    assert {'grpo', 'negative', 'remax'} <= set(advantage_table([1.0, 0.0]).index)


def test_recipe_rows_are_the_differences():
    assert (
        list(recipe_rows('grpo', recipe('grpo', lr=0.5)).index) == ['lr']
        and len(recipe_rows('grpo', 'grpo')) == 0
    )


def test_batch_numbers_by_hand():
    table = batch_table(
        prompts=16, group=8, minibatch=32, epochs=2, micro=4, devices=2, share_right=0.5
    )
    want = {
        'answers sampled in a step': 128,
        'mini-batches': 4,
        'optimiser updates in a step': 8,
        'rows of an update on one device': 16,
        'gradient accumulation': 4,
    }
    assert {k: table.loc[k, 'value'] for k in want} == want
    assert batch_warnings(prompts=3, group=8, minibatch=7) and not batch_warnings(
        prompts=16, group=8, minibatch=32
    )
    with pytest.raises(ValueError, match='prompts is 0'):
        batch_table(prompts=0, group=8)


# -- microscope


def test_the_microscope_reads_a_trace(trace):
    pytest.importorskip('ipywidgets')
    panel = microscope(trace)
    panel.widget()
    before = panel.screen.value
    panel.knobs['colour'].value = 'entropy'
    assert panel.screen.value != before and '✗' in before and 'Problem' in before
    panel.knobs['method'].value, panel.knobs['group'].value = 'negative', 2
    assert panel.values['group'] == 2 and panel.screen.value == panel.html


def test_words_come_from_the_trace_the_text_or_the_number(rollouts, trace):
    words = trace_words(trace)
    ids = rollouts.tokens[0][rollouts.mask[0]].tolist()
    assert token_words(rollouts, 0, words) == [words[i] for i in ids]
    assert token_words(
        make_rollouts(
            **{
                k: getattr(rollouts, k)
                for k in ('prompt_ids', 'prompt_mask', 'tokens', 'prompt', 'mask')
            }
        ),
        0,
    ) == [f'#{i}' for i in ids]


def test_words_are_escaped(rollouts):
    page = group_html(
        replay(rollouts, 'grpo'), 0, words={i: '<img src=x onerror=alert(1)>' for i in range(256)}
    )
    assert '<img' not in page and '&lt;img' in page


# -- dashboard


def test_pass_at_k_of_a_batch(rollouts):
    got = batch_pass_at_k(rollouts, ks=(1, 4, 16))
    right = rollouts.components['correct'] >= 1
    assert set(got) == {'pass@1', 'pass@4'} and got['pass@1'] == pytest.approx(
        float(right.float().mean())
    )


def test_a_live_run_pauses_and_stops(small_policy, easy, lively):
    pytest.importorskip('ipywidgets')
    board = Dashboard(seconds=0).pause()
    board.widget()
    train_live(small_policy, easy, lively, steps=10_000, dashboard=board)
    end = time.monotonic() + 60
    while 'paused' not in board.parts['screen'].value and time.monotonic() < end:
        time.sleep(0.01)
    held = len(board.rows)
    time.sleep(0.2)
    assert held == len(board.rows) == 1 and 'paused' in board.parts['screen'].value
    board.parts['stop'].click()
    run = board.wait(60)
    assert (
        len(run.rows) < 10
        and board.status == 'stopped'
        and board.parts['stop'].disabled
        and 'stopped' in board.parts['screen'].value
    )


def test_an_error_of_a_live_run_is_shown_and_raised(small_policy, easy):
    board = train_live(small_policy, easy, 'grpo', steps=0)
    with pytest.raises(ValueError, match='steps is 0'):
        board.wait(60)
    assert 'ValueError' in board.status and 'ValueError' in board.html


def test_a_dashboard_in_a_plain_call(small_policy, easy, lively):
    from rl4llm.training.loop import train

    board = Dashboard().pause()
    run = train(small_policy, easy, lively, steps=2, callbacks=[board])
    assert (
        board.status == 'finished'
        and len(board.rows) == 2
        and 'data:image/png' in dashboard_html(run, board.rows)
    )


# -- pages that can be read


@pytest.mark.parametrize('part', ['all', 'some'])
def test_answers_without_a_reward_show_no_nan(rollouts, part):
    "Rows that were never scored: a dash, one sentence, and no colour that needs a reward."
    rollouts.rewards[:] = float('nan') if part == 'all' else rollouts.rewards
    rollouts.rewards[0] = float('nan')
    panel = microscope(rollouts)
    page = panel.html + panel._repr_html_()
    assert 'nan' not in page.lower().replace('advantage', '') and '>-<' in page
    assert ('have no rewards' in page) == (part == 'all') and (
        'loss weight' in panel.controls['colour'].options
    ) == (part == 'some')


def test_a_long_table_of_papers_scrolls_in_its_box():
    for page in (atlas_explorer(status='all').html, atlas_explorer()._repr_html_()):
        tables, boxes = (
            page.count('<table'),
            len(re.findall(r'<div style="[^"]*max-height:(\d+)px[^"]*overflow:auto', page)),
        )
        assert tables and tables == boxes
    assert 'Zhu et al. 2025' in atlas_explorer(family='advantages').html


@pytest.mark.parametrize('steps', [1, 2, 5, 8, 40])
def test_a_mean_through_the_dots_does_not_lag(steps):
    "On a straight line a trailing mean lies below every dot; this one goes through all it reaches."
    from rl4llm.training.callbacks import centred_mean

    line = np.arange(steps) * 0.5
    mean = centred_mean(line)
    there = np.isfinite(mean)
    assert np.allclose(mean[there], line[there])
    assert there.sum() == steps - 2 * min(4, steps // 4) and (there == there[::-1]).all()
    noisy = np.random.default_rng(0).normal(size=200)
    assert np.nanstd(centred_mean(noisy)) < 0.5 * noisy.std()
    gap = np.where(np.arange(40) == 20, np.nan, np.arange(40.0))
    assert np.isfinite(centred_mean(gap)[4:-4]).all()


@pytest.mark.parametrize('reach', [1, 4, 9])
def test_one_last_batch_makes_no_cliff(reach):
    from rl4llm.training.callbacks import centred_mean

    rewards = [0.37] * 39 + [0.284]
    for values in (rewards, rewards[::-1]):
        mean = centred_mean(values, reach)
        assert np.nanmax(mean) - np.nanmin(mean) < 0.086 / (2 * reach + 1) + 1e-9


def test_curves_of_a_run_follow_their_dots():
    import matplotlib.pyplot as plt, pandas as pd
    from types import SimpleNamespace
    from rl4llm.training.callbacks import plot_metrics
    from rl4llm.widgets.dashboard import draw_curve

    table = pd.DataFrame(dict(step=range(30), reward=np.arange(30) / 30))
    figure = plot_metrics(SimpleNamespace(metrics=table, config=dict(steps=30)), ['reward'])
    own, ax = plt.subplots()
    draw_curve(ax, table['step'], table['reward'], 'k')
    for axes in (figure.axes[0], ax):
        dots, mean = (line.get_ydata() for line in axes.lines)
        assert np.allclose(dots[4:-4], mean[4:-4]) and np.isfinite(mean).sum() == len(dots) - 8
    plt.close(figure)
    plt.close(own)


def test_a_slider_has_a_track_beside_a_long_label():
    from rl4llm.widgets.panels import knob_widget

    label = 'share of tokens that are changed in a step'
    narrow, wide = (knob_widget(slider(name, 0.0, 0.0, 1.0), 0.0) for name in ('a', label))
    room = [int(knob.layout.min_width.removesuffix('px')) for knob in (narrow, wide)]
    assert room[1] - room[0] >= 6 * (len(label) - 1) and min(room) > 200


def test_the_greedy_answer_has_a_fader_where_a_method_asks_for_it():
    faders = [
        list(advantage_playground((1.0, 0.0), methods=methods).controls)
        for methods in (None, ['grpo', 'remax'], ['grpo', 'rloo'])
    ]
    assert ['greedy' in names for names in faders] == [True, True, False]
    assert '+1.00' not in advantage_playground((0.0, 0.0), methods=['grpo']).at()
