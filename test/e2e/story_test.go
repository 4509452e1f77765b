package e2e

import (
	"encoding/json"
	"fmt"
)

type (
	volumeStatus struct {
		VG, LV, UUID, State, Step, Device, Filesystem string

		Size     int64
		Pods     []podStatus
		Error    *struct{ Step, Message, CallID string }
		Claims   []claimStatus
		Lease    *struct{ Live bool }
		Observed []struct{ Name, Value string }
		Plan     []string
		Refused  []string
		History  []struct {
			Step, Error string
			CallIDs     []string
		}
	}
	podStatus   struct{ Namespace, Name, UID, Dir string }
	claimStatus struct {
		Kind, Phase, Dir, Note string
		Mounted                bool
	}
	listStatus struct {
		Node          string
		Volumes       []volumeStatus
		Problems      []string
		Disagreements []disagreement
	}
	disagreement struct{ Class, VG, LV, UUID, Message, Hint string }
)

// show is `flexd status`.
func (h *host) show(args ...string) string {
	h.t.Helper()
	out, err := h.Status(args...)
	if err != nil {
		h.t.Error(err)
	}
	return out
}

// release is `flexd release`; it returns what it says and its exit status.
func (h *host) release(args ...string) (string, int) {
	return h.client("release", args...)
}

// check is `flexd check`; it returns what it says and its exit status.
func (h *host) check() (string, int) { return h.client("check") }

func (h *host) client(command string, args ...string) (string, int) {
	c := h.Client(command, args...)
	out, _ := c.CombinedOutput()
	return string(out), c.ProcessState.ExitCode()
}

// list is `flexd status -o json`.
func (h *host) list() (l listStatus) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(h.show("-o", "json")), &l); err != nil {
		h.t.Errorf("flexd status -o json: %v", err)
	}
	return l
}

// story is what `flexd status vg0/LV -o json` prints, without its process.
func (h *host) story(lv string) (s volumeStatus) {
	h.t.Helper()
	return h.storyOf("vg0/" + lv)
}

// storyOf is that of any volume: VG/LV, or -/UUID.
func (h *host) storyOf(volume string) (s volumeStatus) {
	h.t.Helper()
	body, err := h.Get("/v1/volumes/" + volume)
	if err == nil {
		err = json.Unmarshal([]byte(body), &s)
	}
	if err != nil {
		h.t.Errorf("status of %s: %v", volume, err)
	}
	return s
}

// state waits until the volume is in the state.
func (h *host) state(lv, want string) {
	h.t.Helper()
	h.eventually("vg0/"+lv+" is "+want, func() string {
		s := h.story(lv)
		if s.State == want {
			return ""
		}
		return fmt.Sprintf("%+v", s)
	})
}
