package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/flexd/flexd/internal/flexvolume"
	"github.com/flexd/flexd/internal/kubelet"
	"github.com/flexd/flexd/internal/run"
	"golang.org/x/sys/unix"
)

// chooseAttach chooses the mode. It refuses a change while volumes are mounted, which kubelet
// would then know by other names.
func (i *installation) chooseAttach(ctx context.Context, o Options) error {
	was, err := i.mode(ctx)
	if err != nil {
		return err
	}
	inUse, err := i.mounted()
	if err != nil {
		return err
	}
	if was == "" && len(inUse) > 0 { // each volume has a global mount with attach:true, and none has one otherwise
		was = fmt.Sprint(slices.ContainsFunc(inUse, func(dir string) bool { return strings.Contains(dir, "/mounts/") }))
	}
	fits, why := "false", "kubelet leaves attaching to the controller manager, which with attach:false has nothing to do"
	if !slices.ContainsFunc(i.kubelets, func(k *kubelet.Instance) bool { return !k.Attaches() }) {
		fits, why = "true", "kubelet attaches by itself (enableControllerAttachDetach: false)"
	}
	if o.NoDaemon {
		fits, why = "true", "the controller manager attaches"
	}
	mode := o.Attach
	for _, k := range i.kubelets {
		if k.Err != nil && mode == "" && was == "" {
			return refuse("give --attach", "the settings of %s cannot be read: %v", k, k.Err)
		}
	}
	switch {
	case mode != "":
		why = "as --attach says"
	case was == "":
		mode = fits
	case was == fits:
		mode, why = was, "as before; "+why
	default:
		mode, why = was, fmt.Sprintf("as before, though %s, for which %s is meant: to change it, drain the node, then --attach=%[2]s", why, fits)
	}
	if was != "" && mode != was && len(inUse) > 0 {
		return refuse("drain the node (kubectl drain), see that these are gone, and run this again",
			"the mode cannot change from attach:%s to attach:%s while volumes are mounted, since kubelet's names of volumes depend on it:\n%s", was, mode, strings.Join(inUse, "\n"))
	}
	i.attach = mode == "true"
	i.capability = capabilities(i.initFile, i.attach)
	i.report("attach", "%s (%s)", mode, why)
	if o.NoDaemon && !i.attach {
		i.say("note: the controller manager's machine needs the driver only for nodes with attach:true")
	}
	return nil
}

// mode returns the mode of the installed driver, "" if there is none or the mode is unknown.
func (i *installation) mode(ctx context.Context) (string, error) {
	switch {
	case i.foreign:
		c, err := i.init(ctx, i.exe)
		if err != nil || c == nil {
			return "", ctx.Err()
		}
		return fmt.Sprint(c.attaches()), nil
	case !exists(i.exe) && !exists(i.initFile), exists(i.newExe) && !exists(i.newInitFile):
		return "", nil
	}
	c, err := Mode(i.initFile)
	if err != nil {
		return "", nil
	}
	return fmt.Sprint(c), nil
}

// Mode returns the attach mode in init's file.
func Mode(initFile string) (attach bool, err error) {
	text, err := kubelet.ReadFile(initFile)
	if os.IsNotExist(err) {
		return flexvolume.DefaultCapabilities().Attach, nil
	}
	if err != nil {
		return false, err
	}
	c, err := flexvolume.ParseCapabilities(text)
	return c.Attach, err
}

// capabilities returns the new text of init's file, with the other keys of the present one.
func capabilities(initFile string, attach bool) string {
	text, err := kubelet.ReadFile(initFile)
	if _, invalid := flexvolume.ParseCapabilities(text); err == nil && invalid == nil && attachKey().MatchString(text) {
		return attachKey().ReplaceAllString(text, fmt.Sprintf("${1}%t", attach))
	}
	return fmt.Sprintf("{\"attach\": %t}\n", attach)
}

// A capability has the capabilities in an answer to init.
type capability struct{ Attach *bool }

func (c *capability) attaches() bool { return c.Attach == nil || *c.Attach }

// init calls a driver's init as kubelet does, which reads stdout and stderr together and accepts only
// one JSON object. It returns nil for an answer without capabilities.
func (p *place) init(ctx context.Context, exe string) (*capability, error) {
	res, err := p.Runner.Run(ctx, run.Cmd{Step: "init", Argv: []string{exe, "init"}, Deadline: 10 * time.Second})
	out := slices.Concat(res.Stdout, res.Stderr)
	said := fmt.Sprintf("; it says %q", out[:min(len(out), 1000)])
	exit, exited := errors.AsType[*run.ExitError](err)
	switch {
	case exited:
		return nil, fmt.Errorf("exit status %d%s", exit.Code, said)
	case errors.Is(err, unix.ENOEXEC):
		return nil, errors.New("it is for another architecture, or incomplete")
	case err != nil:
		return nil, err
	}
	var answer struct {
		Status       string
		Capabilities *capability
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("not one JSON object: %w%s", err, said)
	}
	if answer.Status != flexvolume.StatusSuccess {
		return nil, fmt.Errorf("status %q%s", answer.Status, said)
	}
	return answer.Capabilities, nil
}
