// Package blobtest is the conformance suite of S3 services that the farm uses through package blob.
package blobtest
