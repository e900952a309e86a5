"""Prepares matplotlib's list of fonts when the image is built.

The list is made once and kept at a fixed place, so that the first plot in a sandbox does not search for fonts and
writes nothing. Names that code for Chinese plots commonly asks for, and seaborn's Arial, lead to the CJK font that is
here: without that, such code draws boxes.
"""

import dataclasses
import pathlib
import py_compile

import matplotlib.font_manager as fm

LIST = pathlib.Path("/opt/sandfarm/fontlist.json")
FONT = "WenQuanYi Micro Hei"
ALIASES = [
    "SimHei", "SimSun", "KaiTi", "FangSong", "Microsoft YaHei", "Microsoft JhengHei", "PingFang SC", "PingFang TC",
    "Heiti SC", "Heiti TC", "STHeiti", "STSong", "Songti SC", "Hiragino Sans GB", "Arial Unicode MS", "Arial",
    "WenQuanYi Zen Hei", "Noto Sans CJK SC", "Noto Sans CJK TC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC",
    "Source Han Sans CN", "Droid Sans Fallback",
]

# The place of the list: matplotlib has no setting for it, so the one line that names it is changed.
source = pathlib.Path(fm.__file__)
text = source.read_text()
start = text.index("def _load_fontmanager(")
head, body = text[:start], text[start:]
line = next(l for l in body.splitlines() if l.strip().startswith("fm_path = "))
following = body[body.index(line):].split("\n")
# The expression may go over two lines.
end = 1
while following[:end] and "\n".join(following[:end]).count("(") != "\n".join(following[:end]).count(")"):
    end += 1
old = "\n".join(following[:end])
indent = line[: len(line) - len(line.lstrip())]
new = f'{indent}fm_path = Path("{LIST}")'
assert body.count(old) == 1, old
source.write_text(head + body.replace(old, new))
py_compile.compile(str(source), doraise=True)

manager = fm.FontManager()
entries = [e for e in manager.ttflist if e.name == FONT]
assert entries, sorted({e.name for e in manager.ttflist})
for alias in ALIASES:
    manager.ttflist.append(dataclasses.replace(entries[0], name=alias))
fm.json_dump(manager, LIST)
LIST.chmod(0o644)
print("fonts:", len(manager.ttflist))
