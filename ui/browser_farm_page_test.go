//go:build browser

package ui_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
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
	p.until(`[...document.querySelectorAll(".tile")].some((one) => /^Sandboxes\s+2\s+open$/.test(one.innerText))`)
	p.sees("4.0 GiB")                                                                              // what both sandboxes have been promised
	p.until(`/GiB used/.test(document.body.innerText) && /load \d/.test(document.body.innerText)`) // of the machine
	p.until(`/Jobs by the minute: [1-9]/.test(document.body.innerText)`)
	p.until(`Boolean(document.querySelector(".chart rect.run"))`)
	p.sees("worker started")
	p.shot("farm")
	p.accessible("farm")
	p.size(1920, 1080, "light")
	p.until(`[...document.querySelectorAll(".fleet p")].find((one) => /^Memory and cores/.test(one.innerText)).getBoundingClientRect().top >= document.querySelector(".node").getBoundingClientRect().bottom`)
	p.size(1360, 900, "light")
	p.clickText("Drain")
	p.sees("The node takes no new sandboxes")
	p.accessible("drain")
	p.click("dialog button.primary")
	p.until(`document.querySelector(".node .badge")?.innerText === "draining"`)
	p.sees("2 sandboxes and 0 jobs left.")
	p.sees("drain began")
	p.clickText("End the drain")
	p.until(`Boolean(document.querySelector(".node button.drain"))`)
	p.sees("drain ended")
	p.goTo("#/farm/tenants")
	p.until(`/acme\s+1\s+no limit\s+2.0 GiB\s+no limit/.test(document.querySelector("table.grid")?.innerText)`)
	p.until(`(() => { const at = [...document.querySelectorAll(".grid thead > tr > *")].findIndex((one) => one.innerText === "Requests per minute"); return document.querySelector(".grid tbody tr").children[at].innerText === "no limit" })()`) // what has no limit is not counted
	p.size(1280, 900, "light")
	p.until(`(() => { const table = document.querySelector(".scroll"); return table.scrollWidth <= table.clientWidth })()`)
	p.accessible("tenants")
	p.goTo("#/farm/keys")
	p.clickText("New key")
	p.sees("Name (optional)")
	p.sees("everything with the tenant's own sandboxes, jobs and files")
	for _, n := range []string{"1", "2"} {
		p.click("dialog fieldset label:nth-of-type(" + n + ") input")
	}
	p.sees("Choose at least one scope.")
	p.click("dialog fieldset label:nth-of-type(1) input")
	p.until(`!document.querySelector("dialog .wrong")`)
	p.click("dialog fieldset label:nth-of-type(2) input")
	p.fill("dialog input[required]", "Light blue")
	p.clickText("Create")
	p.until(`document.querySelector("dialog .field:has(input[required]) .wrong")?.innerText.includes("must be") && !document.querySelector("dialog .error")`)
	p.fill("dialog input[required]", "blue")
	p.clickText("Create")
	p.sees("It is shown only now")
	secret := value[string](p, `document.querySelector("dialog .id code").innerText`)
	if !strings.HasPrefix(secret, "sf_") {
		t.Errorf("the key is %q", secret)
	}
	p.do(chromedp.Evaluate(withoutClipboard, nil))
	p.click("dialog button.copy")
	p.until(`window.copied.startsWith("sf_")`)
	if copied := value[string](p, `window.copied`); copied != secret {
		t.Errorf("the button copies %q", copied)
	}
	f.run(secret, "print(1)")
	p.click("dialog header button")
	p.sees("blue")
	p.until(`(() => { const row = [...document.querySelectorAll("tbody tr")].find((one) => one.innerText.includes("blue")); window.made = row?.querySelector("code")?.innerText; return Boolean(window.made) && row.innerText.includes("never") })()`)
	p.accessible("keys")
	for _, life := range []struct{ tenant, choice, date string }{{"green", "90", ""}, {"amber", "date", time.Now().AddDate(0, 0, 2).Format(time.DateOnly)}} {
		p.clickText("New key")
		p.fill("dialog input[required]", life.tenant)
		p.choose("dialog select", life.choice, 0)
		if life.date != "" {
			p.fill("dialog input[type=date]", life.date)
			p.accessible("new key")
		}
		p.clickText("Create")
		p.sees("It is shown only now")
		p.click("dialog header button")
		p.sees(life.tenant)
	}
	days := value[map[string]float64](p, `fetch("v1/keys").then((answer) => answer.json()).then(({ items }) => Object.fromEntries(items.filter((one) => one.expires_at).map((one) => [one.tenant, (Date.parse(one.expires_at) - Date.parse(one.created_at)) / 86400000])))`)
	if green, amber := days["green"], days["amber"]; green != 90 || amber < 1 || amber > 4 {
		t.Errorf("keys expire after so many days: %v", days)
	}
	p.do(chromedp.Evaluate(oneAdmin, nil))
	p.goTo("#/farm")
	p.goTo("#/farm/keys")
	revoke := func(tenant string) string {
		t.Helper()
		button := `[...document.querySelectorAll("tbody tr")].find((one) => one.children[2].innerText === "` + tenant + `")?.querySelector("button")`
		p.until(`Boolean(` + button + `)`)
		return value[string](p, `(() => { window.confirm = (text) => { window.asked = text; return false; }; `+button+`.click(); return window.asked; })()`)
	}
	if asked := revoke("blue"); !strings.HasSuffix(asked, "? Programs that use it stop working.") {
		t.Errorf("a key that is not the last is revoked with %q", asked)
	}
	if asked := revoke("ops"); !strings.Contains(asked, "You are logged in with this key") || !strings.Contains(asked, "No other key has the scope admin.") || !strings.Contains(asked, " sandfarm key create --local ") {
		t.Errorf("one's own key, and the last with admin, is revoked with %q", asked)
	}
	p.goTo("#/farm/audit")
	p.sees("POST /v1/keys")
	p.until(`[...document.querySelectorAll("tbody tr")].find((row) => row.innerText.includes("POST /v1/run"))?.innerText.includes(window.made)`)
	p.accessible("audit")
	p.size(1280, 900, "light")
	p.until(`(() => { const table = document.querySelector(".scroll"); return table.scrollWidth <= table.clientWidth && /From\s*$/.test(table.querySelector("thead").innerText) })()`)
	p.size(390, 844, "light") // a row is a card
	p.until(`(() => { const table = document.querySelector(".scroll"), cell = table.querySelector("tbody td:last-child"); return table.scrollWidth <= table.clientWidth && getComputedStyle(cell, "::before").content === '"From"' && cell.getBoundingClientRect().right <= innerWidth })()`)
	p.size(1360, 900, "light")
	if text := value[string](p, `document.documentElement.outerHTML`); strings.Contains(text, secret) {
		t.Error("the page still holds the key")
	}
	p.click("#logout")
	p.logIn(acme)
	p.goTo("#/artifacts")
	p.sees("notes.txt")
	p.until(`[...document.querySelectorAll(".artifacts img")].filter((one) => one.complete && one.naturalWidth > 0).length === 2`)
	p.do(chromedp.Evaluate(`(() => { const by = document.querySelector("[aria-label=Groups]"); by.value = "sandbox"; by.dispatchEvent(new Event("change", { bubbles: true })); })()`, nil))
	p.until(`document.querySelector(".group h2 a")?.getAttribute("href").startsWith("#/sandboxes/sbx_")`)
	p.accessible("artifacts")
	p.choose("[aria-label=Groups]", "job", 0)
	p.until(`document.querySelector(".group h2 a")?.innerText.startsWith("for name in ")`)
	p.shot("artifacts")
	p.do(chromedp.Evaluate(`window.confirm = (text) => text.startsWith("Delete notes.txt?")`, nil))
	p.click("[aria-label='Delete notes.txt']")
	p.until(`!document.body.innerText.includes("notes.txt")`)
	p.accessible("artifacts that can be deleted")
	if left := len(call[struct{ Items []record }](f, acme, "GET", "/v1/artifacts", nil).Items); left != 2 {
		t.Errorf("%d artifacts are left", left)
	}
	p.size(390, 844, "light")
	p.until(`(() => { document.querySelector(".group h2 code").textContent = "x".repeat(300); return document.documentElement.scrollWidth <= innerWidth })()`) // code without a space
	p.size(1360, 900, "light")
	p.goTo("#/farm/keys") // which a key without the scope admin is not shown
	p.sees("This page is for the farm's operator")
	if text := value[string](p, `document.querySelector(".main-nav").innerText`); strings.Contains(text, "Farm") {
		t.Error("who is no operator is shown the farm")
	}
	p.click(`[aria-label="中文"]`)
	p.sees("产物")
	p.goTo("#/")
	p.sees("运行")
	p.accessible("Chinese")
}

