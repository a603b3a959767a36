#!/bin/bash
set -euo pipefail

cat > /app/report.sh <<'SHELL'
#!/bin/sh
# report.sh < ACCESS.log: requests, errors, bytes and clients of every path.
set -eu
LC_ALL=C
export LC_ALL

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

awk -v malformed="$scratch/malformed" '
  # The request is what stands between the quotes: METHOD PATH PROTOCOL.
  $0 !~ /^[^ ]+ [^ ]+ [^ ]+ \[[^]]+\] "[A-Z]+ [^ "]+ HTTP\/[0-9.]+" [0-9][0-9][0-9] ([0-9]+|-)$/ { bad++; next }
  {
    path = $7
    sub(/\?.*/, "", path)
    requests[path]++
    errors[path] += ($9 >= 400)
    bytes[path] += ($10 == "-" ? 0 : $10)
    if (!seen[path, $1]++) clients[path]++
  }
  END {
    for (path in requests) printf "%s\t%d\t%d\t%.0f\t%d\n", path, requests[path], errors[path], bytes[path], clients[path]
    printf "malformed\t%d\n", bad > malformed
  }
' | sort -t "$(printf '\t')" -k2,2nr -k1,1
cat "$scratch/malformed"
SHELL
chmod 755 /app/report.sh
/app/report.sh < /app/sample.log
