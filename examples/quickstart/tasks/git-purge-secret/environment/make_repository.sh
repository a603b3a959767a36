#!/bin/bash
# make_repository.sh FOLDER: a repository of which every object is the same wherever it is made.
set -euo pipefail
git init -q -b main "$1"
cd "$1"
git config user.name "Dana Deploy"
git config user.email dana@example.com
git config gc.auto 0
git config core.fileMode false
clock=1717000000

commit() { # commit AUTHOR MESSAGE
  clock=$((clock + 3600))
  GIT_AUTHOR_NAME=$1 GIT_AUTHOR_EMAIL=${1,,}@example.com GIT_AUTHOR_DATE="$clock +0200" GIT_COMMITTER_DATE="$clock +0200" \
    git commit -q -m "$2"
}

mkdir config docs
printf 'host = "app.example.com"\nport = 8080\n' > config/app.toml
printf '# The app\n' > README.md
git add . && commit Ana "Start the app"
printf 'import sys\n\nprint("ready", sys.argv[1:])\n' > app.py
git add . && commit Ben "Add the entry point"
git tag v1.0
printf -- '-----BEGIN DEPLOY KEY-----\nNn7hQ2f0w5mVb1sK-e9xTqZr4LpYc8ud\n-----END DEPLOY KEY-----\n' > config/deploy.key
printf 'host = "app.example.com"\nport = 9090\n' > config/app.toml
git add . && commit Ana "Move to port 9090

The old port is taken by the proxy."
git checkout -q -b release
printf 'Release notes\n' > docs/release.txt
git add . && commit Cleo "Write release notes"
clock=$((clock + 60))
GIT_COMMITTER_DATE="$clock +0200" git tag -a v1.1 -m "Second release"
git checkout -q main
printf '# The app\n\nRun `python3 app.py`.\n' > README.md
git add . && commit Ben "Say how to run it"
git rm -q config/deploy.key && commit Ana "Remove the deploy key"
clock=$((clock + 3600))
GIT_AUTHOR_NAME=Ben GIT_AUTHOR_EMAIL=ben@example.com GIT_AUTHOR_DATE="$clock +0200" GIT_COMMITTER_DATE="$clock +0200" \
  git merge -q --no-ff -m "Merge the release notes" release
printf 'import sys\n\nprint("ready for", sys.argv[1:])\n' > app.py
git add . && commit Cleo "Be polite"
