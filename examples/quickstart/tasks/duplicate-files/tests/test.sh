#!/bin/bash
# Reward 1 when each duplicate is a link to the file that was to be kept; the tests read /opt/photos/before.sha256 of the environment.
if python3 -I /tests/test_photos.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
