package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/status"
	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

func statusCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "show all volumes, some, or one in detail; or the volume groups",
		ArgsUsage: "[VG | VG/LV | LV | UUID | NAMESPACE/POD | POD-UID | DEVICE | DIRECTORY]",
		Description: "An argument that fits one volume shows it in detail. Colors appear on a terminal only, and not if\n" +
			"NO_COLOR is set.",
		Before: atMost(1),
		Flags: []cli.Flag{
			outputFlag("table", "wide", "name", "json", "yaml"),
			&cli.BoolFlag{Name: "groups", Aliases: []string{"g"}, Usage: "show the volume groups: their size, free space and thin pools"},
			&cli.StringSliceFlag{Name: "state", Usage: "show volumes in this `STATE`; may be repeated"},
			&cli.StringFlag{Name: "vg", Usage: "show volumes of this `GROUP`"},
			&cli.StringFlag{Name: "namespace", Aliases: []string{"n"}, Usage: "show volumes that pods of this `NAMESPACE` use"},
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "show changes until interrupted"},
			socketFlag(),
		},
		Action: func(c *cli.Context) error {
			s := statusQuery{c.String("socket"), c.String("output"), c.Bool("groups"), status.Selection{
				Target: strings.TrimPrefix(c.Args().First(), "-/"), States: c.StringSlice("state"), VG: c.String("vg"), Namespace: c.String("namespace")}}
			if s.groups && s.Namespace != "" {
				return usage("status: a volume group has no namespace")
			}
			if c.Bool("watch") {
				return s.watch(c.Context, stdout)
			}
			return s.show(stdout)
		},
	}
}

// A statusQuery has the arguments of `flexd status`.
type statusQuery struct {
	socket, output string
	groups         bool
	status.Selection
}

// show prints the status of the selected volumes, or of the only one in detail.
func (s statusQuery) show(stdout io.Writer) error {
	if vg, lv, named := strings.Cut(s.Target, "/"); !s.groups && named && vg != "" && (lv == "" || strings.Contains(lv, "/")) {
		return usage("status: a volume is written VG/LV, or as its uuid, not %q", s.Target)
	}
	body, err := get(s.socket, "/v1/volumes", 10*time.Second)
	if err != nil {
		return err
	}
	var all status.List
	if err := json.Unmarshal(body, &all); err != nil {
		return fmt.Errorf("flexd's answer is not understood: %w", err)
	}
	if s.groups {
		return s.showGroups(stdout, all)
	}
	list := s.Of(all)
	if s.Target != "" && len(list.Volumes) < 2 {
		if vg, lv, ok := s.only(all, list); ok {
			return s.detail(stdout, vg, lv)
		}
	}
	if s.output == "json" && len(list.Volumes) == len(all.Volumes) { // unchanged: a newer daemon's fields are kept
		_, err := stdout.Write(body)
		return err
	}
	return s.print(stdout, list, func() error {
		if len(list.Volumes)+len(list.Findings)+len(list.RefusedCalls) == 0 && len(all.Volumes) > 0 {
			_, err := fmt.Fprintf(stdout, "None of the %d volumes on %s fits.\n", len(all.Volumes), all.Node)
			return err
		}
		return status.WriteTable(stdout, list, time.Now(), s.layout(stdout))
	})
}

// showGroups prints the selected volume groups.
func (s statusQuery) showGroups(stdout io.Writer, all status.List) error {
	groups := status.GroupList{Node: all.Node, Version: all.Version, Groups: s.OfGroups(all.Groups)}
	return s.print(stdout, groups, func() error {
		if len(groups.Groups) == 0 && len(all.Groups) > 0 {
			_, err := fmt.Fprintf(stdout, "None of the %d configured volume groups on %s fits.\n", len(all.Groups), all.Node)
			return err
		}
		return status.WriteGroups(stdout, groups, time.Now(), s.layout(stdout))
	})
}

func (s statusQuery) layout(w io.Writer) status.Layout {
	return status.Layout{Width: terminalWidth(w), Wide: s.output == "wide", Color: colors(w)}
}

// only returns the volume to show in detail: the only one that the target fits, or one that
// the daemon may know by that name. A target that is the name of a group means its table.
func (s statusQuery) only(all, list status.List) (vg, lv string, ok bool) {
	if len(list.Volumes) == 1 {
		v := list.Volumes[0]
		if s.Target == v.VG {
			return "", "", false
		}
		if v.UUID != "" {
			return "-", v.UUID, true
		}
		return v.VG, v.LV, true
	}
	if len(status.Selection{Target: s.Target}.Of(all).Volumes) > 0 { // the filters exclude it
		return "", "", false
	}
	if vg, lv, named := strings.Cut(s.Target, "/"); named {
		return vg, lv, vg != ""
	}
	return "-", s.Target, true
}

