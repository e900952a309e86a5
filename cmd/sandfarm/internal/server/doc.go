// Package server has the commands of the program that run a farm or a part of it: up, down, api, worker, scheduler, doctor,
// image, config. They need Linux; on other systems the program has stubs that say so.
package server
