//go:build vm

package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
)

// writeImage writes an image with one executable, as an OCI archive that
// containerd imports under the name.
func writeImage(path, name, executable string) error {
	program, err := os.ReadFile(executable)
	if err != nil {
		return fmt.Errorf("%w (scripts/test-node)", err)
	}
	var layer archive
	layer.add("pod", 0o755, program)

	var image archive
	blob := func(mediaType string, data []byte) map[string]any {
		digest := fmt.Sprintf("%x", sha256.Sum256(data))
		image.add("blobs/sha256/"+digest, 0o644, data)
		return map[string]any{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(data)}
	}
	files := blob("application/vnd.oci.image.layer.v1.tar", layer.close())
	config := blob("application/vnd.oci.image.config.v1+json", document(map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/pod"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{files["digest"]}},
	}))
	manifest := blob("application/vnd.oci.image.manifest.v1+json", document(map[string]any{
		"schemaVersion": 2, "config": config, "layers": []any{files},
	}))
	manifest["annotations"] = map[string]string{"io.containerd.image.name": name}
	image.add("index.json", 0o644, document(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}}))
	image.add("oci-layout", 0o644, document(map[string]string{"imageLayoutVersion": "1.0.0"}))
	return os.WriteFile(path, image.close(), 0o644)
}

// An archive is a tar file. Written to memory, it cannot fail.
type archive struct {
	bytes bytes.Buffer
	tar   *tar.Writer
}

func (a *archive) add(name string, mode int64, data []byte) {
	if a.tar == nil {
		a.tar = tar.NewWriter(&a.bytes)
	}
	a.tar.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(data)), Typeflag: tar.TypeReg})
	a.tar.Write(data)
}

func (a *archive) close() []byte {
	a.tar.Close()
	return a.bytes.Bytes()
}

func document(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
