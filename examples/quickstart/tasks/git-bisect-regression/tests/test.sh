#!/bin/bash
# Reward 1 when the culprit is named and main is repaired on top of its history.
if python3 -I /tests/test_roman.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
