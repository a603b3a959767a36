#!/bin/bash
set -euo pipefail

cat > /app/site/Makefile <<'MAKE'
PAGES := $(sort $(wildcard pages/*.txt))
HTML := $(PAGES:pages/%.txt=public/%.html)
STALE := $(filter-out $(HTML) public/index.html,$(wildcard public/*.html))
LIST := public/.pages

.DELETE_ON_ERROR:
.PHONY: all clean FORCE

all: public/index.html $(HTML)

public/%.html: pages/%.txt layout/header.html layout/footer.html render.sh | public
	./render.sh $< > $@

public/index.html: $(HTML) $(LIST) index.sh | public
	./index.sh $(HTML) > $@

# The list of pages is written only when it changes: that is what rebuilds the index after a page was removed.
ifneq ($(shell cat $(LIST) 2>/dev/null),$(HTML))
$(LIST): FORCE
endif
$(LIST): | public
	rm -f $(STALE)
	echo '$(HTML)' > $@

public:
	mkdir -p public

clean:
	rm -rf public
MAKE
