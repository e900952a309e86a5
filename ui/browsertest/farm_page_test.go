//go:build browser

package browsertest

import (
	"strings"
	"testing"
)

func TestTheOperatorsPages(t *testing.T) {
	t.Parallel()
	f := startFarm(t, withKeys()...)
	f.run(acme, `
import matplotlib.pyplot as plt
for name in ("a", "b"):
    plt.plot([1, 3, 2]); plt.savefig(name + ".png"); plt.close()
open("notes.txt", "w").write("notes")
`)
	f.sandbox(acme, map[string]any{"name": "report"})
	f.sandbox(rival, map[string]any{"name": "training"})
	p := openPage(t, f, "#/farm")
	p.size(1360, 900, "light")
	p.logIn(operator)
	p.sees("Workers")
	p.sees("Queues")
	p.until(`document.querySelector(".tile .yes")?.innerText === "well"`)
	p.sees("4.0 GB") // what both sandboxes have been promised
	p.until(`/Jobs by the minute: [1-9]/.test(document.body.innerText)`)
	p.until(`Boolean(document.querySelector(".chart rect.run"))`)
	p.shot("farm")
	p.accessible("farm")
	p.goTo("#/farm/tenants")
	p.sees("acme")
	p.accessible("tenants")
	p.goTo("#/farm/keys")
	p.clickText("New key")
	p.fill("dialog input[required]", "blue")
	p.clickText("Create")
	p.sees("It is shown only now")
	secret := value[string](p, `document.querySelector("dialog .id code").innerText`)
	if !strings.HasPrefix(secret, "sf_") {
		t.Errorf("the key is %q", secret)
	}
	f.run(secret, "print(1)")
	p.click("dialog header button")
	p.sees("blue")
	p.accessible("keys")
	p.goTo("#/farm/audit")
	p.sees("POST /v1/keys")
	p.accessible("audit")
	if text := value[string](p, `document.documentElement.outerHTML`); strings.Contains(text, secret) {
		t.Error("the page still holds the key")
	}
	p.click("#logout")
	p.logIn(acme)
	p.goTo("#/artifacts")
	p.sees("notes.txt")
	p.until(`[...document.querySelectorAll(".artifacts img")].filter((one) => one.complete && one.naturalWidth > 0).length === 2`)
	p.accessible("artifacts")
	if text := value[string](p, `document.querySelector(".main-nav").innerText`); strings.Contains(text, "Farm") {
		t.Error("who is no operator is shown the farm")
	}
	p.click(`[aria-label="中文"]`)
	p.sees("产物")
	p.goTo("#/")
	p.sees("运行")
	p.accessible("Chinese")
}
