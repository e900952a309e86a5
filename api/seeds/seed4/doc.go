// Package seed4 is the surface of "LLM Python Code Sandbox": eight routes and /install over kernels that keep their
// variables, in its own words, shapes and errors. It is a thin cover of api/service, which serves /v1 as well, and holds no
// state: a sandbox that was made here is there under /v1, and the other way round. Where the seed's README and its source
// disagree both hold. The routes themselves are package api's.
package seed4
