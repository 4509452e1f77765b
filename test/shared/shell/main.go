// Command shell boots nodes with a shared volume group, for work by hand: each line of its input
// is a command for one of them. See docs/vm.md.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/flexd/flexd/test/shared/nodes"
)

const usage = `A line is N COMMAND: a command of the shell, in node N. Others are N pause, N continue, N kill
(a power cut), N up (boots it again), N join (starts the lockspace), and of the shared disk N lose
(errors), N hang, N find. With a & at its end, the next line does not wait for it.
`

func main() {
	nodes.Agent()
	number := flag.Int("n", 2, "nodes")
	timeout := flag.Int("o", 2, "sanlock's io_timeout")
	bin := flag.String("bin", "", "a directory with flexd and flexdriver, to be kept in the machines' memory")
	flag.Parse()
	if err := run(nodes.Settings{Nodes: *number, IOTimeout: *timeout, Bin: *bin}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// output prints failures.
type output struct{}

func (output) Helper() {}

func (output) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (o output) Logf(format string, args ...any) { o.Errorf(format, args...) }

func run(s nodes.Settings) error {
	dir, err := os.MkdirTemp("", "flexd-nodes-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	all := nodes.New(output{}, dir, s)
	defer nodes.Together(all, func(n *nodes.Node) { n.Kill() })
	fmt.Print(usage)
	lines := make(chan string)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
		close(lines)
	}()
	for {
		select {
		case line, more := <-lines:
			if !more {
				return nil
			}
			if line, background := strings.CutSuffix(strings.TrimSpace(line), "&"); background {
				go do(ctx, all, line)
			} else {
				do(ctx, all, line)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// do does what a line says.
func do(ctx context.Context, all []*nodes.Node, line string) {
	number, command, _ := strings.Cut(line, " ")
	if number == "" {
		return
	}
	id, err := strconv.Atoi(number)
	if err != nil || id < 1 || id > len(all) {
		fmt.Print(usage)
		return
	}
	n := all[id-1]
	switch strings.TrimSpace(command) {
	case "pause":
		err = n.Pause()
	case "continue":
		err = n.Continue()
	case "kill":
		n.Kill()
	case "up":
		n.Up()
	case "join":
		n.Join()
	case "lose":
		n.Lose()
	case "hang":
		n.Hang()
	case "find":
		n.Find()
	default:
		var r nodes.Result
		r, err = n.Run(ctx, "bash", "-c", command)
		fmt.Printf("%s# %s\n%s%s", n.Name, command, r.Stdout, r.Stderr)
		if r.Status != 0 {
			fmt.Printf("%s: status %d\n", n.Name, r.Status)
		}
	}
	if err != nil {
		fmt.Println(err)
	}
}
