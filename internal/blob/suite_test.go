package blob_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/sandfarm/sandfarm/internal/blob"
	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

// mib is a mebibyte.
const mib = 1 << 20

// runSuite tests the service that newConfig describes. Each call of newConfig names a new bucket that does not exist yet.
func runSuite(t *testing.T, newConfig func(t *testing.T) blob.Config) {
	t.Helper()
	groups := []struct {
		name string
		run  func(t *testing.T, s *blob.Store)
	}{
		{"Put", testPut},
		{"PutLeavesNothingBehindWhenItFails", testPutFails},
		{"UploadInParts", testUploadInParts},
		{"UploadInPartsIsRepeatable", testUploadInPartsAgain},
		{"Get", testGet},
		{"Stat", testStat},
		{"Missing", testMissing},
		{"Keys", testKeys},
		{"Delete", testDelete},
		{"Documents", testDocuments},
		{"List", testList},
		{"Presign", testPresign},
		{"PresignLabels", testPresignLabels},
		{"Downloads", testDownloads},
		{"PresignRefusals", testPresignRefusals},
	}
	t.Run("Bucket", func(t *testing.T) {
		t.Parallel()
		testBucket(t, newConfig(t))
	})
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			g.run(t, open(t, newConfig(t)))
		})
	}
}

// open makes a store whose bucket exists.
func open(t *testing.T, cfg blob.Config) *blob.Store {
	t.Helper()
	s, err := blob.New(cfg)
	testbed.Must(t, err)
	testbed.Must(t, s.EnsureBucket(t.Context()))
	return s
}

// content gives n bytes that look random and are the same each time.
func content(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(data)
	return data
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// stream hides all methods of a reader except Read, like a pipe from a sandbox.
func stream(data []byte) io.Reader { return struct{ io.Reader }{bytes.NewReader(data)} }

func put(t *testing.T, s *blob.Store, key string, data []byte, opts blob.PutOptions) {
	t.Helper()
	if _, err := s.Put(t.Context(), key, stream(data), int64(len(data)), opts); err != nil {
		t.Fatalf("Put(%q): %v", key, err)
	}
}

func get(t *testing.T, s *blob.Store, key string, offset, length int64) ([]byte, blob.Info) {
	t.Helper()
	r, info, err := s.Get(t.Context(), key, offset, length)
	if err != nil {
		t.Fatalf("Get(%q, %d, %d): %v", key, offset, length, err)
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %q: %v", key, err)
	}
	return data, info
}

// same compares without printing megabytes.
func same(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("got %d bytes with digest %s, want %d with %s", len(got), digest(got), len(want), digest(want))
	}
}

func testBucket(t *testing.T, cfg blob.Config) {
	s, err := blob.New(cfg)
	testbed.Must(t, err)
	if err := s.Ping(t.Context()); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("Ping without a bucket = %v, want code %s", err, farm.CodeUnavailable)
	}
	if _, err := s.Put(t.Context(), "k", bytes.NewReader(nil), 0, blob.PutOptions{}); farm.CodeOf(err) != farm.CodeUnavailable {
		t.Errorf("Put without a bucket = %v, want code %s", err, farm.CodeUnavailable)
	}
	for range 2 {
		testbed.Must(t, s.EnsureBucket(t.Context()))
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping: %v", err)
	}
	cfg.SecretKey += "x"
	forger, err := blob.New(cfg)
	testbed.Must(t, err)
	if err := forger.Ping(t.Context()); err == nil {
		t.Error("Ping with a wrong secret = nil, want an error")
	}
	if _, err := forger.Put(t.Context(), "k", bytes.NewReader(nil), 0, blob.PutOptions{}); err == nil {
		t.Error("Put with a wrong secret = nil, want an error")
	}
}

func testPut(t *testing.T, s *blob.Store) {
	for _, c := range []struct {
		name  string
		size  int
		known bool
	}{
		{"Empty", 0, true},
		{"EmptyUnknown", 0, false},
		{"OneByteUnknown", 1, false},
		{"SmallLimit", mib, true},
		{"SmallLimitUnknown", mib, false},
		{"OverSmallLimit", mib + 1, true},
		{"OverSmallLimitUnknown", mib + 1, false},
		{"OnePart", 8 * mib, true},
		{"OverOnePart", 8*mib + 1, false},
		{"FiveMiB", 5 * mib, true},
		{"FortyMiBUnknown", 40 * mib, false},
		{"FortyMiB", 40*mib + 7, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := content(c.size)
			size := int64(-1)
			if c.known {
				size = int64(c.size)
			}
			key := "put/" + c.name
			info, err := s.Put(t.Context(), key, stream(data), size, blob.PutOptions{ContentType: "text/csv"})
			testbed.Must(t, err)
			if info.ETag == "" {
				t.Error("Put gave no ETag")
			}
			want := blob.Info{Key: key, Size: int64(c.size), SHA256: digest(data), ETag: info.ETag}
			testbed.Diff(t, "Put", want, info)
			got, _ := get(t, s, key, 0, 0)
			same(t, got, data)
		})
	}
	t.Run("Replaces", func(t *testing.T) {
		put(t, s, "again", content(2*mib), blob.PutOptions{})
		put(t, s, "again", []byte("new"), blob.PutOptions{})
		got, _ := get(t, s, "again", 0, 0)
		same(t, got, []byte("new"))
	})
	t.Run("TakesNoMoreThanTheSize", func(t *testing.T) {
		info, err := s.Put(t.Context(), "cut", stream([]byte("abcdef")), 3, blob.PutOptions{})
		if err != nil || info.Size != 3 || info.SHA256 != digest([]byte("abc")) {
			t.Errorf("Put = %+v, %v; want the first three bytes", info, err)
		}
	})
}

