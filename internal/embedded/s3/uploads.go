package s3

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxParts is the limit of S3.
	maxParts   = 10000
	uploadFile = "upload.json"
)

// upload is an incomplete multipart upload. It is stored on disk, so it survives a restart.
type upload struct {
	ID        string    `json:"-"`
	Bucket    string    `json:"bucket"`
	Key       string    `json:"key"`
	Labels    labels    `json:"labels"`
	Initiated time.Time `json:"initiated"`
}

func (u upload) dir() string { return path.Join(uploadsDir, u.ID) }

// part is an uploaded part: a file named by number and ETag.
type part struct {
	number   int
	etag     string
	size     int64
	modified time.Time
}

func (u upload) file(number int, etag string) string {
	return path.Join(u.dir(), strconv.Itoa(number)+"."+etag)
}

func (h *Handler) beginUpload(w http.ResponseWriter, r *request) error {
	l, err := labelsOf(r.Header)
	if err != nil {
		return err
	}
	u := upload{ID: strings.ToLower(rand.Text()), Bucket: r.bucket, Key: r.key, Labels: l, Initiated: time.Now()}
	text, err := json.Marshal(u)
	if err != nil {
		return err
	}
	d, err := h.folder.draft()
	if err != nil {
		return err
	}
	defer d.discard()
	if _, err := d.Write(text); err != nil {
		return err
	}
	if err := d.place(path.Join(u.dir(), uploadFile)); err != nil {
		return err
	}
	return writeXML(w, r.Request, http.StatusOK, struct {
		XMLName  xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ InitiateMultipartUploadResult"`
		Bucket   string
		Key      string
		UploadId string //nolint:revive // S3's name
	}{Bucket: u.Bucket, Key: u.Key, UploadId: u.ID})
}

// findUpload finds the upload that a request names, under its own key.
func (h *Handler) findUpload(r *request) (upload, error) {
	u, err := h.folder.upload(r.query.Get("uploadId"))
	if err == nil && (u.Bucket != r.bucket || u.Key != r.key) {
		err = errNoUpload
	}
	return u, err
}

func (f *folder) upload(id string) (upload, error) {
	if id == "" || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return upload{}, errNoUpload
	}
	u := upload{ID: id}
	text, err := f.root.ReadFile(path.Join(u.dir(), uploadFile))
	if errors.Is(err, fs.ErrNotExist) {
		return u, errNoUpload
	}
	if err != nil {
		return u, err
	}
	err = json.Unmarshal(text, &u)
	if u.Labels == nil { // a damaged file
		u.Labels = labels{}
	}
	return u, err
}

func (h *Handler) putPart(w http.ResponseWriter, r *request) error {
	number, err := strconv.Atoi(r.query.Get("partNumber"))
	if err != nil || number < 1 || number > maxParts {
		return errArgument
	}
	if r.Header.Get("X-Amz-Copy-Source") != "" {
		return errNotImplemented
	}
	u, err := h.findUpload(r)
	if err != nil {
		return err
	}
	d, err := h.receive(r)
	if err != nil {
		return err
	}
	defer d.discard()
	etag := newETag()
	defer h.folder.uploads.share(u.ID)()
	// No sync: the whole object is synced when the upload is completed.
	if err := errors.Join(d.Close(), h.folder.root.Rename(d.name, u.file(number, etag))); err != nil {
		if errors.Is(err, fs.ErrNotExist) { // it was aborted meanwhile
			return errNoUpload
		}
		return err
	}
	d.name = ""
	w.Header().Set("ETag", `"`+etag+`"`)
	w.WriteHeader(http.StatusOK)
	return nil
}

// parts lists the parts of an upload by number; for a part that was sent twice, the last one.
func (f *folder) parts(u upload) ([]part, error) {
	entries, err := readDir(f.root, u.dir())
	if err != nil {
		return nil, err
	}
	newest := map[int]part{}
	for _, e := range entries {
		name, etag, _ := strings.Cut(e.Name(), ".")
		number, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		if old, ok := newest[number]; !ok || old.modified.Before(info.ModTime()) {
			newest[number] = part{number, etag, info.Size(), info.ModTime()}
		}
	}
	list := make([]part, 0, len(newest))
	for _, p := range newest {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b part) int { return a.number - b.number })
	return list, nil
}

