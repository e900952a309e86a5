package farm_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandfarm/sandfarm/internal/farm"
	"github.com/sandfarm/sandfarm/internal/testbed"
)

func TestCannotHibernateNamesTheSetting(t *testing.T) {
	t.Parallel()
	if got := farm.CannotHibernate(&farm.Sandbox{ID: "sbx_x", Runtime: "runc"}).Error(); !strings.Contains(got, `engine.runtime = "runsc" (docs/operations.md)`) {
		t.Error(got)
	}
	for _, runtime := range []string{"default", "gvisor"} { // those of a cluster
		if got := farm.CannotHibernate(&farm.Sandbox{ID: "sbx_x", Runtime: runtime}).Error(); !strings.Contains(got, "a Kubernetes cluster") {
			t.Error(got)
		}
	}
}

func TestDrainProgress(t *testing.T) {
	t.Parallel()
	late := time.Unix(2000, 0)
	ready := &farm.Sandbox{State: farm.SandboxReady, ExpiresAt: late}
	asleep := &farm.Sandbox{State: farm.SandboxHibernated, ExpiresAt: time.Unix(1000, 0)}
	knows, busy, unaware := farm.Worker{Draining: true}, farm.Worker{Draining: true, Running: 2}, farm.Worker{}
	for name, c := range map[string]struct {
		workers []farm.Worker
		open    []*farm.Sandbox
		want    farm.DrainProgress
	}{
		"nothing is left":               {[]farm.Worker{knows, knows}, nil, farm.DrainProgress{State: farm.DrainDone}},
		"no worker is left":             {nil, nil, farm.DrainProgress{State: farm.DrainDone}},
		"a worker does not know yet":    {[]farm.Worker{knows, unaware}, nil, farm.DrainProgress{State: farm.DrainRuns}},
		"a job runs":                    {[]farm.Worker{knows, busy}, nil, farm.DrainProgress{Jobs: 2, State: farm.DrainRuns}},
		"a sandbox is open":             {[]farm.Worker{knows}, []*farm.Sandbox{asleep, ready}, farm.DrainProgress{Sandboxes: 2, Hibernated: 1, Ends: late, State: farm.DrainRuns}},
		"only hibernated ones are left": {[]farm.Worker{knows}, []*farm.Sandbox{asleep}, farm.DrainProgress{Sandboxes: 1, Hibernated: 1, Ends: time.Unix(1000, 0), State: farm.DrainHibernated}},
	} {
		if got := farm.ProgressOfDrain(c.workers, c.open); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestOwnKernel(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"": false, "runc": false, "crun": false, "nvidia": false, "runsc": true, "runsc-kvm": true, "gvisor": true, "kata": true, "io.containerd.kata.v2": true} {
		testbed.Diff(t, fmt.Sprintf("%q", name), want, farm.OwnKernel(name))
		testbed.Diff(t, fmt.Sprintf("%q is gVisor", name), (want && !strings.Contains(name, "kata")), farm.GVisor(name))
	}
}

func TestOutcomeOf(t *testing.T) {
	t.Parallel()
	code := func(exit int, name string) *farm.Result {
		e := &farm.ExecuteResult{ExitCode: exit}
		if name != "" {
			e.Error = &farm.CodeError{Name: name}
		}
		return &farm.Result{Execute: e}
	}
	commands := func(exits ...int) *farm.Result {
		c := &farm.CommandResult{}
		for _, exit := range exits {
			c.Commands = append(c.Commands, farm.CommandOutcome{ExitCode: exit})
		}
		return &farm.Result{Command: c}
	}
	packages := func(states ...farm.PackageStatus) *farm.Result {
		i := &farm.InstallResult{}
		for _, state := range states {
			i.Packages = append(i.Packages, farm.PackageOutcome{Status: state})
		}
		return &farm.Result{Install: i}
	}
	for name, test := range map[string]struct {
		state  farm.JobState
		result *farm.Result
		want   farm.JobOutcome
	}{
		"NoResult":      {farm.JobCompleted, nil, farm.OutcomeOK},
		"Code":          {farm.JobCompleted, code(0, ""), farm.OutcomeOK},
		"Raised":        {farm.JobCompleted, code(1, "ValueError"), farm.OutcomeFailed},
		"RaisedWith0":   {farm.JobCompleted, code(0, "OutputLimitExceeded"), farm.OutcomeFailed},
		"Exit0":         {farm.JobCompleted, code(0, "SystemExit"), farm.OutcomeOK},
		"Exit3":         {farm.JobCompleted, code(3, "SystemExit"), farm.OutcomeFailed},
		"Commands":      {farm.JobCompleted, commands(0, 0), farm.OutcomeOK},
		"FirstCommand":  {farm.JobCompleted, commands(2, 0), farm.OutcomeFailed},
		"Packages":      {farm.JobCompleted, packages(farm.PackageInstalled), farm.OutcomeOK},
		"FailedPackage": {farm.JobCompleted, packages(farm.PackageInstalled, farm.PackageFailed), farm.OutcomeFailed},
		"Failed":        {farm.JobFailed, nil, farm.OutcomeFailed},
		"TimedOut":      {farm.JobTimedOut, code(0, ""), farm.OutcomeFailed},
		"Lost":          {farm.JobLost, nil, farm.OutcomeFailed},
		"Canceled":      {farm.JobCanceled, code(1, "KeyboardInterrupt"), ""},
		"Running":       {farm.JobRunning, nil, ""},
		"Queued":        {farm.JobQueued, nil, ""},
	} {
		testbed.Diff(t, name, test.want, farm.OutcomeOf(test.state, test.result))
	}
}

func TestIDsAsUUIDs(t *testing.T) {
	t.Parallel()
	id := farm.NewID(farm.SandboxPrefix)
	uuid := farm.UUIDOf(farm.SandboxPrefix, id)
	if len(uuid) != 36 || farm.FromUUID(farm.SandboxPrefix, uuid) != id || farm.FromUUID(farm.SandboxPrefix, strings.ToUpper(uuid)) != id {
		t.Errorf("%s became %s, and that %s", id, uuid, farm.FromUUID(farm.SandboxPrefix, uuid))
	}
	for _, wrong := range []string{"", "x", uuid[1:], uuid + "0", strings.ReplaceAll(uuid, "-", ""), strings.Replace(uuid, "-", "", 1) + "-"} {
		testbed.Diff(t, fmt.Sprintf("%q is taken for", wrong), "", farm.FromUUID(farm.SandboxPrefix, wrong))
	}
	testbed.Diff(t, "the id of a sandbox became that of a job", "", farm.UUIDOf(farm.JobPrefix, id))
}

func TestNormalGPUModel(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"NVIDIA A100-SXM4-80GB":   "a100-sxm4-80gb",
		"a100 sxm4 80gb":          "a100-sxm4-80gb",
		"Tesla T4":                "t4",
		"NVIDIA GeForce RTX 4090": "rtx-4090",
		"Quadro RTX 6000":         "rtx-6000",
		"NVIDIA H100 80GB HBM3":   "h100-80gb-hbm3",
		"GeForce":                 "geforce",
		" -- ":                    "",
		"H100 (MIG) 1g.10gb":      "h100-mig-1g-10gb",
	} {
		testbed.Diff(t, fmt.Sprintf("NormalGPUModel(%q)", name), want, farm.NormalGPUModel(name))
		testbed.Diff(t, "normal form of a normal form", want, farm.NormalGPUModel(want))
	}
}

