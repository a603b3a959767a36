#!/bin/bash
set -euo pipefail
python3 "$(dirname "$0")/normalise.py" /app/shop.db
