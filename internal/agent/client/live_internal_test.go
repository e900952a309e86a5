package client

import "testing"

func TestEndOfProcessHasTheSentenceAboutItsLimit(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]string{
		`{"exit_code":137,"out_of_memory":true,"error":{"name":"OutOfMemory","value":"limit of 64 MiB."}}`: "limit of 64 MiB.",
		`{"exit_code":137,"out_of_memory":true}`:                                                           "",
		`{"exit_code":1}`:                                                                                  "",
	} {
		if end, err := endOf([]byte(payload)); err != nil || end.Reason != want {
			t.Errorf("%s: %+v, %v", payload, end, err)
		}
	}
}