// A device serves exactly the queues of the requests that it can satisfy.
func TestGPUQueues(t *testing.T) {
	t.Parallel()
	device := farm.GPUDevice{Model: "a100-sxm4-80gb"}
	testbed.Diff(t, "", []string{"gpu", "gpu-a100", "gpu-a100-sxm4", "gpu-a100-sxm4-80gb"}, device.Queues())
	testbed.Diff(t, "", []string{"gpu"}, farm.GPUDevice{}.Queues())
	for _, queue := range device.Queues() {
		model, ok := farm.GPUQueue(queue)
		if !ok || !device.Is(model) || (&farm.GPU{Count: 1, Model: model}).Queue() != queue {
			t.Errorf("queue %s is for model %q", queue, model)
		}
	}
	for _, model := range []string{"a10", "a100-sxm", "h100", "a100-sxm4-80gb-x"} {
		if device.Is(model) {
			t.Errorf("an A100 is accepted as %s", model)
		}
	}
	for _, queue := range []string{"cpu", "control", "gpus", "node-1"} {
		if _, ok := farm.GPUQueue(queue); ok {
			t.Errorf("%s is accepted as a GPU queue", queue)
		}
	}
	for _, none := range []*farm.GPU{nil, {}, {Model: "a100"}} {
		if none.Wanted() || none.Queue() != farm.QueueCPU {
			t.Errorf("%+v goes to %s", none, none.Queue())
		}
	}
}

