// Package tools serves the tools for models over HTTP: those of package mcp, the toolsets of package compat, and the routes of older systems
// that call single tools. It has the farm as these tools see it, on the verbs of package service (farm.go), with what a key without the scope run
// may do (readonly.go). Packages mcp and compat do not import it, nor anything of the server: the client serves the same tools over stdio.
package tools
