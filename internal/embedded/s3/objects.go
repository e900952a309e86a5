package s3

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandfarm/sandfarm/internal/httpserver"
)

const (
	octetStream = "application/octet-stream"
	// maxXML bounds an XML body: a thousand long keys, escaped.
	maxXML = 8 << 20
	// maxDeletes is how many keys one request deletes; S3 allows no more.
	maxDeletes = 1000
)

// overrides are the parameters that set a response header. Only the holder of the keys can sign them.
var overrides = map[string]string{
	"response-content-type":        "Content-Type",
	"response-content-disposition": "Content-Disposition",
	"response-content-encoding":    "Content-Encoding",
	"response-content-language":    "Content-Language",
	"response-cache-control":       "Cache-Control",
	"response-expires":             "Expires",
}

// newETag returns an ETag for new content. It contains a dash, which tells clients that it is not an MD5.
func newETag() string { return strings.ToLower(rand.Text()) + "-1" }

func (h *Handler) headBucket(w http.ResponseWriter, _ *request) error {
	w.WriteHeader(http.StatusOK)
	return nil
}

func (h *Handler) makeBucket(w http.ResponseWriter, r *request) error {
	if err := h.folder.makeBucket(r.bucket); err != nil {
		return err
	}
	w.Header().Set("Location", "/"+r.bucket)
	w.WriteHeader(http.StatusOK)
	return nil
}

// getObject answers GET and HEAD, with a range and conditions. As with S3 itself, several ranges get the whole object.
func (h *Handler) getObject(w http.ResponseWriter, r *request) error {
	file, o, err := h.folder.open(r.bucket, r.key)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	header := w.Header()
	header.Set("Content-Type", octetStream)
	for name, value := range o.labels {
		if name == etagLabel {
			continue
		}
		header.Set(name, value)
	}
	for parameter, name := range overrides {
		if value := r.query.Get(parameter); value != "" {
			header.Set(name, value)
		}
	}
	header.Set("ETag", o.etag())
	httpserver.OneRange(r.Request)
	http.ServeContent(w, r.Request, "", o.modified, file)
	return nil
}

func (h *Handler) putObject(w http.ResponseWriter, r *request) error {
	// Treating another operation as an upload would create an empty object.
	for _, other := range []string{"X-Amz-Copy-Source", "If-Match", "If-None-Match"} {
		if r.Header.Get(other) != "" {
			return errNotImplemented
		}
	}
	l, err := labelsOf(r.Header)
	if err != nil {
		return err
	}
	l[etagLabel] = newETag()
	d, err := h.receive(r)
	if err != nil {
		return err
	}
	defer d.discard()
	if err := h.folder.put(d, r.bucket, r.key, l); err != nil {
		return err
	}
	w.Header().Set("ETag", `"`+l[etagLabel]+`"`)
	w.WriteHeader(http.StatusOK)
	return nil
}

// receive writes the content of a request to a draft.
func (h *Handler) receive(r *request) (*draft, error) {
	content, err := contentOf(r.Request)
	if err != nil {
		return nil, err
	}
	d, err := h.folder.draft()
	if err != nil {
		return nil, err
	}
	if err := d.fill(content); err != nil {
		d.discard()
		return nil, err
	}
	return d, nil
}

func (h *Handler) deleteObject(w http.ResponseWriter, r *request) error {
	if err := h.folder.remove(r.bucket, r.key); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type deleteRequest struct {
	Quiet  bool
	Object []struct{ Key string }
}

type deleteResult struct {
	XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ DeleteResult"`
	Deleted []deletedKey
	Error   []deleteError
}

type deletedKey struct{ Key string }

type deleteError struct{ Key, Code, Message string }

func (h *Handler) deleteObjects(w http.ResponseWriter, r *request) error {
	var wanted deleteRequest
	if err := readXML(r, &wanted); err != nil {
		return err
	}
	if len(wanted.Object) > maxDeletes {
		return errXML
	}
	var result deleteResult
	for _, o := range wanted.Object {
		err := checkKey(o.Key)
		if err == nil {
			err = h.folder.remove(r.bucket, o.Key)
		}
		switch {
		case err != nil:
			e := errorOf(err)
			result.Error = append(result.Error, deleteError{o.Key, e.code, e.message})
		case !wanted.Quiet:
			result.Deleted = append(result.Deleted, deletedKey{o.Key})
		}
	}
	return writeXML(w, r.Request, http.StatusOK, result)
}

// readXML reads an XML body.
func readXML(r *request, into any) error {
	content, err := contentOf(r.Request)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(content, maxXML+1))
	if err != nil {
		return err
	}
	if len(text) > maxXML || xml.Unmarshal(text, into) != nil {
		return errXML
	}
	return nil
}

// maxPage is how many entries one answer lists; S3 gives no more.
const maxPage = 1000

// errEnough ends a walk when the page is full.
var errEnough = errors.New("the page is full")

type listResult struct {
	XMLName                 xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name, Prefix, Delimiter string
	EncodingType            string `xml:",omitempty"`
	KeyCount, MaxKeys       int
	IsTruncated             bool
	ContinuationToken       string `xml:",omitempty"`
	NextContinuationToken   string `xml:",omitempty"`
	Contents                []listedObject
	CommonPrefixes          []commonPrefix
}

type listedObject struct {
	Key, LastModified, ETag string
	Size                    int64
	StorageClass            string
}

type commonPrefix struct{ Prefix string }

