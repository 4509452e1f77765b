// Package page_test drives the page of the status socket in a headless Chromium, through a
// TCP connection to the unix socket, as ssh -L makes it.
package page_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"

	"github.com/flexd/flexd/internal/server"
	"github.com/flexd/flexd/internal/status"
)

// A node answers with documents of the test.
type node struct {
	mu      sync.Mutex
	list    status.List
	asked   int // for the list
	details map[string]status.VolumeDetail
	events  status.Events
}

func (n *node) List() status.List {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	return n.list
}

func (n *node) VolumeDetail(vg, lv string) (status.VolumeDetail, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d, ok := n.details[vg+"/"+lv]
	if ok {
		return d, true
	}
	for _, v := range n.list.Volumes {
		if v.VG == vg && v.LV == lv || vg == "-" && v.UUID == lv {
			return status.VolumeDetail{Volume: v}, true
		}
	}
	return d, false
}

func (n *node) Check(context.Context) status.Check               { return status.Check{} }
func (*node) Explain(context.Context, []string) status.Explained { return status.Explained{} }

func (n *node) Orphans(context.Context, []string) status.Orphans { return status.Orphans{} }
func (n *node) Health() (failing, degraded []string)             { return nil, nil }

func (n *node) Events(_ context.Context, q status.EventQuery) status.Events {
	events := n.events
	events.Events = slices.DeleteFunc(slices.Clone(events.Events), func(e status.Event) bool { return q.Target != e.VG+"/"+e.LV })
	return events
}

func (*node) Resolve(*status.EventQuery) {}

func (n *node) EventsAfter(uint64) <-chan struct{} { return nil }

// change changes what the node answers.
func (n *node) change(f func(*status.List)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list.Volumes = slices.Clone(n.list.Volumes)
	f(&n.list)
}

// serve serves the status socket until stop is called or the test ends.
func (n *node) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	l, err := server.Listen(path, 0o600, "")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&server.Status{Listener: l, Source: n, History: n, Version: "1.2.3", Log: logrus.NewEntry(log)}).Serve(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(stop)
	return stop
}

// tunnel forwards connections to a unix socket, and returns the address of the page.
func tunnel(t *testing.T, path string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := net.Dial("unix", path)
				if err != nil {
					return
				}
				defer to.Close()
				go func() { io.Copy(to, from); to.(*net.UnixConn).CloseWrite() }()
				io.Copy(from, to)
			}()
		}
	}()
	return fmt.Sprintf("http://localhost:%d/", l.Addr().(*net.TCPAddr).Port)
}

// keep writes a screenshot to FLEXD_PAGE_PICTURES.
func (p *tab) keep(name string) {
	p.Helper()
	if dir := os.Getenv("FLEXD_PAGE_PICTURES"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), p.picture(), 0o644); err != nil {
			p.Fatal(err)
		}
	}
}

func TestPage(t *testing.T) {
	b := start(t)
	for _, s := range []struct {
		name string
		run  func(*testing.T, *browser)
	}{
		{"shows", shows}, {"groups", groups}, {"hostile", hostile}, {"elsewhere", elsewhere}, {"keys", keys},
		{"live", live}, {"many", many}, {"older", older}, {"empty", empty},
	} {
		t.Run(s.name, func(t *testing.T) { t.Parallel(); s.run(t, b) })
	}
}

// visit serves the node and opens the page.
func (n *node) visit(t *testing.T, b *browser, width, height int) (p *tab, address string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "status.sock")
	n.serve(t, path)
	p, address = b.open(t, width, height), tunnel(t, path)
	p.navigate(address)
	p.await("document.title.includes('node-1')")
	return p, address
}

// fits checks that nothing is wider than the window.
func (p *tab) fits() {
	p.Helper()
	if got := p.text("document.documentElement.scrollWidth <= innerWidth"); got != "true" {
		p.Error("wider than the window: ", p.text("[...document.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.tagName + '.' + e.className + '#' + e.id + ' ' + e.textContent.slice(0, 40)).slice(0, 12).join('\\n')"))
	}
}