func (s statusQuery) detail(stdout io.Writer, vg, lv string) error {
	body, err := get(s.socket, "/v1/volumes/"+url.PathEscape(vg)+"/"+url.PathEscape(lv), 10*time.Second)
	if err != nil {
		return err
	}
	if s.output == "json" { // unchanged: a newer daemon's fields are kept
		_, err = stdout.Write(body)
		return err
	}
	var d status.VolumeDetail
	if err := json.Unmarshal(body, &d); err != nil {
		return fmt.Errorf("flexd's answer is not understood: %w", err)
	}
	return s.print(stdout, d, func() error { return status.WriteVolumeDetail(stdout, d, time.Now()) })
}

// print prints a document in the requested format.
func (s statusQuery) print(stdout io.Writer, doc any, text func() error) error {
	switch s.output {
	case "json":
		return status.WriteJSON(stdout, doc)
	case "yaml":
		return writeYAML(stdout, doc)
	case "name":
		_, err := io.WriteString(stdout, names(doc))
		return err
	}
	return text()
}

// names returns the names in a document, one a line.
func names(doc any) string {
	var b strings.Builder
	switch doc := doc.(type) {
	case status.List:
		for _, v := range doc.Volumes {
			b.WriteString(v.VG + "/" + v.LV + "\n")
		}
	case status.GroupList:
		for _, g := range doc.Groups {
			b.WriteString(g.Name + "\n")
		}
	case status.VolumeDetail:
		b.WriteString(doc.VG + "/" + doc.LV + "\n")
	}
	return b.String()
}

// writeYAML writes a document with the keys of its JSON.
func writeYAML(w io.Writer, doc any) error {
	var b bytes.Buffer
	if err := status.WriteJSON(&b, doc); err != nil {
		return err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(b.Bytes(), &n); err != nil {
		return err
	}
	block(&n)
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	return enc.Encode(&n)
}

// block removes JSON's style, but for empty lists.
func block(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}

// refresh is the interval of watch.
const refresh = time.Second

// watch shows the status until it is interrupted: in place on a terminal, otherwise again
// at each change.
func (s statusQuery) watch(ctx context.Context, stdout io.Writer) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	width, height := terminalSize(stdout)
	terminal := width > 0
	if terminal {
		fmt.Fprint(stdout, "\x1b[?1049h\x1b[?25l")       // another screen, without a cursor
		defer fmt.Fprint(stdout, "\x1b[?25h\x1b[?1049l") // back
	}
	last := ""
	for {
		var b strings.Builder
		target := io.Writer(&b)
		if terminal {
			target = &frame{&b, stdout}
			width, height = terminalSize(stdout)
		}
		if err := s.show(target); err != nil {
			fmt.Fprintf(&b, "flexd: %v\n", err)
		}
		switch text := b.String(); {
		case terminal:
			if _, err := io.WriteString(stdout, inPlace(text, width, height)); err != nil {
				return err
			}
		case text != last:
			if _, err := io.WriteString(stdout, text+"\n"); err != nil {
				return err
			}
			last = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
		case <-time.After(refresh):
		}
	}
}

// A frame collects the output for a terminal.
type frame struct {
	io.Writer
	terminal io.Writer
}

// inPlace replaces the screen's lines without clearing it first, which would flicker.
func inPlace(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines {
		if r := []rune(line); len(r) > width && !strings.Contains(line, "\x1b") { // the table itself fits
			lines[i] = string(r[:width])
		}
	}
	if height > 0 && len(lines) >= height {
		lines = append(lines[:max(height-2, 0)], "...")
	}
	return "\x1b[H" + strings.Join(lines, "\x1b[K\n") + "\x1b[K\x1b[J"
}

// colors reports whether the states are colored.
func colors(w io.Writer) bool {
	width, _ := terminalSize(w)
	return width > 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// terminalWidth returns 0 if w is not a terminal: a pipe gets whole lines. COLUMNS overrides it.
func terminalWidth(w io.Writer) int {
	width, _ := terminalSize(w)
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 && width > 0 {
		return n
	}
	return width
}

func terminalSize(w io.Writer) (width, height int) {
	if f, ok := w.(*frame); ok {
		w = f.terminal
	}
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Col), int(size.Row)
}
