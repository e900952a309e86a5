"""Headers of the code's own in place of the secret's, beside it, or such that the proxy drops it: other spellings, twice, named in Connection, in a
trailer. The host gets exactly one, which is the secret."""
# network: allowlist
# allow: api.good.test
# allow: other.good.test
# secret: API_TOKEN api.good.test Authorization: Bearer
# secret: API_KEY api.good.test X-Api-Key

import subprocess


def digest(*headers):
    options = [x for h in headers for x in ("-H", h)]
    return subprocess.run(["curl", "-s", "-m", "30", *options, "https://api.good.test/digest"], capture_output=True).stdout


usual = digest()
assert b"Authorization 1 " in usual and b"X-Api-Key 1 " in usual, usual
for headers in (
    ("Authorization: Bearer mine",), ("authorization: mine", "AUTHORIZATION: mine"), ("X-Api-Key: mine",), ("x_api_key: mine",), ("X-API_KEY: mine",), ("Connection: Authorization",), ("Connection: close, X-Api-Key",),
    ("Connection: X-Api-Key, Authorization", "X-Api-Key: mine"), ("Authorization;",), ("Keep-Alive: Authorization",), ("Trailer: Authorization",), ("Proxy-Authorization: Basic bWluZQ==",),
    ("Proxy-Connection: Authorization",), ("Authorization: Bearer added-by-the-proxy",), ("TE: trailers", "Connection: TE, Authorization"),
):
    assert digest(*headers) == usual, (headers, digest(*headers), usual)