func TestLeasedGPUs(t *testing.T) {
	t.Parallel()
	testbed.Diff(t, "devices are leased", 2, (farm.Worker{GPUs: []farm.GPUDevice{{ID: "0"}, {ID: "1", Leased: true}, {ID: "2", Leased: true}}}).LeasedGPUs())
}

func TestRequirementName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ manager, text, name string }{
		{"pip", "six", "six"},
		{"pip", "Python_DateUtil", "python-dateutil"},
		{"pip", "zope.interface", "zope-interface"},
		{"pip", "a--b__c..d", "a-b-c-d"},
		{"pip", "pandas>=2", "pandas"},
		{"pip", "Requests [socks, use_chardet] >= 2, < 3", "requests"},
		{"pip", "numpy==1.26.*", "numpy"},
		{"pip", "torch==2.1.0+cpu", "torch"},
		{"pip", "x===1.0", "x"},
		{"npm", "left-pad", "left-pad"},
		{"npm", "@types/node@20", "@types/node"},
		{"npm", "lodash@^4.17.0", "lodash"},
		{"npm", "lodash@latest", "lodash"},
		{"pip", "", ""},
		{"pip", " six", ""},
		{"pip", "six ", ""},
		{"pip", "-six", ""},
		{"pip", "six-", ""},
		{"pip", "--index-url=x", ""},
		{"pip", "-r /etc/passwd", ""},
		{"pip", "../x", ""},
		{"pip", "./x", ""},
		{"pip", "/tmp/x.whl", ""},
		{"pip", "git+https://example.com/x.git", ""},
		{"pip", "six @ https://example.com/six.whl", ""},
		{"pip", "six; rm -rf /", ""},
		{"pip", "six;python_version<'3'", ""},
		{"pip", "six\n--pre", ""},
		{"pip", "six\n", ""},
		{"pip", "six==", ""},
		{"pip", "six>=1,", ""},
		{"pip", "sıx", ""},
		{"npm", "-g", ""},
		{"npm", "--prefix=/x", ""},
		{"npm", "@-a/b", ""},
		{"npm", "file:../x", ""},
		{"npm", "user/repo", ""},
		{"npm", "x@file:../y", ""},
		{"npm", "x@https://example.com/x.tgz", ""},
		{"npm", "x@npm:y", ""},
		{"npm", "../x", ""},
		{"npm", "X", ""},
	} {
		name, ok := farm.RequirementName(c.manager, c.text)
		if name != c.name || ok != (c.name != "") {
			t.Errorf("RequirementName(%s, %q) = %q, %v; want %q", c.manager, c.text, name, ok, c.name)
		}
	}
}