type completeRequest struct {
	Part []struct {
		PartNumber int
		ETag       string
	}
}

func (h *Handler) completeUpload(w http.ResponseWriter, r *request) error {
	// A checksum in the headers is that of the object, not of this body. Each part was verified with its own.
	for name := range r.Header {
		if strings.HasPrefix(name, checksumPrefix) {
			r.Header.Del(name)
		}
	}
	var wanted completeRequest
	if err := readXML(r, &wanted); err != nil {
		return err
	}
	if len(wanted.Part) == 0 || len(wanted.Part) > maxParts {
		return errXML
	}
	defer h.folder.uploads.lock(r.query.Get("uploadId"))()
	u, err := h.findUpload(r)
	if err != nil {
		return err
	}
	return answerSlowly(w, r.Request, h.timeout, func() (any, error) {
		if err := h.folder.complete(u, wanted); err != nil {
			return nil, err
		}
		return struct {
			XMLName     xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CompleteMultipartUploadResult"`
			Bucket, Key string
			ETag        string
		}{Bucket: u.Bucket, Key: u.Key, ETag: `"` + u.Labels[etagLabel] + `"`}, nil
	})
}

// complete assembles the parts into the object and removes the upload.
func (f *folder) complete(u upload, wanted completeRequest) error {
	d, err := f.draft()
	if err != nil {
		return err
	}
	defer d.discard()
	before := 0
	for _, p := range wanted.Part {
		if p.PartNumber <= before {
			return errPartOrder
		}
		before = p.PartNumber
		if err := f.append(d, u.file(p.PartNumber, strings.Trim(p.ETag, `"`))); err != nil {
			return err
		}
	}
	u.Labels[etagLabel] = strings.TrimSuffix(newETag(), "1") + strconv.Itoa(len(wanted.Part))
	if err := f.put(d, u.Bucket, u.Key, u.Labels); err != nil {
		return err
	}
	return f.root.RemoveAll(u.dir())
}

// append copies a part to the end of a draft. The kernel does it, without copying if the file system can share blocks.
func (f *folder) append(d *draft, name string) error {
	if path.Dir(path.Dir(name)) != uploadsDir { // an ETag with slashes
		return errPart
	}
	p, err := f.root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return errPart
	}
	if err != nil {
		return err
	}
	_, err = d.ReadFrom(p)
	return errors.Join(err, p.Close())
}

