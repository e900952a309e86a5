package signature_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandfarm/sandfarm/internal/signature"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testbed.Must(t, err)
	return key
}

func public(t *testing.T, key any) []byte {
	t.Helper()
	data, err := x509.MarshalPKIXPublicKey(key)
	testbed.Must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: data})
}

func write(t *testing.T, folder, name string, data []byte) string {
	t.Helper()
	file := filepath.Join(folder, name)
	testbed.Must(t, os.WriteFile(file, data, 0o600))
	return file
}

func sign(t *testing.T, key *ecdsa.PrivateKey, message []byte) string {
	t.Helper()
	sum := sha256.Sum256(message)
	sig, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	testbed.Must(t, err)
	return base64.StdEncoding.EncodeToString(sig)
}

const (
	kind      = "cosign container image signature"
	predicate = "https://sigstore.dev/cosign/sign/v1"
	payload   = "application/vnd.in-toto+json"
)

func image(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// simple is a line of `cosign download signature`.
func simple(t *testing.T, key *ecdsa.PrivateKey, digest, kind string) []byte {
	t.Helper()
	p := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":"registry.example.com/python"},"image":{"docker-manifest-digest":%q},"type":%q},"optional":null}`, digest, kind)
	return fmt.Appendf(nil, `{"Base64Signature":%q,"Payload":%q,"Cert":null,"Chain":null,"Bundle":null,"RFC3161Timestamp":null}`+"\n", sign(t, key, p), base64.StdEncoding.EncodeToString(p))
}

// bundle is a Sigstore bundle, as newer versions of cosign write it.
func bundle(t *testing.T, key *ecdsa.PrivateKey, digest, predicate, kind string) []byte {
	t.Helper()
	p := fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`, strings.TrimPrefix(digest, "sha256:"), predicate)
	sig := sign(t, key, fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(p), p))
	data, err := json.Marshal(map[string]any{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"publicKey": map[string]string{"hint": "x"}},
		"dsseEnvelope":         map[string]any{"payload": []byte(p), "payloadType": kind, "signatures": []map[string]string{{"sig": sig}}},
	})
	testbed.Must(t, err)
	return data
}

func TestOnlyAKeyOfTheOperatorSigns(t *testing.T) {
	t.Parallel()
	key, second, stranger := newKey(t), newKey(t), newKey(t)
	folder := t.TempDir()
	keys, err := signature.ReadKeys(write(t, folder, "cosign.pub", append(public(t, key.Public()), public(t, second.Public())...)))
	testbed.Must(t, err)
	changed := func(data []byte) []byte { // the payload names another image
		var d struct{ Base64Signature, Payload []byte }
		testbed.Must(t, json.Unmarshal(data, &d))
		d.Payload = bytes.ReplaceAll(d.Payload, []byte(image(1)), []byte(image(2)))
		data, err := json.Marshal(d)
		testbed.Must(t, err)
		return data
	}
	for _, c := range []struct {
		name string
		data []byte
		want error
	}{
		{"Good", simple(t, key, image(1), kind), nil},
		{"GoodByTheSecondKey", simple(t, second, image(1), kind), nil},
		{"GoodBundle", bundle(t, key, image(1), predicate, payload), nil},
		{"WrongKey", simple(t, stranger, image(1), kind), signature.ErrKey},
		{"BundleOfAWrongKey", bundle(t, stranger, image(1), predicate, payload), signature.ErrKey},
		{"ChangedDigest", changed(simple(t, key, image(1), kind)), signature.ErrKey},
		{"ChangedBundle", bytes.Replace(bundle(t, key, image(1), predicate, payload), []byte(`in-toto`), []byte(`in-tutu`), 1), signature.ErrKey},
		{"NoSignature", []byte(`{"Payload":"e30="}`), signature.ErrKey},
		{"EnvelopeWithoutSignature", []byte(`{"dsseEnvelope":{"payload":"e30=","payloadType":"` + payload + `","signatures":[]}}`), signature.ErrKey},
		{"OtherStatement", bundle(t, key, image(1), "https://spdx.dev/Document", payload), signature.ErrDocument},
		{"OtherPayloadType", bundle(t, key, image(1), predicate, "text/plain"), signature.ErrDocument},
		{"OtherKind", simple(t, key, image(1), "a blob"), signature.ErrDocument},
		{"NotADigest", simple(t, key, "sha256:1", kind), signature.ErrDocument},
		{"NotADigestInABundle", bundle(t, key, "sha256:1", predicate, payload), signature.ErrDocument},
		{"Both", append(bytes.TrimSuffix(bytes.TrimSpace(simple(t, key, image(1), kind)), []byte("}")), `,"dsseEnvelope":{}}`...), signature.ErrDocument},
		{"Neither", []byte(`{}`), signature.ErrDocument},
		{"NoObject", []byte(`[]`), signature.ErrDocument},
		{"NotBase64", []byte(`{"Payload":"*"}`), signature.ErrDocument},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := keys.Verify(c.data)
			if !errors.Is(err, c.want) || (c.want == nil) != (len(got) == 1 && got[0] == image(1)) {
				t.Errorf("signs %v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestFilesOfAFolder(t *testing.T) {
	t.Parallel()
	key, folder := newKey(t), t.TempDir()
	f := signature.Folder{Keys: signature.Keys{&key.PublicKey}, Path: folder}
	if signed, problems, err := f.Signed(); len(signed) > 0 || len(problems) > 0 || err != nil {
		t.Fatalf("an empty folder: %v %v %v", signed, problems, err)
	}
	write(t, folder, "python.json", bytes.Join([][]byte{simple(t, newKey(t), image(9), kind), simple(t, key, image(1), kind), bundle(t, key, image(2), predicate, payload)}, nil))
	write(t, folder, "node.json", simple(t, newKey(t), image(3), kind))
	write(t, folder, "node.sig", simple(t, key, image(4), kind))
	write(t, folder, ".node.json", simple(t, key, image(5), kind))
	write(t, folder, "empty.json", nil)
	testbed.Must(t, syscall.Mkfifo(filepath.Join(folder, "pipe.json"), 0o600))
	testbed.Must(t, os.Symlink("python.json", filepath.Join(folder, "link.json"))) // as in volumes of Kubernetes
	signed, problems, err := f.Signed()
	testbed.Must(t, err)
	if len(signed) != 2 || !signed[image(1)] || !signed[image(2)] || len(problems) != 3 {
		t.Errorf("signed %v, problems %v", signed, problems)
	}
	if _, _, err := (signature.Folder{Path: filepath.Join(folder, "none")}).Signed(); err == nil {
		t.Error("a missing folder is no error")
	}
}

func TestLimitsOfFiles(t *testing.T) {
	t.Parallel()
	key, folder := newKey(t), t.TempDir()
	f := signature.Folder{Keys: signature.Keys{&key.PublicKey}, Path: folder}
	for _, c := range []struct{ size, signed int }{{signature.MaxFileBytes - 1, 1}, {signature.MaxFileBytes, 1}, {signature.MaxFileBytes + 1, 0}} {
		data := simple(t, key, image(1), kind)
		write(t, folder, "a.json", append(data, bytes.Repeat([]byte{' '}, c.size-len(data))...))
		if signed, problems, err := f.Signed(); len(signed) != c.signed || len(problems) != 1-c.signed || err != nil {
			t.Errorf("%d bytes: %v %v %v", c.size, signed, problems, err)
		}
	}
	for n := 1; n < signature.MaxFiles+1; n++ {
		if n >= signature.MaxFiles-1 {
			if _, _, err := f.Signed(); err != nil {
				t.Errorf("%d files: %v", n, err)
			}
		}
		write(t, folder, fmt.Sprintf("%d.txt", n), nil)
	}
	if _, _, err := f.Signed(); err == nil {
		t.Errorf("%d files are read", signature.MaxFiles+1)
	}
}

func TestFilesOfKeys(t *testing.T) {
	t.Parallel()
	good := public(t, newKey(t).Public())
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	testbed.Must(t, err)
	folder := t.TempDir()
	if keys, err := signature.ReadKeys(write(t, folder, "good", append(good, '\n'))); err != nil || len(keys) != 1 {
		t.Errorf("%v %v", keys, err)
	}
	for name, data := range map[string][]byte{
		"Empty": nil, "NoPEM": []byte("key"), "Rest": append(good, "rest"...), "Ed25519": public(t, ed),
		"Private": []byte(strings.ReplaceAll(string(good), "PUBLIC", "PRIVATE")), "Long": append(good, bytes.Repeat([]byte{'\n'}, 64<<10)...),
	} {
		if keys, err := signature.ReadKeys(write(t, folder, name, data)); err == nil || len(keys) > 0 {
			t.Errorf("%s: %v %v", name, keys, err)
		}
	}
	if _, err := signature.ReadKeys(filepath.Join(folder, "none")); err == nil {
		t.Error("a missing file is no error")
	}
}

// A document that is no signature must not count as one, whatever it contains.
func FuzzVerify(f *testing.F) {
	f.Add([]byte(`{"Base64Signature":"","Payload":"e30="}`))
	f.Add([]byte(`{"dsseEnvelope":{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":""}]}}`))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testbed.Must(f, err)
	keys := signature.Keys{&key.PublicKey}
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := keys.Verify(data); err == nil || len(got) > 0 {
			t.Errorf("%q signs %v", data, got)
		}
	})
}
