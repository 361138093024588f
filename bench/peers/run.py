"""Postrow beside its peers, on one private, durable server: `python bench/peers/run.py drain --only postrow,pgqueuer`.

One table for each workload. In each of `--runs` runs the peers take turns, every one in a new database; the table has
the medians. The peers are installed into `--home` when they are first needed.
"""

import argparse
import operator
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import homes
import psycopg
from programs import FailedError, program
from workloads import SMALL, WORKLOADS

sys.path.append(str(Path(__file__).parent.parent))
import plots
from server import serving

COUNTS = ("run once", "missing", "doubled")


@dataclass(frozen=True, slots=True)
class Ready:
    """A peer that is installed: how to start it, and what it says of itself."""

    name: str
    command: tuple[list, Path | None]
    version: str
    settings: str
    unfinished: str
    only: tuple[str, ...]

    def takes(self, workload):
        return not self.only or workload in self.only


def prepare(names, home):
    """The peers that can be had, and why the others cannot."""
    ready, missing = [], {}
    for peer in homes.PEERS:
        if peer.name not in names:
            continue
        try:
            command = peer.command(home)
            with program(*command, None, "about") as running:
                ready.append(Ready(peer.name, command, only=peer.only, **running.answer(60)))
        except (homes.UnavailableError, FailedError) as error:
            missing[peer.name] = str(error)
    return ready, missing


def measure(server, names, peers, runs, numbers):
    """Figures by workload, peer and name, a list of one for each run; and what failed."""
    results = {name: {peer.name: {} for peer in peers if peer.takes(name)} for name in names}
    failures = []
    for turn in range(runs):
        for name in names:
            for peer in filter(operator.methodcaller("takes", name), peers):
                print(f"{name}, run {turn + 1}, {peer.name} ...", file=sys.stderr, flush=True)
                try:
                    figures = WORKLOADS[name](server, peer, **numbers.get(name, {}))
                except (FailedError, psycopg.Error) as error:  # the others go on
                    failures.append(f"{name}, run {turn + 1}, {peer.name}: {error}")
                    continue
                for key, value in figures.items():
                    results[name][peer.name].setdefault(key, []).append(value)
    return results, failures


def shown(key, values):
    """The median of the runs; of counts the worst that was seen, since one lost job in three runs is one too many."""
    if key.startswith(COUNTS):
        value = max(values) if key in ("missing", "doubled") else min(values)
    else:
        value = statistics.median(values)
    return f"{value:,.0f}" if value >= 100 or key.startswith(COUNTS) else f"{value:.2f}"


def table(peers):
    columns = list(dict.fromkeys(key for figures in peers.values() for key in figures))
    print(f"| peer | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for peer, figures in peers.items():
        print(f"| {peer} | {' | '.join(shown(key, figures[key]) if key in figures else 'failed' for key in columns)} |")


def draw(results, folder):
    """Bars of every figure that is not a count of jobs, one file a workload."""
    for name, peers in results.items():
        columns = dict.fromkeys(key for figures in peers.values() for key in figures if not key.startswith(COUNTS))
        bars = {
            key: {peer: statistics.median(figures[key]) for peer, figures in peers.items() if key in figures}
            for key in columns
        }
        plots.save_bars(f"peers-{name}", WORKLOADS[name].__doc__.splitlines()[0], bars, folder)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], help="all of them if none is named")
    parser.add_argument("--only", help="peers, with commas between: " + ",".join(peer.name for peer in homes.PEERS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--home", type=Path, default=homes.DEFAULT, help=f"where peers are installed ({homes.DEFAULT})")
    parser.add_argument("--bin", type=Path, help="the folder of the server's programs")
    parser.add_argument("--smoke", action="store_true", help="small numbers, once: does it run at all?")
    parser.add_argument("--count", type=int, help="jobs of a drain and of bulk, instead of 50,000")
    parser.add_argument("--workers", help="worker processes of a drain, with commas between, instead of 1,2")
    parser.add_argument("--plots", type=Path, help="the folder for charts, as SVG; needs the extra `bench`")
    options = parser.parse_args()
    known = [peer.name for peer in homes.PEERS]
    options.only = options.only.split(",") if options.only else known
    if unknown := set(options.only) - set(known):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


def main():
    options = arguments()
    numbers = {name: dict(SMALL[name]) if options.smoke else {} for name in WORKLOADS}
    if options.count:
        numbers["drain"]["count"] = numbers["bulk"]["count"] = options.count
    if options.workers:
        numbers["drain"]["workers"] = [int(number) for number in options.workers.split(",")]
    peers, missing = prepare(options.only, options.home.expanduser())
    names = options.workloads or list(WORKLOADS)
    with serving(options.bin, smoke=options.smoke) as server:
        results, failures = measure(server, names, peers, 1 if options.smoke else options.runs, numbers)
        version = server.version
    print(f"\nPostgres {version}, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    for name in names:
        print(f"\n### {name}\n\n{' '.join(WORKLOADS[name].__doc__.split())}\n")
        table(results[name])
    print("\n### Settings\n")
    for peer in peers:
        print(f"- {peer.name} {peer.version}: {peer.settings}")
    for name, why in missing.items():
        print(f"- {name}: not here: {why}")
    for failure in failures:
        print(f"\nFAILED {failure}")
    if options.plots:
        draw(results, options.plots)
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
