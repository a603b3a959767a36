#!/bin/bash
set -euo pipefail
export LC_ALL=C
cd /app/photos

# A line per file: hash, length of the path, path. Sorted, the first of each hash is the one to keep.
find . -type f -size +0c -printf '%P\0' | xargs -0 sha256sum -z -- | tr '\0' '\n' |
  awk '{ path = substr($0, 67); print $1 "\t" length(path) "\t" path }' | sort -t $'\t' -k1,1 -k2,2n -k3,3 > /tmp/files.tsv

keep_hash='' keep=''
while IFS=$'\t' read -r hash _ path; do
  if [ "$hash" != "$keep_hash" ]; then
    keep_hash=$hash keep=$path
    continue
  fi
  ln -sfr -- "./$keep" "./$path"
  printf '%s\t%s\n' "$path" "$keep"
done < /tmp/files.tsv | sort > /app/duplicates.tsv
wc -l < /app/duplicates.tsv
