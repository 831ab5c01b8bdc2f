"""Nodes that share text: alone it is plain training, hostile messages are refused."""

import json
import pytest, torch
from rl4llm.core.pipeline import build_stages
from rl4llm.core.policy import Policy
from rl4llm.core.registry import recipe, use
from rl4llm.core.rollouts import rows_of
from rl4llm.scaling.swarm import join_groups, messages_of, read_message, swarm_sharing, useful
from rl4llm.tasks import task
from rl4llm.training.loop import train
from rl4llm.training.step_metrics import METRICS

EASY = task('countdown', level='easy')
SMALL = recipe('grpo', prompts=2, group=4, lr=3e-4)


@pytest.fixture(scope='module')
def base():
    return Policy.load('tiny-v1', bf16=False)


@pytest.fixture(scope='module')
def judge():
    return build_stages(SMALL).reward


@pytest.fixture(scope='module')
def drawn(base):
    return base.sample(EASY.sample(3, seed=0), 4, seed=0)


def weights(policy):
    return [p.detach() for p in policy.model.parameters()]


def test_without_others_every_node_is_plain_training_bit_for_bit(base):
    swarm = swarm_sharing(base, EASY, SMALL, nodes=2, external=0, steps=2, seed=5)
    for node, policy in enumerate(swarm.policies):
        alone = base.clone()
        train(alone, EASY, SMALL, steps=2, seed=5 + node)
        assert all(map(torch.equal, weights(alone), weights(policy)))
    assert (swarm.metrics['external'] == 0).all()


def test_a_round_with_an_empty_pool_is_a_step_of_the_loop(base, monkeypatch):
    "A sharing node puts groups between the halves of a step; without groups it is `train_step`."
    import rl4llm.scaling.swarm as module

    monkeypatch.setattr(module, 'useful', lambda rollouts: False)
    swarm = swarm_sharing(base, EASY, SMALL, nodes=2, external=2, steps=2)
    alone = base.clone()
    run = train(alone, EASY, SMALL, steps=2, seed=1)
    assert all(map(torch.equal, weights(alone), weights(swarm.policies[1])))
    own = swarm.metrics.query('node == 1')
    assert own['reward'].tolist() == run.metrics['reward'].tolist()
    assert own['loss'].tolist() == run.metrics['loss'].tolist()
    assert own['policy_entropy'].tolist() == run.metrics['policy_entropy'].tolist()


def test_a_sharing_node_has_every_metric_of_the_loop(base):
    swarm = swarm_sharing(base, EASY, SMALL, nodes=2, external=2, steps=1)
    own = ['external', 'offered', 'unreadable', 'node']
    assert set(swarm.metrics.columns) == {*METRICS, *own}
    seconds = swarm.metrics[['seconds_sampling', 'seconds']]
    assert (seconds['seconds_sampling'] > 0).all()
    assert (seconds['seconds'] > seconds['seconds_sampling']).all()


def test_groups_from_outside_change_what_is_learned_and_are_counted(base):
    shared = swarm_sharing(base, EASY, SMALL, nodes=3, external=2, steps=2)
    alone = swarm_sharing(base, EASY, SMALL, nodes=3, external=0, steps=2)
    acted = shared.metrics['external']
    assert acted.sum() > 0 and acted.max() <= 2
    assert (shared.metrics['external'] <= shared.metrics['offered']).all()
    assert (shared.metrics['rows_other'] == 4 * acted).all()
    changed = [
        not all(map(torch.equal, weights(p), weights(q)))
        for p, q in zip(shared.policies, alone.policies)
    ]
    assert any(changed)
    first = [m.query('step == 0')['reward'].tolist() for m in (shared.metrics, alone.metrics)]
    assert first[0] == first[1], "the reward in the metrics is that of the node's own rows"
    assert shared.summary['external'].sum() == acted.sum()


def test_the_same_seed_is_the_same_swarm(base):
    twice = [swarm_sharing(base, EASY, SMALL, nodes=2, external=1, steps=2) for _ in range(2)]
    for p, q in zip(*(swarm.policies for swarm in twice)):
        assert all(map(torch.equal, weights(p), weights(q)))


def test_the_given_policy_is_left_alone(base):
    before = [p.clone() for p in weights(base)]
    swarm_sharing(base, EASY, SMALL, nodes=2, external=1, steps=1)
    assert all(map(torch.equal, before, weights(base)))


def test_a_group_arrives_whole_with_the_rewards_of_the_receiver(base, judge, drawn):
    for group, message in enumerate(messages_of(drawn, node=0)):
        rows = rows_of(drawn, drawn.group == group)
        read = read_message(base, message, judge, room=48)
        assert read.texts == rows.texts
        assert torch.equal(read.tokens[read.mask], rows.tokens[rows.mask])
        known = rows.logp_behave[rows.mask]
        assert torch.allclose(read.logp_behave[read.mask], known, atol=1e-3)
        assert not read.sampled.any() and (read.origin != 0).all()


def test_a_response_that_was_cut_off_has_no_end_token(base, judge):
    cut = base.sample(EASY.sample(1, seed=0), 3, seed=0, max_new_tokens=4)
    read = read_message(base, messages_of(cut, node=0)[0], judge, room=48)
    assert not cut.finished.all()
    assert torch.equal(read.finished, cut.finished)
    assert torch.equal(read.mask.sum(1), cut.mask.sum(1))


