package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/history"
	"github.com/flexd/flexd/internal/status"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

func eventsCommand(stdout, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "events",
		Usage:     "show what happened to volumes, also before flexd's last start",
		ArgsUsage: "[VG | VG/LV | LV | UUID | NAMESPACE/POD | POD-UID | DEVICE | DIRECTORY]",
		Description: "The oldest event comes first. Failures that repeat are counted. A time without a date is of today.\n" +
			"flexd logs CALLID shows one call.",
		Before: atMost(1),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "show new events until interrupted"},
			&cli.StringFlag{Name: "since", Usage: "show events since `TIME`: 90m, 2d, 15:04, 2006-01-02, \"2006-01-02 15:04\""},
			&cli.IntFlag{Name: "lines", Aliases: []string{"n"}, Usage: "show the last `N` events, 0 = all; default: 100, 10 with -f, all with --since"},
			outputFlag("text", "json"),
			socketFlag(),
			stateDirFlag(),
		},
		Action: func(c *cli.Context) error {
			q := eventsQuery{stateDir: c.String("state-dir"), socket: c.String("socket"), output: c.String("output"), target: c.Args().First(), lines: c.Int("lines"), stderr: stderr}
			q.target = resolve(strings.TrimPrefix(q.target, "-/"))
			switch {
			case q.lines < 0:
				return usage("events: -n must not be negative")
			case c.IsSet("lines"):
			case c.Bool("follow"):
				q.lines = 10
			case !c.IsSet("since"):
				q.lines = 100
			}
			if text := c.String("since"); text != "" {
				var err error
				if q.since, err = status.ParseSince(text, time.Now()); err != nil {
					return usage("events: --since %w", err)
				}
			}
			if c.Bool("follow") && q.stateDir != "" {
				return usage("events: -f needs a daemon, --state-dir is without one")
			}
			if c.Bool("follow") {
				return q.follow(c.Context, stdout)
			}
			return q.show(stdout)
		},
	}
}

func logsCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "show what one call of kubelet waited for, and its answer",
		ArgsUsage: "CALLID",
		Description: "CALLID is in flexd events, in flexd status and in flexd's log (call=). The id in brackets in kubelet's event\n" +
			"stands for the last call with that answer.",
		Before: atMost(1),
		Flags:  []cli.Flag{outputFlag("text", "json"), socketFlag(), stateDirFlag()},
		Action: func(c *cli.Context) error {
			id := strings.Trim(c.Args().First(), "[]")
			if id == "" {
				return usage("logs: name a call, such as flexd events shows; see flexd logs --help")
			}
			return eventsQuery{socket: c.String("socket"), stateDir: c.String("state-dir"), output: c.String("output")}.call(stdout, id)
		},
	}
}

// stateDirFlag is for a node whose daemon does not run.
func stateDirFlag() *cli.StringFlag {
	return &cli.StringFlag{Name: "state-dir", Usage: "read the history in `DIR`, such as " + config.Default().StateDir + ", without a daemon"}
}

// An eventsQuery has the arguments of `flexd events`.
type eventsQuery struct {
	socket, stateDir, output, target string
	since                            time.Time
	lines                            int // 0 = all
	stderr                           io.Writer
}

func (q eventsQuery) show(stdout io.Writer) error {
	doc, err := q.get()
	if err != nil {
		return err
	}
	if q.output == "json" {
		return status.WriteJSON(stdout, doc)
	}
	return status.WriteEvents(stdout, doc, time.Now())
}

// get asks for the events, as often as they are too many for one answer.
func (q eventsQuery) get() (all status.Events, err error) {
	for one := (status.EventQuery{Target: q.target, Since: q.since, Limit: q.lines}); ; {
		doc, err := q.ask(one)
		if err != nil {
			return all, err
		}
		if one.Before == 0 {
			all = doc
		} else {
			all.Events = append(doc.Events, all.Events...)
			all.More, all.Oldest = doc.More, doc.Oldest
		}
		i := slices.IndexFunc(doc.Events, func(e status.Event) bool { return e.ID > 0 })
		if one.Limit = q.lines - len(all.Events); !doc.More || i < 0 || q.lines > 0 && one.Limit <= 0 {
			return all, nil
		}
		one.Limit, one.Before = max(one.Limit, 0), doc.Events[i].ID
	}
}

