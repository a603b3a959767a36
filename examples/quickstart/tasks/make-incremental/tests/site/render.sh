#!/bin/sh
# render.sh PAGE: print the page as HTML. Every call is noted in $RENDER_LOG, when that is set.
set -eu
if [ -n "${RENDER_LOG:-}" ]; then echo "render $1" >> "$RENDER_LOG"; fi
cat layout/header.html
title=$(head -n 1 "$1")
[ -n "$title" ] || { echo "render.sh: $1 has no title" >&2; exit 1; }
echo "<h1>$title</h1>"
tail -n +2 "$1" | sed -e '/./!d' -e 's|.*|<p>&</p>|'
cat layout/footer.html
