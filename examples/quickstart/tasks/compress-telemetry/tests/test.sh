#!/bin/bash
# Three figures: reward, accuracy, size_bytes.
set -euo pipefail
recordings=$(mktemp -d)
python3 -I /tests/record.py "$recordings" 11 12 13 14 15 16 17 18
python3 -I /tests/measure.py "$recordings" > /logs/verifier/reward.json
cat /logs/verifier/reward.json
