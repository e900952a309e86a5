package server

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandfarm/sandfarm/internal/agent/process"
)

// storeFiles are where images have the certificates that they trust: the system's, and those that Python packages bring.
var storeFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
	"/usr/local/lib/python3*/site-packages/certifi/cacert.pem", "/usr/local/lib/python3*/site-packages/pip/_vendor/certifi/cacert.pem",
	"/usr/lib/python3/dist-packages/certifi/cacert.pem",
}

// maxStoreBytes bounds what is read of an image's store, which is user code's if the image is.
const maxStoreBytes = 4 << 20

// trustEnvironment writes the certificates that programs trust, if the sandbox has an authority of its own, and adds the variables by which
// programs find them. Variables that the environment has already are kept.
func trustEnvironment(env []string, cfg Config) ([]string, error) {
	if len(cfg.Authority) == 0 {
		return env, nil
	}
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cfg.Authority})
	authority, bundle := filepath.Join(cfg.RunDir, "authority.pem"), filepath.Join(cfg.RunDir, "trusted.pem")
	for path, text := range map[string][]byte{authority: own, bundle: append(imageStore(), own...)} {
		if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // certificates are public
			return nil, fmt.Errorf("write trusted certificates: %w", err)
		}
	}
	set := map[string]string{}
	for name, path := range map[string]string{
		"SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle, "CURL_CA_BUNDLE": bundle, "PIP_CERT": bundle, "GIT_SSL_CAINFO": bundle,
		"NODE_EXTRA_CA_CERTS": authority, // Node.js has a store of its own, to which it adds these
	} {
		if process.Getenv(env, name) == "" {
			set[name] = path
		}
	}
	return process.WithEnv(env, set), nil
}

// imageStore is the first store that the image has, ready for more certificates behind it; empty if it has none.
func imageStore() []byte {
	for _, pattern := range storeFiles {
		found, _ := filepath.Glob(pattern) // the patterns are valid
		for _, path := range found {
			info, err := os.Stat(path)
			if err != nil || !info.Mode().IsRegular() || info.Size() > maxStoreBytes {
				continue
			}
			if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
				return append(bytes.TrimRight(text, "\n"), '\n')
			}
		}
	}
	return nil
}
