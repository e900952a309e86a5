// Package seed3 is the toolset "python-env": the four tools of an older system in which a model creates an environment,
// installs packages by asking until they are there, runs code, and gets links to the files.
package seed3
