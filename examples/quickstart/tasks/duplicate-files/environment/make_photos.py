"""make_photos.py FOLDER: pictures (random bytes), many of them several times."""

import random
import sys
from pathlib import Path

FOLDERS = ["2023", "2023/summer trip", "2024", "2024/o'clock", "2024/deep/er/still", "unsorted (1)", "-dashed", "ünïcode"]


def main(root):
    chance = random.Random(5150)
    pictures = [chance.randbytes(chance.randint(50, 900)) for _ in range(40)]
    pictures += [picture[:-1] + bytes([picture[-1] ^ 1]) for picture in pictures[:6]]  # as long, and almost the same
    for number, picture in enumerate(pictures):
        for copy in range(chance.choice([1, 1, 2, 3, 4])):
            folder = root / chance.choice(FOLDERS)
            folder.mkdir(parents=True, exist_ok=True)
            suffix = ["", " copy", "-2", ' "final"'][copy]
            (folder / f"img {number:02}{suffix}.jpg").write_bytes(picture)
    (root / "2023/empty.jpg").write_bytes(b"")
    (root / "2024/empty too.jpg").write_bytes(b"")
    (root / "favourite").symlink_to("2023")
    (root / "lost").symlink_to("nowhere")


main(Path(sys.argv[1]))
