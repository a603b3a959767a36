#!/bin/bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cp "$here/encode.py" "$here/decode.py" /app/

for recording in /app/telemetry/*.csv; do
  python3 /app/encode.py < "$recording" > /tmp/encoded
  python3 /app/decode.py < /tmp/encoded | cmp - "$recording"
  echo "$recording: $(stat -c %s "$recording") -> $(stat -c %s /tmp/encoded) bytes"
done
