"""Taking times: in turn (A B A B ...) and compared pair by pair.

A machine that slows down slows everybody down, so the ratios stay.
"""

import os
import platform
import statistics
import time
from importlib.metadata import PackageNotFoundError, version

import torch


def wait_for(device) -> None:
    "A GPU works on after a call has returned: wait for it."
    if torch.device(device).type == 'cuda':
        torch.cuda.synchronize(device)


def timed(f, device):
    "`f` as a function that returns the seconds a call takes."

    def seconds() -> float:
        wait_for(device)
        start = time.perf_counter()
        f()
        wait_for(device)
        return time.perf_counter() - start

    return seconds


def in_turn(contenders: dict, repeat: int) -> dict[str, list[float]]:
    """Seconds of each contender, called in turn `repeat` times after one round to warm up.

    contenders: name -> function that returns seconds.
    """
    for measure in contenders.values():
        measure()
    rounds = [{name: measure() for name, measure in contenders.items()} for _ in range(repeat)]
    return {name: [times[name] for times in rounds] for name in contenders}


def ratio_row(ours: list, peer: list, **about) -> dict:
    "One row of the results: both medians, and median, smallest and largest ratio of the pairs."
    ratios = [theirs / own for own, theirs in zip(ours, peer)]
    medians = dict(ours=statistics.median(ours), peer=statistics.median(peer))
    spread = dict(ratio=statistics.median(ratios), low=min(ratios), high=max(ratios))
    return dict(**about, **medians, **spread, pairs=len(ratios))


def cpu_name() -> str:
    "The processor's name, as far as the system tells."
    if os.path.exists('/proc/cpuinfo'):
        with open('/proc/cpuinfo') as lines:
            for line in lines:
                if line.startswith('model name'):
                    return line.split(':')[1].strip()
    return platform.processor()


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine(device) -> dict:
    """What the numbers belong to.

    `load`: how many programs were running in the last minute; much more than none means a busy
    machine.
    """
    on_gpu = torch.device(device).type == 'cuda'
    gpu = torch.cuda.get_device_name(device) if on_gpu else None
    versions = {name: installed_version(name) for name in ('torch', 'transformers', 'trl')}
    load = round(os.getloadavg()[0], 1) if hasattr(os, 'getloadavg') else None
    return dict(
        date=time.strftime('%Y-%m-%d'),
        device=str(device),
        gpu=gpu,
        cpu=cpu_name(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        system=platform.system(),
        **versions,
        load=load,
    )
