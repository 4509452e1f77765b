// Command demo shows two nodes, virtual machines, with one disk and one volume group: a pod's
// volume moves from one to the other, and is taken over when a node dies. Every line with a ✓
// was checked.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/flexd/flexd/test/host"
	"github.com/flexd/flexd/test/play"
	"github.com/flexd/flexd/test/shared/nodes"
)

func main() {
	nodes.Agent()
	columns := flag.Int("columns", 0, "the output ends at a terminal of that width, although it begins in a pipe")
	bin := flag.String("bin", "bin", "the directory with flexd and flexdriver")
	flag.Parse()
	os.Exit(run(*bin, *columns))
}

func run(bin string, columns int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "flexd-demo-shared-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin, _ = filepath.Abs(bin)
	d := &demo{ctx: ctx}
	d.Play = play.New(columns, d.short)
	fmt.Println("Two nodes see one disk. They are virtual machines without a network, with sanlock, wdmd and lvmlockd;")
	fmt.Println("kubelet's part is played by hand. This takes three minutes: sanlock waits for more than one of them to")
	fmt.Println("be sure that a node is dead (its io_timeout is 2 s here; by default, 10 s, it waits for two).")
	err = d.Perform(func() {
		all := nodes.New(complaints{d.Play}, dir, nodes.Settings{Nodes: 2, Bin: bin})
		d.a, d.b = all[0], all[1]
		defer nodes.Together(all, func(n *nodes.Node) { n.Kill() })
		defer context.AfterFunc(ctx, func() { nodes.Together(all, func(n *nodes.Node) { n.Kill() }) })()
		d.play()
	})
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "\ndemo: interrupted; the machines are off")
		return 130
	case err != nil:
		d.Failed(err, d.log)
		return 1
	}
	d.End()
	return 0
}

// complaints end the play when a node fails.
type complaints struct{ *play.Play }

func (complaints) Helper() {}

func (c complaints) Errorf(format string, a ...any) {
	panic(play.Broken{Claim: fmt.Sprintf(format, a...)})
}

func (complaints) Logf(string, ...any) {}

type demo struct {
	*play.Play
	ctx  context.Context
	a, b *nodes.Node
	log  string // of flexd, when a claim was broken
}

var (
	web  = host.Pod{Namespace: "default", Name: "web-0", UID: "0b1f-web"}
	data = nodes.Volume("data", "64m")
)

func (d *demo) play() {
	defer func() {
		if r := recover(); r != nil {
			for _, n := range []*nodes.Node{d.a, d.b} {
				if !n.Off() {
					out, _ := n.Try("tail -n 12 " + n.At.Log)
					d.log += n.Name + ":\n" + out
				}
			}
			panic(r)
		}
	}()
	d.group()
	d.first()
	d.move()
	d.death()
	d.comeback()
}

func (d *demo) group() {
	d.Scene("One volume group, two nodes")
	d.run(d.a, "vgs -o vg_name,vg_lock_type,vg_size svg")
	d.Say("flexd's configuration has `shared: true` for it, on both nodes. flexd starts the lockspace if nothing else has.")
	for _, n := range []*nodes.Node{d.a, d.b} {
		n.Install("")
		n.Serve()
	}
	d.run(d.b, "cat "+d.b.At.Config())
}

func (d *demo) first() {
	d.Scene("A pod on node-1 writes")
	d.mount(d.a)
	d.run(d.a, "echo hello > "+d.dir(d.a)+"/greeting")
	_, err := d.b.Try("lvchange -aey svg/data")
	d.Check(err != nil && strings.Contains(err.Error(), "locked by other host"), "the volume is active on node-1 alone: LVM refuses to activate it on node-2")
	d.run(d.a, "flexd status --groups")
}

func (d *demo) move() {
	d.Scene("The pod moves to node-2")
	d.Say("Kubernetes may start the pod there before node-1 has unmounted it. The call waits:")
	answered := d.begin(d.b)
	d.waits(d.b, "node-1")
	d.run(d.b, "flexd status svg/data | sed -n '1p;3p'")
	d.Say("Now kubelet unmounts it on node-1, where it is deactivated at once:")
	d.call(d.a, "unmount", d.dir(d.a))
	freed := time.Now()
	d.ends(d.b, answered)
	d.Check(true, "node-2 has it %.1f s after node-1 has unmounted it (in an emulated machine)", time.Since(freed).Seconds())
	d.Check(d.run(d.b, "cat "+d.dir(d.b)+"/greeting") == "hello\n", "and what the pod wrote on node-1")
	d.run(d.b, "echo from node-2 >> "+d.dir(d.b)+"/greeting; sync")
}

