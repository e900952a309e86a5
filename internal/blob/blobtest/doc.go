// Package blobtest holds what every S3 service has to pass before the farm may use it through package blob.
package blobtest
