package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// list lists an archive and, below it, its layers.
func list(t *testing.T, data []byte) (all []string) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		blob, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if z, err := gzip.NewReader(bytes.NewReader(blob)); err == nil {
			layer, err := io.ReadAll(z)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, list(t, layer)...)
		} else if !strings.HasPrefix(h.Name, "blobs/") {
			all = append(all, fmt.Sprintf("%o %d:%d %s %s", h.Mode, h.Uid, h.Gid, h.Name, h.ModTime.UTC().Format("2006")))
		}
	}
}

// The image has the files of the Containerfile, for each architecture, and the same bytes
// for any times and owners of the files.
func TestImage(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1000000000")
	t.Chdir(t.TempDir())
	write := func(name string, mode os.FileMode) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(name), mode), os.Chmod(name, mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("out/amd64/flexd", 0o700)
	write("out/arm64/flexd", 0o775)
	write("etc/a", 0o600)
	write("etc/b/c", 0o666)
	build := func(text string) ([]byte, error) {
		os.WriteFile("Containerfile", []byte(text), 0o600)
		if err := run("Containerfile", "localhost:5000/flexd:1", "flexd.tar", map[string]string{"BIN": "out"}, []string{"amd64", "arm64"}); err != nil {
			return nil, err
		}
		return os.ReadFile("flexd.tar")
	}
	const text = "# Comment\nFROM scratch\nARG TARGETARCH\nARG BIN=bin\nCOPY $BIN/$TARGETARCH/flexd /bin/\nCOPY etc /etc/\nCOPY etc/a /b\nENTRYPOINT [\"/bin/flexd\"]\n"
	first, err := build(text)
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"755 0:0 bin/ 2001", "755 0:0 bin/flexd 2001", "755 0:0 etc/ 2001", "644 0:0 etc/a 2001", "755 0:0 etc/b/ 2001", "644 0:0 etc/b/c 2001", "644 0:0 b 2001"}
	if got, want := list(t, first), slices.Concat(files, files, []string{"644 0:0 index.json 2001", "644 0:0 oci-layout 2001"}); !slices.Equal(got, want) {
		t.Errorf("the image has\n%s\nand not\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !bytes.Contains(first, []byte(`"io.containerd.image.name":"localhost:5000/flexd:1"`)) || !bytes.Contains(first, []byte(`"Entrypoint":["/bin/flexd"]`)) {
		t.Error("the image has no name or no entry point")
	}
	write("etc/a", 0o640)
	if again, err := build(text); err != nil || !bytes.Equal(first, again) {
		t.Errorf("the second image is another one (%v)", err)
	}
	for _, text := range []string{"FROM debian", "RUN true", "COPY --chmod=755 etc /", "COPY missing /", "ENTRYPOINT flexd"} {
		if _, err := build("FROM scratch\n" + text); err == nil || !strings.Contains(err.Error(), "Containerfile: line 2: ") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
