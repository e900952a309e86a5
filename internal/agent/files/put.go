package files

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
)

// Put writes a file of the agent into a directory that user code may write to. It creates a new file and renames it, so it
// never writes through a link or into a pipe.
func Put(path string, data []byte) error {
	temp := path + "-" + rand.Text()
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // a path of our own
	if err != nil {
		return fmt.Errorf("make file: %w", err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}
