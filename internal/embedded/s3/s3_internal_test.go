package s3

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestContent(t *testing.T) {
	t.Parallel()
	const (
		chunked = "X-Amz-Content-Sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER"
		trailer = "X-Amz-Trailer: x-amz-checksum-crc32c"
		six     = "X-Amz-Decoded-Content-Length: 6"
		whole   = "4\r\nabcd\r\n2\r\nef\r\n0\r\n"
		crc     = "x-amz-checksum-crc32c:U7zv8Q==\r\n\r\n"
	)
	for _, c := range []struct {
		name    string
		headers []string
		body    string
		want    string
		err     error
	}{
		{"Plain", nil, "abcdef", "abcdef", nil},
		{"PlainEmpty", nil, "", "", nil},
		{"SHA256", []string{"X-Amz-Content-Sha256: bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721"}, "abcdef", "abcdef", nil},
		{"OtherSHA256", []string{"X-Amz-Content-Sha256: bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4722"}, "abcdef", "", errDigest},
		{"MD5", []string{"Content-Md5: 6AsXUMivXyDejwe2zLOnQA=="}, "abcdef", "", errDigest},
		{"CRC32", []string{"X-Amz-Checksum-Crc32: S444Tw=="}, "abcdef", "", errDigest},
		{"NoBase64", []string{"X-Amz-Checksum-Crc32: ?"}, "abcdef", "", errArgument},
		{"Chunks", []string{chunked, six}, whole + "\r\n", "abcdef", nil},
		{"ChunksWithoutEmptyLine", []string{chunked, six}, whole, "abcdef", nil},
		{"SignedChunks", []string{chunked, six}, "6;chunk-signature=00\r\nabcdef\r\n0;chunk-signature=00\r\n\r\n", "abcdef", nil},
		{"Trailer", []string{chunked, six, trailer}, whole + crc, "abcdef", nil},
		{"OtherTrailer", []string{chunked, six, trailer}, whole + "x-amz-checksum-crc32c:U7z3+Q==\r\n\r\n", "", errDigest},
		{"MissingTrailer", []string{chunked, six, trailer}, whole + "\r\n", "", errDigest},
		{"ChangedContent", []string{chunked, six, trailer}, "6\r\nabcdeg\r\n0\r\n" + crc, "", errDigest},
		{"CutInAChunk", []string{chunked, six}, "4\r\nab", "", errBody},
		{"CutBeforeTheLastChunk", []string{chunked, six}, "6\r\nabcdef\r\n", "", errBody},
		{"TooLittle", []string{chunked, six}, "2\r\nab\r\n0\r\n\r\n", "", errBody},
		{"TooMuch", []string{chunked, six}, "7\r\nabcdefg\r\n0\r\n\r\n", "", errBody},
		{"NoNumber", []string{chunked, six}, "x\r\nabcdef\r\n0\r\n\r\n", "", errBody},
		{"Negative", []string{chunked, six}, "-1\r\nabcdef\r\n0\r\n\r\n", "", errBody},
		{"LongLine", []string{chunked, six}, "6;" + strings.Repeat("x", 1<<20) + "\r\nabcdef\r\n0\r\n\r\n", "", errBody},
		{"NoLength", []string{chunked, "X-Amz-Decoded-Content-Length: x"}, whole, "", errArgument},
	} {
		for how, wrap := range map[string]func(io.Reader) io.Reader{"AtOnce": func(r io.Reader) io.Reader { return r }, "ByteByByte": iotest.OneByteReader} {
			t.Run(c.name+how, func(t *testing.T) {
				t.Parallel()
				r := httptest.NewRequest(http.MethodPut, "/b/k", wrap(strings.NewReader(c.body)))
				r.ContentLength = int64(len(c.body))
				for _, h := range c.headers {
					name, value, _ := strings.Cut(h, ": ")
					r.Header.Set(name, value)
				}
				content, err := contentOf(r)
				var got []byte
				if err == nil {
					got, err = io.ReadAll(content)
				}
				if !errors.Is(err, c.err) || c.err == nil && string(got) != c.want {
					t.Errorf("content = %.20q, %v; want %q, %v", got, err, c.want, c.err)
				}
			})
		}
	}
}

