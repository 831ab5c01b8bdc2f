"""python -m benchmarks [--repeat N] [--out FOLDER]: measure, print a table, write results.json and results.png."""
import argparse
import json
from pathlib import Path

from benchmarks.measure import machine, memory_rows, speed_rows


def picture(rows, path):
    "Ratio of each pair as a bar: how many times faster (or smaller) our way is."
    import matplotlib.pyplot as plt
    from rl4llm.analysis.plots import OKABE_ITO, style
    with style():
        figure, ax = plt.subplots(figsize=(6, 0.5 + 0.45 * len(rows)))
        ax.barh([r['what'] for r in rows], [r['ratio'] for r in rows], color=OKABE_ITO['blue'])
        ax.axvline(1, color='black', ls='--')
        ax.invert_yaxis()
        ax.set(xlabel='plain way / ours (median of paired ratios; dashed: no difference)')
        for i, r in enumerate(rows): ax.annotate(f" {r['ratio']:.2f}", (r['ratio'], i), va='center')
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--repeat', type=int, default=5, help='pairs of measurements (ours, plain, ours, plain, ...)')
    parser.add_argument('--out', type=Path, default=Path('runs/benchmarks'), help='where results go')
    parser.add_argument('--quick', action='store_true', help='small sizes, to see that it works')
    args = parser.parse_args()
    if args.repeat < 1: parser.error(f'--repeat is {args.repeat}, wanted at least 1')
    rows = speed_rows(args.repeat, args.quick) + memory_rows(args.quick)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / 'results.json').write_text(json.dumps(dict(machine=machine(), rows=rows), indent=1))
    picture(rows, args.out / 'results.png')
    for r in rows: print(f"{r['what']:<46} ours {r['ours']:>8.3f} {r['unit']:<3} plain {r['plain']:>8.3f} {r['unit']:<3} ratio {r['ratio']:.2f} [{r['low']:.2f}, {r['high']:.2f}]")
    print(f"{machine()}\nresults: {args.out / 'results.json'}")


main()