// ask gets one answer, from the daemon or from the files.
func (q eventsQuery) ask(one status.EventQuery) (doc status.Events, err error) {
	if q.stateDir != "" {
		return history.Read(context.Background(), q.stateDir, one)
	}
	body, err := get(q.socket, "/v1/events?"+one.Values().Encode(), checkTimeout)
	if exit, ok := errors.AsType[*exitError](err); ok && exit.code == exitUnknown {
		exit.err = fmt.Errorf("%w\nthe history without a daemon: --state-dir %s", exit.err, config.Default().StateDir)
	}
	if err != nil {
		return doc, err
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return doc, fmt.Errorf("flexd's answer is not understood: %w", err)
	}
	return doc, nil
}

// follow shows the last events, and new ones until it is interrupted. If flexd restarts, it continues
// with the next flexd.
func (q eventsQuery) follow(ctx context.Context, stdout io.Writer) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	doc, err := q.get()
	if err != nil {
		return err
	}
	width, _ := terminalSize(stdout)
	table := status.EventTable{Dated: width == 0, Follow: true} // a pipe does not show that a day ends
	print := func(events ...status.Event) error {
		if q.output == "json" {
			for _, e := range events {
				if err := json.NewEncoder(stdout).Encode(e); err != nil {
					return &outputError{err}
				}
			}
			return nil
		}
		if err := table.Write(stdout, events, time.Now()); err != nil {
			return &outputError{err}
		}
		return nil
	}
	events := slices.DeleteFunc(doc.Events, func(e status.Event) bool { return e.ID == 0 }) // they come again
	if err := print(events...); err != nil {
		return err
	}
	last, away := doc.Last, false
	for {
		err := q.stream(ctx, last, func(e status.Event) error {
			if away {
				away = false
				fmt.Fprintln(q.stderr, "flexd: connected again")
			}
			last = max(last, e.ID)
			return print(e)
		})
		var refused *exitError
		var out *outputError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &out):
			return out.error
		case errors.As(err, &refused) && refused.code == exitFailed:
			return err
		case !away:
			away = true
			text := "the connection has ended"
			if refused != nil {
				text = refused.Error()
			}
			fmt.Fprintf(q.stderr, "flexd: %s; waiting for flexd\n", text)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

// An outputError is an error of the command's own output, not of the daemon.
type outputError struct{ error }

// stream calls each with the events after the one with that id, until the daemon ends.
func (q eventsQuery) stream(ctx context.Context, after uint64, each func(status.Event) error) error {
	v := status.EventQuery{Target: q.target, After: after}.Values()
	v.Set("follow", "true")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://flexd/v1/events?"+v.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := client(q.socket, 0).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return refusal(resp, body)
	}
	r := bufio.NewReader(resp.Body)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return err
		}
		var e status.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("flexd's answer is not understood: %w", err)
		}
		if err := each(e); err != nil {
			return err
		}
	}
}

// call prints the events of one call.
func (q eventsQuery) call(stdout io.Writer, id string) error {
	doc, err := q.ask(status.EventQuery{Call: id})
	if err != nil {
		return err
	}
	if len(doc.Events)+len(doc.Waiting) == 0 {
		text := "the history has no call " + id
		if !doc.Oldest.IsZero() {
			text += "; it begins " + doc.Oldest.Local().Format(time.DateTime)
		}
		text += "\na call that changed nothing, such as isattached, is not recorded; flexd's log may have it: journalctl -u flexd -g " + id
		for _, p := range doc.Problems {
			text += "\n" + p
		}
		return errors.New(text)
	}
	if q.output == "json" {
		return status.WriteJSON(stdout, doc)
	}
	return status.WriteCall(stdout, id, doc, time.Now())
}
