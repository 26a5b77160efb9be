"""``python -m pddplan``."""

from pddplan.cli.main import run

if __name__ == "__main__":
    run()
