#!/bin/bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cp "$here/server.py" "$here/start.sh" /app/
chmod 755 /app/start.sh
/app/start.sh
