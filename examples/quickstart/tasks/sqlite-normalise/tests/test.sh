#!/bin/bash
# Reward 1 when the four tables, their keys and the view hold what the spreadsheet says.
if python3 -I /tests/test_shop.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
