//go:build !linux

package main

import (
	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
)

// addServerVerbs adds verbs that say that a farm needs Linux.
func addServerVerbs(root *cobra.Command, _ verbs.Streams, _ verbs.Connect) {
	addLinuxOnlyVerbs(root)
}

// localFarm is nil: no farm can run here.
func localFarm() verbs.OpenLocal { return nil }
