// Package kernel runs code in Jupyter kernels. It starts a kernel when a context needs one, uses the Jupyter protocol with it, and
// logs output and displayed values. Python runs in our own kernel (launcher.py), whose output comes through pipes; other languages
// run in the kernels of the image, or in a fresh process if there is none. All access to kernels is through Kernels.
package kernel
