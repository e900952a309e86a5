// Package status is the one place where the codes of errors meet those of HTTP.
package status

import (
	"net/http"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// Of gives the HTTP status of an error by its code. What has no code of the farm's is 500.
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
