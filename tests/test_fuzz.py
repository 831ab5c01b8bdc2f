"""Ten thousand hostile texts a world: nothing wrong is accepted, nothing right is refused, in
linear time; and a verifier with a fault in it does not get through."""

import json, re
import pytest
import fuzz
from fuzz import OWN, RULES, outcome, rule_of, timed
from select_notebooks import TOP, turn_of
from rl4llm.tasks import Item, Verdict, task_from, tasks
from rl4llm.tasks import countdown as C, modular as M, own_data as O, protocol as P, sat as S
from rl4llm.tasks import lock as K, lookup as L, paths as G, programs as R, sequences as Q
from rl4llm.tasks import small_corpus as T, wishes as W

COUNT = 10_000 * len(RULES)  # ten thousand a world


@pytest.fixture(scope='module')
def corpus():
    "The texts, with what the rules say of them."
    return [(item, text, rule_of(item, text)) for _, item, text in fuzz.cases(COUNT, seed=0)]


def wrongs(corpus):
    "What is wrong with the library's verdicts."
    found = (outcome(item, text, rule).wrong for item, text, rule in corpus)
    return [wrong for wrong in found if wrong]


def test_nothing_wrong_is_accepted_and_nothing_right_refused(corpus):
    assert wrongs(corpus) == []


@pytest.mark.slow
def test_nor_among_twenty_thousand_others_a_world():
    "Other texts in each of five turns: a hundred thousand a world in all, on average."
    counts, findings = fuzz.fuzzed(2 * COUNT, seed=1 + turn_of(TOP))
    assert findings == [] and sum(row['texts'] for row in counts.values()) == 2 * COUNT


def test_texts_are_right_and_wrong_for_every_task(corpus):
    names = {item.task for item, _, _ in corpus}
    assert names == {*tasks(), OWN} == set(RULES)
    for name in names:
        rules = [rule for item, _, rule in corpus if item.task == name]
        assert 0.05 < sum(rule.required for rule in rules) / len(rules) < 0.5
        assert all(rule.allowed for rule in rules if rule.required)


HAND = Item('countdown', ((2, 3, 5), 10, 20, '+-*'))
MOD = Item('modular', (7, 5, (('*', 3), ('-', 2))))
SAT = Item('sat', (2, ((1, 2), (-1, -2))))
SEQ = Item('sequence', ((2, 4, 6, 8, 10), (12, 14), 7))
TABLE = (
    ('red', 'blue'),
    (('a', 'cat', 'b', (7, 9)), ('b', 'dog', 'c', (5, 30)), ('c', 'cat', 'a', (1, 2))),
)
CELL = Item('lookup', (*TABLE, ('follow', 'a', 'blue', 1)))
MOST = Item('lookup', (*TABLE, ('most', 'cat', 'red', 0)))
COUNT_CATS = Item('lookup', (*TABLE, ('count', 'cat', 'blue', 2)))
SUM = Item('lookup', (*TABLE, ('sum', 'cat', 'red', 0)))
ROADS = (('a', 'b'), ('b', 'c'), ('c', 'd'), ('a', 'e'), ('e', 'd'))
WAY = Item('path', (0, ROADS, 'a', 'd', 3))
SHORTEST = Item('path', (0, ROADS, 'd', 'a', 0))
PROGRAM = Item('program', ('xy', 'x y -', ((1, 2), (7, 3))))
LOCK = Item('lock', ('dmt', 'mdt', 60))
PAIR = Item('wishes', (2, (('mention', 'cat'), ('before', 'b', 'red'), ('words', 6, 9))))
RHYME = Item('wishes', (2, (('rhyme',), ('turn',), ('mood', 'sad'), ('avoid', 'dog'))))
SWAP = Item('story', ('b with the cat', 'd with the dog', 'b and d', 'the tree is red', 'b ?'))
STONES = Item('story', ('b with 3', 'd with 0', 'b + 2', 'b to d 4', 'b ?'))
ROW = Item('story', ('d left of e', 'd right of b', 'b ? e'))


