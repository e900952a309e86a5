// Package difftest compares our Python kernel with ipykernel: the programs in testdata run in both, and everything that a caller sees
// must be the same, after the normalisation of normal_test.go. What still differs is listed with its reason in differences_test.go.
// It has tests only.
package difftest
