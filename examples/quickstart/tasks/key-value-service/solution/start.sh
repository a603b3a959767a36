#!/bin/bash
# Start the server in a session of its own and wait until it answers.
set -euo pipefail
setsid nohup python3 /app/server.py > /app/server.log 2>&1 < /dev/null &
for _ in $(seq 200); do
  if python3 -c 'import urllib.request as r; r.urlopen("http://127.0.0.1:8080/health", timeout=1)' 2> /dev/null; then
    exit 0
  fi
  sleep 0.05
done
echo "the server does not answer" >&2
exit 1