@pytest.mark.parametrize(
    'item, text, right',
    [
        (HAND, '2 + 3 = 5 ; 5 + 5 = 10', True),
        (HAND, '<think> 3 <answer> 2 + 3 = 5\n5+5=10; </answer> ', True),
        (HAND, '5 + 5 = 10', False),
        (HAND, '2 * 5 = 10 ; 10 + 0 = 10', False),
        (HAND, '3 * 5 = 15 ; 15 - 2 = 13', False),
        (HAND, '<think> 2 + 3 = 5 ; 5 + 5 = 10 </think>', False),
        (HAND, '<answer> 2 + 3 = 5 ; 5 + 5 = 10 </answer> <eos>', False),
        (HAND, '2 + 3 = ٥ ; 5 + 5 = 10', False),
        (HAND, '2 + 3 = 5 ; ; 5 + 5 = 10', False),
        (MOD, '<answer> 6 </answer>', True),
        (MOD, '6', True),
        (MOD, '1 ; 6', False),
        (MOD, '<answer> 13 </answer>', False),
        (SAT, 'a !b', True),
        (SAT, '!a,b', True),
        (SAT, 'a b', False),
        (SAT, '!a !b', False),
        (SAT, '!b a', False),
        (PROGRAM, 'x y -', True),
        (PROGRAM, '<think> x </think> <answer> y x s\n- </answer>', True),
        (PROGRAM, 'x 99 y * +', True),
        (PROGRAM, '1 0 5 if x y - 3 if', False),
        (PROGRAM, '0 4 x y - if', True),
        (PROGRAM, '1 x y - 4 if', True),
        (PROGRAM, 'y x -', False),
        (PROGRAM, 'x y - 0 mod', False),
        (PROGRAM, 'x y - d', False),
        (PROGRAM, 'x y - 07 7 - +', False),
        (PROGRAM, 'x y - 100 +', False),
        (PROGRAM, 'x y -' + ' 0 +' * 19, False),
        (PROGRAM, 'x y -' + ' 0 +' * 18, True),
        (LOCK, 't m d', True),
        (LOCK, 't\nm d <eos>', False),
        (LOCK, 'tmd', False),
        (LOCK, 'm d t', False),
        (LOCK, 't m d d', False),
        (Item(OWN, ('', 1200)), 'It is\n#### $1,200.00', True),
        (Item(OWN, ('', 1200)), '12,00', False),
        (Item(OWN, ('', '2 1/2')), '\\boxed{2.5}', True),
        (Item(OWN, ('', '$15')), '€15', False),
        (Item(OWN, ('', 'Paris')), 'The answer is paris.', True),
        (Item(OWN, ('', 'Paris')), 'not Paris', False),
        (Item(OWN, ('', 12)), '\\boxｅd{12}', True),
        (Item(OWN, ('', 12)), '\\boxｅd{3}', False),
        (Item(OWN, ('', 12)), '\\boxｅd{12} \\boxｅd{3}', False),
        (Item(OWN, ('', 12)), '#### 3\n#\x1c## 12', True),
        (Item(OWN, ('', 12)), '###\u2003#3', False),
        (Item(OWN, ('', 12)), '77 = 12', True),
        (Item(OWN, ('', 12)), '12 = 77', False),
        (Item(OWN, ('', 12)), '12 or 77 = 12', False),
        (MOD, '１１ ８ = 6', True),
        (MOD, '1 = ６', False),
        (SEQ, '+ 2 : 12 <answer> 12, 14 </answer>', True),
        (SEQ, '**12\n14**', True),
        (SEQ, '12 14 16', False),
        (SEQ, '12', False),
        (SEQ, '12, 14,', False),
        (SEQ, '12 ; 14', False),
        (SEQ, '012 14', False),
        (CELL, 'a -> b ; b blue 30 <answer> 30 </answer>', True),
        (CELL, 'b blue = 30', False),
        (CELL, 'x = 30', True),
        (CELL, '9', False),
        (CELL, '30 9', False),
        (MOST, 'a', True),
        (MOST, 'x = a', False),
        (MOST, 'b', False),
        (MOST, '7', False),
        (COUNT_CATS, '1', True),
        (COUNT_CATS, '2', False),
        (SUM, '8', True),
        (SUM, '13', False),
        (WAY, 'a -> b -> c -> d', True),
        (WAY, 'a,e,d', True),
        (WAY, 'd e a', False),
        (WAY, 'a d', False),
        (WAY, 'a b a e d', False),
        (WAY, 'aed', False),
        (WAY, 'a e d ->', False),
        (SHORTEST, 'd e a', True),
        (SHORTEST, 'd c b a', False),
        (PAIR, 'b sees the cat . the red dog runs .', True),
        (PAIR, '<think> b </think> <answer> B sees the cat.\nThe red dog runs. </answer>', True),
        (PAIR, 'the red dog runs . b sees the cat .', False),
        (PAIR, 'b sees the cat . the red dog runs', False),
        (PAIR, 'b sees the cat . the red dog runs . .', False),
        (PAIR, 'b sees the cat . red runs .', False),
        (PAIR, 'b sees a cat . the red dog runs .', False),
        (PAIR, 'b is red . the cat runs . b runs .', False),
        (PAIR, 'b is red . the cat runs .', True),
        (PAIR, 'b is not red . the big cat is not good .', False),
        (RHYME, 'the bad cat sees the tree . x runs . ', False),
        (RHYME, 'the bad cat was sad . the bird is bad .', True),
        (RHYME, 'the bad cat is sad . the bird is bad .', False),
        (RHYME, 'the bad cat sees the tree . the bird is blue .', False),
        (SWAP, '<think> x </think> <answer> b with the dog </answer>', True),
        (SWAP, 'The dog is with b.', True),
        (SWAP, '**B has the dog.**', True),
        (SWAP, 'b with the cat', False),
        (SWAP, 'd with the dog', False),
        (SWAP, 'the dog', False),
        (SWAP, 'b with the dog ; d with the cat', False),
        (STONES, 'b with 1', True),
        (STONES, 'b has 1 stone', True),
        (STONES, 'b with 01', False),
        (STONES, 'b with 5', False),
        (STONES, '1', False),
        (ROW, 'b left of e', True),
        (ROW, 'e stands to the right of b.', True),
        (ROW, 'b right of e', False),
        (ROW, 'b left of d', False),
        (ROW, 'b left e', False),
    ],
)
def test_the_rules_of_the_fuzz_say_what_one_says_by_hand(item, text, right):
    assert rule_of(item, text).allowed == right


