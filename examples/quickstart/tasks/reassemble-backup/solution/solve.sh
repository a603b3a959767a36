#!/bin/bash
set -euo pipefail

sound() { # sound HASH FILE: the file has this content
  [ -f "$2" ] && [ "$(sha256sum < "$2" | cut -d ' ' -f 1)" = "$1" ]
}

scratch=$(mktemp -d)
: > "$scratch/damaged"
while read -r _ hash; do
  if sound "$hash" "parts/$hash"; then
    cat "parts/$hash"
  else
    echo "$hash" >> "$scratch/damaged"
    gzip -dc "mirror/$hash.gz" > "$scratch/piece"
    sound "$hash" "$scratch/piece"
    cat "$scratch/piece"
  fi
done < <(sort -n MANIFEST) > "$scratch/backup.tar.gz"

mkdir restored
tar -xpzf "$scratch/backup.tar.gz" -C restored --no-same-owner
sort -u "$scratch/damaged" > damaged.txt
cat damaged.txt
