"""python -m benchmarks [--out FILE.json]: measure, print a table, write FILE.json and FILE.png. Takes a few minutes; run it on a machine that does nothing else."""
import argparse
import dataclasses
import json
import os
import time
import warnings
from pathlib import Path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m benchmarks', description=__doc__)
    parser.add_argument('--out', type=Path, help='where results go (default: runs/benchmarks/DEVICE.json)')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu', help='where to measure')
    parser.add_argument('--repeat', type=int, help='how many pairs are timed (default 7)')
    parser.add_argument('--quick', action='store_true', help='small sizes, to see that it works')
    args = parser.parse_args()
    if args.repeat is not None and args.repeat < 1: parser.error(f'--repeat is {args.repeat}, wanted at least 1')
    args.out = args.out or Path('runs/benchmarks') / f'{args.device}.json'
    if args.out.suffix != '.json': parser.error(f'--out is {args.out}, wanted a file name that ends in .json')
    return args


def quiet() -> None:
    "One GPU at most (TRL asks for that), and no warnings of other libraries between the rows."
    os.environ.setdefault('CUDA_VISIBLE_DEVICES', '0')
    os.environ['TQDM_DISABLE'] = '1'
    warnings.simplefilter('ignore')


def measure(device: str, repeat: int | None, quick: bool) -> dict:
    "All results. A part that cannot run here (TRL is not installed) is left out and named in `left_out`."
    from benchmarks import rows
    from benchmarks.clock import installed_version, machine
    start, sizes = time.perf_counter(), dataclasses.replace(rows.QUICK if quick else rows.Sizes(), **({'repeat': repeat} if repeat else {}))
    s, found = rows.setting_for(sizes, device), dict(machine=machine(device), sizes=dataclasses.asdict(sizes), quick=quick, left_out=[])
    if installed_version('trl') is None: found['left_out'].append("the training step against TRL: TRL is not installed (the extra [scale] brings it)")
    parts = ([] if found['left_out'] else [rows.step_rows]) + [rows.sampling_rows, rows.update_rows, rows.vocabulary_rows]
    rate = rows.rates(device)
    found['rows'] = [row for part in parts for row in part(s)]
    again = rows.rates(device)
    found['rates'] = {name: max(rate[name], again[name]) for name in rate}
    found['floor'] = rows.floor_rows(s, found['rows'], found['rates'])
    found['growth'] = rows.growth_rows(s)
    return found | dict(seconds=round(time.perf_counter() - start, 1))


def main():
    args = arguments()
    quiet()
    if args.device == 'cuda':
        import torch
        if not torch.cuda.is_available(): raise SystemExit('--device cuda was given, but torch sees no GPU here; leave it out to measure on the CPU.')
    results = measure(args.device, args.repeat, args.quick)
    from rl4llm.app.benchmarks import benchmark_table, floor_table, growth_table, plot_benchmark
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=1) + '\n')
    plot_benchmark(results).savefig(args.out.with_suffix('.png'), dpi=120)
    for table in (benchmark_table, floor_table, growth_table): print(table(results).to_string(), end='\n\n')
    print(f"{results['machine']}\n{results['seconds']:.0f} s; results: {args.out}, {args.out.with_suffix('.png')}")


if __name__ == '__main__': main()
