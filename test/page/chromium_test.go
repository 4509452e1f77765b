package page_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A browser is a headless Chromium, driven by the DevTools protocol over a pair of pipes:
// JSON, each message ends with a zero byte.
type browser struct {
	to     io.Writer
	from   *bufio.Reader
	stderr bytes.Buffer

	mu      sync.Mutex
	last    int
	waiting map[int]chan answer
	tabs    map[string]*tab // by session
	gone    error
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// start starts Chromium, which ends with the test.
func start(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("needs chromium-headless-shell (scripts/test-tools installs it)")
	}
	hearing, to, err1 := os.Pipe()
	from, saying, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	b := &browser{to: to, from: bufio.NewReader(from), waiting: map[int]chan answer{}, tabs: map[string]*tab{}}
	dir, err := os.MkdirTemp("", "flexd-page-")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--force-prefers-reduced-motion", "--lang=en-US", "--remote-debugging-pipe", "--user-data-dir="+dir, "about:blank")
	c.ExtraFiles = []*os.File{hearing, saying} // 3 and 4
	c.Stderr = &b.stderr
	c.Env = append(os.Environ(), "TZ=UTC", "HOME="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	hearing.Close()
	saying.Close()
	t.Cleanup(func() {
		to.Close() // Chromium ends without it
		kill := time.AfterFunc(10*time.Second, func() { syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
		c.Wait()
		kill.Stop()
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // its children
		from.Close()
		for range 100 { // they may still write
			if os.RemoveAll(dir) == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	go b.read()
	return b
}

// read reads the messages of Chromium.
func (b *browser) read() {
	for {
		text, err := b.from.ReadBytes(0)
		b.mu.Lock()
		if err != nil {
			b.gone = fmt.Errorf("Chromium has ended: %w", err)
			for _, w := range b.waiting {
				close(w)
			}
			clear(b.waiting)
			b.mu.Unlock()
			return
		}
		var m struct {
			ID        int
			SessionID string
			Method    string
			Params    json.RawMessage
			answer
		}
		if err := json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m); err != nil {
			panic(err)
		}
		if w := b.waiting[m.ID]; w != nil {
			w <- m.answer
			delete(b.waiting, m.ID)
		} else if p := b.tabs[m.SessionID]; p != nil {
			p.event(m.Method, m.Params)
		}
		b.mu.Unlock()
	}
}

// call calls a method; out is for its result.
func (b *browser) call(session, method string, params, out any) error {
	b.mu.Lock()
	if b.gone != nil {
		defer b.mu.Unlock()
		return fmt.Errorf("%w: %s", b.gone, b.stderr.String())
	}
	b.last++
	w := make(chan answer, 1)
	b.waiting[b.last] = w
	message := map[string]any{"id": b.last, "method": method, "params": params}
	if session != "" {
		message["sessionId"] = session
	}
	text, err := json.Marshal(message)
	if err == nil {
		_, err = b.to.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	a, ok := <-w
	switch {
	case !ok:
		return fmt.Errorf("%s: Chromium has ended: %s", method, b.stderr.String())
	case a.Error != nil:
		return fmt.Errorf("%s: %s", method, a.Error.Message)
	case out == nil:
		return nil
	}
	return json.Unmarshal(a.Result, out)
}

// A tab shows one page.
type tab struct {
	*testing.T
	b       *browser
	session string
	wrong   []string // guarded by b.mu: errors in the console, exceptions, violations of the policy, dialogs
}

// open opens a tab of a width and a height. It must have no errors when the test ends.
func (b *browser) open(t *testing.T, width, height int) *tab {
	t.Helper()
	p := &tab{T: t, b: b}
	var target struct{ TargetID string }
	var session struct{ SessionID string }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target))
	check(b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session))
	p.session = session.SessionID
	b.mu.Lock()
	b.tabs[p.session] = p
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Audits"} {
		p.do(domain+".enable", nil, nil)
	}
	p.size(width, height)
	t.Cleanup(func() {
		b.call("", "Target.closeTarget", map[string]any{"targetId": target.TargetID}, nil)
		for _, w := range p.errors() {
			t.Errorf("the page: %s", w)
		}
	})
	return p
}

func (p *tab) do(method string, params, out any) {
	p.Helper()
	if params == nil {
		params = map[string]any{}
	}
	if err := p.b.call(p.session, method, params, out); err != nil {
		p.Fatal(err)
	}
}

// event needs b.mu.
func (p *tab) event(method string, params json.RawMessage) {
	var e struct {
		Type  string
		Entry struct{ Source, Level string }
		Issue struct{ Code string }
	}
	json.Unmarshal(params, &e)
	switch {
	case method == "Audits.issueAdded" && e.Issue.Code == "ContentSecurityPolicyIssue", method == "Runtime.exceptionThrown", method == "Page.javascriptDialogOpening",
		method == "Runtime.consoleAPICalled" && (e.Type == "error" || e.Type == "warning" || e.Type == "assert"),
		method == "Log.entryAdded" && e.Entry.Source != "network" && e.Entry.Level != "verbose" && e.Entry.Level != "info":
		p.wrong = append(p.wrong, method+" "+string(params))
	}
}

// errors returns the errors since its last call.
func (p *tab) errors() []string {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	w := p.wrong
	p.wrong = nil
	return w
}

func (p *tab) size(width, height int) {
	p.Helper()
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

func (p *tab) prefers(feature, value string) {
	p.Helper()
	p.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-" + feature, "value": value}}}, nil)
}

func (p *tab) navigate(url string) {
	p.Helper()
	p.do("Page.navigate", map[string]any{"url": url}, nil)
}

// eval evaluates an expression, which may be a promise.
func (p *tab) eval(expression string, out any) error {
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	err := p.b.call(p.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	switch {
	case err != nil:
		return err
	case r.ExceptionDetails != nil:
		return errors.New(r.ExceptionDetails.Exception.Description)
	case out == nil || r.Result.Value == nil:
		return nil
	}
	return json.Unmarshal(r.Result.Value, out)
}

func (p *tab) text(expression string) (s string) {
	p.Helper()
	if err := p.eval("(async () => String("+expression+"))()", &s); err != nil {
		p.Fatalf("%s: %v", expression, err)
	}
	return s
}

// await waits until an expression is true.
func (p *tab) await(expression string) {
	p.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var is bool
		err := p.eval("Boolean("+expression+")", &is)
		if is {
			return
		}
		if time.Now().After(deadline) {
			p.Fatalf("never: %s (%v); the page shows:\n%s", expression, err, p.text("document.body.innerText"))
		}
	}
}

func (p *tab) equal(expression, want string) {
	p.Helper()
	if got := p.text(expression); got != want {
		p.Errorf("%s: %q, want %q", expression, got, want)
	}
}

// press presses keys, one after the other: names such as Enter, or single characters.
func (p *tab) press(keys ...string) {
	p.Helper()
	codes := map[string]int{"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, "Home": 36, "End": 35, "PageDown": 34}
	for _, key := range keys {
		down := map[string]any{"type": "keyDown", "key": key, "windowsVirtualKeyCode": codes[key]}
		if codes[key] == 0 {
			down["text"], down["windowsVirtualKeyCode"] = key, int(strings.ToUpper(key)[0])
		} else if key == "Enter" {
			down["text"] = "\r"
		}
		p.do("Input.dispatchKeyEvent", down, nil)
		p.do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
	}
}

// picture returns a screenshot as PNG.
func (p *tab) picture() []byte {
	p.Helper()
	var r struct{ Data string }
	p.do("Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	png, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		p.Fatal(err)
	}
	return png
}
