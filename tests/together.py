"Which tests go to one worker together: conftest takes the hook from here."

import pytest

# Files whose tests share what takes long to make: one worker has them all. The marks that xdist
# has for this do not reach its scheduler under pytest 9.2.
TOGETHER = ('test_browser.py', 'test_fuzz.py', 'test_ideas_act.py', 'test_site.py', 'test_wheel.py')


def unit_of(nodeid):
    "What is sent to a worker as a whole: a file of `TOGETHER`, else the single test."
    file = nodeid.split('::')[0]
    return file if file.endswith(TOGETHER) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return unit_of(nodeid)

    return Units(config, log) if config.getvalue('dist') == 'loadgroup' else None
