package farmd

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/sandfarm/sandfarm/internal/secret"
)

// secretBytes is the length of the secret of the farm: that of the hash it is used with.
const secretBytes = 32

// dataDir is the data directory of `sandfarm up`, locked by this process.
type dataDir struct {
	lock *os.File
	// Namespace marks everything that this farm makes in the engine, so that several farms can share an engine.
	Namespace string
	// Secret is the secret of the farm. The signing keys of callbacks are derived from it.
	Secret []byte
}

// openData creates, locks and reads the data directory.
func openData(s *Settings) (*dataDir, error) {
	if err := os.MkdirAll(s.Data, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	lock, err := os.OpenFile(s.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of data directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("a farm is running on %s: stop it first, or set SANDFARM_DATA to another directory", s.Data)
	}
	d := &dataDir{lock: lock}
	id, err := readOrCreate(s.path("farm-id"), 4)
	if err == nil {
		d.Namespace = "sandfarm-" + hex.EncodeToString(id)
		d.Secret, err = readOrCreate(s.path("secret"), secretBytes)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return d, nil
}

// noFarm refuses a command for a farm where none has been.
func noFarm(s *Settings) error {
	return fmt.Errorf("there is no farm in %s: run this in the folder in which `sandfarm up` was started, or name its data directory (SANDFARM_DATA) or its settings (--config)", s.Data)
}

// Runs reports whether sandfarm up runs on the data directory of the settings.
func Runs(s *Settings) bool {
	lock, err := os.Open(s.path("lock"))
	if err != nil {
		return false
	}
	defer func() { _ = lock.Close() }() // which releases what was free
	return errors.Is(syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// useSecretKey gives the settings the key of the data directory for the secrets of sandboxes, and makes one for the first start without
// secrets.key. If that is set later, the directory's key still opens what it sealed.
func (d *dataDir) useSecretKey(s *Settings) error {
	path := s.path("secrets-key")
	if _, err := os.Stat(path); s.Secrets.Key != "" && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	key, err := readOrCreate(path, secret.KeyBytes)
	if err != nil {
		return err
	}
	if text := base64.StdEncoding.EncodeToString(key); s.Secrets.Key == "" {
		s.Secrets.Key = text
	} else {
		s.Secrets.OldKeys = append(s.Secrets.OldKeys, text)
	}
	s.share()
	return nil
}

// Close releases the lock.
func (d *dataDir) Close() error { return d.lock.Close() }

// readOrCreate reads n random bytes from a file, or creates the file with new ones.
func readOrCreate(path string, n int) ([]byte, error) {
	kept, err := readBytes(path, n)
	if !errors.Is(err, fs.ErrNotExist) {
		return kept, err
	}
	fresh := make([]byte, n)
	_, _ = rand.Read(fresh)
	if err := os.WriteFile(path, []byte(hex.EncodeToString(fresh)+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return fresh, nil
}

// readBytes reads n bytes, written in hex, from a file. A missing file is fs.ErrNotExist.
func readBytes(path string, n int) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	kept, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(kept) != n {
		return nil, fmt.Errorf("read %s: it does not contain %d bytes in hex; remove it, and the next start makes a new one", path, n)
	}
	return kept, nil
}
