// Package notebook stands for the system "LLM Python Code Sandbox" (simple_sandbox). Service implements its routes: kernels
// that keep their variables, in the original's words, JSON shapes and errors. New returns the toolset "notebook", with a tool for
// each route. The package keeps no state: it calls the verbs that serve /v1, so a sandbox made here is visible under /v1 and the
// other way round. Where the original's README and source disagree, both forms work. Package api holds the routes themselves.
package notebook
