"""Installed packages that lie about themselves: metadata of megabytes, names with escapes and paths, versions that are none, links, loops."""
# look: packages
# alone: true

import os

top = os.path.expanduser("~/.packages")
os.makedirs(top, exist_ok=True)
for number, (folder, text) in enumerate((
    ("huge-1.dist-info", "Metadata-Version: 2.1\nName: huge\nVersion: 1\n" + "Requires-Dist: x\n" * 500_000),
    ("escape-1.dist-info", "Metadata-Version: 2.1\nName: \x1b[2J\x1b]0;x\x07\nVersion: 1\n"),
    ("path-1.dist-info", "Metadata-Version: 2.1\nName: ../../etc/passwd\nVersion: ../../x\n"),
    ("none-1.dist-info", ""),
    ("binary-1.dist-info", "\ud800\0\0"),
    ("long-1.dist-info", f"Metadata-Version: 2.1\nName: {'n' * 1_000_000}\nVersion: {'9' * 1_000_000}\n"),
)):
    os.makedirs(f"{top}/{folder}", exist_ok=True)
    with open(f"{top}/{folder}/METADATA", "w", errors="surrogatepass") as f:
        f.write(text)
os.makedirs(f"{top}/device-1.dist-info", exist_ok=True)
if not os.path.lexists(f"{top}/device-1.dist-info/METADATA"):
    os.mkfifo(f"{top}/device-1.dist-info/METADATA")
if not os.path.lexists(f"{top}/loop-1.dist-info"):
    os.symlink(".", f"{top}/loop-1.dist-info")
for number in range(3000):
    os.makedirs(f"{top}/p{number}-1.dist-info", exist_ok=True)
