import hashlib
import hmac

assert hmac.new(b"key", b"text", hashlib.sha256).hexdigest()
