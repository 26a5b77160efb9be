"""HiGHS, asked for one integer program."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MIP_GAP = 1e-5  # of one program; the bound is HiGHS's own dual bound
# one thread: the same answer every time; the programs are too small for the feasibility jump to pay
OPTIONS = {"output_flag": False, "threads": 1, "mip_rel_gap": MIP_GAP, "mip_heuristic_run_feasibility_jump": False}


def minimise(
    costs: Array, integral: Array, upper: Array, matrix: Array, low: Array, high: Array
) -> tuple[Array, float] | None:
    """Solution x and dual bound of ``min costs x`` over ``low <= matrix x <= high``, ``0 <= x <= upper``; ``integral``
    is 1 where x is whole. Shapes (columns,), (rows, columns), (rows,). None where nothing fits.

    RuntimeError where HiGHS ends without an answer. It is imported here, not scipy.optimize, which holds it too but
    takes seven times as long to import.
    """
    with _quiet():
        import highspy

        program = highspy.HighsLp()
        program.num_row_, program.num_col_ = matrix.shape
        program.col_cost_, program.col_lower_, program.col_upper_ = costs, np.zeros(costs.size), upper
        program.row_lower_, program.row_upper_ = low, high
        row, column = np.nonzero(matrix)
        entries = np.bincount(row, minlength=matrix.shape[0])
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.concatenate([[0], np.cumsum(entries)]).astype(np.int32)
        program.a_matrix_.index_, program.a_matrix_.value_ = column.astype(np.int32), matrix[row, column]
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        program.integrality_ = [kinds[int(whole)] for whole in integral]
        solver = highspy.Highs()  # type: ignore[no-untyped-call]
        for name, value in OPTIONS.items():
            solver.setOptionValue(name, value)
        solver.passModel(program)
        solver.run()
        status = solver.getModelStatus()
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return None
    if status != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS ended with {solver.modelStatusToString(status)}")
    values = np.array(solver.getSolution().col_value, dtype=float)
    cost = float(costs @ np.round(values * integral, 0))
    return values, min(cost, float(solver.getInfo().mip_dual_bound))


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing that C code prints gets out: HiGHS writes its name and some warnings to stdout whatever its options say,
    and there they would stand in the middle of the answer. The C library's own buffer must be emptied too."""
    try:
        kept = os.dup(1)
    except OSError:  # stdout is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if library is not None:
        library.fflush(None)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        if library is not None:
            library.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
