import json

assert json.loads("[1]") == [1]
