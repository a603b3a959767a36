"""record.py FOLDER SEED ...: a day of the station for each seed."""

import math
import random
import sys
from pathlib import Path


def day(seed):
    chance = random.Random(seed)
    temperature, humidity, pressure, wind = chance.uniform(-5, 25), chance.uniform(40, 90), chance.uniform(990, 1030), chance.uniform(0, 8)
    lines = ["minute,temperature,humidity,pressure,wind"]
    for minute in range(1440):
        temperature += chance.choice((-0.1, 0, 0, 0, 0.1)) + 0.01 * math.sin((minute - 480) * math.tau / 1440)
        humidity = min(100, max(5, humidity + chance.choice((-0.5, 0, 0, 0.5))))
        pressure += chance.choice((-0.1, 0, 0, 0, 0, 0.1))
        wind = max(0, wind + chance.choice((-0.3, -0.1, 0, 0, 0.1, 0.3)))
        lines.append(f"{minute},{round(temperature, 1) + 0:.1f},{humidity:.1f},{pressure:.1f},{wind:.1f}")
    return "\n".join(lines) + "\n"


for seed in sys.argv[2:]:
    Path(sys.argv[1], f"day-{seed}.csv").write_text(day(int(seed)))
