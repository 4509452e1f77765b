package flexvolume

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

func TestRequest(t *testing.T) {
	q := Request{V: 1, ID: "ab12", Verb: "mount", Args: []string{podDir, `{"a":"<b>\u0000\n\"\\"}`, "", "ä😀\x00\x1f\x7f"}, Started: 1 << 60, Parent: 42}
	line, err := q.encode()
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(line, []byte("\n")); n != 1 || !bytes.HasSuffix(line, []byte("}\n")) {
		t.Errorf("%d newlines in %q", n, line)
	}
	var std Request
	if err := json.Unmarshal(line, &std); err != nil || !reflect.DeepEqual(std, q) {
		t.Errorf("encoding/json reads %+v, %v", std, err)
	}
	got, err := ReadRequest(iotest.OneByteReader(bytes.NewReader(line)))
	if err != nil || !reflect.DeepEqual(got, q) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestRequestTrouble(t *testing.T) {
	const good = `{"v":1,"id":"ab12","verb":"unmount","args":["/x"],"started":5,"parent":1}`
	if q, err := ReadRequest(strings.NewReader(strings.Replace(good, `"v":1`, `"later":[{"a":-1.5e3,"b":null}],"v":1`, 1) + "\n")); err != nil || q.Verb != "unmount" {
		t.Errorf("a key of a later release: %+v, %v", q, err)
	}
	for _, tt := range []struct{ line, want string }{
		{"", "EOF"},
		{good, "unexpected EOF"},
		{good[:20], "unexpected EOF"},
		{"\n", "not a JSON object at byte 0"},
		{"GET / HTTP/1.1\n", "not a JSON object at byte 0"},
		{good + " {}\n", "text after the JSON value at byte 74"},
		{good + "\n" + good, "text after the end of the message"},
		{strings.Replace(good, `"v":1`, `"v":2`, 1) + "\n", "protocol version 2 where 1 is spoken: flexdriver and flexd are of different releases"},
		{strings.Replace(good, `"v":1,`, ``, 1) + "\n", "protocol version 0 where 1 is spoken: flexdriver and flexd are of different releases"},
		{strings.Replace(good, `"v":1`, `"v":"1"`, 1) + "\n", `key "v": not a whole number at byte 5`},
		{strings.Replace(good, `"v":1`, `"v":1,"v":1`, 1) + "\n", `the key "v" is given twice`},
		{strings.Replace(good, `"id":"ab12",`, ``, 1) + "\n", "the request has no id"},
		{strings.Replace(good, `ab12`, `a\nb`, 1) + "\n", `key "id": a malformed call id at byte 18`},
		{strings.Replace(good, `"verb":"unmount",`, ``, 1) + "\n", "the request has no verb"},
		{strings.Replace(good, `"args":["/x"],`, ``, 1) + "\n", "the request has no args"},
		{strings.Replace(good, `["/x"]`, `[1]`, 1) + "\n", `key "args": not a JSON string at byte 44`},
		{strings.Replace(good, `["/x"]`, `"/x"`, 1) + "\n", `key "args": not a JSON array at byte 43`},
		{strings.Replace(good, `:5`, `:5.5`, 1) + "\n", `the JSON object is cut off or malformed after the key "started" at byte 61`},
		{strings.Replace(good, `/x`, "\xff", 1) + "\n", `key "args": invalid UTF-8 at byte 46`},
		{`{"x":` + strings.Repeat("[", 1000) + "\n", `key "x": JSON nested too deeply at byte 38`},
		{strings.Repeat(" ", MaxLine) + "\n", ErrTooLong.Error()},
		{strings.Repeat("x", MaxLine-1), "unexpected EOF"},
	} {
		q, err := ReadRequest(strings.NewReader(tt.line))
		if err == nil || err.Error() != tt.want {
			t.Errorf("%.90q: got %+v, %v\nwant %s", tt.line, q, err, tt.want)
		}
	}
	q, err := ReadRequest(strings.NewReader(strings.Replace(good, `"v":1`, `"v":7`, 1) + "\n"))
	var version *VersionError
	if !errors.As(err, &version) || version.Got != 7 || q.ID != "ab12" {
		t.Errorf("another version: %+v, %v", q, err)
	}
	if _, err := (Request{ID: "a", Verb: "mount", Args: []string{"/x", "\xff"}}).encode(); err == nil || err.Error() != "argument 2 is not valid UTF-8" {
		t.Error(err)
	}
	for _, long := range []string{strings.Repeat("x", MaxLine), strings.Repeat("\"", MaxLine/2), strings.Repeat("x", 5*MaxLine)} {
		if _, err := (Request{ID: "a", Verb: "mount", Args: []string{long}}).encode(); err != ErrTooLong {
			t.Error(err)
		}
	}
}

func TestReply(t *testing.T) {
	for _, a := range []Answer{
		Success(), Failure("no: \"x\" <&> ä"), {Status: StatusSuccess, Device: "/dev/vg/lv"}, {Status: StatusSuccess, Attached: new(true)},
		{Status: StatusSuccess, Message: "fine", Attached: new(bool), Capabilities: &Capabilities{FSGroup: true}},
	} {
		want := Reply{V: 1, ID: "ab12", Answer: a}
		var b bytes.Buffer
		if err := WriteReply(&b, want); err != nil {
			t.Fatal(err)
		}
		got, err := parseReply(strings.TrimSuffix(b.String(), "\n"))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	for _, tt := range []struct{ line, want string }{
		{"oops", "not a JSON object at byte 0"},
		{`{"v":1,"id":"a"}`, "an answer without a known status"},
		{`{"v":1,"id":"a","answer":{"status":"success"}}`, "an answer without a known status"},
		{`{"v":1,"id":"a","answer":{"status":"Success","attached":"true"}}`, `key "answer": neither true nor false at byte 56`},
		{`{"v":2,"id":"a","answer":{"status":"Success"}}`, "protocol version 2 where 1 is spoken: flexdriver and flexd are of different releases"},
	} {
		if r, err := parseReply(tt.line); err == nil || err.Error() != tt.want {
			t.Errorf("%q: got %+v, %v", tt.line, r, err)
		}
	}
}

func TestAnswerEncode(t *testing.T) {
	c, no := DefaultCapabilities(), false
	for want, a := range map[string]Answer{
		`{"status":"Success"}`:                                              Success(),
		`{"status":"Not supported"}`:                                        NotSupported(),
		`{"status":"Failure","message":"a <b> & \"c\""}`:                    Failure(" a\n<b>\t& \"c\"\x00 "),
		`{"status":"Failure","message":"no reason given"}`:                  Failure("\n"),
		`{"status":"Success","device":"/dev/vg/lv"}`:                        {Status: StatusSuccess, Device: "/dev/vg/lv"},
		`{"status":"Success","attached":false}`:                             {Status: StatusSuccess, Attached: &no},
		`{"status":"Failure","message":"set by hand"}`:                      {Status: StatusFailure, Message: "set\nby hand"},
		`{"status":"Success","capabilities":` + string(c.append(nil)) + `}`: {Status: StatusSuccess, Capabilities: &c},
	} {
		if got := string(a.Encode()); got != want+"\n" {
			t.Errorf("got %s want %s", got, want)
		}
	}
}

func TestFailureIsBounded(t *testing.T) {
	for _, text := range []string{strings.Repeat("a", 900), strings.Repeat("ä", 450)} {
		if m := Failure(text).Message; len(m) != 900 || strings.HasSuffix(m, "...") {
			t.Errorf("%d bytes: %.20q", len(m), m)
		}
	}
	for _, text := range []string{strings.Repeat("a", 901), strings.Repeat("ä", 451), "a" + strings.Repeat("😀", 9000), strings.Repeat("\xff ", 1<<20)} {
		m := Failure(text).Message
		if len(m) > 900 || len(m) < 897 || !strings.HasSuffix(m, "...") || !utf8.ValidString(m) {
			t.Errorf("%d bytes: ...%.20q", len(m), m[len(m)-20:])
		}
	}
}

func TestCapabilities(t *testing.T) {
	c, err := ParseCapabilities("{\"attach\": false}\n")
	if want := (Capabilities{SELinuxRelabel: true, SupportsMetrics: true, FSGroup: true, RequiresFSResize: true}); err != nil || c != want {
		t.Errorf("%+v, %v", c, err)
	}
	if back, err := ParseCapabilities(string(c.Encode())); err != nil || back != c {
		t.Errorf("%+v, %v", back, err)
	}
	for _, text := range []string{"", "null", "{", `{"attach":null}`, `{"attach":"false"}`, `{"atach":false}`, `{"attach":true}x`, `{"attach":true,"attach":false}`} {
		if c, err := ParseCapabilities(text); err == nil {
			t.Errorf("%q: %+v", text, c)
		}
	}
}
