"""Do the verifiers accept what is wrong? Hostile texts for every task and level, each judged by the
library and, from the rules in words, by a slow second verifier that shares no code with it.

Texts are right and wrong demonstrations in many layouts, and damaged ones: tokens and characters
swapped, repeated, deleted and inserted; look-alikes, control characters, nested tags, huge numbers;
and answers that break one rule only, such as a number used twice on the way to the target.

    python tests/fuzz.py                                    10,000 texts
    python tests/fuzz.py --count 1000000 --seed 0 --store   a million, stored (make fuzz)
"""

import argparse, hashlib, itertools, json, math, platform, random, re, sys, time, unicodedata
from collections import Counter
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import NamedTuple
import rl4llm
from rl4llm.core.fingerprint import called_code
from rl4llm.environments.environment import written_episode
from rl4llm.tasks import Item, levels, task, task_from, task_of, tasks, think, verdict_of

TOP = Path(__file__).resolve().parents[1]
STORED = TOP / 'tests' / 'fuzz.json'
DIGITS = '0123456789'


# -- the rules, in plain steps: what may be accepted, and what must be

OPEN, CLOSE = '<answer>', '</answer>'


class Rule(NamedTuple):
    "Whether a text has to be accepted, and whether it may be."

    required: bool
    allowed: bool


def places(text, part):
    "Where `part` begins in the text."
    found, at = [], text.find(part)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + 1)
    return found


def answer_part(text):
    "What counts: between the one pair of tags that ends the text, or else all; at most 2000."
    opened, closed = places(text, OPEN), places(text, CLOSE)
    if not opened and not closed:
        part = text
    elif len(opened) == len(closed) == 1 and opened[0] < closed[0]:
        if text[closed[0] + len(CLOSE) :].strip():
            return None
        part = text[opened[0] + len(OPEN) : closed[0]]
    else:
        return None
    return part if len(part) <= 2000 else None


def plain_number(word):
    "The value of plain digits without a leading zero, else None."
    if not word or any(letter not in DIGITS for letter in word):
        return None
    if len(word) > 6 or (word[0] == '0' and word != '0'):
        return None
    return sum(DIGITS.index(d) * 10**i for i, d in enumerate(reversed(word)))


def lines_of(part):
    "Steps: one a line, or one between semicolons, of which one may stand behind the last."
    segments = part.strip().split(';')
    if len(segments) > 1 and not segments[-1].strip():
        segments.pop()
    steps = []
    for segment in segments:
        lines = [line.strip() for line in segment.split('\n') if line.strip()]
        steps += lines or ['']
    return steps


def words_of(line):
    "Runs of digits and single signs; blanks and tabs between them."
    words, digits_go_on = [], False
    for letter in line:
        if letter in DIGITS and digits_go_on:
            words[-1] += letter
        elif letter not in ' \t':
            words.append(letter)
        digits_go_on = letter in DIGITS
    return words


def one_step(line, hand, top, ops):
    "The numbers in hand after a step `a op b = c`, None if the step breaks a rule."
    words = words_of(line)
    if len(words) != 5 or words[3] != '=' or words[1] not in list(ops):
        return None
    a, b, c = map(plain_number, (words[0], words[2], words[4]))
    if a is None or b is None or c is None or c > top:
        return None
    exact = {
        '+': lambda: Fraction(a) + b,
        '-': lambda: Fraction(a) - b,
        '*': lambda: Fraction(a) * b,
        '/': lambda: Fraction(a, b) if b else None,
    }[words[1]]()
    rest = Counter(hand)
    rest[a] -= 1
    rest[b] -= 1
    if exact != c or min(rest.values()) < 0:
        return None
    return [*rest.elements(), c]


def countdown_rule(item, text):
    "Every number used up, each step on two numbers in hand, exact, within the limit; the target."
    numbers, target, top, ops = item.data
    part, hand = answer_part(text), list(numbers)
    for line in [] if part is None else lines_of(part):
        hand = one_step(line, hand, top, ops)
        if hand is None:
            return Rule(False, False)
    right = part is not None and hand == [target] and len(numbers) > 1
    return Rule(right, right)


def result_of(part):
    "What stands behind `x =` or `3 + 4 =`, the marks of a formula left out; else the part itself."
    plain = unmarked(part)
    before, sign, after = plain.rpartition('=')
    named = before.strip()
    sums = all(x.isdecimal() or x.isspace() or x in '+-*/×·÷().=' for x in named)
    return unmarked(after) if sign and (sums or named.isidentifier()) else plain


def unmarked(part):
    "A text without the marks of a formula and the white space at its ends."
    before = None
    while part != before:
        before = part
        part = part.strip().strip('*$`.#')
    return part


def modular_rule(item, text):
    "The remainder of the whole chain, as a plain number; `x = 7` and `**7**` may be read as 7."
    modulus, value, updates = item.data
    for op, y in updates:
        value = {'+': value + y, '-': value - y, '*': value * y}[op]
    remainder = value - math.floor(Fraction(value, modulus)) * modulus
    part = answer_part(text)
    if part is None:
        return Rule(False, False)
    required = plain_number(part.strip()) == remainder
    return Rule(required, required or plain_number(result_of(part)) == remainder)


def literals_of(part):
    "Truth values by letter in the order written, None if it is no such list."
    said, at, part = [], 0, part.strip()
    while at < len(part):
        false = part[at] == '!'
        at += false
        while false and at < len(part) and part[at].isspace():
            at += 1
        if at == len(part) or part[at] not in 'abcdefghijklmnopqrstuvwxyz':
            return None
        said.append((part[at], not false))
        start = at = at + 1
        commas = 0
        while at < len(part) and (part[at].isspace() or part[at] == ','):
            commas += part[at] == ','
            at += 1
        stuck = at == start and at < len(part) and part[at] != '!'
        if commas > 1 or stuck or (commas and at == len(part)):
            return None
    return said


def sat_rule(item, text):
    "Each variable once, in order, and every clause has a part that holds."
    variables, clauses = item.data
    part = answer_part(text)
    said = None if part is None else literals_of(part)
    if said is None or [name for name, _ in said] != list('abcdefghijklmnopqrstuvwxyz')[:variables]:
        return Rule(False, False)
    truth = {i: value for i, (_, value) in enumerate(said, 1)}
    right = all(any(truth[abs(x)] is (x > 0) for x in clause) for clause in clauses)
    return Rule(right, right)


# -- the rules of lists: terms of a sequence, nodes of a path


def listed(part, marks):
    """The words of a list, None if it is none.

    Between two of them stand white space and at most one of the marks; behind the last none.
    """
    for mark in marks:
        part = part.replace(mark, ' , ')
    words = part.split()
    if not words or words[0] == ',' or words[-1] == ',':
        return None
    if any(a == b == ',' for a, b in zip(words, words[1:])):
        return None
    return [word for word in words if word != ',']


def bare(part):
    "An answer without the marks of a formula around it, unless it has a `=`."
    return part.strip() if '=' in part else unmarked(part)


def sequence_rule(item, text):
    "The asked terms, in order, and no others."
    part = answer_part(text)
    if part is None:
        return Rule(False, False)

    def said(part):
        words = listed(part, ',')
        return words is not None and tuple(map(plain_number, words)) == item.data[1]

    return Rule(said(part), said(part) or said(bare(part)))


def lookup_rule(item, text):
    "What the table says: found by walking, or by looking at every row of the noun."
    columns, rows, (verb, about, column, number) = item.data
    at = columns.index(column)
    if verb == 'follow':
        name = about
        for _ in range(number):
            (name,) = [follower for row, _, follower, _ in rows if row == name]
        (right,) = [str(numbers[at]) for row, _, _, numbers in rows if row == name]
    else:
        found = [(numbers[at], row) for row, noun, _, numbers in rows if noun == about]
        right = {
            'most': lambda: sorted(found)[-1][1],
            'count': lambda: str(len([value for value, _ in found if value - number > 0])),
            'sum': lambda: str(sum(value for value, _ in found)),
        }[verb]()
    part = answer_part(text)
    if part is None:
        return Rule(False, False)
    ways = (part, bare(part) if verb == 'most' else result_of(part))
    required, allowed = (way.strip() == right for way in ways)
    return Rule(required, required or allowed)


