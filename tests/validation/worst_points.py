"""The points that the model misses most: ``python -m tests.validation.worst_points`` prints them.

With ``--write`` they are put into the shipped set, marked ``worst``, in place of those marked before: so they stay in
view of everyone who runs ``pddplan validate``. They are taken from the whole collection and both end-to-end tables.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from pddplan.accuracy.contract_rows import ADDED
from pddplan.accuracy.predict import predict
from pddplan.accuracy.published import published_file
from pddplan.accuracy.score import Miss, worst
from tests.validation.published_set import AIC_URL, as_csv, candidates, end_to_end, lines_of, selected, shipped

HOW_MANY = 10


def worst_points() -> list[tuple[Miss, dict[str, str]]]:
    """The ten largest errors in TTFT or TPOT, a point once, with their lines of the shipped set."""
    origins = {row.id: (url, date) for row, url, date in candidates()}
    collected = [row for row, _, _ in candidates()]
    agg = [row for row in end_to_end("agg") if row.parts]
    disagg = [row for row in end_to_end("disagg") if row.parts]
    rows = [replace(row, number=i) for i, row in enumerate([*collected, *agg, *disagg], 1)]
    found: dict[tuple[str, ...], tuple[Miss, dict[str, str]]] = {}
    for miss in worst(predict(rows), 20 * HOW_MANY):
        row = miss.row.row
        url, date = origins.get(row.id, (AIC_URL, ""))
        for line in lines_of(row, url, date, worst=True):
            if line.get(miss.metric):
                # the end-to-end tables hold most of the collection's rows again
                key = tuple(line.get(k, "") for k in ("model", "chip", "isl", "osl", "concurrency", "p_workers"))
                found.setdefault(key, (miss, line))
    return list(found.values())[:HOW_MANY]


def main(arguments: list[str]) -> None:
    points = worst_points()
    for miss, line in points:
        print(f"{miss.error:+9.1f} %  {miss.metric:8}  {miss.predicted:10.4g} for {miss.measured:10.4g}  {line['id']}")
    if "--write" in arguments:
        marked = {line["id"]: line for _, line in points}
        chosen = {line["id"] for line in selected()}  # one that stood there for its error alone leaves with it
        kept = [{**line, "worst": "yes" if line["id"] in marked else ""} for line in shipped() if line["id"] in chosen]
        added = [{**line, "worst": ADDED} for i, line in marked.items() if i not in chosen]
        published_file().write_text(as_csv([*kept, *added]), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
