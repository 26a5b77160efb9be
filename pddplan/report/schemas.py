"""Every answer's JSON Schema by the name that ``pddplan schema --of`` takes."""

from __future__ import annotations

from collections.abc import Mapping

from pddplan.report.calibration_json import CALIBRATION
from pddplan.report.chip_check_report import CHIP_CHECK
from pddplan.report.chips_json import CHIP, CHIPS
from pddplan.report.compare_json import COMPARISON
from pddplan.report.estimate_json import ESTIMATE
from pddplan.report.json_schema import Schema
from pddplan.report.lines_table import LINES
from pddplan.report.models_report import IMPORT, MODEL, MODELS
from pddplan.report.plan_schema import CHECK, ERROR, INIT, PLAN
from pddplan.report.simulation_json import SIMULATION
from pddplan.report.validation_json import VALIDATION

SCHEMAS: Mapping[str, Schema] = {
    "plan": PLAN,
    "comparison": COMPARISON,
    "check": CHECK,
    "simulation": SIMULATION,
    "validation": VALIDATION,
    "estimate": ESTIMATE,
    "calibration": CALIBRATION,
    "chips": CHIPS,
    "chip": CHIP,
    "chip_check": CHIP_CHECK,
    "lines": LINES,
    "models": MODELS,
    "model": MODEL,
    "import": IMPORT,
    "init": INIT,
    "error": ERROR,
}
