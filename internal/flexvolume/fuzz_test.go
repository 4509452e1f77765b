package flexvolume

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// An accepted blob means the same to encoding/json, and has only words of the allow-lists. A refusal has one
// line.
func FuzzParseOptions(f *testing.F) {
	f.Add(blob("size", "1.5Gi", KeyMkfsOptions, "-m 0 -E stride=1,nodiscard", KeyMountOptions, "ro,noatime,commit=5"))
	f.Add(blob("kubernetes.io/fsType", "xfs", KeyMkfsOptions, "-Kf", KeyMountOptions, "logdev=x"))
	f.Add(blob("kubernetes.io/fsType", "btrfs", KeyMkfsOptions, "-d dup", KeyMountOptions, "compress=zstd:3"))
	f.Add(`{"kubernetes.io/secret/x":"c2VjcmV0","kubernetes.io/fsGroup":"1","a":{"b":[1]}}`)
	f.Add("{\"volumeID\":\"\\ud83d\\ude00\xff\"}")
	f.Fuzz(func(t *testing.T, text string) {
		o, err := ParseOptions(text)
		if err != nil {
			if !IsPrintable(err.Error()) || len(err.Error()) > 400 {
				t.Errorf("%d bytes of error: %q", len(err.Error()), err)
			}
			return
		}
		var std map[string]string
		if err := json.Unmarshal([]byte(text), &std); err != nil {
			t.Fatalf("encoding/json refuses: %v", err)
		}
		if o.VG != std[KeyVG] || o.LV != std[KeyLV] || o.FSType != std[keyFSType] || o.Name != std[keyName] || o.Pod.UID != std[keyPodUID] {
			t.Errorf("%+v is not %q", o, std)
		}
		if o.Size < 0 || std[KeySize] == "" != (o.Size == 0) {
			t.Errorf("size %d of %q", o.Size, std[KeySize])
		}
		for i, w := range o.MkfsOptions {
			isFlag := len(w) == 2 && w[0] == '-'
			if w == "" || strings.ContainsAny(w, "/ \\'\"`$;|&\x00\n") || w[0] == '-' && !isFlag || i == 0 && !isFlag {
				t.Errorf("mkfs word %q of %q", w, o.MkfsOptions)
			}
		}
		for _, w := range append(append([]string{}, o.Attrs...), o.Super...) {
			if w == "" || strings.ContainsAny(w, ",/ \\'\"`$;|&-\x00\n") && w != "errors=remount-ro" && !strings.HasPrefix(w, "compress-force=") {
				t.Errorf("mount word %q", w)
			}
		}
	})
}

func FuzzReadRequest(f *testing.F) {
	f.Add([]byte(`{"v":1,"id":"ab12","verb":"unmount","args":["/x"],"started":5,"parent":1}` + "\n"))
	f.Add([]byte(`{"v":2,"id":"ab12","x":[{"y":-0.1e+5},null,true]}` + "\n"))
	f.Fuzz(func(t *testing.T, line []byte) {
		q, err := ReadRequest(bytes.NewReader(line))
		if err != nil {
			return
		}
		var std Request
		if err := json.Unmarshal(line, &std); err != nil {
			t.Fatalf("encoding/json refuses: %v", err)
		}
		again, err := q.encode()
		if err == ErrTooLong { // escapes may be longer than what was read
			return
		} else if err != nil {
			t.Fatal(err)
		}
		back, err := ReadRequest(bytes.NewReader(again))
		if err != nil || !reflect.DeepEqual(back, q) {
			t.Errorf("%+v became %+v, %v", q, back, err)
		}
	})
}

func FuzzParseReply(f *testing.F) {
	f.Add(`{"v":1,"id":"a","answer":{"status":"Success","device":"/dev/x","attached":true,"capabilities":{"attach":false}}}`)
	f.Add(`{"v":1,"id":"a","answer":{"status":"Failure","message":"\u0000\ud83d\ude00"}}`)
	f.Fuzz(func(t *testing.T, line string) {
		r, err := parseReply(line)
		if err != nil {
			return
		}
		if !json.Valid([]byte(line)) {
			t.Fatalf("not JSON: %q", line)
		}
		onlyJSON(t, r.Answer.Encode())
	})
}

func FuzzFailure(f *testing.F) {
	f.Add("mkfs failed:\n\x1b[31mno\xff\u2028 space")
	f.Add(strings.Repeat("ä", 1000))
	f.Fuzz(func(t *testing.T, text string) {
		a := Failure(text)
		if m := a.Message; m == "" || len(m) > MaxMessage || !IsPrintable(m) || Failure(m).Message != m {
			t.Errorf("%d bytes: %q", len(m), m)
		}
		line := a.Encode()
		onlyJSON(t, line)
		var std struct{ Status, Message string }
		if err := json.Unmarshal(line, &std); err != nil || std.Message != a.Message || std.Status != StatusFailure {
			t.Errorf("encoding/json reads %+v, %v", std, err)
		}
	})
}

// onlyJSON checks that line is one JSON object and a newline.
func onlyJSON(t *testing.T, line []byte) {
	t.Helper()
	if !json.Valid(line) || line[0] != '{' || bytes.IndexByte(line, '\n') != len(line)-1 || !utf8.Valid(line) {
		t.Errorf("not one line of JSON: %q", line)
	}
}
