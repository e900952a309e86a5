"""Names that mean something to whoever prints or parses them: ends of lines, escapes of terminals, quotes, markup, invalid UTF-8, options."""

import os

os.makedirs("names", exist_ok=True)
NAMES = [b"line\nfeed", b"\x1b[2J\x1b]0;title\x07", b"carriage\rreturn", b"tab\there", b"'; rm -rf ~ #", b'"quoted"', b"<img src=x onerror=alert(1)>", b"\xff\xfe\xfd", b"\xc0\xaf..\xc0\xaf", b"-rf", b"--output=x",
         b" leading", b"trailing ", b"a" * 255, b"..." * 50, b"$(id)", b"`id`", b"%2e%2e%2f", b"..\\..\\x", b"C:\\x", b"CON", b"nul\xe2\x80\xaegpj.exe", b"\xe2\x80\x8b", b"\xed\xa0\x80", b"\xef\xbb\xbfbom",
         "e\u0301".encode(), "\u00e9".encode(), b"http:", b"*", b"?query", b"#part", b"{{7*7}}", b"${jndi:x}", b"\x7f", b"\x01"]
for name in NAMES:
    with open(b"names/" + name, "wb") as f:
        f.write(b"x")
assert len(os.listdir("names")) == len(NAMES)
