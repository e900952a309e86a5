package localkernel_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandfarm/sandfarm/cmd/sandfarm/internal/localkernel"
)

const connection = `{"transport":"tcp","ip":"127.0.0.1","shell_port":1,"iopub_port":2,"stdin_port":3,"control_port":4,"hb_port":65535,"key":"k",
"signature_scheme":"hmac-sha256","kernel_name":"farm"}`

func TestReadConnection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, wrong string }{
		"Good":      {connection, ""},
		"NoJSON":    {"{", "no connection file"},
		"TooLong":   {connection + strings.Repeat(" ", 64<<10), "no connection file"},
		"Transport": {strings.Replace(connection, "tcp", "udp", 1), `"udp"`},
		"IP":        {strings.Replace(connection, "127.0.0.1", "", 1), "no ip"},
		"Scheme":    {strings.Replace(connection, "sha256", "md5", 1), `"hmac-md5"`},
		"PortZero":  {strings.Replace(connection, `"shell_port":1`, `"shell_port":0`, 1), "port"},
		"PortOver":  {strings.Replace(connection, "65535", "65536", 1), "port"},
		"PortGone":  {strings.Replace(connection, "stdin_port", "x", 1), "port"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "kernel.json")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := localkernel.ReadConnection(file)
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("error %v, want one with %q", err, c.wrong)
			}
		})
	}
	if _, err := localkernel.ReadConnection(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that does not exist is read")
	}
}
