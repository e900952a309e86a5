package egressproxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// parts is a body that arrives in parts, and ends with an error.
type parts struct {
	left []string
	end  error
}

func (p *parts) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, p.end
	}
	n := copy(b, p.left[0])
	if p.left[0] = p.left[0][n:]; p.left[0] == "" {
		p.left = p.left[1:]
	}
	return n, nil
}

func (*parts) Close() error { return nil }

// pieces are what a client gets of an answer to a request with a secret, and the error at its end.
func pieces(t *testing.T, value string, body *parts) (got []string, err error) {
	t.Helper()
	l := &link{secrets: []Secret{{Secret: farm.Secret{Name: "KEY"}, Value: value}}}
	res := &http.Response{Header: http.Header{}, Body: body, Request: (&http.Request{}).WithContext(context.WithValue(t.Context(), linkKey{}, l))}
	if err := guardAnswer(res); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, plainBytes)
	for err == nil {
		var n int
		n, err = res.Body.Read(buf)
		if n > 0 {
			got = append(got, string(buf[:n]))
		}
	}
	return got, err
}

// Code that has a host repeat its own guesses learns nothing from what is withheld: the pieces of an answer are as long with a beginning of the secret
// at their ends as without.
func TestPiecesOfAnAnswerTellNothingOfTheSecret(t *testing.T) {
	t.Parallel()
	const value = `sk-01/23+45"67==`
	const other = `~~~~~/~~+~~"~~==`
	for _, shape := range farm.SecretShapes(value) {
		for n := 1; n < len(shape); n++ {
			for _, before := range []string{"", "a", strings.Repeat("a", 20), strings.Repeat("a", 500), "line\n", "line\n" + strings.Repeat("a", 500)} {
				guess := []string{before + shape[:n], "|", "\n", shape[:n], shape[:n], strings.Repeat("b", 500) + shape[:n], "|"}
				var sizes [2][]int
				for i, secret := range []string{value, other} {
					got, err := pieces(t, secret, &parts{left: slices.Clone(guess), end: io.EOF})
					if strings.Join(got, "") != strings.Join(guess, "") || !errors.Is(err, io.EOF) {
						t.Fatalf("%q is passed on as %q, %v", guess, got, err)
					}
					for _, piece := range got {
						sizes[i] = append(sizes[i], len(piece))
					}
				}
				if diff := cmp.Diff(sizes[1], sizes[0]); diff != "" {
					t.Fatalf("%q is passed on in pieces that tell a beginning of the secret (-without +with):\n%s", guess, diff)
				}
			}
		}
	}
}

// Lines are passed on as they arrive, such as those of server-sent events: no secret has a line break.
func TestLinesOfAnAnswerPassAtOnce(t *testing.T) {
	t.Parallel()
	const value = "sk-0123456789abcdef"
	events := []string{"data: 1\n\n", "data: " + value[:10] + "\n\n", ": \n", "data: 2\n\n"}
	if got, err := pieces(t, value, &parts{left: slices.Clone(events), end: io.EOF}); !slices.Equal(got, events) || !errors.Is(err, io.EOF) {
		t.Errorf("%q, %v, want %q", got, err, events)
	}
}

// An answer that breaks off ends without what is withheld: code can have it broken off within a secret, at the limit of its bytes.
func TestBrokenAnswerKeepsWhatIsWithheld(t *testing.T) {
	t.Parallel()
	const value = "sk-0123456789abcdef"
	got, err := pieces(t, value, &parts{left: []string{"line\n" + value[:15]}, end: io.ErrUnexpectedEOF})
	if text := strings.Join(got, ""); text != "line\n" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q, %v", text, err)
	}
}
