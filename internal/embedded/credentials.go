package embedded

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// credentialsFile holds the keys of the embedded S3 service in the data folder.
const credentialsFile = "s3-credentials.json"

type credentials struct {
	AccessKey string `json:"access_key"`
	SecretKey string `json:"secret_key"`
}

// LoadOrCreateCredentials returns the S3 keys stored in dir. If there are none it creates random ones, readable by the owner only.
func LoadOrCreateCredentials(dir string) (access, secret string, err error) {
	file := filepath.Join(dir, credentialsFile)
	c, err := loadCredentials(file)
	if errors.Is(err, fs.ErrNotExist) {
		c, err = createCredentials(dir, file)
	}
	if err != nil {
		return "", "", err
	}
	return c.AccessKey, c.SecretKey, nil
}

func loadCredentials(file string) (credentials, error) {
	info, err := os.Stat(file)
	if err != nil {
		return credentials{}, fmt.Errorf("stat credentials: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return credentials{}, fmt.Errorf("check credentials: others may read %s; delete it to get new ones, or set its mode to 0600", file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return credentials{}, fmt.Errorf("read credentials: %w", err)
	}
	var c credentials
	if err := json.Unmarshal(text, &c); err != nil {
		return credentials{}, fmt.Errorf("decode credentials in %s: %w", file, err)
	}
	if c.AccessKey == "" || c.SecretKey == "" {
		return credentials{}, fmt.Errorf("check credentials: %s lacks a key", file)
	}
	return c, nil
}

// createCredentials writes a complete file and then links it into place: if two processes do this at once, one wins and both
// use its keys.
func createCredentials(dir, file string) (credentials, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return credentials{}, fmt.Errorf("make data folder: %w", err)
	}
	text, err := json.Marshal(credentials{AccessKey: "sf" + rand.Text()[:18], SecretKey: rand.Text() + rand.Text()})
	if err != nil {
		return credentials{}, fmt.Errorf("encode credentials: %w", err)
	}
	tmp, err := os.CreateTemp(dir, ".credentials-*") // made with mode 0600
	if err != nil {
		return credentials{}, fmt.Errorf("create credentials: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(append(text, '\n'))
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return credentials{}, fmt.Errorf("write credentials: %w", err)
	}
	if err := os.Link(tmp.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
		return credentials{}, fmt.Errorf("keep credentials: %w", err)
	}
	return loadCredentials(file)
}
