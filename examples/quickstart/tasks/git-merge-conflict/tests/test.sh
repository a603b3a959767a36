#!/bin/bash
# Reward 1 when main is the merge of both branches and the merged script does what both did.
if python3 -I /tests/test_merge.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