func testPutFails(t *testing.T, s *blob.Store) {
	broken := errors.New("the sandbox is gone")
	for _, c := range []struct {
		name string
		r    io.Reader
		size int64
		want func(error) bool
	}{
		{"ShortSmall", stream(content(10)), 11, hasCode(farm.CodeInvalid)},
		{"ShortLarge", stream(content(20 * mib)), 20*mib + 1, hasCode(farm.CodeInvalid)},
		{"BrokenSmall", io.MultiReader(stream(content(10)), iotest.ErrReader(broken)), 20, causedBy(broken)},
		{"BrokenLarge", io.MultiReader(stream(content(20*mib)), iotest.ErrReader(broken)), -1, causedBy(broken)},
		{"CutSmall", io.MultiReader(stream(content(10)), iotest.ErrReader(io.ErrUnexpectedEOF)), -1, causedBy(io.ErrUnexpectedEOF)},
		{"CutLarge", io.MultiReader(stream(content(20*mib)), iotest.ErrReader(io.ErrUnexpectedEOF)), -1, causedBy(io.ErrUnexpectedEOF)},
		{"NegativeSize", stream(nil), -2, hasCode(farm.CodeInvalid)},
	} {
		t.Run(c.name, func(t *testing.T) {
			key := "fail/" + c.name
			if _, err := s.Put(t.Context(), key, c.r, c.size, blob.PutOptions{}); !c.want(err) {
				t.Errorf("Put = %v", err)
			}
			if _, err := s.Stat(t.Context(), key); farm.CodeOf(err) != farm.CodeNotFound {
				t.Errorf("Stat = %v, want code %s", err, farm.CodeNotFound)
			}
		})
	}
}

func hasCode(code farm.Code) func(error) bool {
	return func(err error) bool { return farm.CodeOf(err) == code }
}

func causedBy(cause error) func(error) bool {
	return func(err error) bool { return errors.Is(err, cause) && farm.CodeOf(err) != farm.CodeUnavailable }
}

func testGet(t *testing.T, s *blob.Store) {
	data := content(3 * mib)
	put(t, s, "k", data, blob.PutOptions{ContentType: "image/png"})
	size := int64(len(data))
	for _, c := range []struct {
		name           string
		offset, length int64
		want           []byte
	}{
		{"Whole", 0, 0, data},
		{"First", 0, 1, data[:1]},
		{"Middle", 1000, 2 * mib, data[1000 : 1000+2*mib]},
		{"ToTheEnd", 1000, 0, data[1000:]},
		{"Last", size - 1, 1, data[size-1:]},
		{"OverTheEnd", size - 5, 100, data[size-5:]},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, info := get(t, s, "k", c.offset, c.length)
			same(t, got, c.want)
			if info.Key != "k" || info.Size != size || info.ContentType != "image/png" || info.ETag == "" {
				t.Errorf("Info = %+v, want that of the whole object", info)
			}
		})
	}
	for _, c := range []struct{ offset, length int64 }{{size, 1}, {size + 1, 0}, {-1, 0}, {0, -1}} {
		r, _, err := s.Get(t.Context(), "k", c.offset, c.length)
		testbed.Diff(t, fmt.Sprintf("Get(%d, %d) = %v: code", c.offset, c.length, err), farm.CodeInvalid, farm.CodeOf(err))
		if err == nil {
			_ = r.Close()
		}
	}
}

func testStat(t *testing.T, s *blob.Store) {
	put(t, s, "a/b", []byte("hello"), blob.PutOptions{ContentType: "text/csv"})
	info, err := s.Stat(t.Context(), "a/b")
	testbed.Must(t, err)
	if info.ETag == "" || info.Modified.IsZero() {
		t.Errorf("Stat = %+v, want an ETag and a time", info)
	}
	want := blob.Info{Key: "a/b", Size: 5, ETag: info.ETag, ContentType: "text/csv", Modified: info.Modified}
	testbed.Diff(t, "Stat", want, info)
}

