#!/bin/bash
# make_repository.sh FOLDER: two branches that conflict.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
git init -q -b main "$1"
cd "$1"
git config user.name "Mira"
git config user.email mira@example.com
git config core.fileMode false
clock=1718000000

commit() { # commit SCRIPT README MESSAGE
  clock=$((clock + 3600))
  cp "$here/$1" convert.sh
  chmod 755 convert.sh
  printf "$2" > README.md
  git add --chmod=+x convert.sh
  git add README.md
  GIT_AUTHOR_DATE="$clock +0000" GIT_COMMITTER_DATE="$clock +0000" git commit -q -m "$3"
}

commit base.sh '# convert.sh\n\n- f-c, km-mi\n' "Convert temperatures and distances"
git checkout -q -b imperial
commit imperial.sh '# convert.sh\n\n- f-c, km-mi\n- ft-m, m-ft, lb-kg\n' "More conversions, and refuse unknown ones"
git checkout -q main
commit main.sh '# convert.sh\n\n- f-c, km-mi\n- numbers from standard input\n' "Read numbers from standard input"
