package engine

// The labels of everything that the farm makes in an engine.
const (
	LabelNamespace = "sandfarm.namespace" // of the farm: Config.Namespace
	LabelRole      = "sandfarm.role"      // one of the roles
	LabelSandbox   = "sandfarm.sandbox"   // id of the sandbox
	LabelTenant    = "sandfarm.tenant"    // its owner
	LabelNode      = "sandfarm.node"      // the node that made it; on the node's volume: the node's id
	LabelDeadline  = "sandfarm.deadline"  // when it must be gone, in seconds since 1970
	// LabelGeneration is the generation of the sandbox that a container was made for; without it, it is of the first.
	LabelGeneration = "sandfarm.generation"
	LabelUID        = "sandfarm.uid"  // user id of everything in it
	LabelGPUs       = "sandfarm.gpus" // ids of its GPUs, separated by commas
	LabelFill       = "sandfarm.fill" // random mark that ties an agent volume to the volume which says that its fill is complete

	LabelImage       = "sandfarm.image"       // name of a sandbox image
	LabelLanguages   = "sandfarm.languages"   // its languages, separated by commas
	LabelDescription = "sandfarm.description" // a sentence about it
	LabelHash        = "sandfarm.hash"        // hash of what it was built from
)

// The roles.
const (
	RoleSandbox = "sandbox" // container of a sandbox
	RoleHelper  = "helper"  // container that is created for a moment and never started
	RoleBuild   = "build"   // container whose network the steps of a build share
	RoleAgent   = "agent"   // volume with the agent, or the volume which says that it is complete
	RoleNode    = "node"    // volume that holds the node's id
	RoleNote    = "note"    // volume with labels that a sandbox got after its container was created
)
