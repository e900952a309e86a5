package main

import (
	"github.com/spf13/cobra"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/farmd"
	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/verbs"
)

// addServerVerbs adds the verbs that run or maintain a farm. This file is the only one that imports a farm's parts,
// so that the client builds on every system.
func addServerVerbs(root *cobra.Command, streams verbs.Streams, connect verbs.Connect) {
	farmd.Add(root, streams, connect, versionText())
}

// localFarm opens the farm of this machine for the verbs of operators.
func localFarm() verbs.OpenLocal { return farmd.Local(versionText()) }