const rows = "[...document.querySelectorAll('#rows .row')].filter(e => !e.hidden)"

func shows(t *testing.T, b *browser) {
	n := problems()
	p, address := n.visit(t, b, 1400, 1000)
	for _, v := range n.list.Volumes {
		row := fmt.Sprintf("document.querySelector('[data-path=\"%s/%s\"]').innerText", v.VG, v.LV)
		for _, want := range []string{string(v.State), v.VG + "/" + v.LV, v.Device} {
			if got := p.text(row); !strings.Contains(got, want) {
				t.Errorf("the row of %s/%s has no %q: %q", v.VG, v.LV, want, got)
			}
		}
	}
	// What needs attention, with its remedy.
	attention := p.text("document.querySelector('#attention').innerText")
	for _, want := range []string{
		n.list.Problems[0], "crypto_LUKS", "again in", "Remedy: delete the pod, so that kubelet mounts the volume again",
		"mount refused", "default/web-8", "5 times", "ask an administrator to add it", "option volumegroup: missing", "levitating",
	} {
		if !strings.Contains(attention, want) {
			t.Errorf("no %q in what needs attention:\n%s", want, attention)
		}
	}
	if strings.Contains(attention, "active-unclaimed") {
		t.Error("what is no error needs attention")
	}
	p.equal("document.querySelector('#notes').textContent.includes('active-unclaimed')", "true")

	// Light and dark.
	p.keep("light")
	light := p.picture()
	p.prefers("color-scheme", "dark")
	p.keep("dark")
	if bytes.Equal(light, p.picture()) {
		t.Error("it looks the same in light and dark")
	}

	// A running step pulses, unless that is not wanted.
	p.equal("document.getAnimations().length", "0")
	p.prefers("reduced-motion", "no-preference")
	p.equal("document.getAnimations().length > 0", "true")

	// One volume: from the disk to the pods, and what has happened.
	p.navigate(address + "#vg0/data")
	p.await("document.querySelectorAll('#chain li').length > 3 && document.querySelectorAll('#history .strip i').length == 5")
	p.prefers("color-scheme", "dark")
	p.keep("detail-dark")
	p.prefers("color-scheme", "light")
	p.keep("detail-light")
	p.equal("[...document.querySelectorAll('#chain .what > :first-child')].map(e => e.innerText)", "disk,LV,filesystem,mount,mount,mount")
	detail := p.text("document.querySelector('#detail').innerText")
	for _, want := range []string{
		"stale-mapping", "Remedy: lvchange --refresh vg0/data", "data 64.0 MiB, /dev/dm-3", global + "data", "default/report-x7k2p (ro)", "not mounted",
		"adopted from the mount table", "mount waits", "next: mount read-only", "would refuse: staging", "mount for default/web-0", "4.3s",
		"exit status 8: no such device", "12.3s", "call c40, c41", "stale-mapping found",
	} {
		if !strings.Contains(strings.Join(strings.Fields(detail), " "), want) {
			t.Errorf("no %q in the detail:\n%s", want, detail)
		}
	}

	// A narrow screen.
	p.size(360, 760)
	p.fits()
	p.keep("detail-narrow")
	p.press("Escape")
	p.await("document.querySelector('#detail').hidden")
	p.fits()
	p.keep("narrow")

	// A link to a volume that flexd does not know.
	p.navigate(address + "#vg0/none")
	p.await("document.querySelector('#detail-gone').innerText.includes('knows no volume vg0/none')")
}

const busy = "busy" // in place of a document

// front forwards requests, except those for which it has documents; "" is not found.
func front(t *testing.T, address string, documents map[string]string) string {
	t.Helper()
	to, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d, ok := documents[r.URL.Path]; ok && d == "" {
			http.Error(w, `{"error":"no such page"}`, http.StatusNotFound)
			return
		} else if ok && d == busy {
			http.Error(w, `{"error":"try again"}`, http.StatusServiceUnavailable)
			return
		} else if ok {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, d)
			return
		}
		r.Host = "flexd"
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/"
}

