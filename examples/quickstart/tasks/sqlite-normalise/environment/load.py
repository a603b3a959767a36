"""load.py SALES.csv SHOP.db: the spreadsheet as one table of text."""

import csv
import sqlite3
import sys

with open(sys.argv[1], newline="") as file:
    header, *rows = csv.reader(file)
database = sqlite3.connect(sys.argv[2])
with database:
    database.execute(f"CREATE TABLE sales ({', '.join(f'{name} TEXT' for name in header)})")
    database.executemany(f"INSERT INTO sales VALUES ({', '.join('?' * len(header))})", rows)
database.close()
