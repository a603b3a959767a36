#!/bin/bash
# Reward 1 when the script rotates as specified, in folders that it has never seen.
if python3 -I /tests/test_rotate.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