func (h *Handler) abortUpload(w http.ResponseWriter, r *request) error {
	defer h.folder.uploads.lock(r.query.Get("uploadId"))()
	u, err := h.findUpload(r)
	if err != nil {
		return err
	}
	if err := h.folder.root.RemoveAll(u.dir()); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type listedPart struct {
	PartNumber         int
	LastModified, ETag string
	Size               int64
}

func (h *Handler) listParts(w http.ResponseWriter, r *request) error {
	limit, err := pageSize(r.query.Get("max-parts"))
	if err != nil {
		return err
	}
	after := 0
	if text := r.query.Get("part-number-marker"); text != "" {
		if after, err = strconv.Atoi(text); err != nil {
			return errArgument
		}
	}
	u, err := h.findUpload(r)
	if err != nil {
		return err
	}
	arrived, err := h.folder.parts(u)
	if err != nil {
		return err
	}
	result := struct {
		XMLName              xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListPartsResult"`
		Bucket, Key          string
		UploadId             string //nolint:revive // S3's name
		PartNumberMarker     int
		NextPartNumberMarker int
		MaxParts             int
		IsTruncated          bool
		Part                 []listedPart
	}{Bucket: u.Bucket, Key: u.Key, UploadId: u.ID, PartNumberMarker: after, MaxParts: limit}
	for _, p := range arrived {
		if p.number <= after {
			continue
		}
		if result.IsTruncated = len(result.Part) == limit; result.IsTruncated {
			break
		}
		result.Part = append(result.Part, listedPart{p.number, timeText(p.modified), `"` + p.etag + `"`, p.size})
		result.NextPartNumberMarker = p.number
	}
	return writeXML(w, r.Request, http.StatusOK, result)
}

type listedUpload struct {
	Key       string
	UploadId  string //nolint:revive // S3's name
	Initiated string
}

func (h *Handler) listUploads(w http.ResponseWriter, r *request) error {
	limit, err := pageSize(r.query.Get("max-uploads"))
	if err != nil {
		return err
	}
	prefix, key, id := r.query.Get("prefix"), r.query.Get("key-marker"), r.query.Get("upload-id-marker")
	if r.query.Get("delimiter") != "" {
		return errNotImplemented
	}
	all, err := h.folder.allUploads(r.bucket, prefix)
	if err != nil {
		return err
	}
	result := struct {
		XMLName            xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListMultipartUploadsResult"`
		Bucket, Prefix     string
		KeyMarker          string
		UploadIdMarker     string //nolint:revive // S3's name
		NextKeyMarker      string
		NextUploadIdMarker string //nolint:revive // S3's name
		MaxUploads         int
		IsTruncated        bool
		Upload             []listedUpload
	}{Bucket: r.bucket, Prefix: prefix, KeyMarker: key, UploadIdMarker: id, MaxUploads: limit}
	for _, u := range all {
		if u.Key < key || u.Key == key && (id == "" || u.ID <= id) {
			continue
		}
		if result.IsTruncated = len(result.Upload) == limit; result.IsTruncated {
			break
		}
		result.Upload = append(result.Upload, listedUpload{u.Key, u.ID, timeText(u.Initiated)})
		result.NextKeyMarker, result.NextUploadIdMarker = u.Key, u.ID
	}
	return writeXML(w, r.Request, http.StatusOK, result)
}

// allUploads lists the uploads of a bucket under a prefix, by key and id.
func (f *folder) allUploads(bucket, prefix string) ([]upload, error) {
	entries, err := readDir(f.root, uploadsDir)
	if err != nil {
		return nil, err
	}
	var list []upload
	for _, e := range entries {
		u, err := f.upload(e.Name())
		if errors.Is(err, errNoUpload) { // it was completed in the meantime
			continue
		}
		if err != nil {
			return nil, err
		}
		if u.Bucket == bucket && strings.HasPrefix(u.Key, prefix) {
			list = append(list, u)
		}
	}
	slices.SortFunc(list, func(a, b upload) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// uploadLocks orders the requests of each upload: parts can be placed concurrently, but not while the upload is completed or
// aborted. Otherwise a part could be placed in a folder that is being removed, and the folder would remain. The zero value is
// ready to use.
type uploadLocks struct {
	mu    sync.Mutex
	locks map[string]*uploadLock
}

type uploadLock struct {
	sync.RWMutex
	users int // holding it or waiting for it; guarded by uploadLocks.mu
}

// lock waits for exclusive use of an upload.
func (l *uploadLocks) lock(id string) (unlock func()) {
	u := l.use(id)
	u.Lock()
	return func() {
		u.Unlock()
		l.leave(id, u)
	}
}

// share waits for shared use of an upload.
func (l *uploadLocks) share(id string) (unlock func()) {
	u := l.use(id)
	u.RLock()
	return func() {
		u.RUnlock()
		l.leave(id, u)
	}
}

func (l *uploadLocks) use(id string) *uploadLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.locks[id]
	if u == nil {
		u = new(uploadLock)
		if l.locks == nil {
			l.locks = map[string]*uploadLock{}
		}
		l.locks[id] = u
	}
	u.users++
	return u
}

func (l *uploadLocks) leave(id string, u *uploadLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u.users--; u.users == 0 {
		delete(l.locks, id)
	}
}
