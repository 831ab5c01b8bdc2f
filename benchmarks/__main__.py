"""python -m benchmarks [--out FILE.json]: measure, print tables, write FILE.json and FILE.png.

Takes a quarter of an hour; run it on a machine that does nothing else.
"""

import argparse
import dataclasses
import json
import os
import time
import warnings
from pathlib import Path


def arguments() -> argparse.Namespace:
    "The options given, with the file that the results go to."
    parser = argparse.ArgumentParser(prog='python -m benchmarks', description=__doc__)
    place = 'where results go (default: runs/benchmarks/DEVICE.json)'
    parser.add_argument('--out', type=Path, help=place)
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu', help='where to measure')
    parser.add_argument('--repeat', type=int, help='how many pairs are timed (default 7)')
    parser.add_argument('--quick', action='store_true', help='small sizes, to see that it works')
    args = parser.parse_args()
    if args.repeat is not None and args.repeat < 1:
        parser.error(f'--repeat is {args.repeat}, wanted at least 1')
    args.out = args.out or Path('runs/benchmarks') / f'{args.device}.json'
    if args.out.suffix != '.json':
        parser.error(f'--out is {args.out}, wanted a file name that ends in .json')
    return args


def quiet() -> None:
    "One GPU at most (TRL asks for that), and no warnings of other libraries between the rows."
    os.environ.setdefault('CUDA_VISIBLE_DEVICES', '0')
    os.environ['TQDM_DISABLE'] = '1'
    warnings.simplefilter('ignore')


def left_out() -> list[str]:
    "What cannot be measured here, and why."
    from benchmarks.clock import installed_version

    if installed_version('trl') is not None:
        return []
    return [
        'the training step against TRL: TRL is not installed (the extra [scale] brings it)'
    ]


def tell(what: str) -> None:
    "Say what begins now: some parts take minutes."
    print(f"{time.strftime('%X')}  {what}", flush=True)


def rows_of(parts, setting) -> list[dict]:
    "The rows of these parts, measured one after the other."
    found = []
    for part in parts:
        tell(part.__name__.removesuffix('_rows').replace('_', ' ') + setting.of)
        found += part(setting)
    return found


def measure(device: str, sizes) -> dict:
    "All results. A part that cannot run here is left out and named in `left_out`."
    from benchmarks import rows
    from benchmarks.clock import machine

    start = time.perf_counter()
    found = dict(machine=machine(device), sizes=dataclasses.asdict(sizes), left_out=left_out())
    tiny = rows.setting_for(sizes, device)
    thinking = rows.setting_for(sizes, device, 'tiny-think-v1', ', thinking')
    beside = [rows.sampling_rows, rows.update_rows]
    if not found['left_out']:
        beside = [rows.step_rows, *beside]
    rate = rows.rates(device)
    of_tiny = rows_of([*beside, rows.vocabulary_rows], tiny)
    of_thinking = rows_of(beside, thinking)
    again = rows.rates(device)
    rate = {name: max(rate[name], again[name]) for name in rate}
    floor = rows.floor_rows(tiny, of_tiny, rate) + rows.floor_rows(thinking, of_thinking, rate)
    found |= dict(rows=of_tiny + of_thinking, rates=rate, floor=floor)
    tell('evaluations' + thinking.of)
    found['times'] = rows.time_rows(thinking, of_thinking)
    tell('growth')
    found['growth'] = rows.growth_rows(tiny)
    return found | dict(seconds=round(time.perf_counter() - start, 1))


def main():
    args = arguments()
    quiet()
    if args.device == 'cuda':
        import torch

        if not torch.cuda.is_available():
            raise SystemExit(
                '--device cuda was given, but torch sees no GPU here; leave it out to '
                'measure on the CPU.'
            )
    from benchmarks.rows import QUICK, Sizes

    sizes = QUICK if args.quick else Sizes()
    if args.repeat:
        sizes = dataclasses.replace(sizes, repeat=args.repeat)
    results = dict(quick=args.quick, **measure(args.device, sizes))
    from rl4llm.app import benchmarks as shown

    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=1) + '\n')
    picture = args.out.with_suffix('.png')
    shown.plot_benchmark(results).savefig(picture, dpi=120)
    tables = (shown.benchmark_table, shown.times_table, shown.floor_table, shown.growth_table)
    for table in tables:
        print(table(results).to_string(), end='\n\n')
    print(f"{results['machine']}\n{results['seconds']:.0f} s; results: {args.out}, {picture}")


if __name__ == '__main__':
    main()
