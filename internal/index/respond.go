package index

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"strconv"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// preference parses one element of an Accept header.
func preference(part string) (kind string, q float64) {
	kind, params, err := mime.ParseMediaType(part)
	if err != nil {
		return "", 0
	}
	q = 1
	if text, ok := params["q"]; ok {
		if q, err = strconv.ParseFloat(text, 64); err != nil || q < 0 || q > 1 {
			return "", 0
		}
	}
	return kind, q
}

// fail responds with the message of an error.
func (x *Index) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the caller has left
	}
	status := http.StatusInternalServerError
	switch farm.CodeOf(err) {
	case farm.CodeNotFound:
		status = http.StatusNotFound
	case farm.CodeInvalid:
		status = http.StatusBadRequest
	case farm.CodeUnavailable, farm.CodeTooLarge:
		status = http.StatusBadGateway
		if errors.Is(err, errSilent) || errors.Is(err, errStalled) { // a retry would time out as well
			status = http.StatusGatewayTimeout
		}
	}
	if status >= http.StatusInternalServerError {
		x.warn(context.WithoutCancel(r.Context()), "package index cannot serve a request", "path", r.URL.Path, "error", err)
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, farm.MessageOf(err), status)
}