# -- planted faults


def reuse(item, text, true=C.verify_countdown):
    "Numbers stay in hand after their use."
    numbers, target, top, _ = item.data
    steps, hand = C.parse_steps(C.final_answer(text) or ''), set(numbers)
    if len(steps) != len(numbers) - 1 or None in steps or steps[-1].c != target:
        return true(item, text)
    for a, op, b, c in steps:
        if not {a, b} <= hand or C.combine(a, op, b, top) != c:
            return true(item, text)
        hand.add(c)
    return Verdict(True, 1.0, None, '', 'correct')


def untested_end(item, text, true=C.verify_countdown):
    "The last result is not compared with the target."
    steps = C.parse_steps(C.final_answer(text) or '')
    states = C.follow(item, steps)
    if len(states) - 1 == len(steps) == len(item.data[0]) - 1:
        return Verdict(True, 1.0, None, '', 'correct')
    return true(item, text)


def with_leftovers(item, text, true=C.verify_countdown):
    "Numbers may be left over."
    steps = C.parse_steps(C.final_answer(text) or '')
    states = C.follow(item, steps)
    if len(states) - 1 == len(steps) and steps[-1] and steps[-1].c == item.data[1]:
        return Verdict(True, 1.0, None, '', 'correct')
    return true(item, text)


def thought_is_read(text, true=P.final_answer):
    "Where nothing is tagged as the answer, the thought is taken for it."
    thought = re.search('<think>(.*?)(</think>|$)', text, re.S)
    return true(thought[1]) if thought and '<answer>' not in text else true(text)


def last_of_several(text, true=P.final_answer):
    found = re.findall('<answer>(.*?)</answer>', text, re.S)
    return found[-1].strip() if found else true(text)


def first_of_several(text, true=P.final_answer):
    found = re.findall('<answer>(.*?)</answer>', text, re.S)
    return found[0].strip() if found else true(text)


def any_result(a, op, b, max_value=99, true=C.combine):
    return true(a, op, b, 10**9)


def floor_division(a, op, b, max_value=99, true=C.combine):
    return a // b if op == '/' and b else true(a, op, b, max_value)


def congruent(item, text, true=M.verify_modular):
    "A number is right if it leaves the right remainder."
    said = P.final_answer(text)
    if said and said.isdecimal() and (int(said) - M.chain_values(item)[-1]) % item.data[0] == 0:
        return Verdict(True, 1.0, None, said, 'correct')
    return true(item, text)


def one_clause_missing(clause, assignment, true=S.satisfied):
    return len(set(clause)) == 3 and clause[0] > 0 or true(clause, assignment)


