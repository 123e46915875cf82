"""Print where every dataset stands: `python scripts/status.py [results]`. It takes no lock and may run at any time."""

import sys
from pathlib import Path

from tokenfill.report.status import RESULTS, table

if __name__ == "__main__":
    print(table(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS))
