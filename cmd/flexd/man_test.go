package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"
)

var update = flag.Bool("update", false, "write the manual page")

const manualPage = "../../docs/man/flexd.8"

var exitStatuses = []struct {
	code int
	text string
}{
	{0, "success; for check: no disagreement; for doctor: no error, maybe warnings"},
	{exitFailed, "the command failed or was refused; for check: a disagreement; for doctor: an error"},
	{exitUsage, "invalid command line"},
	{exitUnknown, "flexd does not answer; for check: no known disagreement, but some facts are unknown; for doctor: no error, but something could not be examined"},
}

// The manual page has each command and flag, in the words of --help.
func TestManualPage(t *testing.T) {
	want := manual(app(io.Discard, io.Discard))
	if *update {
		if err := os.WriteFile(manualPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(manualPage)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(got), want); d != "" {
		t.Errorf("go test ./cmd/flexd -run ManualPage -update (-file +commands):\n%s", d)
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip(err)
	}
	if out, err := exec.Command(groff, "-man", "-ww", "-z", manualPage).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%s", err, out)
	}
}

// roff escapes text.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "`", "").Replace(s)
	return strings.ReplaceAll("\n"+s, "\n.", "\n\\&.")[1:]
}

func manual(a *cli.App) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH FLEXD 8 "" flexd "System Administration"`)
	line(".SH NAME\nflexd \\- %s", roff(a.Usage))
	line(".SH SYNOPSIS")
	for _, c := range a.Commands {
		line(".B flexd %s\n[\\fIoption\\fR]... %s\n.br", c.Name, roff(strings.TrimSpace(c.ArgsUsage)))
	}
	line(".SH DESCRIPTION\n%s", roff(`flexd mounts volumes of LVM, or sparse files through loop devices, for kubelet.
Kubelet runs the FlexVolume driver flexdriver, which forwards each call to the daemon (flexd serve).
The other commands ask the daemon, over its status socket, or examine the node. Only release, driver, udev --install and uuid --new change anything.`))
	line(".SH COMMANDS")
	for _, c := range a.Commands {
		line(".SS flexd %s %s\n%s", c.Name, roff(strings.TrimSpace(c.ArgsUsage)), roff(strings.ToUpper(c.Usage[:1])+c.Usage[1:]+"."))
		if c.Description != "" {
			line(".PP\n.nf\n%s\n.fi", roff(c.Description))
		}
		for _, f := range c.Flags {
			d := f.(cli.DocGenerationFlag)
			var names []string
			for _, n := range f.Names() {
				names = append(names, `\fB`+roff(strings.Repeat("-", min(len(n), 2))+n)+`\fR`)
			}
			value := ""
			if d.TakesValue() {
				value = ` \fI` + strings.Split(d.GetUsage(), "`")[1] + `\fR`
			}
			line(".TP\n%s%s\n%s", strings.Join(names, ", "), value, roff(d.GetUsage()))
			if v := d.GetDefaultText(); d.TakesValue() && v != "" {
				line("(default: %s)", roff(strings.Trim(v, `"`)))
			}
		}
	}
	line(".SH EXIT STATUS")
	for _, s := range exitStatuses {
		line(".TP\n%d\n%s", s.code, roff(s.text))
	}
	line(".SH FILES")
	for _, f := range [][2]string{
		{"/etc/flexd/flexd.yaml", "the configuration; flexd config prints one with comments"},
		{"/run/flexd", "the sockets and what flexd must know until the next boot"},
		{"/var/lib/flexd", "what flexd must know after a boot"},
	} {
		line(".TP\n.I %s\n%s", f[0], roff(f[1]))
	}
	line(".SH SEE ALSO\n.BR flexd.yaml (5),\n.BR flexdriver (8)")
	return b.String()
}
