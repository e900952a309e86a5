// Package farmd puts a farm's parts together: it reads the settings, opens Redis, the object store and the engine, and
// runs the services, each alone or all in one process (Up).
package farmd
