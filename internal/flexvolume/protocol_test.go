package flexvolume

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// During an upgrade flexdriver and flexd are of different releases. This one reads the messages of each
// release with this version of the protocol, and its messages have all their fields.
func TestProtocol(t *testing.T) {
	text, err := os.ReadFile(fmt.Sprintf("testdata/protocol-%d.txt", Version))
	if err != nil {
		t.Fatalf("a new version of the protocol needs its lines, and flexd must answer the old one, too: %v", err)
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		about, sent, _ := strings.Cut(line, " ")
		var again []byte
		switch about {
		case ">":
			q, err := ReadRequest(strings.NewReader(sent))
			if err == nil {
				again, err = q.encode()
			}
			if err != nil {
				t.Errorf("%s%v", line, err)
				continue
			}
			known[q.Verb] = true
			parse := func() (Call, error) { return Parse(q.Verb, q.Args) }
			if q.Verb == Reclaim {
				parse = func() (Call, error) { return ParseReclaim(q.Args) }
			}
			_, withVolume, _ := signature(q.Verb)
			c, err := parse()
			if err != nil || c.Dir == "" && c.Name == "" || withVolume && (c.Options.VG != "vg0" || c.Options.LV != "data") {
				t.Errorf("%sis %+v, %v", line, c, err)
			}
		case "<":
			r, err := parseReply(strings.TrimSuffix(sent, "\n"))
			var b bytes.Buffer
			if err == nil {
				err = WriteReply(&b, r)
			}
			again = b.Bytes()
			if err != nil {
				t.Errorf("%s%v", line, err)
				continue
			}
		default:
			continue
		}
		var want, got map[string]any
		if json.Unmarshal([]byte(sent), &want) != nil || json.Unmarshal(again, &got) != nil || !has(got, want) {
			t.Errorf("%s is now\n%s", line, again)
		}
	}
	for _, verb := range []string{Attach, Detach, WaitForAttach, IsAttached, MountDevice, UnmountDevice, Mount, Unmount, ExpandFS, Reclaim} {
		if !known[verb] {
			t.Errorf("no line has %s", verb)
		}
	}
}

// has reports whether all of want is in got, which may have further keys.
func has(got, want map[string]any) bool {
	for key, w := range want {
		g := got[key]
		if object, ok := w.(map[string]any); ok {
			if g, ok := g.(map[string]any); !ok || !has(g, object) {
				return false
			}
		} else if !reflect.DeepEqual(g, w) {
			return false
		}
	}
	return true
}