// The space of groups, the levels of filesystems, and events.
func groups(t *testing.T, b *browser) {
	path := filepath.Join(t.TempDir(), "status.sock")
	at := func(hour, minute, second int) time.Time {
		return time.Date(2026, 7, 29, hour, minute, second, 0, time.UTC)
	}
	(&node{events: status.Events{
		Events: []status.Event{
			{ID: 7, Time: at(0, 0, -2), Type: status.StepEvent, VG: "vg0", LV: "data", Step: "activate", CallID: "c1", Duration: 0.4},
			{ID: 8, Time: at(14, 20, 0), Type: status.CallEvent, VG: "vg0", LV: "data", Pod: &status.EventPod{Namespace: "default", Name: "web-0", UID: "6b2f"}, Verb: "mount", Code: "not-blank",
				Message: "crypto_LUKS found", CallID: "c2", Duration: 1.5, Count: 4, First: at(14, 0, 0)},
			{ID: 9, Time: at(14, 30, 0), Type: status.FoundEvent, VG: "vg0", LV: "data", Code: "stale-mapping", Message: "the sizes differ"},
			{ID: 10, Time: at(14, 31, 0), Type: status.FoundEvent, VG: "vg0", LV: "other", Code: "faulty"},
		},
		Waiting: []status.Event{{Time: at(14, 30, 1), Type: status.CallEvent, VG: "vg0", LV: "data", Verb: "unmount", CallID: "c3"}},
		More:    true, Problems: []string{"a file of the history is torn"},
	}}).serve(t, path)
	const data = `"vg":"vg0","lv":"data","uuid":"u1","size":1073741824,"state":"mounted","device":"/dev/dm-1","filesystem":"ext4","filesystemSize":1000000000,"filesystemUsed":900000000,"filesystemFree":50000000,"inodes":1000,"inodesUsed":120,"pods":[]`
	const gib, mib = 1 << 30, 1 << 20
	largest, none := int64(200*gib), int64(0)
	spaces := []status.Group{
		{Name: "files", Provider: "loopdev", Directory: "/srv/files", Size: 500 * gib, Free: 300 * gib, LargestVolume: &largest, State: status.GroupOK, ObservedAt: began, Disks: []status.Disk{{Device: "/dev/sda2", Size: 500 * gib, Free: 300 * gib}}},
		{Name: "vg0", Provider: "lvm", Size: 4096 * gib, Free: 307 * gib, State: status.GroupOK, ObservedAt: began,
			Disks: []status.Disk{{Device: "/dev/nvme0n1", Size: 2048 * gib}, {Device: "/dev/sda", Size: 2048 * gib, Free: 307 * gib}},
			ThinPools: []status.ThinPool{{Name: "fast", State: status.PoolOK, Size: 20 * gib, Used: 12 * gib, MetadataSize: 8 * mib, MetadataUsed: mib},
				{Name: "slow", State: status.PoolOK, Size: 20 * gib, Used: 18 * gib, MetadataSize: 8 * mib, MetadataUsed: 6 * mib, Warning: "90.0 % of the data are used: lvextend -L +SIZE vg0/slow, or remove what is not needed"}}},
		{Name: "vg1", Provider: "lvm", State: status.GroupUnknown, Error: "volume group vg1 cannot be read: vgs (pid 812) hangs"},
		{Name: "vg2", Provider: "lvm", Size: 400 * gib, LargestVolume: &none, State: status.GroupFull, Error: "no space is left: vgextend vg2 DISK", ObservedAt: began,
			Disks: []status.Disk{{Device: "/dev/sdc", Size: 200 * gib}, {Size: 200 * gib, Problem: "LVM does not find it"}}},
	}
	text, err := json.Marshal(spaces)
	if err != nil {
		t.Fatal(err)
	}
	address := front(t, tunnel(t, path), map[string]string{
		"/v1/volumes":          `{"node":"node-1","version":"1","volumes":[{` + data + `},{"vg":"vg0","lv":"small","state":"full","filesystem":"ext4","filesystemSize":1000000000,"filesystemUsed":1000000,"filesystemFree":900000000,"inodes":1000,"inodesUsed":1000,"pods":[]}],"problems":[],"disagreements":[],"pools":[],"refusedCalls":[],"groups":` + string(text) + `}`,
		"/v1/volumes/vg0/data": `{` + data + `,"claims":[],"calls":[],"observed":[],"plan":[],"refused":[],"history":[],"disagreements":[],"refusedCalls":[]}`,
	})
	p := b.open(t, 1400, 1000)
	p.navigate(address + "#vg0/data")
	p.await("document.querySelectorAll('#history .line li').length == 5") // one of them is a day
	p.keep("groups")
	p.equal("[...document.querySelectorAll('.group')].map(e => [e.querySelector('b').innerText, e.querySelector('.title .state').innerText, e.querySelector('.bar i')?.style.width])",
		"files,ok,40%,vg0,ok,92.5049%,vg1,unknown,,vg2,full,100%")
	shown := strings.Join(strings.Fields(p.text("document.querySelector('#groups').innerText")), " ")
	for _, want := range []string{
		"files loopdev · 0 volumes ok 200 GiB used 300 GiB free of 500 GiB a new volume gets at most 200 GiB /dev/sda2",
		"/dev/nvme0n1 0 B free /dev/sda 307 GiB free pool fast 60 % of 20.0 GiB pool slow 90 % of 20.0 GiB – metadata 75 % of 8.00 MiB 90.0 % of the data",
		"vg1 cannot be read: vgs (pid 812) hangs", "vgextend vg2 DISK", "a missing disk 0 B free LVM does not find it",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %q in:\n%s", want, shown)
		}
	}
	p.equal("document.querySelector('#attention').innerText.includes('Remedy: remove files in it') && document.querySelector('#rows').textContent.includes('100 % inodes')", "true")
	p.equal("document.querySelector('#attention').innerText.includes('vgextend vg2 DISK')", "true")
	p.equal("document.querySelector('#rows').textContent.includes('95 %')", "true")
	p.equal("document.querySelector('#chain').innerText.includes('/dev/nvme0n1, /dev/sda')", "true")
	p.equal("document.querySelector('#chain').innerText.includes('858 MiB of 954 MiB used, 47.7 MiB free; 12 % of the inodes')", "true")
	want := strings.Join([]string{
		"14:30:01 unmount waits call c3",
		"14:30:00 stale-mapping found the sizes differ",
		"14:20:00 mount for default/web-0 4 times since 14:00:00 crypto_LUKS found call c2 1.5s",
		"2026-07-28",
		"23:59:58 activate call c1 400ms",
	}, "\n")
	got := p.text("[...document.querySelectorAll('#history .line li')].map(e => e.innerText.replace(/\\s+/g, ' ').trim()).join('\\n')")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the history (-want +got):\n%s", d)
	}
	p.equal("[...document.querySelectorAll('#history > .text')].map(e => e.innerText)", "Older ones: flexd events vg0/data,a file of the history is torn")
	p.size(360, 760)
	p.fits()
}

