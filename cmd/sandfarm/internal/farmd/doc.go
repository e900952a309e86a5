// Package farmd assembles a farm: it reads the settings, opens Redis, S3 and the engine, and runs the services, each alone or
// all in one process (Up). It also has the checks of doctor and health, and the commands of the program that do all this (Add): up, down,
// api, worker, scheduler, doctor, image, config. They need Linux; on other systems the program has stubs that say so.
package farmd
