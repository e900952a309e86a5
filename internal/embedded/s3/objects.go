package s3

import (
	"crypto/rand"
	"encoding/xml"
	"io"
	"net/http"
	"strings"
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

// getObject answers GET and HEAD, with ranges and conditions.
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