func TestDistributionOf(t *testing.T) {
	t.Parallel()
	for module, want := range map[string]string{
		"PIL": "pillow", "cv2": "opencv-python-headless", "sklearn": "scikit-learn", "bs4": "beautifulsoup4", "yaml": "pyyaml", "dateutil": "python-dateutil",
		"skimage": "scikit-image", "fitz": "pymupdf", "docx": "python-docx", "pptx": "python-pptx", "dotenv": "python-dotenv", "jwt": "pyjwt", "serial": "pyserial",
		"Crypto": "pycryptodome", "OpenSSL": "pyopenssl", "usb": "pyusb", "google.protobuf.message": "protobuf", "google.cloud.storage": "google-cloud-storage",
		"attr": "attrs", "magic": "python-magic", "git": "gitpython", "MySQLdb": "mysqlclient", "psycopg2": "psycopg2-binary", "lxml": "lxml", "requests": "requests",
		"ruamel.yaml": "ruamel-yaml", "azure.storage.blob": "azure-storage-blob", "google.oauth2.credentials": "google-auth",
	} {
		testbed.Diff(t, fmt.Sprintf("%s is in", module), want, farm.DistributionOf(module))
	}
}

func TestCleanFSPath(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("n", farm.MaxNameBytes)
	long := strings.Repeat("/abcdefg", farm.MaxPathBytes/8) // 4000 bytes
	for given, want := range map[string]string{
		"": "/workspace", "a/b": "/workspace/a/b", "./a": "/workspace/a", "/": "/", "//etc//hosts/": "/etc/hosts", "/a/./b": "/a/b",
		"/" + name: "/" + name, long: long, "..a": "/workspace/..a",
	} {
		if got, err := farm.CleanFSPath(given); err != nil || got != want {
			t.Errorf("%.40q is %.40q, %v", given, got, err)
		}
	}
	for _, given := range []string{"..", "/a/../b", "a/..", "/a\x00b", "/\xff", "/" + name + "n", long + "x"} {
		if got, err := farm.CleanFSPath(given); farm.CodeOf(err) != farm.CodeInvalid {
			t.Errorf("%.40q is %.40q, %v", given, got, err)
		}
	}
}

func TestLimitsOfMetadata(t *testing.T) {
	t.Parallel()
	many := func(n int) map[string]string {
		out := map[string]string{}
		for i := range n {
			out[strconv.Itoa(i)] = ""
		}
		return out
	}
	for name, c := range map[string]struct {
		metadata map[string]string
		ok       bool
	}{
		"none": {nil, true}, "some": {map[string]string{"a-b_C.9": "a value"}, true},
		"pairs": {many(farm.MaxMetadata), true}, "pairs+1": {many(farm.MaxMetadata + 1), false},
		"key": {map[string]string{strings.Repeat("k", farm.MaxMetadataKey): ""}, true}, "key+1": {map[string]string{strings.Repeat("k", farm.MaxMetadataKey+1): ""}, false},
		"value": {map[string]string{"k": strings.Repeat("v", farm.MaxMetadataValue)}, true}, "value+1": {map[string]string{"k": strings.Repeat("v", farm.MaxMetadataValue+1)}, false},
		"empty key": {map[string]string{"": ""}, false}, "space in a key": {map[string]string{"a b": ""}, false},
		"newline": {map[string]string{"k": "a\nb"}, false}, "not ASCII": {map[string]string{"k": "ü"}, false}, "not UTF-8": {map[string]string{"k": "\xff"}, false},
	} {
		if err := farm.CheckMetadata(c.metadata); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestASandboxGetsTheCoresOfItsHostAtMost(t *testing.T) {
	t.Parallel()
	const cores = 4
	for _, c := range []struct{ asks, host, gets float64 }{{cores - 1, cores, cores - 1}, {cores, cores, cores}, {cores + 1, cores, cores}, {64, 0, 64}} {
		want := farm.Resources{MemoryMB: 64, CPUs: c.gets}
		testbed.Diff(t, fmt.Sprintf("%g cores of %g", c.asks, c.host), want, farm.Resources{MemoryMB: 64, CPUs: c.asks}.OnHost(c.host))
	}
}
