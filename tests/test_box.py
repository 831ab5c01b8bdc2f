"""The box's filter of system calls and its limits, read as the kernel reads them: all numbers here
are from the kernel's headers. What a program in a box finds is in test_sandbox.py."""

import errno
import os
import resource

import pytest
from rl4llm.rewards import box

X86, ARM = 0xC000003E, 0xC00000B7  # AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64
MACHINES = {'x86_64': X86, 'aarch64': ARM}
ALLOW, KILL = 0x7FFF0000, 0x80000000  # SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS
EPERM, ENOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
OWN = 77


def answer(rules, call, first=0, machine=X86):
    "What the kernel does about a call with a first argument, by the codes of <linux/filter.h>."
    data = {0: call, 4: machine, 16: first}  # of struct seccomp_data
    at = 0
    while rules[at].code != 0x06:  # BPF_RET
        code, yes, no, number = rules[at]
        at += 1
        if code == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            held = data[number]
        else:  # BPF_JMP with BPF_JEQ, BPF_JGE and BPF_JSET
            holds = {0x15: held == number, 0x35: held >= number, 0x45: held & number}
            at += yes if holds[code] else no
    return rules[at].number


NEWER = {
    'pidfd_send_signal': 424,
    'io_uring_setup': 425,
    'open_tree': 428,
    'move_mount': 429,
    'fsopen': 430,
    'fsmount': 432,
    'pidfd_open': 434,
    'pidfd_getfd': 438,
    'memfd_secret': 447,
}
NAMESPACES = {
    'time': 0x80,
    'mounts': 0x20000,
    'cgroups': 0x02000000,
    'names': 0x04000000,
    'IPC': 0x08000000,
    'users': 0x10000000,
    'pids': 0x20000000,
    'network': 0x40000000,
}
THREAD = 0x3D0F00  # what the C library gives to clone for a thread


@pytest.mark.parametrize('machine', MACHINES)
@pytest.mark.parametrize('alone', [True, False])
def test_what_the_kernel_answers(machine, alone):
    arch = MACHINES[machine]
    rules = box._filter_rules(machine, alone, OWN)

    def says(call, first=0):
        return answer(rules, call, first, arch)

    assert {says(call) for call in NEWER.values()} == {EPERM}
    assert says(435) == ENOSYS  # clone3
    assert says((1 << 30) + 1) == EPERM  # of another table of calls: x32
    numbers = box._call_numbers(machine)
    assert {says(numbers['clone'], flag) for flag in NAMESPACES.values()} == {EPERM}
    assert says(numbers['clone'], THREAD) == ALLOW
    assert says(numbers['prlimit64'], 0) == ALLOW  # of the process itself
    assert says(numbers['prlimit64'], 1) == EPERM
    for name in ('kill', 'tgkill'):
        assert says(numbers[name], OWN) == ALLOW
        assert says(numbers[name], OWN + 1) == (ALLOW if alone else EPERM)
    for name in ('setsid', 'setpgid', 'tkill', 'rt_sigqueueinfo', 'rt_tgsigqueueinfo'):
        assert says(numbers[name]) == (ALLOW if alone else EPERM)
    (other,) = set(MACHINES.values()) - {arch}
    assert answer(rules, 1, machine=other) == KILL


@pytest.mark.parametrize(
    ('hard', 'most', 'later', 'wanted'),
    [
        (resource.RLIM_INFINITY, 3, 1, (3, 4)),
        (resource.RLIM_INFINITY, 0, 0, (0, 0)),
        (100, 3, 1, (3, 4)),
        (100, 3, 0, (3, 3)),
        (4, 3, 1, (3, 4)),
        (3, 3, 1, (3, 3)),
        (2, 3, 1, (2, 2)),
    ],
)
def test_a_limit_is_never_raised(monkeypatch, hard, most, later, wanted):
    found = []
    monkeypatch.setattr(resource, 'getrlimit', lambda kind: (1, hard))
    monkeypatch.setattr(resource, 'setrlimit', lambda kind, pair: found.append((kind, pair)))
    box._limit(resource.RLIMIT_CPU, most, later)
    assert found == [(resource.RLIMIT_CPU, wanted)]
    if not later:
        box._limit(resource.RLIMIT_CPU, most)
        assert found[1] == found[0]


def test_a_call_says_why_it_fails():
    assert box._call('getpid') == os.getpid()
    assert box._call('access', b'/', os.F_OK) == 0
    with pytest.raises(FileNotFoundError, match='access: No such file') as e:
        box._call('access', b'/no such place', os.F_OK)
    assert e.value.errno == errno.ENOENT
