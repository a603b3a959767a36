#!/bin/bash
set -euo pipefail

python3 - <<'PYTHON'
import json
import re
from datetime import datetime, timedelta, timezone

received, status, charged, charge_at = {}, {}, set(), {}

for line in open("/app/logs/gateway.log"):
    moment, event, rest = line.split(" ", 2)
    fields = dict(pair.split("=", 1) for pair in rest.split())
    if event == "recv":
        received[fields["id"]] = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    else:
        status[fields["id"]] = int(fields["status"])

for line in open("/app/logs/payments.log"):
    found = re.match(r"(\S+ \S+) \w+ charge (\w+) request=(\S+)", line)
    if found:
        local = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f")
        charge_at[found[3]] = local.replace(tzinfo=timezone(timedelta(hours=2)))
        if found[2] == "ok":
            charged.add(found[3])

deadlock = None
for line in open("/app/logs/orders.jsonl"):
    entry = json.loads(line)
    if deadlock is None and entry["level"] == "error" and entry["event"] == "deadlock":
        deadlock = entry["order"]

failed = {request for request, code in status.items() if code >= 500}
answer = {
    "first_failure": min(failed, key=received.__getitem__),
    "failed_requests": len(failed),
    "deadlock_order": deadlock,
    "slowest_ms": max(round((at - received[request]) / timedelta(milliseconds=1)) for request, at in charge_at.items() if request in received),
    "charged_but_failed": sorted(charged & failed),
}
with open("/app/answer.json", "w") as file:
    json.dump(answer, file, indent=2)
PYTHON
cat /app/answer.json