// Names and messages are shown as text, whatever they contain.
func hostile(t *testing.T, b *browser) {
	const (
		script   = "<script>alert(1)</script>"
		image    = "<img src=x onerror=alert(1)>"
		backward = "\u202egpj.exe\u202c\u200b\u0007"
	)
	long := strings.Repeat("x", 20_000)
	n := &node{list: status.List{Node: "node-1" + image, Version: script}}
	for _, name := range []string{script, image, backward, long, "__proto__", "constructor", "-", "..", "%zz", "javascript:alert(1)", "'\"&amp;"} {
		n.list.Volumes = append(n.list.Volumes, status.Volume{VG: name, LV: name, UUID: name, State: status.State(name), Step: name, Device: name, Filesystem: name,
			Pods: []status.Pod{{Namespace: name, Name: name, UID: name, Dir: name}}, Error: &status.Error{Step: name, Message: name + "\n\x1b[31m" + name, At: began}})
		n.list.Problems = append(n.list.Problems, name)
		n.list.Findings = append(n.list.Findings, status.Finding{Class: name, VG: name, LV: name, Message: name, Hint: name}, status.Finding{Class: name, Message: name, Informational: true})
		n.list.Pools = append(n.list.Pools, status.Pool{VG: name, Name: name, Warning: name, DataUsed: -1, DataTotal: 1})
		n.list.RefusedCalls = append(n.list.RefusedCalls, status.RefusedCall{VG: name, LV: name, Verb: name, Message: name, Pod: &status.Pod{Namespace: name, Name: name}, Count: 1 << 60})
	}
	p, address := n.visit(t, b, 360, 760)
	for _, v := range n.list.Volumes {
		p.navigate(address + "#" + url.PathEscape(v.VG) + "/" + url.PathEscape(v.LV))
		p.await("!document.querySelector('#detail').hidden && !/^(Reading.*)?$/.test(document.querySelector('#history').innerText)")
		p.fits()
	}
	p.equal("document.querySelector('#detail-name').textContent", `'"&amp;/'"&amp;`)
	for _, hash := range []string{"<img src=x onerror=alert(1)>/x", "%zz/%", "a/b/c/d", "//", "__proto__/constructor"} {
		p.eval(fmt.Sprintf("location.hash = %q", hash), nil)
		p.fits()
	}
	p.eval("location.hash = ''", nil)
	p.await("document.querySelector('#detail').hidden")
	p.fits()
	p.keep("hostile")
	p.equal("document.querySelectorAll('main script, main img, aside script, aside img').length", "0")
	p.equal("document.querySelector('#rows').textContent.includes('<script>alert(1)</script>')", "true")
	p.equal(`/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e]/.test(document.body.textContent)`, "false")
	// The policy allows neither scripts nor styles in markup, and the page never needs them.
	if err := p.eval("document.body.innerHTML = '<p>'", nil); err == nil {
		t.Error("text can become markup")
	}
	if len(p.errors()) == 0 {
		t.Error("violations of the policy are not noticed")
	}
}

