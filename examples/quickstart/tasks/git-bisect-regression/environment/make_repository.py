"""make_repository.py FOLDER: 60 commits, fed to git fast-import, so that every hash is the same wherever it is made."""

import subprocess
import sys

ROMAN = '''"""Roman numerals: roman.py NUMBER ... prints each number as a numeral."""

import sys

VALUES = [
{values}
]


def to_roman(number):
    numeral = ""
    for value, letters in VALUES:
        while number >= value:
            numeral += letters
            number -= value
    return numeral

{parse}
def main(args):
{main}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
'''

ALL = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]

PARSE = '''

def from_roman(numeral):
    number = 0
    for value, letters in VALUES:
        while numeral.startswith(letters):
            number += value
            numeral = numeral[len(letters) :]
    if numeral:
        raise ValueError(f"not a numeral: {numeral}")
    return number

'''

ONE = "    print(to_roman(int(args[0])))\n    return 0\n"
MANY = "    for text in args:\n        print(to_roman(int(text)))\n    return 0\n"
LOWER = '''    lower = "--lower" in args
    for text in args:
        if text != "--lower":
            numeral = to_roman(int(text))
            print(numeral.lower() if lower else numeral)
    return 0
'''
FULL = '''    lower = "--lower" in args
    parse = "--parse" in args
    for text in args:
        if text.startswith("--"):
            continue
        if parse:
            print(from_roman(text.upper()))
        else:
            numeral = to_roman(int(text))
            print(numeral.lower() if lower else numeral)
    return 0
'''


def source(values, parse, main):
    rows = "\n".join(f'    ({value}, "{letters}"),' for value, letters in values)
    return ROMAN.format(values=rows, parse=parse or "\n", main=main)


def main(folder):
    good, broken, stream = ALL, [pair for pair in ALL if pair[0] != 90], []
    notes = []
    for number in range(60):
        values = good if number < 37 else broken
        parse, body = ("", ONE) if number < 10 else ("", MANY) if number < 22 else ("", LOWER) if number < 45 else (PARSE, FULL)
        subject = {10: "Take several numbers", 22: "Add --lower", 37: "Tidy the table of values", 45: "Add --parse"}.get(number, f"Note {number}")
        notes.append(f"- {subject}\n")
        files = {"roman.py": source(values, parse, body), "NOTES.md": "".join(notes)}
        message = subject + "\n"
        stream.append(f"commit refs/heads/main\nmark :{number + 1}\n")
        stream.append(f"author Iulia <iulia@example.com> {1700000000 + 7200 * number} +0100\n")
        stream.append(f"committer Iulia <iulia@example.com> {1700000000 + 7200 * number} +0100\n")
        stream.append(f"data {len(message)}\n{message}")
        stream.append(f"from :{number}\n" if number else "")
        for name, text in files.items():
            stream.append(f"M 100644 inline {name}\ndata {len(text.encode())}\n{text}\n")
        stream.append("\n")
    stream.append("reset refs/tags/v1.0\nfrom :6\n\n")
    run = ["git", "-C", folder]
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    subprocess.run([*run, "fast-import", "--quiet"], input="".join(stream).encode(), check=True)
    subprocess.run([*run, "config", "user.name", "Iulia"], check=True)
    subprocess.run([*run, "config", "user.email", "iulia@example.com"], check=True)
    subprocess.run([*run, "checkout", "-q", "-f", "main"], check=True)


main(sys.argv[1])
