"""``python -m tests.agreement.run all|rates|page [--write]``: formulas against simulation on the cells of ``grid``.

``all`` simulates every cell and the largest rates, ``rates`` those only, ``page`` nothing; what isn't simulated is as
it was recorded. ``--write`` records it in tests/agreement/ and writes docs/agreement.md. Each cell is simulated twice:
a short run tells how many requests the half-widths need; what needs more than ``MOST`` isn't counted.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.agreement.grid import Answer, Figure, cells
from tests.agreement.measure import SATURATED, measure_enough, saturation
from tests.agreement.page import PAGE, RECORDED, page, recorded_answers, recorded_rates, write_csv, write_rates


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.agreement.run", description=__doc__)
    parser.add_argument("what", choices=("all", "rates", "page"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.workers) as pool:
        rates = _rates(pool) if asked.what != "page" else recorded_rates()
        answers = _plans(pool) if asked.what == "all" else recorded_answers()
    text = page(answers, rates)
    print(text)
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")
        write_csv(answers, RECORDED)
        write_rates(rates)


def _rates(pool: ProcessPoolExecutor) -> list[tuple[str, Figure | None]]:
    print(f"largest rates of {len(SATURATED)} plans", file=sys.stderr)
    return list(pool.map(saturation, *zip(*SATURATED, strict=True)))


def _plans(pool: ProcessPoolExecutor) -> list[Answer]:
    answers: list[Answer] = []
    chosen = cells()
    for answer in pool.map(measure_enough, chosen):
        answers.append(answer)
        print(f"\r{len(answers)}/{len(chosen)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return answers


if __name__ == "__main__":
    main()