func (d *demo) death() {
	d.Scene("node-2 dies, and the pod starts on node-1")
	d.b.Kill()
	died := time.Now()
	d.Check(d.b.Off(), "node-2 has lost its power, with the volume mounted")
	d.Say("node-1 must not take it before it is certain that node-2 cannot write any more: its lease must have ended, and its watchdog must have had the time to reset it.")
	answered := d.begin(d.a)
	d.waits(d.a, "node-2")
	d.run(d.a, "flexd status svg/data | sed -n '1p;3p'")
	d.ends(d.a, answered)
	d.Check(true, "node-1 has it %.0f s after node-2's death, within the same call", time.Since(died).Seconds())
	d.Check(d.run(d.a, "cat "+d.dir(d.a)+"/greeting") == "hello\nfrom node-2\n", "with all that was written")
}

func (d *demo) comeback() {
	d.Scene("node-2 comes back")
	d.Check(d.b.Up(), "node-2 boots")
	d.b.Serve()
	answered := d.begin(d.b)
	d.waits(d.b, "node-1")
	d.Check(true, "it waits for node-1 as before: the volume was never mounted twice")
	d.call(d.a, "unmount", d.dir(d.a))
	d.ends(d.b, answered)
	d.call(d.b, "unmount", d.dir(d.b))
	d.Check(len(d.a.Active())+len(d.b.Active()) == 0, "no volume is active on any node")
}

func (d *demo) dir(n *nodes.Node) string { return n.At.PodDir(web, data) }

// run shows a command of the shell on a node, and returns its output.
func (d *demo) run(n *nodes.Node, command string) string {
	d.Must(d.ctx.Err())
	text := command
	if rest, ok := strings.CutPrefix(command, "flexd "); ok {
		name, args, _ := strings.Cut(rest, " ")
		text = n.At.Flexd() + " " + name + " --socket " + n.At.StatusSocket() + " " + args
	}
	out, err := n.Try(text)
	d.Must(err)
	d.Prompt = n.Name + "$ "
	d.Print(command, out)
	return out
}

// call is kubelet calling the driver on a node, which succeeds.
func (d *demo) call(n *nodes.Node, args ...string) {
	d.Must(d.ctx.Err())
	began := time.Now()
	a, err := n.Call(d.ctx, args...)
	d.Must(err)
	d.answered(n, a, time.Since(began), args)
}

func (d *demo) answered(n *nodes.Node, a host.Answer, took time.Duration, args []string) {
	d.Prompt = n.Name + "$ "
	d.Answered(a, took, args)
	if a.Status != "Success" {
		panic(play.Broken{Claim: n.Name + " answers " + a.Text})
	}
}

// A calling is a call that has no answer yet.
type calling struct {
	answer host.Answer
	err    error
	args   []string
	began  time.Time
	done   chan struct{}
}

func (d *demo) mount(n *nodes.Node) { d.ends(n, d.begin(n)) }

// begin begins a mount for the pod.
func (d *demo) begin(n *nodes.Node) *calling {
	d.Must(d.ctx.Err())
	_, err := n.Try("mkdir -p " + d.dir(n))
	d.Must(err)
	c := &calling{args: []string{"mount", d.dir(n), data.Blob(&web)}, began: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.answer, c.err = n.Call(d.ctx, c.args...)
	}()
	return c
}

// ends waits for the answer.
func (d *demo) ends(n *nodes.Node, c *calling) {
	<-c.done
	d.Must(c.err)
	d.answered(n, c.answer, time.Since(c.began), c.args)
}

// waits waits until flexd's status on a node says that another one has the volume.
func (d *demo) waits(n *nodes.Node, holder string) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		out, err := n.Try(n.At.Flexd() + " status --socket " + n.At.StatusSocket() + " svg/data")
		if err == nil && strings.Contains(out, holder) {
			return
		}
		if d.Must(d.ctx.Err()); time.Now().After(end) {
			panic(play.Broken{Claim: n.Name + " does not say that " + holder + " has the volume: " + out})
		}
	}
}

var kubernetesKey = regexp.MustCompile(`"kubernetes\.io/`)

// short leaves out what makes a line long and says nothing.
func (d *demo) short(s string) string {
	s = strings.ReplaceAll(s, "/srv/node/kubelet/", "KUBELET/")
	s = strings.ReplaceAll(s, "/srv/node/", "~/")
	s = strings.ReplaceAll(s, "/volumes/flexd~lvm/", "/…/")
	return kubernetesKey.ReplaceAllString(s, `"…/`)
}
