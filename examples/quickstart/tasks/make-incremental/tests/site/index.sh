#!/bin/sh
# index.sh PAGE.html ...: print an index of the pages, in the order given.
set -eu
if [ -n "${RENDER_LOG:-}" ]; then echo "index" >> "$RENDER_LOG"; fi
echo "<ul>"
for page in "$@"; do
  name=$(basename "$page")
  echo "<li><a href=\"$name\">$(sed -n 's|<h1>\(.*\)</h1>|\1|p' "$page")</a></li>"
done
echo "</ul>"
