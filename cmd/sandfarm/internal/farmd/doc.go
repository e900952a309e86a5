// Package farmd assembles a farm: it reads the settings, opens Redis, S3 and the engine, and runs the services, each alone or
// all in one process (Up). It also has the checks of doctor and health.
package farmd
