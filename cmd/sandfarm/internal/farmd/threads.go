package farmd

import (
	"os"
	"runtime"
)

// spareThreads are the threads for Go code beyond one for each core. A thread that has nothing to run waits for the network. Without one the
// Go runtime looks at the network every 10 ms only, and a short job that waits for Redis and its sandbox several times took five times
// as long on two cores while two other jobs printed without end.
const spareThreads = 2

// addThreads lets the Go runtime use more threads than the machine has cores, unless GOMAXPROCS or a limit of the cgroup says how many.
func addThreads() {
	if n := threads(runtime.GOMAXPROCS(0), runtime.NumCPU(), os.Getenv("GOMAXPROCS")); n != runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}

// threads is how many threads may run Go code: as many as now if that is by a setting or by a limit of the cgroup, which would stop the
// process until its next period.
func threads(now, cores int, setting string) int {
	if setting != "" || now != cores {
		return now
	}
	return cores + spareThreads
}
