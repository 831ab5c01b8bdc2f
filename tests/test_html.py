"""Whatever shows itself as HTML shows names as text: a model, task or recipe may be called anything, also `<script>`.
A class that learns to show itself (`_repr_html_`) must be added to `shown`, or this fails."""

import dataclasses, importlib, inspect
from functools import cache
import pytest, torch
from rl4llm.core.lazy import names_by_module
from rl4llm.core.registry import recipe

EVIL = '<script>alert(1)</script>'


@cache
def world():
    "A run on a task, by a recipe, of a policy, all with a bad name."
    from rl4llm.core.policy import Policy
    from rl4llm.tasks import task_from
    from rl4llm.training.callbacks import Evaluate
    from rl4llm.training.loop import train

    policy = Policy.load('tiny')
    policy.name = EVIL
    mine = task_from(
        [{'question': f'{a} + {b} ?', 'answer': a + b} for a in range(9) for b in range(9)],
        name=EVIL,
    )
    made = dataclasses.replace(recipe('grpo', prompts=2, group=4), name=EVIL, summary=EVIL)
    run = train(policy, mine, made, steps=1, callbacks=[Evaluate(mine.parts['test'], samples=2)])
    rollouts = policy.sample(mine.sample(2, seed=0), 4, seed=0)
    rewards = torch.arange(8) % 2 * 1.0
    return (
        policy,
        mine,
        made,
        run,
        dataclasses.replace(rollouts, rewards=rewards, texts=(EVIL,) * 8),
    )


def shown():
    "Class name -> a function that makes an object of it with bad names."
    policy, mine, made, run, rollouts = world()

    def report():
        from rl4llm.analysis.page import report

        return report(policy, policy, mine, items=mine.parts['test'][:2], samples=2)

    def replayed():
        from rl4llm.analysis.traces import replay

        return dataclasses.replace(replay(rollouts), recipe=made)

    def check():
        from rl4llm.oracle.estimators import GradientCheck

        return GradientCheck(EVIL, torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2), 2, True)

    def folded():
        from rl4llm.course.reproduction_lesson import Folded

        return Folded({EVIL: EVIL, 'another': EVIL})

    def good_and_bad():
        from rl4llm.studies.worlds import GoodAndBad

        return GoodAndBad(*[EVIL] * 6)

    def tree():
        from rl4llm.oracle.tabular import TokenTree

        return TokenTree(2, 2)

    def claim():
        from rl4llm.atlas.claims import Claim

        return Claim(name=EVIL, paper=1, statement=EVIL, differs=EVIL, waits=EVIL)

    def full_scale():
        from rl4llm.scaling.config_files import load_config

        return dataclasses.replace(load_config('grpo'), name=EVIL)

    def planned():
        from rl4llm.scaling.planning import plan

        return dataclasses.replace(plan('grpo'), name=EVIL, warnings=(EVIL,))

    def dashboard():
        from rl4llm.widgets.dashboard import Dashboard

        board = Dashboard()
        board.run, board.status = run, EVIL
        return board

    def panel():
        from rl4llm.widgets.panels import Panel

        return Panel(lambda: '', {}, title=EVIL)

    def table():
        from rl4llm.core.method_map import RecipeTable

        return RecipeTable({EVIL: [EVIL]}, index=[EVIL])

    def comparison():
        from rl4llm.studies.comparison import compare

        return compare([run])

    def tryouts():
        from rl4llm.studies.tryouts import tryout_table

        found = tryout_table()
        return type(found)(found.rename(index={found.index[0]: EVIL}))

    def frontier():
        from rl4llm.studies.frontiers import FrontierVerdict

        return FrontierVerdict('frontier')

    def reply():
        from rl4llm.course.exercises import Reply

        return Reply(False, EVIL)

    def stressed():
        from rl4llm.rewards import Outcome, Stress

        failed = Outcome('order', 'failed', 1, ((EVIL, EVIL),))
        return Stress(EVIL, EVIL, ('length',), (failed,))

    def settings():
        from rl4llm.core.settings_file import settings

        return dataclasses.replace(settings(), runs=type(settings().runs)(EVIL))

    def archive():
        from rl4llm.rollouts.archives import Archive
        from rl4llm.tasks import task

        return Archive(task('countdown').sample(1, seed=0)[0])

    def database():
        from rl4llm.rollouts.program_database import ProgramDatabase

        return ProgramDatabase()

    return dict(
        Report=report,
        Archive=archive,
        ProgramDatabase=database,
        Replay=replayed,
        Plan=planned,
        GradientCheck=check,
        TokenTree=tree,
        Tree=lambda: importlib.import_module('rl4llm.rollouts').Tree(),
        Claim=claim,
        FullScale=full_scale,
        Folded=folded,
        GoodAndBad=good_and_bad,
        Dashboard=dashboard,
        Panel=panel,
        RecipeTable=table,
        TryoutTable=tryouts,
        FrontierVerdict=frontier,
        Reply=reply,
        Comparison=comparison,
        Settings=settings,
        Stress=stressed,
        Recipe=lambda: made,
        Rollouts=lambda: rollouts,
        Run=lambda: run,
        Evaluation=lambda: run.final,
    )


def classes():
    "Every class of the library that shows itself as HTML."
    found = set()
    for module, names in names_by_module().items():
        for name in names:
            x = getattr(importlib.import_module(module), name)
            if inspect.isclass(x) and x.__module__ == module and '_repr_html_' in vars(x):
                found.add(name)
    return sorted(found)


# They show no name of a user's.
NAMELESS = ('Archive', 'ProgramDatabase', 'TokenTree', 'Tree', 'Replay', 'FrontierVerdict')


@pytest.mark.parametrize('name', classes())
def test_names_are_text_in_html(name):
    page = shown()[name]()._repr_html_()
    assert '<script' not in page and 'alert(1)</' not in page
    assert name in NAMELESS or '&lt;script' in page


def test_pages_and_widgets_show_names_as_text():
    from rl4llm.analysis.page import save_report
    from rl4llm.widgets.explorers import readable_html
    from rl4llm.widgets.rollout_microscope import group_html, groups_html
    import pandas as pd
    from tempfile import TemporaryDirectory

    made = shown()
    with TemporaryDirectory() as folder:
        pages = [save_report(made['Report'](), f'{folder}/report.html').read_text()]
    pages.append(readable_html(pd.DataFrame({EVIL: [EVIL]}, index=[EVIL])))
    pages += [group_html(made['Replay'](), 0), groups_html(made['Replay']())]
    assert not any('<script' in page for page in pages)