// A page of another origin gets no data and causes no work, but may link to a volume.
func elsewhere(t *testing.T, b *browser) {
	n := problems()
	path := filepath.Join(t.TempDir(), "status.sock")
	n.serve(t, path)
	address := tunnel(t, path)
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!doctype html><title>evil</title><a href='%s#vg0/data'>see</a>", address)
	}))
	t.Cleanup(evil.Close)
	p := b.open(t, 1000, 700)
	for _, from := range []string{evil.URL, strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)} { // another site, another port of this one
		p.navigate(from)
		p.await("document.title == 'evil'")
		for _, ask := range []string{
			"fetch('%sv1/volumes').then(r => r.text(), () => 'refused')",
			"fetch('%sv1/volumes', {mode: 'no-cors'}).then(r => r.text(), () => 'refused')",
			"new Promise(done => { const e = document.createElement('script'); e.onload = e.onerror = () => done(''); e.src = '%sv1/volumes'; document.head.append(e) })",
			"new Promise(done => { const e = document.createElement('iframe'); e.onload = e.onerror = () => done(''); e.src = '%s'; document.body.append(e) })",
		} {
			if got := p.text("await " + fmt.Sprintf(ask, address)); strings.Contains(got, "vg0") {
				t.Errorf("%s: %s", ask, got)
			}
		}
		n.mu.Lock()
		if n.asked > 0 {
			t.Errorf("flexd answered %d requests from elsewhere", n.asked)
		}
		n.mu.Unlock()
	}
	p.errors() // the browser reports what it has blocked
	p.eval("document.querySelector('a').click()", nil)
	p.await("document.title.includes('node-1') && document.querySelectorAll('#chain li').length > 3")
}

