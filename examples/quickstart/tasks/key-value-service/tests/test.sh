#!/bin/bash
# Reward 1 when the running server, and the one started after it was killed, behave as specified.
if python3 -I /tests/test_server.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