// listObjects answers version 2 of the request, in the order of keys.
func (h *Handler) listObjects(w http.ResponseWriter, r *request) error {
	limit, err := pageSize(r.query.Get("max-keys"))
	if err != nil {
		return err
	}
	after := r.query.Get("start-after")
	if token := r.query.Get("continuation-token"); token != "" {
		text, err := base64.URLEncoding.DecodeString(token)
		if err != nil {
			return errArgument
		}
		after = string(text)
	}
	encode := func(key string) string { return key }
	if r.query.Get("encoding-type") == "url" {
		encode = func(key string) string { return strings.ReplaceAll(url.QueryEscape(key), "+", "%20") }
	}
	prefix, delimiter := r.query.Get("prefix"), r.query.Get("delimiter")
	result := listResult{
		Name: r.bucket, Prefix: encode(prefix), Delimiter: encode(delimiter), MaxKeys: limit,
		EncodingType: r.query.Get("encoding-type"), ContinuationToken: r.query.Get("continuation-token"),
	}
	last := ""
	err = h.folder.walk(r.bucket, prefix, after, func(key string) error {
		shared := sharedPrefix(key, prefix, delimiter)
		if shared != "" && (shared == last || strings.HasPrefix(after, shared)) {
			return nil
		}
		if result.KeyCount == limit {
			result.IsTruncated = true
			result.NextContinuationToken = base64.URLEncoding.EncodeToString([]byte(last))
			return errEnough
		}
		if shared != "" {
			result.CommonPrefixes = append(result.CommonPrefixes, commonPrefix{encode(shared)})
			last = shared
		} else {
			o, err := h.folder.stat(r.bucket, key)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoKey) { // deleted meanwhile
				return nil
			}
			if err != nil {
				return err
			}
			result.Contents = append(result.Contents, listedObject{
				Key: encode(key), LastModified: timeText(o.modified), ETag: o.etag(), Size: o.size, StorageClass: "STANDARD",
			})
			last = key
		}
		result.KeyCount++
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return writeXML(w, r.Request, http.StatusOK, result)
}

// sharedPrefix is the part of a key up to the first delimiter after the prefix; "" if there is none. It replaces all keys with it.
func sharedPrefix(key, prefix, delimiter string) string {
	if delimiter == "" {
		return ""
	}
	at := strings.Index(key[len(prefix):], delimiter)
	if at < 0 {
		return ""
	}
	return key[:len(prefix)+at+len(delimiter)]
}

// stat describes an object.
func (f *folder) stat(bucket, key string) (object, error) {
	file, o, err := f.open(bucket, key)
	if err != nil {
		return object{}, err
	}
	return o, file.Close()
}

// walk calls fn for each key of a bucket that begins with prefix and comes after another, in the order of keys, until it fails.
func (f *folder) walk(bucket, prefix, after string, fn func(key string) error) error {
	dir, _ := path.Split(prefix)
	if dir != "" && checkKey(dir+"x") != nil { // no key begins with it, and ".." would lead out of the bucket
		return nil
	}
	return f.walkDir(path.Join(objectsDir, bucket), strings.TrimSuffix(dir, "/"), prefix, after, fn)
}

// walkDir goes through a folder. Each page of a large one reads the names in it again, but looks only at those that it lists.
func (f *folder) walkDir(top, dir, prefix, after string, fn func(key string) error) error {
	names, err := f.namesAfter(top, dir, prefix, after)
	if err != nil {
		return err
	}
	// The order of keys is that of whole paths: the key a.b comes before those in the folder a, which wait for it. Of two folders that wait the
	// later one begins with the name of the other one, and so comes first.
	var waiting []string
	enter := func(before string) error { // the folders whose keys come before a name; "": all
		for len(waiting) > 0 {
			last := waiting[len(waiting)-1]
			if before != "" && last+"/" > before {
				return nil
			}
			waiting = waiting[:len(waiting)-1]
			if err := f.walkDir(top, last, prefix, after, fn); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range names {
		if err := enter(name); err != nil {
			return err
		}
		info, err := f.root.Lstat(path.Join(top, name))
		switch {
		case noLonger(err):
		case err != nil:
			return err
		case info.IsDir():
			waiting = append(waiting, name)
		case strings.HasPrefix(name, prefix) && name > after:
			if err := fn(name); err != nil {
				return err
			}
		}
	}
	return enter("")
}

// noLonger reports whether a path has no file or folder: it was removed meanwhile, also while the folder was read, or leads through an object.
func noLonger(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// namesAfter lists what is in a folder by name, but for what is no key that begins with prefix and comes after another, nor a folder with such keys.
func (f *folder) namesAfter(top, dir, prefix, after string) ([]string, error) {
	d, err := f.root.Open(path.Join(top, dir))
	var names []string
	if err == nil {
		names, err = d.Readdirnames(-1)
		err = errors.Join(err, d.Close())
	}
	if noLonger(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	kept := names[:0]
	for _, name := range names {
		name = path.Join(dir, name)
		if folder := name + "/"; (strings.HasPrefix(folder, prefix) || strings.HasPrefix(prefix, folder)) && (folder > after || strings.HasPrefix(after, folder)) {
			kept = append(kept, name)
		}
	}
	slices.Sort(kept)
	return kept, nil
}

// pageSize reads a limit. None means the maximum; larger limits are reduced to it.
func pageSize(text string) (int, error) {
	if text == "" {
		return maxPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, errArgument
	}
	if n == 0 {
		n = maxPage
	}
	return min(n, maxPage), nil
}

func timeText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
