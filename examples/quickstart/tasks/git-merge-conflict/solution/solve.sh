#!/bin/bash
set -euo pipefail
cd /app/units

git merge -q imperial || true
cp "$(dirname "$0")/convert.sh" convert.sh
sed -i '/^<<<<<<<\|^=======\|^>>>>>>>/d' README.md
git add convert.sh README.md
git commit -q -m "Merge imperial: more conversions, with numbers from standard input"