func keys(t *testing.T, b *browser) {
	p, address := problems().visit(t, b, 1000, 700)
	const at = "(document.activeElement.dataset.path ?? document.activeElement.id)"
	p.press("j")
	p.equal(at, "files/data8")
	p.press("ArrowDown", "j", "j", "k")
	p.equal(at, "vg0/cache")
	p.equal("getComputedStyle(document.activeElement).outlineStyle", "solid")
	p.press("End")
	p.equal(at, "vg1/strange")
	p.press("j", "Home")
	p.equal(at, "files/data8")

	p.press("/")
	p.equal(at, "search")
	p.press("w", "e", "b", "-", "0")
	p.equal(rows+".map(e => e.dataset.path)", "vg0/data")
	p.equal("document.querySelector('#volume-count').innerText", "1 of 13")
	p.press("Enter")
	p.equal(at, "vg0/data")
	p.press("Enter")
	p.await("document.querySelectorAll('#chain li').length > 3")
	p.equal("location.hash", "#vg0/data")
	p.equal(at, "detail")
	p.press("Escape")
	p.equal(at, "vg0/data")
	p.equal("location.href", address)
	p.press("Escape")
	p.equal(rows+".length", "13")

	// The shown volume follows the selection, and Back closes it.
	p.press("Enter", "j")
	p.equal("location.hash + ' ' + document.querySelector('#detail-name').innerText", "#vg0/fresh vg0/fresh")
	p.equal("document.querySelectorAll('[aria-selected=true]').length + ' ' + document.querySelectorAll('#rows [tabindex=\"0\"]').length", "1 1")
	p.eval("history.back()", nil)
	p.await("document.querySelector('#detail').hidden")

	// A filter by state, with Tab and Enter.
	p.eval("document.querySelector('[data-state=stuck]').focus()", nil)
	p.press("Enter")
	p.equal(rows+".map(e => e.dataset.path) + ' ' + document.activeElement.ariaPressed", "vg0/backup true")
	p.press("Enter")
	p.equal(rows+".length + ' ' + document.activeElement.ariaPressed", "13 false")

	// Nothing that the keyboard reaches is without a name.
	p.equal("[...document.querySelectorAll('a, button, input, summary, [tabindex]')].filter(e => !e.hidden && !(e.textContent || e.ariaLabel || e.getAttribute('aria-labelledby'))).length", "0")
}

// The page shows changes, and reports when flexd does not answer.
func live(t *testing.T, b *browser) {
	n, dir := problems(), t.TempDir()
	path := filepath.Join(dir, "status.sock")
	stop := n.serve(t, path)
	p := b.open(t, 1000, 700)
	p.navigate(tunnel(t, path))
	p.await("document.title.includes('(11) node-1')")
	now := "dispatchEvent(new Event('online'))" // does not wait for the next poll
	row := func(name string) string { return fmt.Sprintf("document.querySelector('[data-path=\"%s\"]')", name) }
	p.eval("window.same = "+row("vg0/spare")+"; getSelection().selectAllChildren(document.querySelector('#attention .remedy')); window.marked = String(getSelection())", nil)
	n.change(func(l *status.List) {
		l.Volumes[4].State, l.Volumes[4].Step, l.Volumes[4].Filesystem = status.Mounted, "", "btrfs"
		l.Volumes = append(l.Volumes[:10:10], status.Volume{VG: "vg2", LV: "new", State: status.Idle})
	})
	p.eval(now, nil)
	p.await(row("vg0/fresh") + ".textContent.includes('btrfs') && " + row("vg2/new") + " && !" + row("vg1/strange"))
	p.equal("window.same === "+row("vg0/spare")+" && window.same.isConnected", "true")
	p.equal("String(getSelection()) === window.marked && window.marked != ''", "true")

	stop()
	p.eval(now, nil)
	p.await("document.body.classList.contains('stale') && document.querySelector('#gone').innerText.includes('flexd has not answered since')")
	p.equal(rows+".length", "11")
	p.equal("document.querySelector('#gone').innerText.includes('Remedy: ')", "true")
	p.keep("gone")

	n.change(func(l *status.List) { l.Node, l.Volumes = "node-1b", l.Volumes[:5] })
	n.serve(t, path)
	p.await("!document.body.classList.contains('stale') && document.querySelector('#gone').hidden && document.title.includes('node-1b')") // by itself
	p.equal(rows+".length", "5")

	// Another version has another page.
	p.eval("window.old = true", nil)
	n.change(func(l *status.List) { l.Version = "1.2.4" })
	p.eval(now, nil)
	p.await("window.old === undefined && document.querySelector('#version')?.innerText == '1.2.4'")
}