def hostile(message):
    "Messages that somebody might send."
    said = json.loads(message)
    return {
        'nothing': '',
        'no JSON': '{"task": ',
        'a list': '[1, 2]',
        'a number': '3',
        'null': 'null',
        'no texts': json.dumps({**said, 'texts': []}),
        'one text': json.dumps({**said, 'texts': said['texts'][:1], 'finished': [True]}),
        'texts and ends that differ in number': json.dumps({**said, 'finished': [True]}),
        'an unknown task': json.dumps({**said, 'task': 'poetry'}),
        'a strange problem': json.dumps({**said, 'data': 'x'}),
        'no problem': json.dumps({**said, 'data': None}),
        'unknown words': json.dumps({**said, 'texts': ['<script>'] * 4}),
        'a long text': json.dumps({**said, 'texts': ['1 + ' * 500] * 4}),
        'texts that are a number': json.dumps({**said, 'texts': 4}),
    }


def test_hostile_messages_are_refused_and_nothing_is_raised(base, judge, drawn):
    for what, message in hostile(messages_of(drawn, node=0)[0]).items():
        assert read_message(base, message, judge, room=48) is None, what


def test_a_claimed_reward_is_not_looked_at(base, judge, drawn):
    said = json.loads(messages_of(drawn, node=0)[0])
    lie = json.dumps({**said, 'texts': ['1 + 1 = 2'] * 4, 'rewards': [1.0] * 4})
    read = read_message(base, lie, judge, room=48)
    assert (read.rewards == 0).all() and not useful(read)


def test_joined_groups_keep_their_questions(base, judge, drawn):
    messages = messages_of(drawn, node=0)
    joined = drawn
    for message in messages:
        joined = join_groups(joined, read_message(base, message, judge, room=48), base.pad)
    assert joined.group.unique().tolist() == list(range(6))
    asked = [joined.items[p] for p in joined.prompt.tolist()]
    assert asked == [drawn.items[p] for p in drawn.prompt.tolist()] * 2
    logp, _ = base.logprobs(joined)
    n = len(drawn)
    mine = logp[:n][joined.mask[:n]]
    theirs = logp[n:][joined.mask[n:]]
    assert torch.allclose(mine, theirs, atol=1e-3)


@pytest.mark.parametrize(
    'wrong',
    [dict(nodes=0), dict(nodes=1, external=1), dict(nodes=2, external=-1), dict(nodes=2, steps=0)],
)
def test_a_wrong_swarm_is_answered(base, wrong):
    with pytest.raises(ValueError, match='wanted'):
        swarm_sharing(base, EASY, SMALL, **{'steps': 1, 'external': 0, **wrong})


def test_policies_are_one_for_each_node(base):
    with pytest.raises(ValueError, match='1 policies for 2 nodes'):
        swarm_sharing([base], EASY, SMALL, nodes=2, steps=1)


def test_several_updates_a_step_clip_around_the_receiver(base):
    made = SMALL.but(minibatch=4, objective=use('ppo_clip', high=0.28))
    swarm = swarm_sharing(base, EASY, made, nodes=2, external=2, steps=1)
    assert swarm.metrics['grad_norm'].notna().all()


@pytest.mark.takes_turns
@pytest.mark.parametrize('external', [pytest.param(0, marks=pytest.mark.slow), 2])
def test_nodes_in_processes_of_their_own_are_the_same_nodes(base, external):
    how = dict(nodes=3, external=external, steps=2, seed=4)
    turns = swarm_sharing(base, EASY, SMALL, **how)
    apart = swarm_sharing(base, EASY, SMALL, **how, processes=True)
    for one, other in zip(turns.policies, apart.policies):
        assert all(map(torch.equal, weights(one), weights(other)))
    times = [name for name in turns.metrics if name.startswith('seconds')]
    assert turns.metrics.drop(columns=times).equals(apart.metrics.drop(columns=times))
    assert bool(turns.metrics['external'].sum()) == bool(external)


@pytest.mark.takes_turns
@pytest.mark.slow
def test_what_a_node_in_a_process_raises_is_raised_here(base):
    with pytest.raises(Exception, match='step 0') as found:
        swarm_sharing(base, EASY, SMALL, nodes=2, external=1, steps=1, limit=-1, processes=True)
    with pytest.raises(type(found.value), match='step 0'):
        swarm_sharing(base, EASY, SMALL, nodes=2, external=1, steps=1, limit=-1)


def test_what_no_process_could_import_is_refused(base):
    def nothing(prompts, completions, **columns):
        return [0.0] * len(completions)

    with pytest.raises(ValueError, match='leave processes out'):
        swarm_sharing(
            base, EASY, SMALL.but(reward=nothing), nodes=2, external=0, steps=1, processes=True
        )


def test_a_process_that_dies_is_named(base, monkeypatch):
    import rl4llm.scaling.swarm as module

    monkeypatch.setattr(module, '_live', exit)  # in the child: ends at once
    with pytest.raises(RuntimeError, match='node 0 has ended'):
        swarm_sharing(base, EASY, SMALL, nodes=2, external=1, steps=1, processes=True)
