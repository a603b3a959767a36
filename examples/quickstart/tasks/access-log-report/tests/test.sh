#!/bin/bash
# Reward 1 when the report is right for logs that the script has not seen, on a PATH without Python or Perl.
mkdir -p /tmp/tools
for tool in sh bash dash awk mawk gawk sed sort grep cut tr uniq head tail cat mktemp rm mkdir paste join comm wc printf expr tee env test; do
  path=$(command -v "$tool") && [ "${path#/}" != "$path" ] && ln -sf "$path" "/tmp/tools/$tool"
done
if python3 -I /tests/test_report.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
