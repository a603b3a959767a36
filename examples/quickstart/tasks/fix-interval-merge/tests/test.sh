#!/bin/bash
# Reward 1 when the module agrees with a slow but obvious model on fixed and on random cases.
if python3 -I /tests/test_intervals.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
