"""A second worker on the same server, as a process of its own that takes places as it is told."""

import subprocess
import sys
from pathlib import Path

HELPER = """
import sys
sys.path.insert(0, sys.argv[1])
from tokenfill.responses.servers.places import Places
from pathlib import Path
places = Places(Path(sys.argv[2]), int(sys.argv[3]))
for line in sys.stdin:
    print(repr(eval(line, {"places": places})), flush=True)
"""


class OtherWorker:
    """Places held by another process, which does what it is told."""

    def __init__(self, path, rank):
        scripts = str(Path(__file__).parents[1] / "scripts")
        self.process = subprocess.Popen(
            [sys.executable, "-c", HELPER, scripts, str(path), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, expression):
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return eval(self.process.stdout.readline())

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
