"""Talk to the server that was left running; then kill it and start it again."""

import http.client
import json
import os
import signal
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor


def call(method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=10)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def listening_inodes():
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(table):
            with open(table) as file:
                for line in file.readlines()[1:]:
                    fields = line.split()
                    if fields[1].endswith(":1F90") and fields[3] == "0A":
                        inodes.add(f"socket:[{fields[9]}]")
    return inodes


def listeners():
    """Processes that listen on port 8080."""
    wanted, found = listening_inodes(), set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{name}") in wanted:
                    found.add(int(pid))
        except OSError:
            pass  # the process or its descriptor is gone
    return found


class ServerTest(unittest.TestCase):
    def test_1_is_running(self):
        self.assertEqual(call("GET", "/health")[0], 200)

    def test_2_life_of_a_key(self):
        value = bytes(range(256)) * 40
        self.assertEqual(call("GET", "/keys/life")[0], 404)
        self.assertEqual(call("PUT", "/keys/life", b"first")[0], 201)
        self.assertEqual(call("PUT", "/keys/life", value)[0], 204)
        self.assertEqual(call("GET", "/keys/life"), (200, value))
        self.assertEqual(call("DELETE", "/keys/life")[0], 204)
        self.assertEqual(call("DELETE", "/keys/life")[0], 404)
        self.assertEqual(call("GET", "/keys/life")[0], 404)

    def test_3_names(self):
        for name in ("..", ".", "-", "A.b_c-9", "x" * 100):
            self.assertEqual(call("PUT", f"/keys/{name}", name.encode())[0], 201, name)
            self.assertEqual(call("GET", f"/keys/{name}"), (200, name.encode()), name)
        for name in ("", "a/b", "a%20b", "~", "x" * 101):
            self.assertEqual(call("PUT", f"/keys/{name}", b"x")[0], 400, name)
        self.assertEqual(call("GET", "/elsewhere")[0], 404)
        self.assertEqual(json.loads(call("GET", "/keys")[1]), sorted(("..", ".", "-", "A.b_c-9", "x" * 100)))

    def test_4_many_writers(self):
        def put(number):
            return call("PUT", f"/keys/many-{number % 20}", f"value of {number % 20}".encode())[0]

        with ThreadPoolExecutor(16) as pool:
            statuses = list(pool.map(put, range(120)))
        self.assertEqual(statuses.count(201), 20)
        self.assertEqual(statuses.count(204), 100)
        for number in range(20):
            self.assertEqual(call("GET", f"/keys/many-{number}"), (200, f"value of {number}".encode()))

    def test_5_restart_keeps_values(self):
        before = json.loads(call("GET", "/keys")[1])
        self.assertIn("many-7", before)
        processes = listeners()
        self.assertTrue(processes, "nothing listens on the port")
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while listeners() and time.monotonic() < deadline:
            time.sleep(0.02)
        with self.assertRaises(ConnectionRefusedError):
            call("GET", "/health")
        done = subprocess.run(["/app/start.sh"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(json.loads(call("GET", "/keys")[1]), before)
        self.assertEqual(call("GET", "/keys/many-7"), (200, b"value of 7"))


if __name__ == "__main__":
    unittest.main()
