#!/bin/bash
# Reward 1 when the restored tree and the list of damaged pieces are right, and the stores are untouched.
fresh=$(mktemp -d)
python3 -I /tests/make_backup.py "$fresh"
if python3 -I /tests/test_restored.py "$fresh"; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
