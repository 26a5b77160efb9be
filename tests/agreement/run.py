"""``python -m tests.agreement.run [--write] [--cells N]``: formulas against simulation on the cells of ``grid``.

``--write`` records every cell in tests/agreement/recorded.csv and the tables in docs/agreement.md. Each cell is
simulated twice: a short run tells how many requests the half-widths need; what needs more than ``MOST`` isn't counted.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.agreement.grid import Answer, cells
from tests.agreement.measure import SATURATED, measure_enough, saturation
from tests.agreement.page import PAGE, RECORDED, page, write_csv


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.agreement.run", description=__doc__)
    parser.add_argument("--write", action="store_true", help="record plans and page; needs all cells")
    parser.add_argument("--cells", type=int, help="only the first so many")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    if asked.write and asked.cells is not None:
        parser.error("--write records all cells")
    chosen = cells()[: asked.cells]
    answers: list[Answer] = []
    with ProcessPoolExecutor(asked.workers) as pool:
        rates = [pool.submit(saturation, *one) for one in (SATURATED if asked.cells is None else ())]
        for answer in pool.map(measure_enough, chosen):
            answers.append(answer)
            print(f"\r{len(answers)}/{len(chosen)}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        text = page(answers, [found.result() for found in rates])
    print(text)
    if asked.write:
        PAGE.write_text(text, encoding="utf-8")
        write_csv(answers, RECORDED)


if __name__ == "__main__":
    main()