// oneAdmin makes the key of the page the only one with the scope admin, and all keys of the kind that can be revoked.
const oneAdmin = `(() => {
  const real = window.fetch;
  window.fetch = async (path, options) => {
    const answer = await real(path, options);
    if (!String(path).startsWith("v1/keys")) return answer;
    const [list, me] = [await answer.json(), await (await real("session")).json()];
    for (const one of list.items) Object.assign(one, { origin: "api", scopes: one.scopes.filter((scope) => scope !== "admin" || one.id === me.key_id) });
    return new Response(JSON.stringify(list));
  };
})()`

// withoutClipboard makes a page one that may not use the clipboard, such as one by http from another host, and keeps what it copies all the same.
const withoutClipboard = `Object.defineProperty(navigator, "clipboard", { value: undefined }); window.copied = ""; addEventListener("copy", () => { window.copied = document.activeElement.value; })`

func TestTheFirstKeyIsMadeOnTheHost(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "#/farm/tenants")
	p.sees("A tenant appears with its first key or its first request.")
	p.goTo("#/farm/keys")
	p.clickText("New key")
	p.sees("This farm has no keys")
	p.until(`!document.querySelector("dialog form")`)
	p.do(chromedp.Evaluate(withoutClipboard, nil))
	p.click("dialog button.copy")
	p.until(`/^SANDFARM_DATA='\/.*' sandfarm key create --local /.test(window.copied)`) // the farm does not have the usual directory
	p.accessible("first key")
	p.click("dialog header button")
	p.sees("No keys yet")
	made := exec.Command("sh", "-c", strings.Replace(value[string](p, `window.copied`), " sandfarm ", " "+program()+" ", 1))
	if text, err := made.CombinedOutput(); err != nil {
		t.Fatalf("make the first key: %v: %s", err, text)
	}
	p.sees("Log in with an API key") // a farm with keys wants one
}

