"""The kill storm of the tests, longer: the real command ended again and again, with a new order of blows each time.

    python benchmarks/kill_storm.py [--kills 200] [--seeds 2 3]

A storm passes if nothing is lost, nothing doubled, every line can be read and every answer is one that the server gave.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
STORM = [sys.executable, "-m", "pytest", "-m", "storm", "tests/workflow/test_kill_storm.py"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="blows in each storm")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3])
    given = parser.parse_args()
    passed = True
    print(f"{'seed':>6} {'kills':>6} {'minutes':>8}", flush=True)
    for seed in given.seeds:
        begun = time.monotonic()
        how = {"TOKENFILL_KILLS": str(given.kills), "TOKENFILL_KILL_SEED": str(seed)}
        storm = subprocess.run(STORM, cwd=REPOSITORY, env=os.environ | how, capture_output=True, text=True)
        minutes = (time.monotonic() - begun) / 60
        print(f"{seed:6} {given.kills:6} {minutes:8.1f} {'passed' if storm.returncode == 0 else 'FAILED'}", flush=True)
        if storm.returncode:
            passed = False
            print(storm.stdout[-6000:])
    raise SystemExit(not passed)


if __name__ == "__main__":
    main()
