#!/bin/bash
# The reward is the fraction of right answers.
python3 -I /tests/score.py > /logs/verifier/reward.txt
