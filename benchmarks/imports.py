"""What `import anabranch` costs against importing anyio and pydantic, in fresh interpreters.

    python benchmarks/imports.py

Goal: at most 1.3. Medians of 15 interleaved runs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

BASELINE = "import anyio, pydantic"
OURS = "import anabranch"
USED = "from anyio import TASK_STATUS_IGNORED; from pydantic import BaseModel"
OURS_USED = "from anabranch import Commander, Conversation, Job, handler, run"
ROUNDS = 15


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    codes = ("pass", BASELINE, OURS, USED, OURS_USED)
    times: dict[str, list[float]] = {code: [] for code in codes}
    for _ in range(ROUNDS):
        for code in codes:
            times[code].append(seconds(code))
    medians = {code: statistics.median(each) for code, each in times.items()}
    empty = medians["pass"]
    print(f"an empty interpreter: {empty * 1000:.1f} ms, taken off below")
    for base, ours in ((BASELINE, OURS), (USED, OURS_USED)):
        ratio = (medians[ours] - empty) / (medians[base] - empty)
        print(f"{(medians[base] - empty) * 1000:7.1f} ms  1.00  {base}")
        print(f"{(medians[ours] - empty) * 1000:7.1f} ms  {ratio:.2f}  {ours}")


if __name__ == "__main__":
    main()
