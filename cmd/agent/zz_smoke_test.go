package main_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/agent/agenttest"
	"github.com/sandfarm/sandfarm/internal/agent/client"
)

func TestZZSmoke(t *testing.T) {
	name := os.Getenv("SMOKE")
	if name == "" {
		t.Skip()
	}
	dial := exec.Command("docker", "exec", "-i", "-u", "65533:65533", name, "/sandfarm/agent", "dial")
	in, _ := dial.StdinPipe()
	out, _ := dial.StdoutPipe()
	dial.Stderr = os.Stderr
	must(t, dial.Start())
	c, err := client.New(stream{out, in}, client.Options{})
	must(t, err)
	info, err := c.Info(t.Context())
	fmt.Printf("%+v %v\n", info, err)
	b := time.Now()
	must(t, c.StartKernel(t.Context(), "default", "python"))
	fmt.Println("kernel", time.Since(b))
	run := func(code string) {
		b := time.Now()
		r := agenttest.Run(t, c, agenttest.Code(code))
		if len(r.Stdout) > 300 {
			r.Stdout = r.Stdout[:300]
		}
		fmt.Printf("%.30q %v\n   out %q err %q %+v\n   %+v\n", code, time.Since(b), r.Stdout, r.Stderr, r.Outcome, r.Outcome.Error)
	}
	run("print(1)")
	b = time.Now()
	for range 200 {
		agenttest.Run(t, c, agenttest.Code("print(1)"))
	}
	fmt.Println("print(1)", time.Since(b)/200)
	run("import os, signal\nfor s in range(1, 65):\n  try: os.kill(1, s)\n  except Exception as e: print(s, e)\nprint('alive', os.getuid())")
	run("import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/sandfarm/agent.sock'); print(s.recv(10))")
	run("open('/proc/1/environ').read()")
	run("open('/proc/1/mem','rb').read(1)")
	run("x = []\nwhile True: x.append(bytearray(10_000_000))")
	run("print('after')")
	run("import threading, time\nts=[]\ntry:\n  while True:\n    t=threading.Thread(target=time.sleep, args=(3,)); t.start(); ts.append(t)\nexcept BaseException as e: print(len(ts), e)")
	r := agenttest.Run(t, c, agenttest.Commands("echo still; sleep 3", "id; echo $HOME; ls -la / /workspace; pwd; for i in $(seq 1 100); do sleep 2 & done; echo forked"))
	fmt.Printf("%+v\n", r)
	r = agenttest.Run(t, c, agenttest.Commands("python3 -c 'x=[bytearray(10000000) for _ in range(100)]'"))
	fmt.Printf("%+v\n", r.Outcome)
	_, err = c.Write(t.Context(), "big", bytes.NewReader(make([]byte, 80<<20)))
	fmt.Println("full:", err)
	b = time.Now()
	_, err = c.Write(t.Context(), "big", bytes.NewReader(make([]byte, 60<<20)))
	fmt.Println("60 MiB:", err, time.Since(b))
	info, err = c.Info(t.Context())
	fmt.Printf("%+v %v\n", info, err)
	r = agenttest.Run(t, c, agenttest.Commands("grep -E 'VmRSS|VmHWM|Threads' /proc/1/status; ls -la /workspace /run/sandfarm"))
	fmt.Println(r.Stdout)
	b = time.Now()
	run("print('x'*100_000_000)")
	run("for i in range(200_000): print(i)")
}
