package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/config"
	"github.com/flexd/flexd/internal/explain"
	"github.com/flexd/flexd/internal/flexserve"
	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/status"
	"github.com/urfave/cli/v2"
)

func explainCommand(stdout io.Writer) *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "say what flexd would do or refuse for a pod or a PersistentVolume",
		ArgsUsage: "FILE|-",
		Description: "FILE has one or more manifests of Kubernetes, in YAML or JSON. Shown are the calls that kubelet would\n" +
			"make for their FlexVolumes, and what flexd would do for each. It changes nothing. If flexd does not\n" +
			"answer, the configuration alone decides, and what depends on the node's state is unknown.\n" +
			"Exit status: 0 all would be mounted; 1 something would be refused; 2 the manifest cannot be read;\n" +
			"3 something is unknown.",
		Before: atMost(1),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "namespace", Aliases: []string{"n"}, Usage: "the `NAMESPACE` of all pods, instead of the manifest's"},
			&cli.StringFlag{Name: "node", Usage: "explain for another `NODE` that has the same configuration; its state is unknown"},
			&cli.StringFlag{Name: "attach", Value: "auto", Usage: "the `MODE` of the driver: true, false, or auto, which is that of the installed driver"},
			&cli.StringFlag{Name: "plugin-dir", Usage: "kubelet's `DIRECTORY` of drivers, for --attach auto; without it, from kubelet's settings"},
			&cli.StringFlag{Name: "config", Value: config.DefaultPath, Usage: "the configuration `FILE`, if flexd does not answer"},
			outputFlag("text", "json", "yaml"),
			socketFlag(),
		},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return usage("explain: name a file, or - for the standard input; see flexd explain --help")
			}
			q := explainQuery{socket: c.String("socket"), config: c.String("config"), node: c.String("node"), attach: c.String("attach"), plugins: c.String("plugin-dir")}
			return q.run(stdout, c.Args().First(), c.String("namespace"), c.String("output"))
		},
	}
}

// An explainQuery has the sources that `flexd explain` queries.
type explainQuery struct {
	socket, config, node, attach, plugins string

	problems []string
}

func (q *explainQuery) run(stdout io.Writer, file, namespace, output string) error {
	data, name, err := readManifest(file)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	query := explain.Query{File: name, Data: data, Namespace: namespace}
	if query.Ask, err = q.source(); err != nil {
		return err
	}
	if query.Attach, err = q.mode(query.Ask); err != nil {
		return err
	}
	doc, err := explain.Explain(query)
	switch {
	case errors.As(err, new(*exitError)):
		return err
	case err != nil:
		return &exitError{exitUsage, err}
	}
	doc.Problems = append(doc.Problems, q.problems...)
	switch output {
	case "json":
		err = status.WriteJSON(stdout, doc)
	case "yaml":
		err = writeYAML(stdout, doc)
	default:
		err = status.WriteExplanation(stdout, doc)
	}
	return outcome(err, doc.Result == status.WouldRefuse, doc.Result != status.WouldSucceed)
}

// readManifest reads the file, or the standard input, and a little more than is allowed.
func readManifest(file string) (data []byte, name string, err error) {
	in, name := os.Stdin, "standard input"
	if file != "-" {
		if in, err = os.Open(file); err != nil {
			return nil, "", err
		}
		defer in.Close()
		name = file
	}
	data, err = io.ReadAll(io.LimitReader(in, explain.MaxInput+1))
	return data, name, err
}

// source returns the source of the answers: flexd, or the configuration if flexd does not answer or
// is that of another node.
func (q *explainQuery) source() (func([]string) (status.Explained, error), error) {
	about, err := q.daemon(nil)
	var why error
	switch {
	case err != nil:
		first, _, _ := strings.Cut(err.Error(), "\n")
		why = errors.New(first)
	case q.node != "" && q.node != about.Node:
		why = fmt.Errorf("flexd here manages node %s, not %s", about.Node, q.node)
	default:
		return q.daemon, nil
	}
	cfg, err := loadConfig(q.config)
	if err != nil {
		return nil, &exitError{exitUnknown, fmt.Errorf("%w\nand the configuration alone cannot be used: %w", why, err)}
	}
	if q.node != "" {
		cfg.NodeName = q.node
	}
	q.problems = append(q.problems, fmt.Sprintf("%v. The answers are from %s; what depends on the state of the node is unknown", why, q.config))
	offline := flexserve.Offline(config.NewLive(cfg), why)
	return func(calls []string) (status.Explained, error) {
		return offline.Explain(context.Background(), calls), nil
	}, nil
}

// explainTimeout is more than the daemon needs for a volume group that hangs.
const explainTimeout = 25 * time.Second

// daemon asks flexd about calls.
func (q *explainQuery) daemon(calls []string) (e status.Explained, err error) {
	body, err := get(q.socket, "/v1/explain?"+url.Values{"call": calls}.Encode(), explainTimeout)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return e, &exitError{exitUnknown, fmt.Errorf("flexd's answer is not understood: %w", err)}
	}
	return e, nil
}

// mode returns the driver's attach mode.
func (q *explainQuery) mode(ask func([]string) (status.Explained, error)) (bool, error) {
	switch q.attach {
	case "true":
		return true, nil
	case "false":
		return false, nil
	case "auto":
	default:
		return false, usage("explain: --attach is true, false or auto, not %q", q.attach)
	}
	about, err := ask(nil)
	if err != nil {
		return false, err
	}
	if q.plugins == "" {
		all, _, _ := kubelet.Find("")
		q.plugins = all[0].Inside + all[0].Plugins.Value
	}
	exe := filepath.Join(q.plugins, strings.ReplaceAll(about.Driver, "/", "~"), filepath.Base(about.Driver))
	if _, err := os.Stat(exe); err != nil {
		q.problems = append(q.problems, fmt.Sprintf("the driver's mode is not known, attach:false is assumed (--attach, --plugin-dir): %v", err))
		return false, nil
	}
	init := flexvolume.AnswerInit(exe)
	if init.Capabilities == nil {
		q.problems = append(q.problems, fmt.Sprintf("the driver's mode is not known, attach:false is assumed (--attach), and kubelet cannot use the driver: %s", init.Message))
		return false, nil
	}
	return init.Capabilities.Attach, nil
}
