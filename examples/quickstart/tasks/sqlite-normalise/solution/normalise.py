"""normalise.py SHOP.db: from one table of text to four with keys."""

import sqlite3
import sys
from decimal import Decimal

SCHEMA = """
CREATE TABLE customers(id INTEGER PRIMARY KEY, email TEXT NOT NULL UNIQUE, name TEXT NOT NULL);
CREATE TABLE products(sku TEXT PRIMARY KEY, title TEXT NOT NULL);
CREATE TABLE orders(id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers(id), ordered_on TEXT NOT NULL);
CREATE TABLE order_lines(order_id INTEGER NOT NULL REFERENCES orders(id), sku TEXT NOT NULL REFERENCES products(sku),
                         quantity INTEGER NOT NULL, unit_cents INTEGER NOT NULL, PRIMARY KEY (order_id, sku));
CREATE VIEW revenue_by_month(month, cents) AS
    SELECT substr(ordered_on, 1, 7), sum(quantity * unit_cents)
    FROM orders JOIN order_lines ON order_lines.order_id = orders.id
    GROUP BY 1 ORDER BY 1;
"""


def iso(date):
    if "/" in date:
        day, month, year = date.split("/")
        return f"{year}-{month}-{day}"
    return date


database = sqlite3.connect(sys.argv[1])
database.executescript("PRAGMA foreign_keys = ON;" + SCHEMA)
sales = [
    (int(order), iso(date), email.strip().lower(), name, sku, title, int(quantity), int(Decimal(price) * 100))
    for order, date, email, name, sku, title, quantity, price in database.execute("SELECT * FROM sales WHERE order_no <> ''")
]
with database:
    for order, date, email, name, sku, title, quantity, cents in sorted(sales, key=lambda sale: (sale[1], sale[0])):
        database.execute(
            "INSERT INTO customers(email, name) VALUES (?, ?) ON CONFLICT(email) DO UPDATE SET name = excluded.name", (email, name)
        )
        (customer,) = database.execute("SELECT id FROM customers WHERE email = ?", (email,)).fetchone()
        database.execute("INSERT OR IGNORE INTO products VALUES (?, ?)", (sku, title))
        database.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", (order, customer, date))
        database.execute(
            "INSERT INTO order_lines VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET quantity = quantity + excluded.quantity",
            (order, sku, quantity, cents),
        )
    database.execute("DROP TABLE sales")
database.close()