def any_order(text, true=S.parse_literals):
    found = true(text)
    return found and tuple(sorted(found, key=abs))


def prefix(text, answer):
    said = O.said_answer(text) or ''
    return any(said.startswith(name) for name, _ in O._accepted(answer))


def mentioned(text, answer):
    said = O.said_answer(text) or ''
    return any(name in said for name, _ in O._accepted(answer))


def unicode_digits(pattern):
    return re.compile(pattern.pattern.replace('[1-9][0-9]', r'\d\d').replace('0|', r'\d|'))


def no_border_behind(text):
    return [C._parsed(piece) for piece in P.split_steps(text)]


def only_semicolons(text):
    return [piece.strip() for piece in text.split(';')]


def begins_right(item, text, true=Q.verify_sequence):
    "Terms behind those that are asked are not looked at."
    said = Q.parse_terms(P.final_answer(text) or '') or ()
    return true(item, ' '.join(map(str, said[: len(item.data[1])])) if said else text)


def terms_anywhere(text, true=Q.parse_terms):
    return tuple(int(word) for word in re.findall('[0-9]{1,6}', text)) or None


def named_among_others(item, text, true=L.verify_lookup):
    right = L.lookup_answer(item)
    return true(item, right if right in (P.final_answer(text) or '').split() else text)


def row_of_the_start(table, true=L._walk):
    "The first pointer alone is followed."
    return true(table._replace(query=table.query._replace(number=min(1, table.query.number))))


def anything_goes(edges, true=G.neighbours_of):
    "Every node is beside every other."
    nodes = {node for edge in edges for node in edge}
    return dict.fromkeys(nodes, tuple(nodes))


def without_arrows(text, true=G.parse_path):
    return None if '>' in text else true(text)


def shown_tests_alone(problem, true=R._tests):
    return true(problem)[: len(problem.shown)]


def any_length(text, names='x', true=R.parse_program):
    found = true(text, names)
    return found._replace(fault=None) if found.fault == 40 else found


def one_wish_missing(item, true=W.wishes_of):
    return true(item)[:-1] or true(item)


def any_sentence(text, true=W.read_text):
    written = true(text)
    return written._replace(good=(True,) * len(written.good))


def as_at_first(self, who, has, before, place, true=T._Having._note):
    "What happens later is not read."
    if who not in self.has:
        true(self, who, has, before, place)


def mentioned_too(segment, true=T.phrasings):
    "The name of the thing is enough."
    return true(segment) | {segment.split()[-1], segment.partition(' with ')[2]}


def either_side(segment, true=T.phrasings):
    turned = {text.replace('left', 'right') for text in true(segment)}
    return true(segment) | turned


ACCEPTED, REFUSED = 'wrongly accepted', 'wrongly refused'
FAULTS = {
    'a number is used twice': (ACCEPTED, C, 'verify_countdown', reuse),
    'the last step is not compared': (ACCEPTED, C, 'verify_countdown', untested_end),
    'numbers are left over': (ACCEPTED, C, 'verify_countdown', with_leftovers),
    'the thought is the answer': (ACCEPTED, C, 'final_answer', thought_is_read),
    'the last of several answers': (ACCEPTED, S, 'final_answer', last_of_several),
    'the first of several answers': (ACCEPTED, M, 'final_answer', first_of_several),
    'no limit to results': (ACCEPTED, C, 'combine', any_result),
    'division with a rest': (ACCEPTED, C, 'combine', floor_division),
    'remainders not taken': (ACCEPTED, M, 'verify_modular', congruent),
    'a clause goes unseen': (ACCEPTED, S, 'satisfied', one_clause_missing),
    'letters in any order': (ACCEPTED, S, 'parse_literals', any_order),
    'digits of other scripts': (ACCEPTED, C, '_STEP', unicode_digits(C._STEP)),
    'remainders in other scripts': (ACCEPTED, M, '_NUMBER', unicode_digits(M._NUMBER)),
    'the last answer of own data': (ACCEPTED, O, 'final_answer', last_of_several),
    'terms behind the asked ones': (ACCEPTED, Q, 'verify_sequence', begins_right),
    'terms among other signs': (ACCEPTED, Q, 'parse_terms', terms_anywhere),
    'the right cell among others': (ACCEPTED, L, 'verify_lookup', named_among_others),
    'one pointer for several': (ACCEPTED, L, '_walk', row_of_the_start),
    'no edge is looked up': (ACCEPTED, G, 'neighbours_of', anything_goes),
    'no limit to steps': (ACCEPTED, G, 'most_steps', lambda item: 99),
    'arrows are no path': (REFUSED, G, 'parse_path', without_arrows),
    'hidden tests unseen': (ACCEPTED, R, '_tests', shown_tests_alone),
    'programs of any length': (ACCEPTED, R, 'parse_program', any_length),
    'the last of several programs': (ACCEPTED, R, 'final_answer', last_of_several),
    'the decoy opens': (ACCEPTED, K, 'lock_code', K.lock_decoy),
    'the first of several codes': (ACCEPTED, K, 'final_answer', first_of_several),
    'a wish goes unseen': (ACCEPTED, W, 'wishes_of', one_wish_missing),
    'any heap of words': (ACCEPTED, W, 'read_text', any_sentence),
    'the last of several texts': (ACCEPTED, W, 'final_answer', last_of_several),
    'happenings are not read': (ACCEPTED, T._Having, '_note', as_at_first),
    'a name is enough': (ACCEPTED, T, 'phrasings', mentioned_too),
    'either side of a row': (ACCEPTED, T, 'phrasings', either_side),
    'the first of several endings': (ACCEPTED, T, 'final_answer', first_of_several),
    'no border behind': (REFUSED, C, 'parse_steps', no_border_behind),
    'lines are not steps': (REFUSED, C, 'split_steps', only_semicolons),
}


