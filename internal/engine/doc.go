// Package engine is the farm's access to one Docker engine, and the only importer of the Docker client. It creates, starts, lists and
// removes the containers of sandboxes with a fixed hardened profile, opens streams into them, keeps the agent in a volume, and builds
// and imports images. It never copies files into or out of a container that has run user code, and never binds a path of the host
// into one. It knows nothing of jobs, Redis or HTTP.
package engine
