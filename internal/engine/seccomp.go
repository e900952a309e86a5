package engine

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
)

// seccompProfile is moby's default profile, less calls that open ways between sandboxes or wide kernel surface:
// keyrings (shared by uid over containers), io_uring, userfaultfd, and socketcall, which would get round the rules on
// the families of socket. Those rules (neither AF_ALG nor AF_VSOCK) are moby's own since its profile v0.2; they are
// ranges, since several conditions on one argument are taken as alternatives. What no rule allows gives EPERM.
func seccompProfile() (string, error) {
	profile := seccomp.DefaultProfile()
	for _, rule := range profile.Syscalls {
		rule.Names = slices.DeleteFunc(rule.Names, denied)
	}
	profile.Syscalls = slices.DeleteFunc(profile.Syscalls, func(rule *seccomp.Syscall) bool { return len(rule.Names) == 0 })
	data, err := json.Marshal(profile)
	return string(data), err
}

// denied reports whether a system call is taken out of the default profile, also if a later version allows it.
func denied(name string) bool {
	switch name {
	case "keyctl", "add_key", "request_key", "userfaultfd", "socketcall":
		return true
	}
	return strings.HasPrefix(name, "io_uring_")
}
