// Package signature checks the signatures that cosign makes of images: which digests the holder of a key has signed.
//
// Signatures lie in the files of a folder, so no registry is asked, and an image needs none. Only what a listed public key verifies counts.
// Certificates, transparency logs and time stamps are not looked at: a signature without a key of the operator's proves nothing here.
package signature

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

const (
	// MaxFiles is how many files of a folder are read.
	MaxFiles = 1000
	// MaxFileBytes is the size of the longest file that is read. A signature has one or two KiB.
	MaxFileBytes = 1 << 20
	// maxKeyBytes is the size of the longest file of keys.
	maxKeyBytes = 64 << 10

	// documents are the files of a folder that are read.
	documents = ".json"
	// imageSignature is the type of the payload that `cosign sign` signs for an image.
	imageSignature = "cosign container image signature"
	// signPredicate and inToto are its types in a bundle. A key signs other statements on the same image, such as a bill of materials;
	// only this one says that the image may be used.
	signPredicate = "https://sigstore.dev/cosign/sign/v1"
	inToto        = "application/vnd.in-toto+json"
)

var digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Keys are the public keys of which one must have signed.
type Keys []*ecdsa.PublicKey

// ReadKeys reads a file of public keys in PEM, as `cosign generate-key-pair` writes one (cosign.pub). It has at least one, and only ECDSA keys.
func ReadKeys(file string) (Keys, error) {
	data, err := read(file, maxKeyBytes)
	if err != nil {
		return nil, err
	}
	var keys Keys
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		data = rest
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		if block.Type != "PUBLIC KEY" || err != nil {
			return nil, fmt.Errorf("%s has a %q that is no public key", file, block.Type)
		}
		key, ok := parsed.(*ecdsa.PublicKey)
		if !ok {
			return nil, fmt.Errorf("%s has a key of type %T; use an ECDSA key, as `cosign generate-key-pair` makes it", file, parsed)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no public key in PEM", file)
	}
	if len(bytes.TrimSpace(data)) > 0 {
		return nil, fmt.Errorf("%s has something after its keys that is not PEM", file)
	}
	return keys, nil
}

// Folder has files with signatures, made by the holder of one of the keys. Its methods are safe for concurrent use.
type Folder struct {
	Keys Keys
	Path string
}

// Signed reads the files NAME.json of the folder and returns the digests ("sha256:…") that they sign validly. Each file has one or more
// JSON documents: lines of `cosign download signature`, or Sigstore bundles. A problem is a file that signs nothing, with the reason. The
// error is that the folder cannot be read, or has more than MaxFiles files.
func (f Folder) Signed() (digests map[string]bool, problems []error, err error) {
	folder, err := os.Open(f.Path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = folder.Close() }()
	entries, err := folder.ReadDir(MaxFiles + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	if len(entries) > MaxFiles {
		return nil, nil, fmt.Errorf("%s has more than %d files", f.Path, MaxFiles)
	}
	digests = map[string]bool{}
	for _, entry := range entries {
		if name := entry.Name(); strings.HasSuffix(name, documents) && !strings.HasPrefix(name, ".") {
			if err := f.readFile(f.Path+string(os.PathSeparator)+name, digests); err != nil {
				problems = append(problems, err)
			}
		}
	}
	return digests, problems, nil
}

// readFile adds the digests that a file signs. A document that proves nothing does not spoil the others of its file.
func (f Folder) readFile(file string, digests map[string]bool) error {
	data, err := read(file, MaxFileBytes)
	if err != nil {
		return err
	}
	found, last := 0, errors.New("is empty")
	for decoder := json.NewDecoder(bytes.NewReader(data)); ; {
		var document json.RawMessage
		if err := decoder.Decode(&document); err != nil {
			if !errors.Is(err, io.EOF) {
				last = err
			}
			break
		}
		signed, err := f.Keys.Verify(document)
		if err != nil {
			last = err
			continue
		}
		for _, d := range signed {
			digests[d] = true
			found++
		}
	}
	if found == 0 {
		return fmt.Errorf("%s signs no image: %w", file, last)
	}
	return nil
}

// read reads a file of at most limit bytes.
func read(file string, limit int64) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait
		return nil, fmt.Errorf("%s is not a regular file", file)
	}
	r, err := os.Open(file) //nolint:gosec // the operator names it
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", file, limit)
	}
	return data, nil
}

// verified reports whether one of the keys signed a message, by ECDSA with SHA-256.
func (k Keys) verified(message, sig []byte) bool {
	sum := sha256.Sum256(message)
	for _, key := range k {
		if ecdsa.VerifyASN1(key, sum[:], sig) {
			return true
		}
	}
	return false
}
