// Package blob keeps bytes in an S3 service: artifacts, and files that wait for a sandbox.
//
// It owns the only use of the S3 client in the program. It promises that memory stays flat however large an object is,
// that a transfer may last as long as bytes move but not longer, and that every error carries a farm code: not_found for
// a missing object, unavailable for a service that is down. It does not know tenants: the caller chooses keys, and checks
// who may see them.
package blob
