// Command bench measures what flexd promises about speed and rest. Each promise
// is a ratio of two things measured in the same run, turn by turn, or a limit.
// A missed goal does not change the exit status, unless -strict is given.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexd/flexd/test/host"
)

// A goal is a line of the result.
type goal struct {
	what     string
	want     string
	measured string
	met      bool
}

// A part is a group of measurements.
type part struct {
	name    string
	measure func(context.Context) ([]goal, error)
}

func main() {
	strict := flag.Bool("strict", false, "exit with 1 if a goal is missed")
	runs := flag.Int("runs", 400, "how often each program is started")
	rest := flag.Duration("rest", time.Minute, "how long flexd is watched at rest")
	vm := flag.Bool("vm", false, "measure on real LVM, in a virtual machine with the disk of scripts/vm.d/volumes")
	only := flag.String("only", "", "measure only the parts whose name contains this")
	rounds := flag.Int("rounds", 5, "with -vm, how often 200 volumes are activated each way, and single ones")
	flag.Parse()
	if flag.Arg(0) == hostileChild {
		attack(flag.Arg(1))
		return
	}
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")

	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "bench: flexd makes block devices and mounts: run this as root")
		os.Exit(1)
	}
	// What others mount meanwhile is none of our business, nor ours theirs.
	if os.Getenv(inside) == "" {
		os.Exit(insideNamespace(os.Stdout, os.Args[1:]...))
	}
	if err := host.Alone(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if flag.Arg(0) == tableChild {
		if err := measureTable(flag.Arg(1)); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var goals []goal
	parts := []part{
		{"Calls, the whole process as kubelet starts it", onNode(func(ctx context.Context, n *host.Node) ([]goal, error) { return calls(ctx, n, *runs) })},
		{"1,000 volumes among 10,000 mounts", table},
		{"Calls among 10,000 mounts of others", onNode(foreign)},
		{"Calls beside hostile clients of the status socket", onNode(func(ctx context.Context, n *host.Node) ([]goal, error) { return hostile(ctx, n, *runs) })},
		{"flexd at rest with 1,000 claims", onNode(func(ctx context.Context, n *host.Node) ([]goal, error) { return idle(ctx, n, *rest) })},
	}
	if *vm {
		parts = []part{
			{"200 volumes at once", func(ctx context.Context) ([]goal, error) { return together(ctx, *rounds) }},
			{"The first call for a volume", func(ctx context.Context) ([]goal, error) { return first(ctx, *rounds) }},
		}
	}
	for _, part := range parts {
		if !strings.Contains(part.name, *only) {
			continue
		}
		fmt.Printf("%s\n", part.name)
		g, err := part.measure(ctx)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		goals = append(goals, g...)
		fmt.Println()
	}
	if !print(goals) && *strict {
		os.Exit(1)
	}
}

// onNode runs a measurement on a new node with flexd.
func onNode(measure func(context.Context, *host.Node) ([]goal, error)) func(context.Context) ([]goal, error) {
	return func(ctx context.Context) (goals []goal, err error) {
		n, err := host.New("bin", time.Hour)
		if err != nil {
			return nil, err
		}
		defer func() {
			if cerr := n.Close(); err == nil {
				err = cerr
			}
		}()
		if err := os.Mkdir(n.Run, 0o755); err != nil {
			return nil, err
		}
		if err := unix.Mount("tmpfs", n.Run, "tmpfs", 0, ""); err != nil { // as on a node
			return nil, err
		}
		if err := n.Start(); err != nil {
			return nil, err
		}
		return measure(ctx, n)
	}
}

// inside is set in the environment of the process that insideNamespace starts.
const inside = "FLEXD_BENCH_INSIDE"

// insideNamespace runs this program again in a mount namespace of its own, and
// returns its exit status.
func insideNamespace(stdout io.Writer, args ...string) int {
	signal.Ignore(syscall.SIGINT) // of a terminal: the other one receives it too, and cleans up
	return host.Again(stdout, args, inside+"=1")
}

// print prints the results, and returns whether all goals are met.
func print(goals []goal) bool {
	all := true
	fmt.Printf("%-52s %-12s %-24s\n", "", "goal", "measured")
	for _, g := range goals {
		word := "PASS"
		if !g.met {
			word, all = "MISS", false
		}
		fmt.Printf("%-52s %-12s %-24s %s\n", g.what, g.want, g.measured, word)
	}
	return all
}

// Samples are durations of one thing.
type samples []time.Duration

// at returns a quantile.
func (s samples) at(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[int(q*float64(len(sorted)-1))]
}

func (s samples) median() time.Duration { return s.at(0.5) }

// show prints the samples' quantiles.
func (s samples) show(what string) {
	fmt.Printf("  %-44s median %8v   10%% %8v   90%% %8v   n %d\n", what, round(s.median()), round(s.at(0.1)), round(s.at(0.9)), len(s))
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(time.Microsecond)
	}
	return d.Round(10 * time.Microsecond)
}

func ratio(a, b samples) float64 { return float64(a.median()) / float64(b.median()) }

// turnByTurn returns the median of the ratios of each turn, for turns so long that the machine's speed
// changes between them.
func turnByTurn(a, b samples) float64 {
	var all []float64
	for i := range a {
		all = append(all, float64(a[i])/float64(b[i]))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// atMost and atLeast make goals of ratios.
func atMost(what string, limit, got float64) goal {
	return goal{what, fmt.Sprintf("≤ %gx", limit), fmt.Sprintf("%.2fx", got), got <= limit}
}

func atLeast(what string, limit, got float64) goal {
	return goal{what, fmt.Sprintf("≥ %gx", limit), fmt.Sprintf("%.1fx", got), got >= limit}
}
