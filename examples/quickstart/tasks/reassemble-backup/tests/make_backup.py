"""make_backup.py FOLDER: a backup in pieces, some of them damaged, always the same ones."""

import gzip
import hashlib
import io
import random
import sys
import tarfile
from pathlib import Path

PIECE = 3000


def archive(chance):
    """A tar.gz of a few folders, files and links."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:

        def add(name, data=b"", **fields):
            entry = tarfile.TarInfo(name)
            entry.mtime, entry.mode, entry.size = 1_700_000_000 + chance.randint(0, 10_000_000), 0o644, len(data)
            for field, value in fields.items():
                setattr(entry, field, value)
            tar.addfile(entry, io.BytesIO(data))

        for number in range(24):
            words = " ".join(chance.choice(["flour", "water", "salt", "yeast", "oven", "rye"]) + str(chance.randint(0, 999)) for _ in range(700))
            add(f"recipes/{number // 6}/recipe {number}.txt", words.encode())
        add("bin/bake", b"#!/bin/sh\necho baking\n", mode=0o750)
        add("private.key", b"not for everybody\n", mode=0o600)
        add("recipes/latest", type=tarfile.SYMTYPE, linkname="3/recipe 23.txt")
    return gzip.compress(plain.getvalue(), mtime=0)


def main(folder):
    chance = random.Random(90125)
    data = archive(chance)
    pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
    names = [hashlib.sha256(piece).hexdigest() for piece in pieces]
    parts, mirror = folder / "parts", folder / "mirror"
    parts.mkdir(parents=True)
    mirror.mkdir()
    damaged = set(chance.sample(range(len(pieces)), 5))
    for position, (piece, name) in enumerate(zip(pieces, names)):
        spoilt = bytearray(piece)
        spoilt[chance.randrange(len(piece))] ^= 0x20
        if position not in damaged:
            (parts / name).write_bytes(piece)
        elif position != min(damaged):
            (parts / name).write_bytes(spoilt)
        if position in damaged or chance.random() < 0.5:
            (mirror / f"{name}.gz").write_bytes(gzip.compress(piece, mtime=0))
    for _ in range(6):
        stray = chance.randbytes(PIECE)
        (parts / hashlib.sha256(stray).hexdigest()).write_bytes(stray)
    lines = [f"{position} {name}\n" for position, name in enumerate(names)]
    chance.shuffle(lines)
    (folder / "MANIFEST").write_text("".join(lines))


main(Path(sys.argv[1]))
