package api_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// notebookKernel is a kernel as Jupyter's clients read it.
type notebookKernel struct {
	ID             string
	Name           string
	LastActivity   string `json:"last_activity"`
	ExecutionState string `json:"execution_state"`
	Connections    *int
	Sandbox        string
}

func (b *bundle) kernel(headers ...string) notebookKernel {
	b.t.Helper()
	return get[notebookKernel](b, http.StatusCreated, "POST", "/jupyter/api/kernels", nil, headers...)
}

// refusal checks that a request is refused in the form that Jupyter's clients read.
func (b *bundle) refusal(status int, method, target string, body any, headers ...string) {
	b.t.Helper()
	got := get[struct{ Message, Reason, Code string }](b, status, method, target, body, headers...)
	if got.Message == "" || got.Reason == "" || got.Code == "" {
		b.t.Errorf("%s %s is refused with %+v", method, target, got)
	}
}

func TestJupyterKernelsAreSandboxes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := b.kernel()
	if !regexp.MustCompile(`^\w{8}(-\w{4}){3}-\w{12}$`).MatchString(k.ID) || !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`).MatchString(k.LastActivity) {
		t.Errorf("clients cannot read %+v", k)
	}
	if k.Name != "python3" || k.ExecutionState != "idle" || k.Connections == nil || !farm.ValidID(farm.SandboxPrefix, k.Sandbox) {
		t.Errorf("kernel %+v", k)
	}
	if list := get[[]notebookKernel](b, http.StatusOK, "GET", "/jupyter/api/kernels?1699999999999", nil); len(list) != 1 || list[0].ID != k.ID {
		t.Errorf("kernels %+v", list)
	}
	get[notebookKernel](b, http.StatusOK, "GET", "/jupyter/api/kernels/"+k.ID, nil)
	get[notebookKernel](b, http.StatusOK, "POST", "/jupyter/api/kernels/"+k.ID+"/restart", nil, "Content-Type", "application/json")
	if answer, _ := b.do("POST", "/jupyter/api/kernels/"+k.ID+"/interrupt", "{}"); answer.StatusCode != http.StatusNoContent {
		t.Errorf("interrupt: %d", answer.StatusCode)
	}
	specs := get[struct {
		Default     string
		Kernelspecs map[string]struct {
			Name      string
			Resources map[string]any
			Spec      struct {
				Argv     []string
				Language string
				Display  string `json:"display_name"`
			}
		}
	}](b, http.StatusOK, "GET", "/jupyter/api/kernelspecs", nil)
	if spec := specs.Kernelspecs[specs.Default]; spec.Name != "python3" || spec.Resources == nil || len(spec.Spec.Argv) == 0 || spec.Spec.Language != "python" || spec.Spec.Display == "" {
		t.Errorf("kernelspecs %+v", specs)
	}
	if answer, _ := b.do("DELETE", "/jupyter/api/kernels/"+k.ID, nil); answer.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %d", answer.StatusCode)
	}
	b.refusal(http.StatusNotFound, "GET", "/jupyter/api/kernels/"+k.ID, nil)
	if state := get[struct{ State string }](b, http.StatusOK, "GET", "/v1/sandboxes/"+k.Sandbox, nil).State; state != "closed" {
		t.Errorf("the sandbox is %s", state)
	}
}

// A kernel of a sandbox that somebody else made ends without it.
func TestJupyterTakesASandbox(t *testing.T) {
	t.Parallel()
	b := setup(t)
	box := get[struct{ Sandbox struct{ ID string } }](b, http.StatusCreated, "POST", "/v1/sandboxes?wait=20", `{"labels":{"mine":"1"}}`).Sandbox.ID
	body := `{"name":"python3","env":{"KERNEL_SANDBOX":"` + box + `","KERNEL_WORKING_DIR":"/home/me","PATH":"/bin"}}`
	k := get[notebookKernel](b, http.StatusCreated, "POST", "/jupyter/api/kernels", body)
	if k.Sandbox != box {
		t.Fatalf("kernel %+v", k)
	}
	if again := get[notebookKernel](b, http.StatusCreated, "POST", "/jupyter/api/kernels", body); again.ID != k.ID {
		t.Errorf("the same sandbox has the kernels %s and %s", k.ID, again.ID)
	}
	if answer, text := b.do("DELETE", "/jupyter/api/kernels/"+k.ID, nil); answer.StatusCode != http.StatusNoContent {
		t.Fatalf("delete: %d: %s", answer.StatusCode, text)
	}
	b.refusal(http.StatusNotFound, "GET", "/jupyter/api/kernels/"+k.ID, nil)
	left := get[struct {
		State  string
		Labels map[string]string
	}](b, http.StatusOK, "GET", "/v1/sandboxes/"+box, nil)
	if left.State != "ready" || !cmp.Equal(left.Labels, map[string]string{"mine": "1"}) {
		t.Errorf("the sandbox is %+v", left)
	}
}

func TestJupyterSessionsBelongToNotebooks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	type session struct {
		ID, Path, Name, Type string
		Kernel               notebookKernel
	}
	const body = `{"path":"a.ipynb","name":"a","type":"notebook","kernel":{"name":"python3"}}`
	first := get[session](b, http.StatusCreated, "POST", "/jupyter/api/sessions", body)
	if again := get[session](b, http.StatusCreated, "POST", "/jupyter/api/sessions", body); again.ID != first.ID || again.Kernel.ID == "" {
		t.Errorf("the same notebook has the sessions %+v and %+v", first, again)
	}
	other := get[session](b, http.StatusCreated, "POST", "/jupyter/api/sessions", `{"notebook":{"path":"b.ipynb"},"kernel":{"name":"python"}}`)
	if list := get[[]session](b, http.StatusOK, "GET", "/jupyter/api/sessions", nil); len(list) != 2 || other.ID == first.ID || other.Type != "notebook" {
		t.Errorf("sessions %+v, %+v", list, other)
	}
	renamed := get[session](b, http.StatusOK, "PATCH", "/jupyter/api/sessions/"+first.ID, `{"path":"c.ipynb"}`)
	if renamed.Path != "c.ipynb" || renamed.Name != "a" || renamed.Kernel.ID != first.Kernel.ID {
		t.Errorf("renamed: %+v", renamed)
	}
	b.refusal(http.StatusBadRequest, "POST", "/jupyter/api/sessions", `{}`)
	if answer, _ := b.do("DELETE", "/jupyter/api/sessions/"+first.ID, nil); answer.StatusCode != http.StatusNoContent {
		t.Errorf("delete: %d", answer.StatusCode)
	}
	b.refusal(http.StatusNotFound, "GET", "/jupyter/api/sessions/"+first.ID, nil)
}

func TestJupyterTakesKeysAsItsClientsSendThem(t *testing.T) {
	t.Parallel()
	b := setup(t, withKeys)
	k := b.kernel("Authorization", "token "+key)
	for name, headers := range map[string][]string{
		"token":  {"Authorization", "token " + key},
		"Token":  {"Authorization", "Token  " + key},
		"Bearer": {"Authorization", "Bearer " + key},
		"header": {"X-API-Key", key},
	} {
		if list := get[[]notebookKernel](b, http.StatusOK, "GET", "/jupyter/api/kernels", nil, headers...); len(list) != 1 {
			t.Errorf("%s: %v", name, list)
		}
	}
	for name, query := range map[string]string{"query": "?token=" + key, "both": "?x=1&token=" + key} {
		headers := []string{}
		if name == "both" {
			headers = []string{"Authorization", "token "}
		}
		if list := get[[]notebookKernel](b, http.StatusOK, "GET", "/jupyter/api/kernels"+query, nil, headers...); len(list) != 1 {
			t.Errorf("%s: %v", name, list)
		}
	}
	for _, headers := range [][]string{{}, {"Authorization", "token "}, {"Authorization", "token wrong"}, {"Authorization", "token"}, {"Authorization", "Basic " + key}} {
		b.refusal(http.StatusUnauthorized, "GET", "/jupyter/api/kernels", nil, headers...)
	}
	get[struct{ Version string }](b, http.StatusOK, "GET", "/jupyter/api", nil) // clients ask it without a key
	foreign := []string{"Authorization", "token " + otherKey}
	if list := get[[]notebookKernel](b, http.StatusOK, "GET", "/jupyter/api/kernels", nil, foreign...); len(list) != 0 {
		t.Errorf("another tenant sees %v", list)
	}
	for _, at := range []string{"GET ", "DELETE ", "POST /restart", "POST /interrupt", "GET /channels"} {
		method, rest, _ := strings.Cut(at, " ")
		b.refusal(http.StatusNotFound, method, "/jupyter/api/kernels/"+k.ID+rest, nil, foreign...)
	}
	session := "/jupyter/api/sessions/" + k.ID // a session has the id of its kernel
	for _, method := range []string{"GET", "PATCH", "DELETE"} {
		b.refusal(http.StatusNotFound, method, session, `{"path":"theirs.ipynb"}`, foreign...)
	}
	b.refusal(http.StatusNotFound, "POST", "/jupyter/api/sessions", `{"path":"theirs.ipynb","kernel":{"id":"`+k.ID+`"}}`, foreign...)
	b.refusal(http.StatusNotFound, "POST", "/jupyter/api/kernels", `{"env":{"KERNEL_SANDBOX":"`+k.Sandbox+`"}}`, foreign...)
	theirs := b.kernel(foreign...)
	b.refusal(http.StatusNotFound, "PATCH", "/jupyter/api/sessions/"+theirs.ID, `{"kernel":{"id":"`+k.ID+`"}}`, foreign...)
	if list := get[[]struct{ ID string }](b, http.StatusOK, "GET", "/jupyter/api/sessions", nil, foreign...); len(list) != 0 {
		t.Errorf("another tenant has the sessions %v", list)
	}
	if state := get[struct{ Kernels int }](b, http.StatusOK, "GET", "/jupyter/api/status", nil, foreign...); state.Kernels != 1 {
		t.Errorf("another tenant has %d kernels, want its own one", state.Kernels)
	}
	get[notebookKernel](b, http.StatusOK, "GET", "/jupyter/api/kernels/"+k.ID, nil, "Authorization", "token "+key) // it is as it was
	// The other routes take no key from the query.
	b.problem(farm.CodeUnauthorized, http.StatusUnauthorized, "GET", "/v1/sandboxes?token="+key, nil)
}

func TestJupyterRefusesBadRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const kernels = "/jupyter/api/kernels"
	b.refusal(http.StatusNotFound, "POST", kernels, `{"name":"cobol"}`)
	b.refusal(http.StatusBadRequest, "POST", kernels, `{"name":`)
	b.refusal(http.StatusBadRequest, "POST", kernels, `{"env":"x"}`)
	b.refusal(http.StatusUnprocessableEntity, "POST", kernels, `{"env":{"KERNEL_MEMORY_MB":"much"}}`)
	b.refusal(http.StatusUnprocessableEntity, "POST", kernels, `{"env":{"KERNEL_TTL_SECONDS":"0"}}`)
	b.refusal(http.StatusUnprocessableEntity, "POST", kernels, `{"env":{"KERNEL_CPUS":"NaN"}}`)
	b.refusal(http.StatusNotFound, "POST", kernels, `{"env":{"KERNEL_SANDBOX":"sbx_none"}}`)
	b.refusal(http.StatusRequestEntityTooLarge, "POST", kernels, strings.Repeat(" ", 1<<20+1))
	for _, id := range []string{"x", "sbx_none", "00000000-0000-0000-0000-000000000000", strings.Repeat("0", 32)} {
		b.refusal(http.StatusNotFound, "GET", kernels+"/"+id, nil)
		b.refusal(http.StatusNotFound, "GET", kernels+"/"+id+"/channels", nil)
	}
	k := b.kernel()
	b.refusal(http.StatusUpgradeRequired, "GET", kernels+"/"+k.ID+"/channels", nil)
	b.refusal(http.StatusBadRequest, "GET", kernels+"/"+k.ID+"/channels?session_id="+strings.Repeat("x", 257), nil)
	if box := b.sandbox(); box != "" { // a sandbox is no kernel until somebody makes it one
		b.refusal(http.StatusNotFound, "GET", kernels+"/"+farm.UUIDOf(farm.SandboxPrefix, box), nil)
	}
}
