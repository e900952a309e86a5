// Package s3 serves a folder over the part of the S3 protocol that the farm uses, with one account.
//
// It owns the folder: buckets, their objects, multipart uploads, and the metadata of objects. It guarantees that an object
// appears completely or not at all, also after a crash; that every request carries a valid signature, which covers each parameter
// of a presigned link; that the checksums that a client sends are verified; and that memory stays flat however large an object
// is. It does not verify the signatures of single chunks of a body, has no versions, access lists, copies or lifecycle rules,
// and answers unknown operations with 501.
//
// On disk an object is a file:
//
//	objects/BUCKET/KEY       the content; its metadata in extended attributes named user.*
//	meta/BUCKET/KEY/meta/*   the metadata, where the file system has no extended attributes
//	aside/                   files that are being written; emptied at start
//	uploads/ID/              parts of incomplete uploads
package s3

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rclone/gofakes3/signature"

	"github.com/sandfarm/sandfarm/internal/httpserver"
)

// Config sets which folder is served, and the account.
type Config struct {
	// Dir holds everything. Required; made if missing. One process at a time may use it.
	Dir string
	// AccessKey and SecretKey are the only account. Required.
	AccessKey, SecretKey string
	// Link admits a download by a presigned link, as blob.Links.Admit does. nil admits all.
	Link func(w http.ResponseWriter, r *http.Request, key string) (leave func(), ok bool)
	// Logger logs failures of the disk. nil means slog.Default().
	Logger *slog.Logger
}

// Handler answers S3 requests. It may be used concurrently.
type Handler struct {
	cfg    Config
	folder *folder
	log    *slog.Logger
	// timeout is how long the assembly of an upload may take before the response starts with white space.
	timeout time.Duration
}

// maxQuery and maxParameters bound the query of a request, before its signature is computed.
const (
	maxQuery      = 8 << 10
	maxParameters = 32
)

// keepAlive is well below the idle timeout of clients.
const keepAlive = 10 * time.Second

// Open opens the folder and removes the incomplete files of a killed process.
func Open(cfg Config) (*Handler, error) {
	if cfg.Dir == "" || cfg.AccessKey == "" || cfg.SecretKey == "" {
		return nil, errors.New("configure S3: folder, access key and secret key are needed")
	}
	f, err := openFolder(cfg.Dir)
	if err != nil {
		return nil, err
	}
	return &Handler{cfg: cfg, folder: f, log: cmp.Or(cfg.Logger, slog.Default()), timeout: keepAlive}, nil
}

// Close closes the folder. Running requests fail.
func (h *Handler) Close() error { return h.folder.root.Close() }

// request is one request after its signature was verified.
type request struct {
	*http.Request
	bucket, key string
	query       url.Values
}

// operation answers one kind of request.
type operation func(w http.ResponseWriter, r *request) error

// ServeHTTP verifies the signature, runs the operation and sends its errors as S3 does.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	req := &request{Request: r}
	req.bucket, req.key, _ = strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	err := verify(r, h.cfg.AccessKey, h.cfg.SecretKey)
	if err == nil {
		req.query = r.URL.Query()
		if h.cfg.Link == nil || !req.query.Has("X-Amz-Signature") {
			httpserver.Known(r.Context(), "", nil) // the farm itself
		} else if leave, ok := h.cfg.Link(w, r, req.key); ok {
			defer leave()
		} else {
			return
		}
	}
	if err == nil {
		err = h.serve(w, req)
	}
	if err == nil {
		return
	}
	answer := errorOf(err)
	if answer.status >= http.StatusInternalServerError && answer.status != http.StatusNotImplemented {
		h.log.ErrorContext(r.Context(), "embedded S3: a request failed", slog.String("method", r.Method), slog.Any("error", err))
	}
	answer.write(w, r)
}

func (h *Handler) serve(w http.ResponseWriter, r *request) error {
	if err := checkBucket(r.bucket); err != nil {
		return err
	}
	if err := checkParameters(r.query); err != nil {
		return err
	}
	op := h.operation(r)
	if op == nil {
		return errNotImplemented
	}
	if r.key != "" {
		if err := checkKey(r.key); err != nil {
			return err
		}
	}
	if r.Method != http.MethodPut || r.key != "" {
		if err := h.folder.findBucket(r.bucket); err != nil {
			return err
		}
	}
	return op(w, r)
}

// operation returns the operation of a request; nil if there is none.
func (h *Handler) operation(r *request) operation {
	table := map[string]operation{
		"HEAD bucket":            h.headBucket,
		"PUT bucket":             h.makeBucket,
		"GET bucket list-type":   h.listObjects,
		"GET bucket uploads":     h.listUploads,
		"POST bucket delete":     h.deleteObjects,
		"GET object":             h.getObject,
		"HEAD object":            h.getObject,
		"PUT object":             h.putObject,
		"DELETE object":          h.deleteObject,
		"POST object uploads":    h.beginUpload,
		"PUT object uploadId":    h.putPart,
		"GET object uploadId":    h.listParts,
		"POST object uploadId":   h.completeUpload,
		"DELETE object uploadId": h.abortUpload,
	}
	name := r.Method + " bucket"
	if r.key != "" {
		name = r.Method + " object"
	}
	for _, sub := range []string{"list-type", "uploads", "delete", "uploadId"} {
		if r.query.Has(sub) {
			name += " " + sub
		}
	}
	return table[name]
}

// parameters are those of the operations; any other belongs to an unsupported operation.
const parameters = " list-type prefix delimiter continuation-token start-after max-keys encoding-type fetch-owner " +
	"uploads key-marker upload-id-marker max-uploads uploadId partNumber part-number-marker max-parts delete x-id x-sandfarm "

func checkParameters(query url.Values) error {
	for name, values := range query {
		known := strings.Contains(parameters, " "+name+" ") || strings.HasPrefix(name, "X-Amz-") || overrides[name] != ""
		if !known {
			return errNotImplemented
		}
		if len(values) > 1 {
			return errRepeated
		}
	}
	return nil
}

// verify checks the signature of a request (version 4, in a header or in the query of a presigned link), its time, and that
// every x-amz header is signed. The signature covers the whole query except itself.
func verify(r *http.Request, access, secret string) error {
	if len(r.URL.RawQuery) > maxQuery || strings.Count(r.URL.RawQuery, "&") >= maxParameters {
		return errLongQuery
	}
	code := signature.V4SignVerifyWithLookup(r, func(key string) (string, bool) { return secret, key == access })
	if code == signature.ErrNone {
		return nil
	}
	refusal := signature.GetAPIError(code)
	return &apiError{status: refusal.HTTPStatusCode, code: refusal.Code, message: refusal.Description}
}
