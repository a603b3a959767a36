#!/bin/bash
set -euo pipefail

cat > /app/rotate.sh <<'BASH'
#!/bin/bash
set -euo pipefail

refuse() {
  echo "rotate.sh: $1" >&2
  exit 2
}

[ $# -eq 2 ] || refuse "usage: rotate.sh FILE KEEP"
file=$1
keep=$2
[[ $keep =~ ^[0-9]+$ ]] && [ "$keep" -ge 1 ] || refuse "KEEP must be a whole number of at least 1: $keep"
[ -f "$file" ] || refuse "no such file: $file"
[ -s "$file" ] || exit 0

mode=$(stat -c %a -- "$file")
if [ "$keep" -eq 1 ]; then
  rm -f -- "$file.1"
else
  rm -f -- "$file.$keep.gz"
  for ((n = keep - 1; n >= 2; n--)); do
    if [ -e "$file.$n.gz" ]; then mv -- "$file.$n.gz" "$file.$((n + 1)).gz"; fi
  done
  if [ -e "$file.1" ]; then
    gzip -c -- "$file.1" > "$file.2.gz"
    rm -- "$file.1"
  fi
fi
mv -- "$file" "$file.1"
: > "$file"
chmod "$mode" -- "$file"
BASH
chmod 755 /app/rotate.sh
