"""Compare /app/shop.db with the spreadsheet, read here in another way."""

import csv
import sqlite3
import unittest
from collections import defaultdict


def rows():
    with open("/tests/sales.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["order_no"]:
                date = row["date"]
                row["date"] = "-".join(reversed(date.split("/"))) if "/" in date else date
                row["email"] = row["email"].strip().lower()
                units, cents = row["price"].split(".")
                row["cents"] = int(units) * 100 + int(cents)
                yield row


class ShopTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.database = sqlite3.connect("file:/app/shop.db?mode=ro", uri=True)
        cls.rows = list(rows())

    @classmethod
    def tearDownClass(cls):
        cls.database.close()

    def query(self, sql):
        return self.database.execute(sql).fetchall()

    def test_tables(self):
        names = self.query("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
        wanted = [("table", name) for name in ("customers", "order_lines", "orders", "products")] + [("view", "revenue_by_month")]
        self.assertEqual(sorted(names), wanted)

    def test_keys(self):
        self.assertEqual({row[2:5] for row in self.query("PRAGMA foreign_key_list(orders)")}, {("customers", "customer_id", "id")})
        self.assertEqual(
            {row[2:5] for row in self.query("PRAGMA foreign_key_list(order_lines)")}, {("orders", "order_id", "id"), ("products", "sku", "sku")}
        )
        self.assertEqual(self.query("PRAGMA foreign_key_check"), [])
        keys = {table: [row[1] for row in self.query(f"PRAGMA table_info({table})") if row[5]] for table in ("customers", "products", "orders", "order_lines")}
        self.assertEqual(keys, {"customers": ["id"], "products": ["sku"], "orders": ["id"], "order_lines": ["order_id", "sku"]})
        unique = [row[1] for row in self.query("PRAGMA index_list(customers)") if row[2]]
        self.assertIn([("email",)], [self.query(f"SELECT name FROM pragma_index_info('{name}')") for name in unique])

    def test_customers(self):
        latest = {}
        for row in sorted(self.rows, key=lambda row: (row["date"], int(row["order_no"]))):
            latest[row["email"]] = row["name"]
        self.assertEqual(dict(self.query("SELECT email, name FROM customers")), latest)

    def test_products(self):
        self.assertEqual(dict(self.query("SELECT sku, title FROM products")), {row["sku"]: row["title"] for row in self.rows})

    def test_orders(self):
        found = self.query("SELECT orders.id, ordered_on, email FROM orders JOIN customers ON customers.id = customer_id")
        self.assertEqual(sorted(found), sorted({(int(row["order_no"]), row["date"], row["email"]) for row in self.rows}))

    def test_order_lines(self):
        lines = defaultdict(int)
        for row in self.rows:
            lines[int(row["order_no"]), row["sku"], row["cents"]] += int(row["quantity"])
        found = self.query("SELECT order_id, sku, unit_cents, quantity, typeof(unit_cents), typeof(quantity) FROM order_lines")
        self.assertEqual(sorted(found), sorted((*key, quantity, "integer", "integer") for key, quantity in lines.items()))

    def test_view(self):
        months = defaultdict(int)
        for row in self.rows:
            months[row["date"][:7]] += int(row["quantity"]) * row["cents"]
        self.assertEqual(self.query("SELECT month, cents FROM revenue_by_month"), sorted(months.items()))


if __name__ == "__main__":
    unittest.main()
