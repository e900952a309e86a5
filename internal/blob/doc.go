// Package blob stores bytes in an S3 service: artifacts, and staged uploads.
//
// It owns the only use of the S3 client in the program. Memory stays flat however large an object is. A
// transfer may take as long as bytes move. Every error has a farm code: not_found for a missing object, unavailable for a service
// that is down. The package does not know tenants: the caller chooses keys and checks who may read them.
package blob
