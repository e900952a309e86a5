//go:build integration

package main_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandfarm/sandfarm/internal/farm"
)

// env is the environment of an attack's execution: what its head states, and where the site and the victim are.
func (n *internet) env(a attack) map[string]string {
	env := maps.Clone(a.env)
	if a.network == string(farm.NetworkAllowlist) {
		env["SITE"], env["VICTIM"] = n.site, n.victim
	}
	return env
}

// begin forgets what was asked before an attack.
func (n *internet) begin() {
	n.questions()
	n.visited()
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.turns)
}

// check says what an attack reached that its rules do not allow: the victim, the DNS, the site by another name, or a host with a secret that is
// not its own.
func (n *internet) check(a attack, values []string, problem func(string, ...any)) {
	if visits := n.visits.Swap(0); visits > 0 {
		problem("the victim got %d connections", visits)
	}
	var rules []farm.HostRule
	for _, text := range a.allow {
		rule, err := farm.ParseHostRule(text)
		if err != nil {
			problem("%v", err)
			continue
		}
		rules = append(rules, rule)
	}
	allowed := func(host string, port int) bool {
		return slices.ContainsFunc(rules, func(r farm.HostRule) bool { return r.Allows(host, port) })
	}
	for _, name := range n.questions() {
		if !allowed(name, 80) && !allowed(name, 443) {
			problem("the DNS was asked for %q, which no rule allows", name)
		}
	}
	for _, v := range n.visited() {
		if port := map[bool]int{false: 80, true: 443}[v.tls]; !allowed(v.host, port) {
			problem("the site got a request for %q, which no rule allows: %s %.300s", v.host, v.method, v.path)
		}
		for _, value := range values {
			if strings.Contains(fmt.Sprint(v.header, v.path, v.body), value) && !a.hasSecretOf(v.host) {
				problem("%s %s of %s has the secret of another host", v.method, v.path, v.host)
			}
		}
	}
}

func (a *attack) hasSecretOf(host string) bool {
	for _, one := range a.secrets {
		if one.Host == host {
			return true
		}
	}
	return false
}

// leaks says whether a text has the value of a secret.
func (r *attackRun) leaks(place, text string, problem func(string, ...any)) {
	for _, value := range r.values {
		for _, form := range forms(value) {
			if strings.Contains(text, form) {
				problem("%s has the value of a secret", place)
			}
		}
	}
}
