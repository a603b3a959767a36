#!/bin/bash
# Reward 1 when the Makefile builds what is needed and nothing else, in copies of the site.
if python3 -I /tests/test_makefile.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
