"""measure.py FOLDER: encode and decode each recording, each in a process and a folder of its own; print the figures as JSON."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

BEST_BYTES, WORST_BYTES = 16_000, 61_000


def run(program, data):
    """What the program makes of the data, or None when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([sys.executable, "-I", program], input=data, capture_output=True, timeout=10, cwd=folder)
        except subprocess.TimeoutExpired:
            print(f"{program} took more than 10 seconds", file=sys.stderr)
            return None
    if done.returncode != 0:
        print(f"{program}: {done.stderr.decode(errors='replace').strip()[-300:]}", file=sys.stderr)
        return None
    return done.stdout


recordings = [path.read_bytes() for path in sorted(Path(sys.argv[1]).glob("*.csv"))]
exact = size = 0
# Decoding starts after the last recording was encoded, and in another order.
encoded = [run("/app/encode.py", recording) for recording in recordings]
for recording, form in reversed(list(zip(recordings, encoded))):
    if form is not None and run("/app/decode.py", form) == recording:
        exact += 1
        size += len(form)
    else:
        size += len(recording)
accuracy = exact / len(recordings)
share = (WORST_BYTES - size) / (WORST_BYTES - BEST_BYTES)
print(json.dumps({"reward": min(1.0, max(0.0, share)) if accuracy == 1 else 0.0, "accuracy": accuracy, "size_bytes": size}))
