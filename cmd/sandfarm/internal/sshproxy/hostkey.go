package sshproxy

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Suffix ends the names of sandboxes in a configuration of OpenSSH.
const Suffix = ".sandfarm"

// SandboxOf is the id of the sandbox that a host of OpenSSH's configuration names.
func SandboxOf(host string) string { return strings.TrimSuffix(strings.ToLower(host), Suffix) }

// Names of the files in the directory of a HostKey.
const (
	keyFile   = "host_key"
	KnownFile = "known_hosts"
)

// HostKey reads the key of this machine's proxies from a directory, and makes key, directory and the file of known hosts if there are none. The
// key shows OpenSSH that it talks to this program; it protects nothing else, since the connection is a pipe to it.
func HostKey(dir string) (ssh.Signer, error) {
	name := filepath.Join(dir, keyFile)
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = newHostKey(dir); err == nil {
			text, err = os.ReadFile(name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the host key: %w", err)
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("read the host key %s (delete it to have a new one): %w", name, err)
	}
	known := "*" + Suffix + " " + string(ssh.MarshalAuthorizedKey(key.PublicKey()))
	if have, err := os.ReadFile(filepath.Join(dir, KnownFile)); err != nil || string(have) != known {
		if err := replace(filepath.Join(dir, KnownFile), []byte(known), true); err != nil {
			return nil, fmt.Errorf("write the file of known hosts: %w", err)
		}
	}
	return key, nil
}

// newHostKey makes a key. Of several programs that do so at once, the first one's is kept.
func newHostKey(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "sandfarm ssh-proxy")
	if err != nil {
		return err
	}
	return replace(filepath.Join(dir, keyFile), pem.EncodeToMemory(block), false)
}

// replace writes a file in one step. Without over a file that is there stays.
func replace(name string, text []byte, over bool) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*") // for the user alone
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if over {
		return os.Rename(f.Name(), name)
	}
	if err := os.Link(f.Name(), name); err != nil && !errors.Is(err, fs.ErrExist) {
		return os.Rename(f.Name(), name) // a file system without links
	}
	return nil
}
