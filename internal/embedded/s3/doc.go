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