func testMissing(t *testing.T, s *blob.Store) {
	if _, _, err := s.Get(t.Context(), "no/such", 0, 0); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("Get = %v, want code %s", err, farm.CodeNotFound)
	}
	if _, _, err := s.Get(t.Context(), "no/such", 5, 5); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("Get of a range = %v, want code %s", err, farm.CodeNotFound)
	}
	if _, err := s.Stat(t.Context(), "no/such"); farm.CodeOf(err) != farm.CodeNotFound {
		t.Errorf("Stat = %v, want code %s", err, farm.CodeNotFound)
	}
	if err := s.Delete(t.Context(), "no/such"); err != nil {
		t.Errorf("Delete = %v, want nil", err)
	}
	if err := s.Delete(t.Context(), "no/such", "nor/this"); err != nil {
		t.Errorf("Delete of two = %v, want nil", err)
	}
	if n, err := s.DeletePrefix(t.Context(), "no/"); n != 0 || err != nil {
		t.Errorf("DeletePrefix = %d, %v; want 0, nil", n, err)
	}
}

func testDelete(t *testing.T, s *blob.Store) {
	for i := range 5 {
		put(t, s, fmt.Sprintf("a/%d", i), []byte("x"), blob.PutOptions{})
	}
	put(t, s, "ab", []byte("x"), blob.PutOptions{})
	put(t, s, "b/1", []byte("x"), blob.PutOptions{})
	if err := s.Delete(t.Context()); err != nil {
		t.Errorf("Delete of nothing: %v", err)
	}
	if err := s.Delete(t.Context(), "a/0"); err != nil {
		t.Errorf("Delete: %v", err)
	}
	if err := s.Delete(t.Context(), "a/1", "a/0", "a/2"); err != nil {
		t.Errorf("Delete of three: %v", err)
	}
	testbed.Diff(t, "keys after Delete", []string{"a/3", "a/4", "ab", "b/1"}, keys(t, s, ""))
	if _, err := s.DeletePrefix(t.Context(), ""); farm.CodeOf(err) != farm.CodeInvalid {
		t.Errorf("DeletePrefix of everything = %v, want code %s", err, farm.CodeInvalid)
	}
	if n, err := s.DeletePrefix(t.Context(), "a/"); n != 2 || err != nil {
		t.Errorf("DeletePrefix = %d, %v; want 2, nil", n, err)
	}
	testbed.Diff(t, "keys after DeletePrefix", []string{"ab", "b/1"}, keys(t, s, ""))
}

func testList(t *testing.T, s *blob.Store) {
	put(t, s, "x/2", []byte("22"), blob.PutOptions{})
	put(t, s, "x/1/a", []byte("1"), blob.PutOptions{})
	put(t, s, "x/ü", []byte("333"), blob.PutOptions{})
	put(t, s, "y", nil, blob.PutOptions{})
	var sizes []int64
	err := s.List(t.Context(), "x/", func(info blob.Info) error {
		sizes = append(sizes, info.Size)
		return nil
	})
	testbed.Must(t, err)
	testbed.Diff(t, "sizes", []int64{1, 2, 3}, sizes)
	testbed.Diff(t, "keys", []string{"x/1/a", "x/2", "x/ü", "y"}, keys(t, s, ""))
	stop := errors.New("enough")
	var calls int
	err = s.List(t.Context(), "", func(blob.Info) error { calls++; return stop })
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("List that is stopped = %v after %d calls, want %v after one", err, calls, stop)
	}
}

func testKeys(t *testing.T, s *blob.Store) {
	long := bytes.Repeat([]byte("abcdefghij/"), 94)[:1024]
	long[1023] = 'z'
	for _, key := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", "a/.", "a\nb", "a\x00", "\xff", string(long) + "z"} {
		if _, err := s.Put(t.Context(), key, stream(nil), 0, blob.PutOptions{}); farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("Put(%q) = %v, want code %s", key, err, farm.CodeInvalid)
		}
		if _, _, err := s.Get(t.Context(), key, 0, 0); farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("Get(%q) = %v, want code %s", key, err, farm.CodeInvalid)
		}
	}
	for _, key := range []string{"a b", "+", "50%25", "ümläut/日本", "q?x=1&y#z", "'quoted\"", "..a", string(long)} {
		put(t, s, key, []byte(key), blob.PutOptions{})
		got, _ := get(t, s, key, 0, 0)
		same(t, got, []byte(key))
		if !slices.Contains(keys(t, s, key), key) {
			t.Errorf("List lacks %q", key)
		}
	}
}

func keys(t *testing.T, s *blob.Store, prefix string) []string {
	t.Helper()
	var found []string
	err := s.List(t.Context(), prefix, func(info blob.Info) error {
		found = append(found, info.Key)
		return nil
	})
	if err != nil {
		t.Fatalf("List(%q): %v", prefix, err)
	}
	return found
}