// Pages of any size list each key once, in byte order.
func TestWalkIsInTheOrderOfKeys(t *testing.T) {
	t.Parallel()
	f, err := openFolder(t.TempDir())
	testbed.Must(t, err)
	t.Cleanup(func() { _ = f.root.Close() })
	keys := []string{"a", "a b/1", "a-b", "a.b/x", "b/1", "b/1x/2", "b/c/d/e", "b0", "bb/1", "c!!/1", "c!/.x/1", "c!/1", "c-", "c.d.e/1", "c.d/1", "c/.x", "c/x", "c0", "ü/1"}
	for _, key := range keys {
		d, err := f.draft()
		testbed.Must(t, err)
		if err := f.put(d, "bkt", key, labels{}); err != nil {
			t.Fatalf("put %q: %v", key, err)
		}
	}
	other, err := f.draft()
	testbed.Must(t, err)
	testbed.Must(t, f.put(other, "other", "b/1", labels{}))
	for _, c := range []struct {
		prefix string
		want   []string
	}{
		{"", keys},
		{"b", []string{"b/1", "b/1x/2", "b/c/d/e", "b0", "bb/1"}},
		{"b/", []string{"b/1", "b/1x/2", "b/c/d/e"}},
		{"b/1", []string{"b/1", "b/1x/2"}},
		{"b/c/d", []string{"b/c/d/e"}},
		{"b0/1", nil},
		{"x/y", nil},
		{"../", nil},
		{"../bkt/", nil},
		{"b/../", nil},
		{"b/../../other/", nil},
		{"./", nil},
		{"b//", nil},
		{"/", nil},
	} {
		for page := 1; page <= 3; page++ {
			var got []string
			for after, more := "", true; more; {
				n := 0
				err := f.walk("bkt", c.prefix, after, func(key string) error {
					if n == page {
						return errEnough
					}
					n++
					after, got = key, append(got, key)
					return nil
				})
				if more = errors.Is(err, errEnough); err != nil && !more {
					t.Fatalf("walk: %v", err)
				}
			}
			testbed.Diff(t, fmt.Sprintf("%q in pages of %d", c.prefix, page), c.want, got)
		}
	}
}

// A put that ends before the content is in place, by a failure or with the process, leaves the object with its old labels.
func TestSidecarLabelsBelongToTheContent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testbed.Must(t, os.Mkdir(filepath.Join(dir, metaDir), 0o700))
	f, err := openFolder(dir)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = f.root.Close() })
	put := func(content string, l labels, place func(*draft) error) error {
		t.Helper()
		d, err := f.draft()
		testbed.Must(t, err)
		testbed.Must(t, d.fill(strings.NewReader(content)))
		t.Cleanup(d.discard)
		return f.keeper.put(d.File, "bkt", "k", l, func() error { return place(d) })
	}
	placed := func(d *draft) error { return d.place(objectPath("bkt", "k")) }
	is := func(want labels) {
		t.Helper()
		file, o, err := f.open("bkt", "k")
		testbed.Must(t, err)
		_ = file.Close()
		testbed.Diff(t, "labels", want, o.labels)
	}
	old, fresh := labels{etagLabel: "1", "content-type": "text/csv"}, labels{etagLabel: "2"}
	testbed.Must(t, put("old", old, placed))
	is(old)
	if err := put("lost", fresh, func(*draft) error { return errPart }); !errors.Is(err, errPart) {
		t.Errorf("a put whose content fails = %v", err)
	}
	is(old)
	if err := put("new", fresh, func(d *draft) error {
		is(old) // as a reader, or after a crash
		return placed(d)
	}); err != nil {
		t.Fatalf("put: %v", err)
	}
	is(fresh)
	versions, err := readDir(f.root, sidecar{}.dir("bkt", "k"))
	if err != nil || len(versions) != 1 {
		t.Errorf("%d versions of labels are left, %v; want one", len(versions), err)
	}
	testbed.Must(t, f.remove("bkt", "k"))
	if left, err := readDir(f.root, path.Join(metaDir, "bkt")); err != nil || len(left) != 0 {
		t.Errorf("a removed object left %v, %v", left, err)
	}
}

func TestSlowAnswersKeepTheConnectionBusy(t *testing.T) {
	t.Parallel()
	type document struct{ Done bool }
	for _, c := range []struct {
		name   string
		ticks  bool
		err    error
		status int
		want   string
	}{
		{"Fast", false, nil, http.StatusOK, "<document><Done>true</Done></document>"},
		{"FastFailure", false, errPart, http.StatusBadRequest, "InvalidPart"},
		{"Slow", true, nil, http.StatusOK, "> <document><Done>true</Done></document>"},
		{"SlowFailure", true, errPart, http.StatusOK, "InvalidPart"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, r := newSpaces(), httptest.NewRequest(http.MethodPost, "/b/k", nil)
			timeout := time.Hour
			if c.ticks {
				timeout = time.Millisecond
			}
			err := answerSlowly(w, r, timeout, func() (any, error) {
				if c.ticks {
					<-w.written
				}
				return document{true}, c.err
			})
			if err != nil {
				errorOf(err).write(w, r)
			}
			got := strings.ReplaceAll(w.Body.String(), "\n", "")
			for strings.Contains(got, "  ") {
				got = strings.ReplaceAll(got, "  ", " ")
			}
			if w.Code != c.status || !strings.Contains(got, c.want) || !strings.HasPrefix(got, "<?xml") {
				t.Errorf("answer = %d %s; want %d with %s", w.Code, got, c.status, c.want)
			}
		})
	}
}

// spaces signals when a second piece of an answer was written.
type spaces struct {
	*httptest.ResponseRecorder
	writes  int
	written chan struct{}
}

func newSpaces() *spaces { return &spaces{httptest.NewRecorder(), 0, make(chan struct{})} }

func (s *spaces) WriteString(text string) (int, error) { return s.Write([]byte(text)) }

func (s *spaces) Write(p []byte) (int, error) {
	if s.writes++; s.writes == 2 {
		close(s.written)
	}
	return s.ResponseRecorder.Write(p)
}