// manyGPUs adds eight devices to each worker that the page reads, five of them leased, and a full pool, a worker that has been lost to the events, and rates to the queues.
// The farm is not ready for lack of a worker.
const manyGPUs = `(() => {
  const real = window.fetch;
  window.fetch = async (path, options) => {
    if (path === "readyz") return new Response(JSON.stringify({ status: "unready", parts: { redis: { ok: true }, storage: { ok: true }, workers: { ok: false } } }), { status: 503 });
    const answer = await real(path, options);
    const name = new URL(path, document.baseURI).pathname.split("/v1/")[1];
    if (!["workers", "events", "queues"].includes(name)) return answer;
    const found = await answer.json();
    if (name === "workers") for (const one of found.items) Object.assign(one, { pool: [{ image: "python", target: 2, ready: 2 }], gpus_leased: 5, gpus: [...Array(8)].map((_, i) => ({ id: "GPU-" + i, model: "h200", memory_mb: 143771, leased: i < 5 })) });
    if (name === "queues") {
      for (const one of found.items) one.ended_per_minute = 12.34;
      found.items.push({ ...found.items[0], name: "callbacks", depth: 77, running: 7 });
    }
    if (name === "events") found.items.unshift({ id: "9-0", at: new Date().toISOString(), kind: "worker_lost", node: "n", host: "<b>gone</b>", worker_id: "wrk_gone", jobs: 3, sandboxes: 0, detail: "" });
    return new Response(JSON.stringify(found));
  };
})()`

func TestTheFarmShowsGPUsAndLosses(t *testing.T) {
	t.Parallel()
	p := openPage(t, startFarm(t), "")
	p.size(1360, 900, "light")
	p.sees("Playground")
	p.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := cdppage.AddScriptToEvaluateOnNewDocument(manyGPUs).Do(ctx)
		return err
	}), chromedp.Reload())
	p.sees("Playground")
	p.goTo("#/farm")
	p.until(`document.querySelectorAll(".gpu").length === 8 && document.querySelectorAll(".gpu.taken").length === 5`)
	p.sees("GPUs: 5 of 8 leased")
	p.until(`[...document.querySelectorAll("meter")].at(-1).value === 2`) // a pool that is full has a full bar
	p.until(`new Set([...document.querySelectorAll("meter")].map((one) => one.getBoundingClientRect().width)).size === 1`)
	p.sees("12.3")
	p.until(`[...document.querySelectorAll(".tile")].some((one) => /^Jobs that wait\s+0\s+0 running$/.test(one.innerText))`) // callbacks are no jobs
	p.sees("77")
	p.until(`document.querySelector(".health.bad").innerText === "no worker takes jobs" && document.querySelector(".tile .badge.bad").innerText === "workers"`)
	p.until(`/worker lost\s*<b>gone<\/b> 3 jobs are taken over/.test(document.querySelector(".events")?.innerText)`)
	p.shot("farm-gpus")
	p.accessible("GPUs")
}
