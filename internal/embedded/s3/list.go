package s3

import (
	"encoding/base64"
	"encoding/xml"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

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

func (f *folder) walkDir(top, dir, prefix, after string, fn func(key string) error) error {
	entries, err := readDir(f.root, path.Join(top, dir))
	if errors.Is(err, syscall.ENOTDIR) { // it was a folder when it was listed, or the prefix leads through an object
		return nil
	}
	if err != nil {
		return err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if e.IsDir() {
			name += "/" // the order of keys is that of whole paths
		}
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		sub, isDir := strings.CutSuffix(name, "/")
		switch {
		case isDir && !strings.HasPrefix(name, prefix) && !strings.HasPrefix(prefix, name):
		case isDir && name < after && !strings.HasPrefix(after, name):
		case isDir:
			if err := f.walkDir(top, sub, prefix, after, fn); err != nil {
				return err
			}
		case strings.HasPrefix(name, prefix) && name > after:
			if err := fn(name); err != nil {
				return err
			}
		}
	}
	return nil
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
