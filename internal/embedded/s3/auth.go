package s3

import (
	"net/http"

	"github.com/rclone/gofakes3/signature"
)

// verify checks the signature of a request (version 4, in a header or in the query of a presigned link), its time, and that
// every x-amz header is signed. The signature covers the whole query except itself.
func verify(r *http.Request, access, secret string) error {
	code := signature.V4SignVerifyWithLookup(r, func(key string) (string, bool) { return secret, key == access })
	if code == signature.ErrNone {
		return nil
	}
	refusal := signature.GetAPIError(code)
	return &apiError{status: refusal.HTTPStatusCode, code: refusal.Code, message: refusal.Description}
}
