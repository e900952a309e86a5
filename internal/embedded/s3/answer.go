package s3

import (
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"syscall"
	"time"
)

// apiError is an error as S3 sends it.
type apiError struct {
	status        int
	code, message string
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

var (
	errNotImplemented = &apiError{http.StatusNotImplemented, "NotImplemented", "This service does not offer that."}
	errLongQuery      = &apiError{http.StatusBadRequest, "InvalidURI", "The query is too long."}
	errRepeated       = &apiError{http.StatusBadRequest, "InvalidArgument", "A parameter was given more than once."}
	errBucketName     = &apiError{http.StatusBadRequest, "InvalidBucketName", "A bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens."}
	errNoBucket       = &apiError{http.StatusNotFound, "NoSuchBucket", "There is no such bucket."}
	errBucketExists   = &apiError{http.StatusConflict, "BucketAlreadyOwnedByYou", "The bucket exists."}
	errNoKey          = &apiError{http.StatusNotFound, "NoSuchKey", "There is no such object."}
	errNoUpload       = &apiError{http.StatusNotFound, "NoSuchUpload", "There is no such upload: it was completed or aborted."}
	errKey            = &apiError{http.StatusBadRequest, "InvalidArgument", "A key is a path with no empty part and none that is . or .. or longer than 255 bytes."}
	errKeyInTheWay    = &apiError{http.StatusConflict, "ExistingObjectIsDirectory", "The key is a folder of other keys, or one of its folders is an object."}
	errArgument       = &apiError{http.StatusBadRequest, "InvalidArgument", "A parameter could not be read."}
	errPart           = &apiError{http.StatusBadRequest, "InvalidPart", "A part is missing, or its ETag is another one."}
	errPartOrder      = &apiError{http.StatusBadRequest, "InvalidPartOrder", "The parts are not in ascending order."}
	errXML            = &apiError{http.StatusBadRequest, "MalformedXML", "The body is not the XML that this request takes."}
	errBody           = &apiError{http.StatusBadRequest, "IncompleteBody", "The body is not as long as its headers say, or its chunks could not be read."}
	errDigest         = &apiError{http.StatusBadRequest, "BadDigest", "The body does not have the checksum that was sent with it."}
	errLabels         = &apiError{http.StatusBadRequest, "MetadataTooLarge", "The metadata of an object has at most 2048 bytes."}
	errFull           = &apiError{http.StatusInsufficientStorage, "StorageFull", "The disk is full."}
	errInternal       = &apiError{http.StatusInternalServerError, "InternalError", "The service failed; its log says how."}
)

// errorOf converts an error of the disk or of a body to that of S3.
func errorOf(err error) *apiError {
	if answer, ok := errors.AsType[*apiError](err); ok {
		return answer
	}
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return errFull
	case errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist):
		return errKeyInTheWay
	case errors.Is(err, fs.ErrNotExist):
		return errNoKey
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errBody
	default:
		return errInternal
	}
}

func (e *apiError) write(w http.ResponseWriter, r *http.Request) {
	// The server would otherwise read the rest of a rejected body to keep the connection.
	if r.Body != http.NoBody {
		w.Header().Set("Connection", "close")
	}
	for _, name := range []string{"Content-Disposition", "Content-Encoding", "ETag", "Last-Modified"} {
		w.Header().Del(name)
	}
	_ = writeXML(w, r, e.status, e.document(r))
}

func (e *apiError) document(r *http.Request) any {
	return struct {
		XMLName  xml.Name `xml:"Error"`
		Code     string
		Message  string
		Resource string
	}{Code: e.code, Message: e.message, Resource: r.URL.Path}
}

// writeXML sends a document. An error is one of the connection.
func writeXML(w http.ResponseWriter, r *http.Request, status int, document any) error {
	text, err := xml.Marshal(document)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	_, err = io.WriteString(w, xml.Header)
	if err == nil {
		_, err = w.Write(text)
	}
	return err
}

// answerSlowly sends the document that work returns. If work takes longer than timeout, it responds as S3 does: with status 200,
// white space that keeps the connection busy, and then the document, or that of an error.
func answerSlowly(w http.ResponseWriter, r *http.Request, timeout time.Duration, work func() (any, error)) error {
	type outcome struct {
		document any
		err      error
	}
	done := make(chan outcome, 1)
	go func() {
		document, err := work()
		done <- outcome{document, err}
	}()
	tick := time.NewTicker(timeout)
	defer tick.Stop()
	begun := false
	for {
		select {
		case o := <-done:
			if !begun && o.err != nil {
				return o.err
			}
			if !begun {
				return writeXML(w, r, http.StatusOK, o.document)
			}
			if o.err != nil {
				o.document = errorOf(o.err).document(r)
			}
			return xml.NewEncoder(w).Encode(o.document)
		case <-tick.C:
			text := " "
			if !begun {
				w.Header().Set("Content-Type", "application/xml")
				text = xml.Header
			}
			begun = true
			// The work continues if the client disconnects.
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
		}
	}
}
