"""Processes of their own that have the library when they start.

They are forked from one that has imported it and has done nothing else, so that a test which kills
a run several times does not wait for the imports as often."""

import multiprocessing, sys

CONTEXT = multiprocessing.get_context('forkserver')
CONTEXT.set_forkserver_preload(['torch', 'transformers', 'rl4llm.training.loop'])


def run(code, log):
    "Run the code as a program; what it says, also of an exception, goes to a file."
    sys.stdout = sys.stderr = open(log, 'w', buffering=1)
    exec(code, {'__name__': '__main__'})


def started(code, log):
    "A process that runs the code."
    process = CONTEXT.Process(target=run, args=(code, str(log)))
    process.start()
    return process


def finished(code, log, seconds=300):
    "Run the code to its end. Raises AssertionError with what it said if it fails."
    process = started(code, log)
    process.join(seconds)
    assert process.exitcode == 0, log.read_text()[-2000:]
