package api

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/sandfarm/sandfarm/api/rest"
	"github.com/sandfarm/sandfarm/internal/farm"
)

// Forms come from callers: each part has a path that the service judges, or the form is refused with a sentence.
func FuzzForm(f *testing.F) {
	part := func(head, content string) string { return "--b\r\n" + head + "\r\n\r\n" + content + "\r\n" }
	for _, seed := range []string{
		"", "--b--\r\n", part(`Content-Disposition: form-data; name="f"; filename="a.txt"`, "x") + "--b--\r\n",
		part(`Content-Disposition: form-data; name="path"`, "dir") + part(`Content-Disposition: form-data; name="f"; filename="../a"`, "x") + "--b--\r\n",
		part(`Content-Disposition: form-data; name="f"; filename*=UTF-8''%2e%2e%2fx`, "x"), part(`Content-Disposition: form-data; filename="a`, "x"),
		part(`Content-Disposition: attachment`, "x"), part("Content-Transfer-Encoding: quoted-printable\r\nContent-Disposition: form-data; name=path", "=2e=2e"), "--b\r\n\r\n--b\r\n\r\n--b",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		body := bytes.NewReader(in)
		form := &form{body: body, reader: rest.NewParts(t.Context(), body, "b")}
		for parts := 0; ; parts++ {
			if parts > len(in) {
				t.Fatal("the form does not end")
			}
			part, err := form.next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				if farm.CodeOf(err) != farm.CodeInvalid {
					t.Fatalf("the form was refused with %q: %v", farm.CodeOf(err), err)
				}
				return
			}
			if len(part.Path) > len(in) {
				t.Fatalf("a path of %d bytes", len(part.Path))
			}
			_, _ = io.Copy(io.Discard, part.Content)
		}
	})
}
