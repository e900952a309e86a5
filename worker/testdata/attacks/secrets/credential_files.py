"""Files where credentials usually lie: of clouds, of registries, of clusters, of package managers, of ssh."""

import os

HOMES = ("/root", "/home/sandbox", "/home", "/workspace", "/app", "/", os.path.expanduser("~"))
NAMES = (".aws/credentials", ".docker/config.json", ".config/gcloud/credentials.db", ".azure/accessTokens.json", ".kube/config", ".ssh/id_rsa", ".ssh/id_ed25519", ".netrc", ".npmrc",
         ".pypirc", ".git-credentials", ".env", ".redisclirc", ".mc/config.json", ".bash_history", ".sandfarm/config.toml")
for home in HOMES:
    for name in NAMES:
        assert not os.path.isfile(os.path.join(home, name)), os.path.join(home, name)
for path in ("/run/secrets", "/var/run/secrets", "/etc/sandfarm", "/etc/shadow", "/etc/gshadow", "/etc/kubernetes", "/var/lib/sandfarm", "/data"):
    try:
        found = open(path).read() if os.path.isfile(path) else os.listdir(path)
    except OSError:
        continue
    assert not found, (path, found)
