// Package status maps the farm's error codes to HTTP status codes.
package status

import (
	"net/http"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Of returns the HTTP status for the code of an error. An error without a code is 500.
func Of(err error) int {
	switch farm.CodeOf(err) {
	case farm.CodeInvalid:
		return http.StatusUnprocessableEntity
	case farm.CodeUnauthorized:
		return http.StatusUnauthorized
	case farm.CodeNotFound:
		return http.StatusNotFound
	case farm.CodeConflict:
		return http.StatusConflict
	case farm.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case farm.CodeExhausted:
		return http.StatusTooManyRequests
	case farm.CodeUnavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}