@pytest.mark.parametrize('name', FAULTS)
def test_a_planted_fault_is_found(name, corpus, monkeypatch):
    kind, module, place, fault = FAULTS[name]
    monkeypatch.setattr(module, place, fault)
    names = {C: 'countdown', M: 'modular', S: 'sat', O: OWN}
    names |= {Q: 'sequence', L: 'lookup', G: 'path', R: 'program', K: 'lock'}
    names |= {W: 'wishes', T: 'story', T._Having: 'story'}
    assert kind in wrongs(of_task(corpus, names[module]))


def of_task(corpus, name):
    return [case for case in corpus if case[0].task == name]


@pytest.mark.parametrize('verify', [prefix, mentioned])
def test_a_fault_in_the_verifier_of_own_data_is_found(verify, corpus):
    rows = {'train': [{'question': i.data[0], 'answer': i.data[1]} for i in own_items()]}
    try:
        task_from(rows, name=OWN, verify=verify, replace=True)
        assert ACCEPTED in wrongs(of_task(corpus, OWN))
    finally:
        fuzz.own_task()


def own_items():
    return fuzz.own_task().parts['train']


# -- time


def test_verdicts_take_linear_time():
    for name, took in timed().items():
        assert took['growth_exponent'] < 1.3, name
        assert took['slowest_seconds_per_1000'] < 0.1, name


def test_quadratic_time_would_be_seen(monkeypatch):
    def quadratic(text, true=P.final_answer):
        return true(re.sub(r'\s+$', '', text))

    item = fuzz.examples()['modular'].item
    texts = [' ' * n + '?' for n in (500, 2000, 8000)]
    assert fuzz.growth(item, texts)[1] < 1.3
    monkeypatch.setattr(M, 'final_answer', quadratic)
    assert fuzz.growth(item, texts)[1] > 1.5


# -- the stored run


def test_the_stored_run_is_of_these_verifiers_and_found_nothing():
    stored = json.loads(fuzz.STORED.read_text())
    again = 'run `make fuzz`, which stores it anew'
    assert stored['verifiers'] == fuzz.digest_of_verifiers(), again
    assert sum(row['texts'] for row in stored['counts'].values()) == stored['count']
    for source, row in stored['counts'].items():
        assert row['accepted'] > 0.01 * row['texts'], source
        wrong = ('wrongly_accepted', 'wrongly_refused', 'otherwise_wrong')
        assert [row[name] for name in wrong] == [0, 0, 0], source
    assert set(stored['time']) == {*tasks(), OWN}
    assert all(took['growth_exponent'] < 1.3 for took in stored['time'].values())


@pytest.mark.slow
def test_a_run_says_how_many_texts_it_judged(monkeypatch):
    monkeypatch.setattr(fuzz, 'BLOCK', 200)
    counts, findings = fuzz.fuzzed(600, seed=5)
    assert sum(row['texts'] for row in counts.values()) == 600 and not findings
    counts, _ = fuzz.fuzzed(600, seed=5, minutes=0)
    assert counts == {}
