"""Taking times: in turn (A B A B ...), so that a machine that slows down slows everybody down, and compared pair by pair."""
import os
import platform
import statistics
import time
from importlib.metadata import PackageNotFoundError, version

import torch


def wait_for(device) -> None:
    "A GPU works on after a call has returned: wait for it."
    if torch.device(device).type == 'cuda': torch.cuda.synchronize(device)


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
    "Seconds of each contender (a function that returns seconds), called in turn `repeat` times after one round to warm up."
    for measure in contenders.values(): measure()
    rounds = [{name: measure() for name, measure in contenders.items()} for _ in range(repeat)]
    return {name: [r[name] for r in rounds] for name in contenders}


def ratio_row(ours: list, peer: list, **about) -> dict:
    "One row of the results: both medians, and median, smallest and largest ratio of the pairs."
    ratios = [b / a for a, b in zip(ours, peer)]
    return dict(**about, ours=statistics.median(ours), peer=statistics.median(peer), ratio=statistics.median(ratios), low=min(ratios), high=max(ratios), pairs=len(ratios))


def cpu_name() -> str:
    "The processor's name, as far as the system tells."
    if not os.path.exists('/proc/cpuinfo'): return platform.processor()
    return next((line.split(':')[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name')), platform.processor())


def installed_version(package: str) -> str | None:
    try: return version(package)
    except PackageNotFoundError: return None


def machine(device) -> dict:
    "What the numbers belong to. `load`: how many programs were running in the last minute; much more than none means a busy machine."
    gpu = torch.cuda.get_device_name(device) if torch.device(device).type == 'cuda' else None
    versions = {name: installed_version(name) for name in ('torch', 'transformers', 'trl')}
    return dict(date=time.strftime('%Y-%m-%d'), device=str(device), gpu=gpu, cpu=cpu_name(), cores=os.cpu_count(), threads=torch.get_num_threads(), python=platform.python_version(),
                system=platform.system(), **versions, load=round(os.getloadavg()[0], 1) if hasattr(os, 'getloadavg') else None)