func many(t *testing.T, b *browser) {
	n := &node{list: status.List{Node: "node-1"}}
	states := []status.State{status.Mounted, status.Mounted, status.Mounted, status.Idle, status.Active, status.Working, status.Failed}
	for i := range 1000 {
		v := status.Volume{VG: fmt.Sprintf("vg%d", i/500), LV: fmt.Sprintf("pvc-%04d", i), UUID: fmt.Sprint("u", i), Size: int64(i+1) << 28, State: states[i%len(states)], Device: fmt.Sprint("/dev/dm-", i), Filesystem: "ext4",
			Pods: []status.Pod{pod(fmt.Sprint("team-", i%9), fmt.Sprint("web-", i), fmt.Sprint("uid-", i), fmt.Sprint("pvc-", i))}}
		if v.State == status.Failed {
			v.Error = &status.Error{Step: "mount", Message: "mount: exit status 32: wrong fs type, bad option, bad superblock", At: began}
		}
		n.list.Volumes = append(n.list.Volumes, v)
	}
	p, _ := n.visit(t, b, 1400, 1000)
	p.await(rows + ".length == 1000")
	t.Logf("1,000 rows after %s ms; a list of %s bytes", p.text("Math.round(performance.now())"), p.text("performance.getEntriesByName(location.origin + '/v1/volumes')[0].decodedBodySize"))
	p.keep("many")
	p.equal("document.querySelectorAll('#attention .card').length", "12")
	p.press("/", "8", "8", "8", "Enter")
	p.equal(rows+".map(e => e.dataset.path)", "vg1/pvc-0888")
}

// An older or newer flexd may leave out any field.
func older(t *testing.T, b *browser) {
	path := filepath.Join(t.TempDir(), "status.sock")
	(&node{}).serve(t, path)
	documents := map[string]string{
		"/v1/volumes":       `{"node":"node-1","volumes":[{"vg":"vg0","lv":"a","state":"idle"},{"vg":"vg0","lv":"a","uuid":"u2","state":"mounted"}]}`,
		"/v1/volumes/-/u2":  `{"vg":"vg0","lv":"a","uuid":"u2","state":"mounted"}`,
		"/v1/volumes/vg0/a": `{"vg":"vg0","lv":"a","state":"idle","history":[{"step":"fsck","started":"2026-07-29T14:30:00Z","seconds":12.34,"error":"exit status 8"}]}`,
		"/v1/events":        "",
	}
	p := b.open(t, 1000, 700)
	p.navigate(front(t, tunnel(t, path), documents))
	p.await(rows + ".length == 2")
	p.press("j", "j", "Enter")
	p.await("document.querySelector('#history').innerText.includes('Nothing is known')")
	p.equal("location.hash", "#-/u2")
	p.press("k")
	p.await("location.hash == '#vg0/a' && document.querySelector('#chain').innerText.includes('none known') && /14:30:00\\s+fsck\\s+exit status 8\\s+12.3s/.test(document.querySelector('#history').innerText)")

	// One that cannot be asked about events yet does not have none.
	documents = maps.Clone(documents) // the old one is being read
	documents["/v1/events"] = busy
	p.navigate(front(t, tunnel(t, path), documents) + "#-/u2")
	p.await("document.querySelector('#history').innerText.includes('Reading the events')")
}

func empty(t *testing.T, b *browser) {
	p, _ := (&node{list: status.List{Node: "node-1"}}).visit(t, b, 800, 500)
	p.equal("document.querySelector('#none').innerText", "No pod has asked for a volume on this node.")
	p.equal("document.querySelector('#live').innerText", "live, all is well")
	p.press("j", "Enter", "Escape", "/", "x", "Enter", "Escape")
	p.keep("empty")
}

var began = time.Now()

func before(d time.Duration) time.Time { return began.Add(-d).UTC().Truncate(time.Second) }
