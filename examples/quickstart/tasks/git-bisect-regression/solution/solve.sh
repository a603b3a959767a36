#!/bin/bash
set -euo pipefail
cd /app/roman

git bisect start main v1.0 > /dev/null
git bisect run sh -c 'test "$(python3 roman.py 1994)" = MCMXCIV' > /dev/null
git rev-parse refs/bisect/bad > /app/culprit.txt
git bisect reset > /dev/null

sed -i 's/^    (50, "L"),$/    (90, "XC"),\n&/' roman.py
git commit -q -am "Put 90 back into the table of values"
python3 roman.py 1994
