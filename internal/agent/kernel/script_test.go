//go:build integration

package kernel_test

import (
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
)

// Scripts run unchanged, although the kernel runs its own event loop and has its own arguments.
func TestKernelRunsScripts(t *testing.T) {
	t.Parallel()
	a := agenttest.StartWithKernel(t)
	const main = "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    return 'done'\n"
	for _, test := range []struct{ name, code, stdout, err string }{
		{"AsyncioRun", main + "print(asyncio.run(main()))", "done\n", ""},
		{"Twice", "print(asyncio.run(main()), asyncio.run(main(), debug=False))", "done done\n", ""},
		{"AwaitInACell", "print(await main())", "done\n", ""},
		{"TasksOfTheCell", "t = asyncio.create_task(main())\nprint(asyncio.run(main()))\nprint(await t)", "done\ndone\n", ""},
		{"Raised", "async def bad(): raise KeyError('k')\nasyncio.run(bad())", "", "KeyError"},
		{"AfterAnError", "print(asyncio.run(main()))", "done\n", ""},
		{"InALoopOfItsOwn", "async def nested():\n    c = main()\n    try: asyncio.run(c)\n    except RuntimeError: c.close(); return 'refused'\nprint(asyncio.run(nested()))", "refused\n", ""},
		{"TheTaskGoesOn", "t = asyncio.current_task()\nasyncio.run(main())\nprint(asyncio.current_task() is t)\nawait asyncio.sleep(0)", "True\n", ""},
		{"TheLoopGoesOn", "asyncio.run(main())\nprint(asyncio.get_event_loop_policy().get_event_loop() is asyncio.get_running_loop())", "True\n", ""},
		{"NoCoroutine", "asyncio.run(7)", "", "Error"}, // ValueError or TypeError, by the version
		{"Arguments", "import argparse, sys\nprint(argparse.ArgumentParser(prog='x').parse_args(), sys.argv)", "Namespace() ['']\n", ""},
	} {
		got := agenttest.Run(t, a.Client, agenttest.Code(test.code))
		name := ""
		if got.Outcome.Error != nil {
			name = got.Outcome.Error.Name
		}
		if got.Stdout != test.stdout || (name == "") != (test.err == "") || !strings.Contains(name, test.err) {
			t.Errorf("%s: %q %q %+v", test.name, got.Stdout, got.Stderr, got.Outcome.Error)
		}
	}
}
