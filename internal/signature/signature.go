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

// Reasons why a document signs nothing.
var (
	// ErrKey says that no key of the operator's has made the signature, or that the payload was changed afterwards.
	ErrKey = errors.New("no key of images.signature_key has made the signature")
	// ErrDocument says that it is no signature of an image.
	ErrDocument = errors.New("this is no signature of an image by cosign")
)

// document is one of both forms in which cosign writes a signature.
type document struct {
	// `cosign download signature`
	Base64Signature []byte
	Payload         []byte

	// a Sigstore bundle
	Envelope *envelope `json:"dsseEnvelope"`
}

// envelope is one of DSSE.
type envelope struct {
	Payload     []byte `json:"payload"`
	PayloadType string `json:"payloadType"`
	Signatures  []struct {
		Sig []byte `json:"sig"`
	} `json:"signatures"`
}

// simple is the payload of the first form, simple signing.
type simple struct {
	Critical struct {
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
}

// statement is the payload of a bundle.
type statement struct {
	Subject []struct {
		Digest struct {
			SHA256 string `json:"sha256"`
		} `json:"digest"`
	} `json:"subject"`
	PredicateType string `json:"predicateType"`
}

// Verify returns the digests that one document signs. The error is ErrKey or ErrDocument, or wraps one of them.
func (k Keys) Verify(data []byte) ([]string, error) {
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDocument, err)
	}
	switch {
	case d.Envelope != nil && d.Payload == nil:
		return k.bundle(*d.Envelope)
	case d.Envelope == nil && d.Payload != nil:
		return k.simple(d)
	}
	return nil, ErrDocument
}

// Nothing of a payload is parsed before its signature is verified.
func (k Keys) simple(d document) ([]string, error) {
	if !k.verified(d.Payload, d.Base64Signature) {
		return nil, ErrKey
	}
	var p simple
	if err := json.Unmarshal(d.Payload, &p); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDocument, err)
	}
	if p.Critical.Type != imageSignature || !digest.MatchString(p.Critical.Image.Digest) {
		return nil, ErrDocument
	}
	return []string{p.Critical.Image.Digest}, nil
}

func (k Keys) bundle(e envelope) ([]string, error) {
	// DSSE signs the type with the payload, each with its length.
	message := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(e.PayloadType), e.PayloadType, len(e.Payload), e.Payload)
	signed := false
	for _, s := range e.Signatures {
		signed = signed || k.verified(message, s.Sig)
	}
	if !signed {
		return nil, ErrKey
	}
	var s statement
	if e.PayloadType != inToto {
		return nil, ErrDocument
	}
	if err := json.Unmarshal(e.Payload, &s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDocument, err)
	}
	if s.PredicateType != signPredicate {
		return nil, fmt.Errorf("%w, but a statement of the type %q", ErrDocument, strings.ToValidUTF8(s.PredicateType, "?"))
	}
	var digests []string
	for _, subject := range s.Subject {
		d := "sha256:" + subject.Digest.SHA256
		if !digest.MatchString(d) {
			return nil, ErrDocument
		}
		digests = append(digests, d)
	}
	if len(digests) == 0 {
		return nil, ErrDocument
	}
	return digests, nil
}
