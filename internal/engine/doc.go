// Package engine is the farm's hold on one Docker engine, and the only importer of the Docker client. It makes, starts,
// lists and removes sandboxes' containers with a fixed hardened profile, opens exec streams into them, keeps the agent
// on a volume, and builds and imports images. It never copies files in or out of a container that has run user code,
// and it never binds a path of the host into one. It knows nothing of jobs, Redis or HTTP.
package engine
