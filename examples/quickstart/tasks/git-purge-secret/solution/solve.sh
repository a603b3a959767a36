#!/bin/bash
set -euo pipefail
cd /app/repo

export FILTER_BRANCH_SQUELCH_WARNING=1
git filter-branch --index-filter 'git rm -q --cached --ignore-unmatch config/deploy.key' --tag-name-filter cat -- --all

# filter-branch keeps the old history under refs/original, and the reflogs know it too.
git for-each-ref --format='%(refname)' refs/original | while read -r ref; do git update-ref -d "$ref"; done
rm -f .git/ORIG_HEAD .git/FETCH_HEAD
git reflog expire --expire=now --all
git gc -q --prune=now
git status --short
