"""A real process: pipes, standard input, colour, Ctrl-C, a reader that goes away."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ESCAPE = "\x1b["

# The solver stands in: these tests are about the process, not about the plan.
STUB = """
import sys, time
from types import SimpleNamespace
from tests.report import plans

def solve(scenario, progress=None, **options):
    for step in range({steps}):
        time.sleep(0.2)
        progress(f"step {{step}}")
    return plans.feasible()

sys.modules["pddplan.plan.solve"] = SimpleNamespace(solve=solve)
from pddplan.cli.main import run
run()
"""


def command(*arguments: str, steps: int = 0) -> list[str]:
    return [sys.executable, "-c", STUB.format(steps=steps), *arguments]


def environment(**extra: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "PDDPLAN_DEBUG")}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", **extra}


def run(arguments: list[str], stdin: str | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, input=stdin, capture_output=True, text=True, cwd=ROOT, env=environment(**extra), timeout=60
    )


def test_standard_input(scenario_file: Path) -> None:
    text = scenario_file.read_text()
    done = run(command("solve", "-", "--json"), text)
    assert done.returncode == 0 and json.loads(done.stdout)["status"] == "feasible"
    bad = run(command("solve", "-"), text.replace("request_rate_per_s", "request_rate"))
    assert bad.returncode == 2 and bad.stdout == ""
    assert bad.stderr.startswith("<stdin>:")


def test_a_pipe_gets_plain_text(scenario_file: Path) -> None:
    done = run(command("solve", "-q", str(scenario_file)))
    assert done.returncode == 0 and done.stderr == ""
    assert ESCAPE not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 100


def on_a_terminal(arguments: list[str], **extra: str) -> tuple[int, str]:
    """Exit code and all that a terminal of 80 columns would show."""
    main, side = pty.openpty()
    env = environment(COLUMNS="80", **extra)
    process = subprocess.Popen(arguments, stdin=side, stdout=side, stderr=side, cwd=ROOT, env=env)
    os.close(side)
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(main, 65536)
        except OSError:  # Linux says so when the other side is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(main)
    return process.wait(timeout=60), b"".join(chunks).decode()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_colour_on_a_terminal_only_when_wanted(scenario_file: Path) -> None:
    code, text = on_a_terminal(command("solve", str(scenario_file)))
    assert code == 0 and ESCAPE in text
    for extra in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        code, plain = on_a_terminal(command("solve", "-q", str(scenario_file)), **extra)
        assert code == 0 and ESCAPE not in plain
        assert plain.startswith("FEASIBLE")
        assert max(len(line) for line in plain.splitlines()) <= 80


LONG = ["--set", "workload.request_rate=10", "--set", "objective=speed"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_message_wraps_on_a_terminal_and_never_in_a_pipe(scenario_file: Path) -> None:
    """Wrapped at words, later lines indented; an editor reads one ``file:line:`` a line."""
    command_line = command("solve", str(scenario_file), *LONG)
    piped = run(command_line, COLUMNS="80").stderr.splitlines()
    assert len(piped) == 2 and max(map(len, piped)) > 80
    code, shown = on_a_terminal(command_line)
    lines = shown.splitlines()
    assert code == 2 and max(map(len, lines)) <= 80 and len(lines) > 2
    first = [i for i, line in enumerate(lines) if not line.startswith("    ")]
    assert len(first) == 2
    joined = [" ".join(part.strip() for part in lines[a:b]) for a, b in zip(first, [*first[1:], None], strict=True)]
    assert joined == piped


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_long_path_is_left_whole_and_json_as_it_is(tmp_path: Path) -> None:
    missing = str(tmp_path / ("x" * 90) / "scenario.yaml")
    _, shown = on_a_terminal(command("solve", missing))
    assert missing in shown
    _, text = on_a_terminal(command("solve", missing, "--json"))
    assert json.loads(text)["errors"][0]["file"] == missing


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_progress_after_a_second_on_a_terminal(scenario_file: Path) -> None:
    _, slow = on_a_terminal(command("solve", str(scenario_file), steps=8))
    _, quick = on_a_terminal(command("solve", str(scenario_file), steps=1))
    _, quiet = on_a_terminal(command("solve", "-q", str(scenario_file), steps=8))
    assert "Solving" in slow and "step 7" in slow
    assert "Solving" not in quick and "Solving" not in quiet


def test_a_reader_that_goes_away_is_no_error(scenario_file: Path) -> None:
    line = " ".join(f"'{part}'" for part in (sys.executable, "-c", "STUB", "solve", str(scenario_file), "--json"))
    line = line.replace("'STUB'", '"$STUB"')
    script = f'{line} | head -c 1 > /dev/null; echo "${{PIPESTATUS[0]}}"'
    done = run(["bash", "-c", script], STUB=STUB.format(steps=0))
    assert done.stdout.strip() == "0"
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_ctrl_c(scenario_file: Path) -> None:
    process = subprocess.Popen(
        command("solve", str(scenario_file), steps=200),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
        # A shell's background job ignores the interrupt and hands that down; the child starts as from a terminal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert out == "" and err == "Interrupted.\n"


def test_python_m() -> None:
    done = run([sys.executable, "-m", "pddplan", "--version"])
    assert done.returncode == 0 and done.stdout.startswith("pddplan ")
