package signature

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

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
