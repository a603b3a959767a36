#!/bin/bash
# Reward 1 when every line of a long script is answered rightly.
if python3 -I /tests/test_sums.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
