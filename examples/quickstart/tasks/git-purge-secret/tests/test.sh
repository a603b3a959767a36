#!/bin/bash
# Reward 1 when the key is gone and the rest of the history is what it was.
if python3 -I /tests/test_history.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
