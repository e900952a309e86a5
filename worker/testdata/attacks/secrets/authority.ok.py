import os
import ssl

assert os.path.getsize(os.environ["SSL_CERT_FILE"]) > 0 and ssl.create_default_context().get_ca_certs()
