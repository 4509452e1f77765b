// Command image builds a container image from a Containerfile, without a container runtime
// and always with the same bytes:
//
//	image -f Containerfile -t NAME:TAG -o FILE [-build-arg NAME=VALUE]... ARCH...
//
// FILE is an OCI archive with an image for each architecture. The Containerfile may have FROM
// scratch, ARG, COPY and ENTRYPOINT; TARGETARCH is the architecture. Paths are relative to the
// working directory. SOURCE_DATE_EPOCH is the time of all files.
package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	file := flag.String("f", "Containerfile", "")
	name := flag.String("t", "", "the name and the tag of the image")
	out := flag.String("o", "", "the archive")
	given := map[string]string{}
	flag.Func("build-arg", "NAME=VALUE", func(arg string) error {
		name, value, _ := strings.Cut(arg, "=")
		given[name] = value
		return nil
	})
	flag.Parse()
	if err := run(*file, *name, *out, given, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(file, name, out string, given map[string]string, architectures []string) error {
	if out == "" || len(architectures) == 0 || strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return errors.New("it needs -f Containerfile -t NAME:TAG -o FILE, and then the architectures")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	epoch, err := strconv.ParseInt(cmp.Or(os.Getenv("SOURCE_DATE_EPOCH"), "0"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	data, err := build(string(text), name, given, architectures, time.Unix(epoch, 0).UTC())
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := os.WriteFile(out+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(out+".new", out)
}

// A descriptor refers to a blob of the archive.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const oci = "application/vnd.oci.image."

// build returns the archive. One index names the images of all architectures, so that tools
// read the archive as one image.
func build(text, name string, given map[string]string, architectures []string, at time.Time) ([]byte, error) {
	a := newArchive(at)
	written := map[string]bool{}
	blob := func(kind string, data []byte) descriptor {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		if !written[sum] {
			written[sum] = true
			a.file("blobs/sha256/"+sum, 0o644, data)
		}
		return descriptor{MediaType: oci + kind, Digest: "sha256:" + sum, Size: len(data)}
	}
	var images []descriptor
	for _, arch := range architectures {
		given["TARGETARCH"] = arch
		layer, entrypoint, err := files(text, given, at)
		if err != nil {
			return nil, err
		}
		config := blob("config.v1+json", document(map[string]any{
			"created": at, "architecture": arch, "os": "linux",
			"config": map[string]any{"Entrypoint": entrypoint},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
		}))
		image := blob("manifest.v1+json", document(map[string]any{
			"schemaVersion": 2, "mediaType": oci + "manifest.v1+json",
			"config": config, "layers": []descriptor{blob("layer.v1.tar+gzip", compressed(layer))},
		}))
		image.Platform = map[string]string{"architecture": arch, "os": "linux"}
		images = append(images, image)
	}
	index := blob("index.v1+json", document(map[string]any{
		"schemaVersion": 2, "mediaType": oci + "index.v1+json", "manifests": images,
	}))
	index.Annotations = map[string]string{
		"io.containerd.image.name":          name,
		"org.opencontainers.image.ref.name": name[strings.LastIndex(name, ":")+1:],
	}
	a.file("index.json", 0o644, document(map[string]any{"schemaVersion": 2, "manifests": []descriptor{index}}))
	a.file("oci-layout", 0o644, document(map[string]string{"imageLayoutVersion": "1.0.0"}))
	return a.close(), nil
}

// files returns the only layer, and the entry point.
func files(text string, given map[string]string, at time.Time) (layer []byte, entrypoint []string, err error) {
	a, args := newArchive(at), map[string]string{}
	for n, line := range strings.Split(text, "\n") {
		words := strings.Fields(os.Expand(line, func(name string) string { return args[name] }))
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case len(words) == 2 && words[0] == "FROM" && words[1] == "scratch":
		case len(words) == 2 && words[0] == "ARG":
			name, value, _ := strings.Cut(words[1], "=")
			args[name] = cmp.Or(given[name], value)
		case len(words) > 2 && words[0] == "COPY" && !strings.HasPrefix(words[1], "-"):
			err = a.copy(words[1:len(words)-1], words[len(words)-1])
		case words[0] == "ENTRYPOINT":
			err = json.Unmarshal([]byte(strings.TrimPrefix(line, "ENTRYPOINT")), &entrypoint)
		default:
			err = fmt.Errorf("not implemented here: %s", line)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	return a.close(), entrypoint, nil
}

// An archive is a tar file. Written to memory, it cannot fail.
type archive struct {
	bytes bytes.Buffer
	tar   *tar.Writer
	at    time.Time
	dirs  map[string]bool
}

func newArchive(at time.Time) *archive {
	a := &archive{at: at, dirs: map[string]bool{".": true}}
	a.tar = tar.NewWriter(&a.bytes)
	return a
}

// copy is COPY: a file to a path, or files and the contents of directories to a directory, whose
// name ends in a slash.
func (a *archive) copy(from []string, to string) error {
	dest := strings.TrimPrefix(path.Clean(to), "/")
	for _, from := range from {
		err := filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := os.Stat(file)
			if err != nil {
				return err
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			name := dest
			if below, _ := filepath.Rel(from, file); below != "." {
				name = path.Join(dest, below)
			} else if strings.HasSuffix(to, "/") {
				name = path.Join(dest, path.Base(file))
			}
			mode := int64(0o644)
			if info.Mode()&0o100 != 0 {
				mode = 0o755
			}
			a.file(name, mode, data)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *archive) file(name string, mode int64, data []byte) {
	a.dir(path.Dir(name))
	a.tar.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(data)), ModTime: a.at, Typeflag: tar.TypeReg})
	a.tar.Write(data)
}

func (a *archive) dir(name string) {
	if a.dirs[name] {
		return
	}
	a.dirs[name] = true
	a.dir(path.Dir(name))
	a.tar.WriteHeader(&tar.Header{Name: name + "/", Mode: 0o755, ModTime: a.at, Typeflag: tar.TypeDir})
}

func (a *archive) close() []byte {
	a.tar.Close()
	return a.bytes.Bytes()
}

func compressed(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(data)
	w.Close()
	return b.Bytes()
}

func document(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only strings and numbers
	}
	return b
}