def path_rule(item, text):
    "From the start along edges to the goal, in as few steps as is asked for."
    _, edges, start, goal, limit = item.data
    joined = {(a, b) for pair in edges for a, b in (pair, pair[::-1])}
    most, ends = 0, {start}
    while goal not in ends:
        ends |= {b for a, b in joined if a in ends}
        most += 1
    most = limit or most

    def right(part):
        nodes = listed(part, ('->', '→', ','))
        if nodes is None or (nodes[0], nodes[-1]) != (start, goal) or len(nodes) > most + 1:
            return False
        return all(step in joined for step in zip(nodes, nodes[1:]))

    part = answer_part(text)
    if part is None:
        return Rule(False, False)
    return Rule(right(part), right(part) or right(bare(part)))


# -- the rules of programs and of locks


def pieces_of(part):
    "What stands between white space."
    pieces, goes_on = [], False
    for letter in part:
        if letter.isspace():
            goes_on = False
            continue
        pieces.append(pieces.pop() + letter if goes_on else letter)
        goes_on = True
    return pieces


REACH = {'+': 2, '-': 2, '*': 2, 'mod': 2, '>': 2, 'd': 1, 's': 2, 'if': 3}


def on_top(piece, b, a=None, c=None):
    "What a word makes of the numbers on top, the topmost first; None for a remainder by 0."
    if piece == 'd':
        return [b, b]
    if piece == 's':
        return [a, b]
    if piece == 'if':
        return [b if c == 0 else a]
    if piece == 'mod':
        return [a - a // b * b] if b else None
    value = {'+': a + b, '-': a - b, '*': a * b, '>': 1 if b < a else 0}[piece]
    return [value - value // 100 * 100]


def machine(pieces, inputs):
    "The one number that is left, None if the row of words is no program or stops."
    pile = []
    for piece in pieces:
        value = inputs.get(piece, plain_number(piece))
        if value is not None and value < 100:
            pile = [value] + pile
            continue
        reach = REACH.get(piece, 99)
        made = on_top(piece, *pile[:reach]) if len(pile) >= reach else None
        if made is None:
            return None
        pile = made + pile[reach:]
    return pile[0] if len(pile) == 1 else None


@cache
def wanted_results(names, known):
    "What the known program gives for every input, by the names of the inputs."
    points = itertools.product(range(10), repeat=len(names))
    given = [dict(zip(names, values)) for values in points]
    return [(inputs, machine(known.split(' '), inputs)) for inputs in given]


def program_rule(item, text):
    "At most forty words that give what the known program gives, for every input."
    names, known, _ = item.data
    part = answer_part(text)
    pieces = [] if part is None else pieces_of(part)
    if not 0 < len(pieces) <= 40:
        return Rule(False, False)
    tests = wanted_results(names, known)
    right = all(machine(pieces, inputs) == wanted for inputs, wanted in tests)
    return Rule(right, right)


def lock_rule(item, text):
    "In each place the letter of the ring behind that of the plate, white space between them."
    ring, plate, _ = item.data
    part = answer_part(text)
    behind = {letter: (ring + ring)[i + 1] for i, letter in enumerate(ring)}
    right = part is not None and pieces_of(part) == [behind[letter] for letter in plate]
    return Rule(right, right)


# -- the rules of wishes

SHORT = ('cat dog bird tree house', 'happy sad red blue green big good bad', 'up down left right')
NOUN, HOW, WHERE = (f"({'|'.join(words.split())})" for words in SHORT)
CALLED = '[bcdefghjklmnpqrstuvwxy]'
SENTENCE = re.compile(
    f'({CALLED}|the ({HOW} )?{NOUN}) '
    f'(runs( {WHERE})?|sees ({CALLED}|the {NOUN})|(is|was)( not)? {HOW})'
)
SOUNDS = ('tree b c d e g p t v', 'blue q u w', 'j k', 'sad bad')


def sentences_in(part):
    "The sentences of a text, None if one of them is none."
    low = ''.join(chr(ord(x) + 32) if 'A' <= x <= 'Z' else x for x in part)
    lines = [' '.join(pieces_of(line)) for line in low.split('.')]
    if lines.pop() or not all(SENTENCE.fullmatch(line) for line in lines):
        return None
    return [line.split(' ') for line in lines]


def wish_holds(wish, lines):
    "One wish, from its words."
    kind, *about = wish
    words = [word for line in lines for word in line]
    ends, verbs = [line[-1] for line in lines], 'runs sees is was'.split()
    said = [next(word for word in line if word in verbs) for line in lines]
    glad = sum(word in ('happy', 'good') for word in words)
    low = sum(word in ('sad', 'bad') for word in words)
    return {
        'avoid': lambda: words.count(about[0]) == 0,
        'mention': lambda: words.count(about[0]) > 0,
        'words': lambda: about[0] <= len(words) <= about[1],
        'mood': lambda: glad > low if about[0] == 'happy' else low > glad,
        'before': lambda: set(about) <= {*words} and words.index(about[0]) < words.index(about[1]),
        'rhyme': lambda: any({*ends} <= {*sound.split()} for sound in SOUNDS),
        'turn': lambda: not any(a == b for a, b in itertools.pairwise(said)),
    }[kind]()


def wishes_rule(item, text):
    "So many sentences, each of the grammar, and every wish holds."
    count, wishes = item.data
    part = answer_part(text)
    lines = None if part is None else sentences_in(part)
    if lines is None or len(lines) != count:
        return Rule(False, False)
    right = all(wish_holds([x for x in wish if x != ''], lines) for wish in wishes)
    return Rule(right, right)


# -- the rules of stories


def what_all_have(told):
    "Who has what at the end, things by name and numbers as numbers."
    have = {}
    for words in told:
        who, verb, *rest = words
        if verb == 'with':
            have[who] = plain_number(rest[0]) if len(rest) == 1 else rest[1]
        elif verb == 'and':
            have[who], have[rest[0]] = have[rest[0]], have[who]
        elif verb in ('+', '-'):
            have[who] += int(verb + rest[0])
        elif verb == 'to':
            have[who] -= int(rest[1])
            have[rest[0]] += int(rest[1])
    return have


def is_left(told, one, other):
    "Whether a chain of neighbours leads from one to the other, to the right."
    beside = {(a, b) if side == 'left' else (b, a) for a, side, _, b in told if side in SIDES}
    reached = {one}
    while other not in reached:
        more = {b for a, b in beside if a in reached} - reached
        if not more:
            return False
        reached |= more
    return True


SIDES = {'left': 'right', 'right': 'left'}


def story_sayings(item):
    "What may be said, in all words that count."
    told = [segment.split() for segment in item.data[:-1]]
    one, other = (item.data[-1].split() + [None])[::2]
    if other is not None:
        side = 'left' if is_left(told, one, other) else 'right'
        both = [f'{one} HERE {side} of {other}', f'{other} HERE {SIDES[side]} of {one}']
        links = ('HERE ', ''), ('HERE', 'is'), ('HERE', 'is to the')
        links += (('HERE', 'stands'), ('HERE', 'stands to the'))
        return {text.replace(*link) for text in both for link in links}
    has = what_all_have(told)[one]
    names = [has, f'the {has}'] if isinstance(has, str) else [str(has), f'{has} stones']
    names += ['1 stone'] if has == 1 else []
    said = set()
    for name in names:
        said |= {f'{one} {verb} {name}' for verb in ('with', 'is with', 'has')}
        said |= {f'{name} {verb} {one}' for verb in ('with', 'is with')}
    return said


def story_rule(item, text):
    "What follows, in any words that say it."
    part = answer_part(text)
    if part is None:
        return Rule(False, False)

    def right(part):
        low = ''.join(chr(ord(x) + 32) if 'A' <= x <= 'Z' else x for x in part)
        return ' '.join(pieces_of(low)) in story_sayings(item)

    return Rule(right(part), right(part) or right(bare(part)))


# -- the rules of own data: a number in any way of writing it, or the same words

PRICES = '$€£'


def statement(text):
    "What a text states: in tags; in its last box; behind `####` or `answer is` in its last line."
    if OPEN in text or CLOSE in text:
        text = answer_part(text)
        if text is None:
            return []
    boxes = places(text, '\\boxed{')
    if boxes:
        return in_braces(text[boxes[-1] + len('\\boxed{') :])
    line = text.rstrip().split('\n')[-1].rpartition('####')[2]
    if len(line) > 2000:
        return []
    low = line.lower().replace('ſ', 's')
    behind = [line[at + 6 :] for at in places(low, 'answer')]
    found = [b for b in map(after_is, behind) if b is not None]
    return [found[-1] if found else line]


def in_braces(rest):
    "The text before the brace that closes, as a list of one; empty if none does."
    depth = 1
    for at, letter in enumerate(rest[:2000]):
        depth += {'{': 1, '}': -1}.get(letter, 0)
        if depth == 0:
            return [rest[:at]]
    return []


def after_is(rest):
    "What follows `: ` or ` is `, None where neither stands."
    bare = rest.lstrip()
    if bare.startswith(':'):
        return bare[1:]
    if bare[:2].lower() == 'is' and not bare[2:3].isalnum() and bare != rest:
        return bare[2:].lstrip().removeprefix(':')
    return None


SAME_SIGN = {'−': '-', '–': '-', '⁄': '/', '∕': '/'}


def narrow(text):
    "Full-width signs as ordinary ones, so that a full-width `e` may stand in `\\boxed`."
    return ''.join(chr(ord(x) - 0xFEE0) if '！' <= x <= '～' else x for x in text)


def without_signs(said):
    "An answer without the marks of a heading and the `=` that stand before it."
    return said.lstrip('#= \t\n\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u2003\u2028\u2029')


def ordinary(said):
    "Full-width signs and other minus signs and bars as ordinary ones, `½` as ` 1/2`."
    out = ''
    for letter in narrow(said):
        fraction = unicodedata.decomposition(letter).startswith('<fraction>')
        value = Fraction(unicodedata.numeric(letter)).limit_denominator(10) if fraction else 0
        digit = unicodedata.decimal(letter, None)
        plain = SAME_SIGN.get(letter, letter) if digit is None else str(digit)
        out += f' {value.numerator}/{value.denominator} ' if fraction else plain
    return ' '.join(out.casefold().split())


def stripped(said):
    "Words without the quotes around them, the full stop behind them, and the marks of a formula."
    said = said[:2000].strip().strip('"\'`').strip().removesuffix('.').strip()
    formula = len(said) > 1 and said[0] == said[-1] == '$'
    return said[1:-1].strip() if formula else said


def amount(said):
    "The number that is written, None if it is no number."
    sign = -1 if said.startswith('-') else 1
    said = said.removeprefix('-') if sign < 0 else said.removeprefix('+')
    if said[:1] in PRICES:
        said = said[1:].removeprefix(' ')
        sign = -sign if said.startswith('-') and sign > 0 else sign
        said = said.removeprefix('-').removeprefix('+')
    said = said.removesuffix('%').strip().replace(' /', '/').replace('/ ', '/')
    whole, blank, part = said.partition(' ')
    if blank:
        more = quotient(part)
        whole = decimal(whole)
        fine = whole is not None and more is not None and '/' in part and 0 <= more < 1
        return sign * (whole + more) if fine else None
    value = quotient(said)
    return None if value is None else sign * value


def quotient(said):
    over, bar, under = said.partition('/')
    over, under = decimal(over), decimal(under) if bar else Fraction(1)
    return over / under if over is not None and under else None


def decimal(said):
    "Digits with a point, with groups of three, or with an exponent."
    mantissa, power, exponent = said.partition('e')
    if power:
        sign = -1 if exponent.startswith('-') else 1
        digits = exponent[1:] if exponent[:1] in ('+', '-') else exponent
        value = None if ',' in mantissa else decimal(mantissa)
        small = digits and len(digits) < 4 and set(digits) <= set(DIGITS)
        return value * Fraction(10) ** (sign * int(digits)) if small and value is not None else None
    before, _, after = said.partition('.')
    groups = before.split(',')
    grouped = len(groups) > 1 and 0 < len(groups[0]) < 4 and all(len(g) == 3 for g in groups[1:])
    digits = ''.join(groups)
    if not digits + after or not set(digits + after) <= set(DIGITS) or len(digits + after) > 2000:
        return None
    if len(groups) > 1 and not grouped:
        return None
    return Fraction(int(digits + after), 10 ** len(after))


def reading(said):
    "An answer as words, as a number, and the unit of the number."
    words = stripped(ordinary(said))
    return words, amount(words), ''.join(sign for sign in PRICES + '%' if sign in words)


def agrees(said, right):
    words, value, unit = said
    if value is not None and right[1] is not None:
        return value == right[1] and (not unit or not right[2] or unit == right[2])
    return bool(words) and words == right[0]


def spellings(answer):
    "Ways to write an answer that nobody may refuse."
    if isinstance(answer, str):
        return {answer, f'{answer}.', f'"{answer}"', answer.lower(), answer.upper()}
    return {str(answer), f'{answer:,}', f'{answer}.'}


def own_rule(item, text):
    "It states an answer of the row: the same number, or the same words."
    answers = item.data[1] if isinstance(item.data[1], tuple) else (item.data[1],)
    rights = [reading(said) for answer in answers for said in statement(str(answer))]
    ways = (text, narrow(text).casefold())  # `\\BOXED` is fine
    said = [s for way in ways for s in statement(way)]
    said += [without_signs(s) for s in said]  # so are `### 7` and `= 7`,
    said += [result_of(narrow(s)) for s in said]  # and `3 + 4 = 7`, whose sum nobody checks
    allowed = any(agrees(reading(s), right) for s in said for right in rights)
    plain = (statement(str(a))[0].strip() if isinstance(a, str) else a for a in answers)
    known = set().union(*map(spellings, plain))
    part = answer_part(text)
    tagged = OPEN in text and part is not None and part.strip() in known
    return Rule(tagged or text in known or text in {f'#### {k}' for k in known}, allowed)


# An environment is a function from the words of a call to (what it says, whether it is over, and
# well). Any word but those of its tools is `wrong ?`; other arguments than they take, `wrong !`.

ONE_OR_TWO_DIGITS = {str(number) for number in range(100)}
WAYS = dict(up=(0, 1), down=(0, -1), left=(-1, 0), right=(1, 0))


def in_brackets(expression):
    "An expression as Python reads it."
    if isinstance(expression, int):
        return str(expression)
    op, left, right = expression
    return f'({in_brackets(left)}{op}{in_brackets(right)})'


def calculator_world(expression):
    value = eval(in_brackets(expression))

    def call(words):
        if words[:1] not in (['+'], ['-'], ['*'], ['=']):
            return 'wrong ?', False, False
        wanted = 1 if words[0] == '=' else 2
        if len(words) != wanted + 1 or not set(words[1:]) <= ONE_OR_TWO_DIGITS:
            return 'wrong !', False, False
        if words[0] == '=':
            return '', True, int(words[1]) == value
        found = eval(f'{words[1]} {words[0]} {words[2]}')
        return str(found) if str(found) in ONE_OR_TWO_DIGITS else 'no', False, False

    return call


def knowledge_world(facts, start, relations):
    def led_to(thing, relation):
        return next((c for a, b, c in facts if (a, b) == (thing, relation)), 'no')

    end = start
    for relation in relations:
        end = led_to(end, relation)

    def call(words):
        if words[:1] not in (['?'], ['=']):
            return 'wrong ?', False, False
        if len(words) != (3 if words[0] == '?' else 2):
            return 'wrong !', False, False
        if words[0] == '=':
            return '', True, words[1] == end
        return led_to(*words[1:]), False, False

    return call


def key_door_world(size, start, key, door, walls):
    here, holds = list(start), []

    def call(words):
        if words[:1] not in (['to'], ['+'], ['>']):
            return 'wrong ?', False, False
        moves = words[0] == 'to'
        if len(words) != 1 + moves or moves and words[1] not in WAYS:
            return 'wrong !', False, False
        if moves:
            x, y = (a + b for a, b in zip(here, WAYS[words[1]]))
            if (x, y) in walls or x not in range(size) or y not in range(size):
                return 'no', False, False
            here[:] = x, y
            return f'{x} {y}', False, False
        if words[0] == '+':
            if holds or tuple(here) != key:
                return 'no', False, False
            holds.append('k')
            return 'k', False, False
        opened = bool(holds) and tuple(here) == door
        return '' if opened else 'no', opened, opened

    return call


def form_world(known, wanted):
    entries = {}

    def call(words):
        if words[:1] not in (['?'], ['+'], ['>']):
            return 'wrong ?', False, False
        if len(words) != (3 if words[0] == '+' else 1):
            return 'wrong !', False, False
        if words[0] == '?':
            return next((name for name in wanted if name not in entries), 'no'), False, False
        if words[0] == '>':
            right = [(name, entries.get(name)) in known for name in wanted]
            return '', True, all(right)
        if words[2] not in ONE_OR_TWO_DIGITS:
            return 'wrong !', False, False
        if words[1] not in wanted:
            return 'no', False, False
        entries[words[1]] = int(words[2])
        return 'yes', False, False

    return call


def bandit_world(rows):
    left = {arm: list(row) for arm, row in zip('abcde', rows)}
    ones = {arm: row.count('1') for arm, row in left.items()}

    def call(words):
        if words[:1] not in (['+'], ['=']):
            return 'wrong ?', False, False
        if len(words) != 2:
            return 'wrong !', False, False
        if words[0] == '=':
            return '', True, ones.get(words[1]) == max(ones.values())
        if words[1] not in left:
            return 'no', False, False
        row = left[words[1]]
        row.append(row.pop(0))
        return row[-1], False, False

    return call


WORLDS = dict(calculator=calculator_world, knowledge=knowledge_world, key_door=key_door_world)
WORLDS |= dict(form=form_world, bandit=bandit_world)


def episode_rule(item, text):
    "Every call has the result that its world gives, none stands elsewhere, and it ends well."
    *world, horizon = item.data
    call, calls = WORLDS[item.task](*world), 0
    spoken = text.split() if len(text) <= 8000 else []
    while '<tool>' in spoken and '</tool>' in spoken[spoken.index('<tool>') :]:
        begins = spoken.index('<tool>')
        ends = spoken.index('</tool>', begins)
        if '<result>' in spoken[:begins] or '</result>' in spoken[:begins]:
            break
        said, over, well = call(spoken[begins + 1 : ends])
        calls += 1
        over = over or calls == horizon
        true = f"<result> {said} {'<done>' if over else ''} </result>".split()
        spoken = spoken[ends + 1 :]
        heard, spoken = spoken[: len(true)], spoken[len(true) :]
        if heard != true[: len(heard)] or over:
            right = heard == true[: len(heard)] and well
            return Rule(right, right)
    return Rule(False, False)


OWN = 'fuzz own'
RULES = dict(countdown=countdown_rule, modular=modular_rule, sat=sat_rule)
RULES |= dict(sequence=sequence_rule, lookup=lookup_rule, path=path_rule)
RULES |= dict(program=program_rule, lock=lock_rule, wishes=wishes_rule, story=story_rule)
RULES |= dict.fromkeys(WORLDS, episode_rule)
RULES[OWN] = own_rule


def rule_of(item, text):
    "What the rules say of a text. Raises KeyError for a task that has none here."
    return RULES[item.task](item, text)


# -- problems, with right answers and with answers that break one rule


class Problem(NamedTuple):
    item: Item
    right: list
    near: list


def written(steps):
    return ' ; '.join(f'{a} {op} {b} = {c}' for a, op, b, c in steps)


def result(a, op, b):
    "What an operation gives, by floor division where it is not exact, 0 where there is nothing."
    return {'+': a + b, '-': a - b, '*': a * b, '/': a // b if b else 0}[op]


def loose_play(rng, numbers, flaw, ops='+-*/'):
    "A play to one number that keeps the rules but for a flaw in one step."
    hand, steps = list(numbers), []
    wrong = rng.randrange(len(numbers) - 1)
    for i in range(len(numbers) - 1):
        if len(hand) < 2:
            break
        rng.shuffle(hand)
        a, b = hand.pop(), hand.pop()
        here = flaw if i == wrong else None
        if here == 'twice':
            hand.append(b)
            b = a
        if here == 'kept':
            hand.append(a)
        if here == 'foreign':
            b = rng.randrange(30)
        op = rng.choice(ops)
        c = result(a, op, b)
        if here == 'false':
            c += rng.choice((-1, 1, 2, 10))
        steps.append((a, op, b, c))
        hand.append(c)
        if here == 'short':
            break
    return steps


FLAWS = ('twice', 'kept', 'foreign', 'false', 'short', None)


def play_with(rng, wanted, ops):
    "Numbers and a play without negative results that is as wanted."
    while True:
        numbers = tuple(sorted(rng.randint(1, 13) for _ in range(rng.randint(3, 5))))
        steps = loose_play(rng, numbers, None, ops)
        if min(c for *_, c in steps) >= 0 and wanted(steps):
            return numbers, steps


def over_the_limit(rng):
    "A problem, and an exact play to its target by way of a number above the limit."

    def wanted(steps):
        return 0 < steps[-1][3] < max(c for *_, c in steps)

    numbers, steps = play_with(rng, wanted, '+-*')
    top = rng.randint(steps[-1][3], max(c for *_, c in steps) - 1)
    return as_problem(rng, Item('countdown', (numbers, steps[-1][3], top, '+-*')), steps)


def with_a_rest(rng):
    "A problem, and a play to its target in which a division leaves a rest that is forgotten."

    def wanted(steps):
        return any(op == '/' and b and a % b for a, op, b, _ in steps)

    numbers, steps = play_with(rng, wanted, '+-*//')
    return as_problem(rng, Item('countdown', (numbers, steps[-1][3], 9999, '+-*/')), steps)


def as_problem(rng, item, steps):
    return Problem(item, [written(steps)], [written(steps), forced_last(rng, item)])


def forced_last(rng, item):
    "Legal steps, then one that claims the target, whatever is in hand."
    numbers, target, _, ops = item.data
    steps = loose_play(rng, numbers, None, '+-')
    cut = steps[: rng.randrange(len(steps))]
    pool = [*numbers, *(c for *_, c in cut)]
    x = rng.choice(pool)
    y = rng.choice(pool)
    last = [
        (x, '+', target - x, target),
        (target + x, '-', x, target),
        (x, '-', x - target, target),
    ]
    last += [(x, rng.choice(ops), y, target), (x, rng.choice('+-*/'), y, target)]
    last += [
        (a, op, b, target)
        for a in pool
        for b in pool
        for op in '+-*/'
        if result(a, op, b) == target
    ]
    return written([*cut, rng.choice(last)])


def countdown_problem(rng, item, solutions):
    numbers = item.data[0]
    near = [forced_last(rng, item) for _ in range(12)]
    near += [written(loose_play(rng, numbers, rng.choice(FLAWS))) for _ in range(4)]
    return Problem(item, solutions, near)


def made_countdown(rng):
    "A problem whose target is what comes out of a play that breaks one rule, or none."
    if rng.random() < 0.3:
        return rng.choice((over_the_limit, with_a_rest))(rng)
    numbers = tuple(sorted(rng.randint(0, 13) for _ in range(rng.randint(2, 6))))
    ops = rng.choice(('+-*', '+-*/', '-+', '/*', '*'))
    top = rng.choice((20, 99, 99, 9999))
    flaw = rng.choice(FLAWS)
    steps = loose_play(rng, numbers, flaw, rng.choice((ops, '+-*/')))
    return as_problem(rng, Item('countdown', (numbers, max(0, steps[-1][3]), top, ops)), steps)


def modular_problem(rng, item, solutions):
    modulus = item.data[0]
    right = int(solutions[0].split()[-2])
    shown = solutions[0].partition('<answer>')[0].strip()
    near = [right + modulus, right - modulus, -right, f'0{right}', f'+{right}', f'{right}.0']
    near += [
        f'{right}e0',
        f'({right})',
        f'{right} mod {modulus}',
        rng.randrange(modulus),
        right + 1,
    ]
    near += [f'{right} ; {right}', f'x = {right}', shown]
    lucky = f'{rng.randrange(modulus)} ; 3 <answer> {right} </answer>'
    return Problem(
        item, [*solutions, lucky, str(right)], [f'{shown} <answer> {x} </answer>' for x in near]
    )


def sat_text(values):
    return ' '.join(
        ('' if value else '! ') + letter for letter, value in zip('abcdefghijkl', values)
    )


def sat_problem(rng, item, solutions):
    k = item.data[0]
    near = [sat_text([rng.random() < 0.5 for _ in range(k)]) for _ in range(8)]
    for text in solutions:
        words = text.replace('! ', '!').split()
        i = rng.randrange(len(words))
        flipped = words[i].removeprefix('!') if words[i][0] == '!' else '!' + words[i]
        near += [' '.join([*words[:i], flipped, *words[i + 1 :]]).replace('!', '! ')]
        near += [' '.join(words[:-1]), ' '.join([*words, words[i]]), ' '.join(words[::-1])]
        near += [text.upper(), text.replace('!', '!!'), text.replace('! ', '-'), ','.join(words)]
    return Problem(item, solutions, near)


def answer_of(text):
    "What stands in the tags of a demonstration."
    return text.partition(OPEN)[2].partition(CLOSE)[0].strip()


def sequence_problem(rng, item, solutions):
    "Near: a term too many, too few, off by one or out of place; another rule that fits as well."
    shown, asked, _ = item.data
    i = rng.randrange(len(asked))
    step = shown[-1] - shown[-2]
    near = [[*asked, asked[-1]], asked[:-1], asked[::-1], [shown[-1], *asked], [*asked[1:], 7]]
    near += [[x + (j == i) * rng.choice((-1, 1, 10)) for j, x in enumerate(asked)]]
    near += [[shown[-1] + step * (j + 1) for j in range(len(asked))], [*shown, *asked], [7] * 400]
    near = [' '.join(map(str, terms)) for terms in near]
    right = ' '.join(map(str, asked))
    near += [
        right.replace(' ', ', ') + ',',
        f'0{right}',
        f'{right} or 7',
        f'x = {right}',
        f'-{right}',
    ]
    near += [right.replace(' ', ' , , '), right.replace(' ', ';'), f'[{right}]', f'{right}.0']
    more = [right, right.replace(' ', ', '), right.replace(' ', ','), right.replace(' ', '\n')]
    tagged = [f'{OPEN} {n} {CLOSE}' if rng.random() < 0.7 else n for n in near]
    return Problem(item, [*solutions, *more], tagged)


def cells_on_the_way(item):
    "The cells of the rows that pointers lead through, and of the one behind them."
    columns, rows, (_, name, column, number) = item.data
    found = []
    for _ in range(number + 2):
        (row,) = [row for row in rows if row[0] == name]
        found.append(str(row[3][columns.index(column)]))
        name = row[2]
    return found


def lookup_problem(rng, item, solutions):
    "Near: the cells beside the right one and on the way to it, other names and numbers."
    _, rows, (verb, about, column, number) = item.data
    right = answer_of(solutions[0])
    cells = [str(x) for *_, numbers in rows for x in numbers] + [name for name, *_ in rows]
    near = [f'{right} {right}', f'0{right}', f'{right} or {cells[0]}', f'x = {right}', f'{right}.0']
    near += [f'{cells[-1]} = {right}', f'{right} = {cells[-1]}', f'3 + 4 = {right}', f'-{right}']
    near += cells_on_the_way(item) if verb == 'follow' else []
    near += [*rng.sample(cells, 4), about, str(number), column, right.upper(), f'+{right}']
    lucky = f'a -> b ; b {column} 3 {OPEN} {right} {CLOSE}'
    tagged = [f'{OPEN} {n} {CLOSE}' if rng.random() < 0.7 else n for n in near]
    return Problem(item, [*solutions, lucky, right], tagged)


def wandering(rng, edges, start, steps):
    "A walk along edges, and what becomes of it if one of its nodes is another."
    beside = [b for pair in edges for a, b in (pair, pair[::-1]) if a == start]
    if not steps or not beside:
        return [start]
    return [start, *wandering(rng, edges, rng.choice(beside), steps - 1)]


def path_problem(rng, item, solutions):
    "Near: a detour, a jump, a step too many or too few, and walks that get lost."
    _, edges, start, goal, limit = item.data
    good = answer_of(solutions[0]).split()
    i = rng.randrange(len(good))
    near = [good[:-1], good[1:], good[::-1], [*good, good[-2]], [*good, *good[-2:]], good[:1]]
    near += [[*good[:i], *good[i + 1 :]], [*good[: i + 1], *good[i:]], [start, goal], [goal]]
    near += [[*good[:1], *good[:2], *good[1:]], [*good[:2], *good]]
    near += [wandering(rng, edges, start, n) for n in (len(good) - 1, limit, limit + 1, 9)]
    near = [' '.join(nodes) for nodes in near]
    text = ' '.join(good)
    near += [text.upper(), text.replace(' ', ''), f'{text} ->', text.replace(' ', '-'), f'{text} 3']
    near += [f'a = {text}', text.replace(' ', ' ; '), text.replace(' ', ' -> , '), f'{text} .']
    more = [text, *(text.replace(' ', between) for between in (' -> ', ', ', '\n', '->', ' → '))]
    tagged = [f'{OPEN} {n} {CLOSE}' if rng.random() < 0.7 else n for n in near]
    return Problem(item, [*solutions, *more], tagged)


def by_heart(item):
    "A program that knows the shown tests and nothing else; of two inputs it looks at their sum."
    names, known, shown = item.data
    look = 'x' if len(names) == 1 else 'x y +'
    text = '1'
    for point in shown[:6]:
        value = machine(known.split(' '), dict(zip(names, point)))
        text = f'{look} {sum(point)} - {text} {value} if'
    return text


def program_problem(rng, item, solutions):
    names, known, _ = item.data
    free = [text.partition(OPEN)[2].partition(CLOSE)[0].strip() for text in solutions]
    right = [*solutions, *free, known + ' 0 +', '0 ' + known + ' +', known + ' 1 *']
    right += [known + ' 60 + 40 +', known + ' d + ' + known + ' -', known + ' 0 s 1 s if']
    pad = (40 - len(known.split())) // 2
    right += [known + ' 0 +' * pad, known.replace(' ', '\n')]
    words = known.split()
    near = [by_heart(item), known + ' 0 +' * (pad + 1), known + ' 0 mod', known + ' d']
    near += [known + ' ' + known, known + ' 1 +', known + ' 100 +', known + ' d > ', known + ' s']
    near += [known.replace(' ', ''), known.replace(' ', ', '), f'( {known} )', known.upper()]
    near += [' '.join(words[::-1]), ' '.join(words[1:]), ' '.join(words[:-1]), 'x', 'y', '7']
    near += [known.replace('*', '×'), known.replace('d', 'dup'), known.replace('x', 'y')]
    for _ in range(8):
        other = [*words]
        other[rng.randrange(len(words))] = rng.choice([*REACH, *names, str(rng.randrange(21))])
        near.append(' '.join(other))
    return Problem(item, right, near)


def lock_problem(rng, item, solutions):
    ring, plate, _ = item.data
    code = solutions[0].split()
    right = [*solutions, '\n'.join(code), '\t '.join(code)]
    right += [f'<think> {" ".join(plate)} </think> {OPEN} {" ".join(code)} {CLOSE}']
    before = [ring[ring.index(letter) - 1] for letter in plate]
    near = [plate, ' '.join(plate), ''.join(code), ', '.join(code), ' '.join(before)]
    near += [' '.join(code).upper(), ' '.join(code[1:]), ' '.join([*code, code[-1]])]
    near += [' '.join(ring), ' '.join(code[::-1]), ' '.join(sorted(code))]
    for _ in range(6):
        other = [*code]
        other[rng.randrange(len(code))] = rng.choice(ring + 'az')
        near.append(' '.join(other))
    return Problem(item, right, near)


def wishes_problem(rng, item, solutions):
    "Near: one word another, sentences in another order, too few, too many, a heap of words."
    right = [*solutions, *(text.replace(' .', '.').replace('. ', '.\n') for text in solutions)]
    right += [text.capitalize() for text in solutions]
    stock = [word for words in SHORT for word in words.split()] + list('bcjkqryz')
    stock += 'the not is was sees runs and a i .'.split()
    near = []
    for text in solutions:
        lines = text.split(' .')[:-1]
        near += [' .'.join(lines), ' .'.join([*lines[::-1], '']), ' .'.join([*lines, lines[0], ''])]
        near += [' .'.join([*lines[1:], '']), text + ' .', text.replace(' .', ' ;')]
        near += [' '.join(word for word in text.split() if word not in ('the', 'is', 'sees'))]
        for _ in range(4):
            words = text.split()
            words[rng.randrange(len(words))] = rng.choice(stock)
            near.append(' '.join(words))
    return Problem(item, right, near)


def story_problem(rng, item, solutions):
    "Near: what was so before, what is so for others, the other side, a number more or less."
    said = answer_of(solutions[0])
    words = said.split()
    sayings = sorted(story_sayings(item))
    right = [*solutions, *sayings, *(f'{OPEN} {s.capitalize()} {CLOSE}' for s in sayings)]
    right += [f'<think> b cat ; b left d </think> {OPEN} {said} {CLOSE}', said.replace(' ', '\n')]
    near = [segment for segment in item.data if segment != said]
    near += [solutions[0].partition('</think>')[0], said.replace('the ', 'the the '), said[2:]]
    near += [f'{said} {words[-1]}', f'{said} ; {said}', f'x = {said}', f'not {said}', f'{said}0']
    names = 'b c d e f g cat dog bird tree house 0 1 2 3 4 5 left right with the of is'.split()
    for text in [said, *rng.sample(sayings, 4)]:
        for _ in range(3):
            other = text.split()
            other[rng.randrange(len(other))] = rng.choice(names)
            near.append(' '.join(other))
        near += [' '.join(text.split()[::-1]), text.replace('left', 'right'), f'{text} stones']
        near += [f'{text.split()[-1]} {" ".join(text.split()[1:-1])} {text[0]}']
    near = [text for text in near if not story_rule(item, text).required]
    tagged = [f'{OPEN} {n} {CLOSE}' if OPEN not in n and rng.random() < 0.5 else n for n in near]
    return Problem(item, right, tagged)


RESULT = ('<result>', '</result>')


def calls_in(text):
    "The calls of an episode, in words."
    return [part.partition('</tool>')[0].strip() for part in text.split('<tool>')[1:]]


def episode_problem(rng, item, solutions):
    "Episodes with true results that end badly, and with results that are not true."
    made = task_of(item)
    near = []
    for text in solutions:
        calls, words = calls_in(text), text.split()
        plays = [
            calls[:-1],
            calls[1:],
            calls[::-1],
            [calls[-1]],
            [*calls[:1] * item.data[-1], *calls],
        ]
        plays += [[*calls[:-1], rng.choice(('= 7', '= a', '>', 'to up', '+ a 1', '')), calls[-1]]]
        plays += [[rng.choice(('? a s', '+ 1 1', 'to down', 'yes', '= 05')), *calls]]
        near += [written_episode(made.environment(), item, play) for play in plays]
        results = [i for i, word in enumerate(words) if word == '<result>']
        i = rng.choice(results)
        other = rng.choice(('7', 'no', 'a', '<done>', words[results[0] + 1]))
        near += [' '.join([*words[: i + 1], other, *words[i + 2 :]])]
        near += [' '.join([*words[:i], *words[words.index('</result>', i) + 1 :]])]
        near += [' '.join([*words[:i], '<result>', other, '</result>', *words[i:]])]
        near += [
            f'{RESULT[0]} {other} {RESULT[1]} {text}',
            ' '.join(words[:i]),
            f'{words[-1]} {text}',
        ]
        near += [text.replace('<done>', 'no'), ' '.join(f'<tool> {call} </tool>' for call in calls)]
    return Problem(item, [*solutions, *(s.removesuffix(' </result>') for s in solutions)], near)


ROWS = [42, -7, 0, 1200, 0.5, -2.25, 10**30, '3/4', '$15', '12%', '2 1/2', 'Paris', 'x + y', 'B']
ROWS += [['yes', 'true'], ['7', 'seven'], 'So 6 * 3 makes\n#### 18', 'It is \\boxed{x^{2}}', '1e5']


def own_task():
    "Rows of all kinds, as a task."
    rows = [dict(question=f'question {i}', answer=answer) for i, answer in enumerate(ROWS)]
    return task_from({'train': rows}, name=OWN, replace=True)


def own_problem(rng, item):
    answers = item.data[1] if isinstance(item.data[1], tuple) else (item.data[1],)
    said = [statement(str(a))[0].strip() for a in answers]
    right = [f'<answer> {s} </answer>' for s in said] + said + [f'#### {s}' for s in said]
    right += [f'\\boxed{{{s}}}' for s in said] + [f'The answer is {s}.' for s in said]
    near = [f'{s}0' for s in said] + [f'-{s}' for s in said] + [f'{s} or 3' for s in said]
    near += [f'not {s}' for s in said] + [s[:-1] for s in said] + [f'{s}²' for s in said]
    near += [f'{s}.000001' for s in said] + [f'{s}%' for s in said] + [f'€{s}' for s in said]
    near += [f'\\boxed{{{s}}} \\boxed{{3}}' for s in said] + [f'#### {s}\n#### 3' for s in said]
    near += [f'{s}\n3' for s in said] + [f'{s},{s}' for s in said] + [f'{s}/1' for s in said]
    near += [f'{s} {s}' for s in said] + [f'1,{s}' for s in said] + [f'{s}e1' for s in said]
    near += [f'The answer is {s}. The answer is 3' for s in said] + [f'{s}/0' for s in said]
    near = [f'<answer> {n} </answer>' if rng.random() < 0.5 else n for n in near]
    return Problem(item, right, near)


MAKERS = dict(countdown=countdown_problem, modular=modular_problem, sat=sat_problem)
MAKERS |= dict(sequence=sequence_problem, lookup=lookup_problem, path=path_problem)
MAKERS |= dict(program=program_problem, lock=lock_problem, wishes=wishes_problem)
MAKERS |= dict(story=story_problem)
MAKERS |= dict.fromkeys(WORLDS, episode_problem)
DIALS = dict(
    program=[dict(length=9, inputs=2, shown=3, high=5), dict(length=5, high=99, shown=8)],
    lock=[dict(depth=12, letters=8), dict(depth=1, letters=2)],
    story=[dict(facts=5, changes=16, distance=4, asides=60), dict(changes=0, distance=1)],
    wishes=[dict(wishes=10, sentences=5, kinds=7, slack=20), dict(wishes=1, sentences=1, slack=0)],
    modular=[
        dict(length=12, modulus=99),
        dict(length=1, modulus=3),
        dict(length=200, modulus=999_999),
        dict(length=5, modulus=2),
        dict(length=60, modulus=1000, mixed=True),
    ],
    sat=[dict(variables=12, clauses=30), dict(variables=2, clauses=3, literals=2)],
    countdown=[dict(numbers=5, ops='+-*/', max_value=9999, low=0), dict(numbers=2)],
    sequence=[dict(rules=7, shown=12, asked=6), dict(rules=1, shown=4, asked=1)],
    lookup=[dict(rows=20, columns=6, hops=19), dict(rows=2, columns=1, hops=0)],
    path=[dict(nodes=20, loops=12, slack=9), dict(width=3, loops=0, slack=0)],
    calculator=[dict(operations=6, slack=0), dict(operations=1, slack=9)],
    knowledge=[dict(hops=8, distractors=0, slack=0), dict(hops=1, distractors=60)],
    key_door=[dict(size=9, walls=0, calls=16, slack=0), dict(size=4, walls=8, calls=4)],
    form=[dict(fields=7, others=0, slack=0), dict(fields=1, others=10)],
    bandit=[dict(arms=5, pulls=4, slack=0), dict(arms=2, pulls=10, slack=2)],
)
SIZE = 6  # problems of a source in one block


def drawn(made, rng):
    "A problem of a task's level, with several solutions."
    if made.name == 'countdown' and made.rare > 400:  # such problems take seconds to find
        made = type(made)(numbers=made.numbers)
    item, first = made.draw(rng)
    more = [made.demonstrate(item, seed=rng.getrandbits(30)) for _ in range(3)]
    return MAKERS[made.name](rng, item, list(dict.fromkeys([first, *more])))


def thought(rng):
    "A problem with demonstrations that think."
    made = drawn(task('countdown', rng.choice(('easy', 'standard'))), rng)
    traces = [think(made.item, rng).text for _ in range(4)]
    return made._replace(right=traces)


def sources(rng):
    "Where problems come from: every level of every registered task, other dials, own data."
    found = {}
    for name in tasks():
        if name not in RULES or name not in MAKERS:
            raise SystemExit(f"tests/fuzz.py has no rules for the task {name!r}: write them.")
        for level, made in levels(name).items():
            found[f'{name}/{level}'] = [drawn(made, rng) for _ in range(SIZE)]
        others = [task(name, **dial) for dial in DIALS.get(name, ())]
        found[f'{name}, other dials'] = [drawn(made, rng) for made in others for _ in range(SIZE)]
    found['countdown, thinking'] = [thought(rng) for _ in range(SIZE)]
    found['countdown, broken rules'] = [made_countdown(rng) for _ in range(6 * SIZE)]
    found['own data'] = [own_problem(rng, item) for item in own_task().parts['train']]
    return found


# -- hostile texts

LOOK_ALIKE = {
    '0': 'Ο０٠O', '1': '１١lI¹', '2': '２²٢', '3': '３³Ʒ٣', '4': '４⁴٤', '5': '５Ƽ', '6': '６б',
    '7': '７٧', '8': '８Ց', '9': '９٩', '+': '＋⁺±', '-': '−–—﹣', '*': '×∗＊x·', '/': '÷∕⁄\\',
    '=': '＝≡≈', ';': '；\u037e:', ',': '，‚、', '!': '！ǃ¬~', 'a': 'аɑａA', 'b': 'ƄｂB',
    'c': 'сｃC', 'd': 'ԁｄ', 'e': 'еｅ', '<': '＜‹', '>': '＞›', ' ': '\xa0\u2003\u200b\t\n',
    '.': '．。', '$': '＄€', 'x': 'х×ｘX', 'y': 'уｙY', 's': 'ѕｓS', 'm': 'ｍM', 'i': 'іｉI',
}  # fmt: skip
CONTROL = (
    '\0\x07\x08\x0b\x0c\r\x1b\x1c\x7f\x85\xa0\u200b\u200d\u2028\u2029\u202e\u2060\ufeff\u0301\ud800'
)
TAGS = """<eos> <bos> <pad> <unk> <think> </think> <answer> </answer> <backtrack> <wait> <verify>
    </verify> <plan> </plan> <hint> <ANSWER> </Answer> < answer > <answer/> <|answer|>
    <tool> </tool> <result> </result> <done>""".split()
SIGNS = """+ - * / = ; , ! ( ) . % ** // == ;; -> : ? 1e2 1e-2 0x1 007 -0 +3 --3 1.0 1_0 nan inf
    \\boxed{ ####""".split()


def long_number(rng):
    return rng.choice('0123456789') * rng.choice((1, 5, 7, 20, 400))


def deep(rng, word):
    "A word in deep parentheses."
    depth = rng.choice((1, 3, 60))
    left, right = rng.choice(('()', '[]', '{}'))
    return left * depth + word + right * depth


def inserted(rng, words):
    "A token that does not belong."
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(TAGS)
    if kind == 1:
        return rng.choice(SIGNS)
    if kind == 2:
        return long_number(rng)
    if kind == 3:
        return str(rng.randrange(-3, 120))
    return rng.choice(words)


def change_tokens(rng, text):
    "One token deleted, repeated, inserted, replaced, bracketed or swapped."
    words = text.split(' ')
    i, j = rng.randrange(len(words)), rng.randrange(len(words))
    how = rng.randrange(7)
    if how == 0:
        words[i : i + 1] = []
    elif how == 1:
        words[i : i + 1] = [words[i]] * 2
    elif how == 2:
        words.insert(i, inserted(rng, words))
    elif how == 3:
        words[i] = inserted(rng, words)
    elif how == 4:
        words[i] = deep(rng, words[i])
    elif how == 5:
        words = words[: i + 1]
    else:
        words[i], words[j] = words[j], words[i]
    return ' '.join(words)


def change_letters(rng, text):
    "One character deleted, repeated, swapped with the next, replaced by a look-alike, or added."
    if not text:
        return rng.choice(CONTROL)
    i = rng.randrange(len(text))
    letter, how = text[i], rng.randrange(6)
    if how == 0:
        new = ''
    elif how == 1:
        new = letter * 2
    elif how == 2:
        return text[:i] + text[i : i + 2][::-1] + text[i + 2 :]
    elif how == 3:
        new = letter + rng.choice(CONTROL)
    elif how == 4:
        new = rng.choice('0123456789+-*/=;,!abc<> \n\t')
    else:
        new = rng.choice(LOOK_ALIKE.get(letter, letter.upper()) or letter)
    return text[:i] + new + text[i + 1 :]


def untagged(text):
    return text.replace(OPEN, '').replace(CLOSE, '').strip()


LAYOUTS = (
    lambda rng, right, other: right.replace(' ; ', '\n'),
    lambda rng, right, other: right.replace(' ', ''),
    lambda rng, right, other: right.replace(' ; ', ' ;\r\n'),
    lambda rng, right, other: f'  {right}\n',
    lambda rng, right, other: right + ' ;',
    lambda rng, right, other: (
        f'<think> {other} <backtrack> {right} </think> {OPEN} {right} {CLOSE}'
    ),
    lambda rng, right, other: f'<think> {right} </think> {OPEN} {other} {CLOSE}',
    lambda rng, right, other: f'<think> {OPEN} {right} {CLOSE} </think> {other}',
    lambda rng, right, other: f'<think> {OPEN} {right} {CLOSE} </think> {OPEN} {other} {CLOSE}',
    lambda rng, right, other: f'<think> {right} </think>',
    lambda rng, right, other: f'<think> {right}',
    lambda rng, right, other: f'{OPEN} {right} {CLOSE} {OPEN} {other} {CLOSE}',
    lambda rng, right, other: f'{OPEN} {other} {CLOSE} {OPEN} {right} {CLOSE}',
    lambda rng, right, other: f'{OPEN} {OPEN} {right} {CLOSE} {CLOSE}',
    lambda rng, right, other: f'{OPEN} {right}',
    lambda rng, right, other: f'{right} {CLOSE}',
    lambda rng, right, other: f'{CLOSE} {right} {OPEN}',
    lambda rng, right, other: f'{OPEN} {right} {CLOSE} {rng.choice(TAGS)}',
    lambda rng, right, other: f'{OPEN} {right} {CLOSE} {other}',
    lambda rng, right, other: f'{right} {rng.choice(TAGS)}',
    lambda rng, right, other: f'{right} ; {other}',
    lambda rng, right, other: f'{right}\n{other}',
    lambda rng, right, other: f'{other} ; {right}',
    lambda rng, right, other: f'so 1 = 2 ; {OPEN}{right}{CLOSE}\n',
    lambda rng, right, other: f'The answer is {right}',
    lambda rng, right, other: OPEN + right + ' ' * rng.choice((1900, 2100)) + CLOSE,
    lambda rng, right, other: 'x ' * 1500 + f'{OPEN} {right} {CLOSE}' + ' \n' * 1500,
)


def hostile(rng, problem, others):
    "One text for a problem: right, nearly right, or another problem's answer; laid out, damaged."
    stock = rng.choice((problem.right, problem.right, problem.near, others.right))
    text = rng.choice(stock)
    if rng.random() < 0.4:
        other = untagged(rng.choice(rng.choice((problem.near, others.right, problem.right))))
        text = rng.choice(LAYOUTS)(rng, untagged(text), other)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
        change = change_tokens if rng.random() < 0.5 else change_letters
        text = change(rng, text)
    return text


class Case(NamedTuple):
    source: str
    item: Item
    text: str


BLOCK = 10_000  # texts on the same problems


def cases(count, seed=0):
    "`count` texts with their problems, sources in turn; a function of the two numbers."
    for start in range(0, count, BLOCK):
        rng = random.Random(f'{seed} {start}')
        found = sources(rng)
        turn = itertools.cycle(found.items())
        for name, problems in itertools.islice(turn, min(BLOCK, count - start)):
            problem, others = rng.choice(problems), rng.choice(problems)
            yield Case(name, problem.item, hostile(rng, problem, others))


# -- judging


class Outcome(NamedTuple):
    "Whether the library accepts a text, and what is wrong with that, if anything is."

    accepted: bool
    wrong: str | None


def outcome(item, text, rule):
    "The library's verdict on a text beside the rules'."
    try:
        verdict = verdict_of(item, text)
    except Exception as error:
        return Outcome(False, f'raised {type(error).__name__}')
    whole = verdict.correct == (verdict.score == 1) == (verdict.first_error is None)
    wrong = None
    if verdict.correct and not rule.allowed:
        wrong = 'wrongly accepted'
    elif rule.required and not verdict.correct:
        wrong = 'wrongly refused'
    elif not whole or not 0 <= verdict.score <= 1:
        wrong = 'contradicts itself'
    return Outcome(verdict.correct, wrong)


COUNTED = (
    'texts',
    'different',
    'accepted',
    'wrongly accepted',
    'wrongly refused',
    'otherwise wrong',
)


def fuzzed(count, seed=0, minutes=math.inf):
    "Counts by source, and the first findings: what is wrong with which text."
    counts, findings, seen = {}, [], set()
    end = time.monotonic() + 60 * minutes
    for number, (source, item, text) in enumerate(cases(count, seed)):
        if number % BLOCK == 0 and time.monotonic() > end:
            break
        accepted, wrong = outcome(item, text, rule_of(item, text))
        row = counts.setdefault(source, Counter(dict.fromkeys(COUNTED, 0)))
        key = hash((item, text))
        row['texts'] += 1
        row['different'] += key not in seen
        row['accepted'] += accepted
        row[wrong if wrong in COUNTED else 'otherwise wrong'] += wrong is not None
        seen.add(key)
        if wrong and len(findings) < 20:
            findings.append((wrong, item, text))
    return counts, findings


# -- time

LENGTHS = (1_000, 10_000, 100_000)
PIECES = (
    'a  ',
    ' ',
    '\n',
    ' \t\r\x1c\xa0',
    '([{<',
    '9',
    '+-*/=!',
    '! ',
    ' ;  , ',
    '\0',
    '٣１²',
    OPEN,
    CLOSE,
)
PIECES += (
    f'{OPEN} {CLOSE}',
    '\\boxed{',
    '}',
    '#### ',
    '½',
    'answer is ',
    '1,',
    '1/',
    '.5',
    'a!',
    '3 + 4 = 7 ;',
)
PIECES += ('<think> ', '</think>', '<eos>', '-', '1e', '٣ + ', 'a,', '3 + 4 = 7\n')
PIECES += ('<tool> ', '</tool> ', '<tool> + 1 1 </tool> ', '<tool> </tool>', '<result> ')


def long_texts(piece, good, length):
    "Texts of about this length out of one piece: alone, behind, before and inside an answer."
    body = (piece * (length // len(piece) + 1))[:length]
    tagged = f'{OPEN} {untagged(good)} {CLOSE}'
    thought = f'<think> {body} </think> {tagged}'
    return [body, body + '?', good + body, thought, tagged + body, f'{OPEN}{body}{CLOSE}']


def seconds(item, text, times):
    "The least processor time of a verdict in so many trials."
    best = math.inf
    for _ in range(times):
        start = time.process_time()
        verdict_of(item, text)
        best = min(best, time.process_time() - start)
    return best


def growth(item, texts, times=3):
    "Seconds at each length, and the exponent from the shortest to the longest."
    took = [max(seconds(item, text, times), 1e-6) for text in texts]
    decades = math.log10(len(texts[-1]) / len(texts[0]))
    return took, math.log10(took[-1] / took[0]) / decades


def timed(times=3, limit=1.3):
    "By task: the slowest seconds for 1000 characters, and the largest exponent of growth."
    found = {}
    for name, problem in examples().items():
        slowest, steepest = 0, -math.inf
        for piece in PIECES:
            for texts in zip(*(long_texts(piece, problem.right[0], n) for n in LENGTHS)):
                took, exponent = growth(problem.item, texts, times)
                if exponent > limit:  # once more: another process may have been in the way
                    took, exponent = growth(problem.item, texts, 5 * times)
                per_thousand = max(1000 * s / len(text) for s, text in zip(took, texts))
                slowest, steepest = max(slowest, per_thousand), max(steepest, exponent)
        found[name] = dict(slowest_seconds_per_1000=slowest, growth_exponent=steepest)
    return found


def examples():
    "One problem of each task."
    rng = random.Random(0)
    found = {name: drawn(task(name, 'standard'), rng) for name in tasks()}
    return found | {OWN: own_problem(rng, own_task().parts['train'][0])}


# -- the command


def digest_of_verifiers():
    "A digest of the code that judges, by task: stored counts belong to it."
    found = {}
    for name, problem in examples().items():
        code = sorted(called_code([type(task_of(problem.item)).verify]).items())
        found[name] = hashlib.sha256(json.dumps(code, default=str).encode()).hexdigest()[:12]
    return found


def report(count, seed, minutes):
    "What is stored: counts by source, time by task, and what they were measured with."
    start = time.process_time()
    counts, findings = fuzzed(count, seed, minutes)
    table = {name: {k.replace(' ', '_'): n for k, n in row.items()} for name, row in counts.items()}
    done = sum(row['texts'] for row in counts.values())
    made = dict(count=done, seed=seed, seconds=round(time.process_time() - start))
    made |= dict(versions=dict(rl4llm=rl4llm.__version__, python=platform.python_version()))
    made |= dict(verifiers=digest_of_verifiers(), counts=table, time=timed())
    return made, findings


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--count', type=int, default=10_000)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--minutes', type=float, default=math.inf, help='stop after so many')
    parser.add_argument('--store', action='store_true', help='write tests/fuzz.json')
    asked = parser.parse_args()
    made, findings = report(asked.count, asked.seed, asked.minutes)
    print(json.dumps(made, indent=1))
    for wrong, item, text in findings:
        print(f'{wrong}: {item.data} {text!r:.300}')
    if asked.store and not findings:
        STORED.write_text(json.dumps(made, indent=1) + '\n')
    sys.exit(bool(findings))


if __name__ == '__main__':
    main()
